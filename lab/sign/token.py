"""Keys in PKCS#11 tokens, named by a URI in place of a file's path; the private half never leaves the token.

    pkcs11:token=LABEL;object=KEY?module-path=/usr/lib/softhsm/libsofthsm2.so

The passphrase is the user PIN. Ed25519 only: PKCS#11 has no ML-DSA that tokens share yet, so a hybrid role's second key
is a file. A session is opened for each use and closed after it. Needs the `python-pkcs11` package.
Sources: RFC 7512 (the URI), PKCS#11 v3.0 §2.3.5 (CKM_EDDSA), RFC 8032 §5.1.5 (the point's 32 bytes).
"""

from __future__ import annotations

import contextlib
import errno
import importlib
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import unquote

from lab.refusal import LabRefusal, LabRefused
from lab.sign.keygen import write_public
from signing.keys import RAW_KEY_BYTES, SPKI_PREFIX, Algorithm, PublicKey, load_public_key
from signing.refusal import RefusalCode, Refused, shown

SCHEME: Final = "pkcs11:"
_URI: Final = re.compile(r"pkcs11:token=([^;?]+);object=([^;?]+)\?module-path=([^&]+)")
_OCTET_STRING: Final = bytes((0x04, RAW_KEY_BYTES[Algorithm.ED25519]))
_ED25519_OID: Final = "1.3.101.112"
_PIN_TODO: Final = "Put the token's user PIN in the first line of the file that --passphrase-file names."
_TODO: Final = {  # by the exception of python-pkcs11
    "NoSuchToken": "Check the label after token= and that the token is plugged in (SoftHSM: SOFTHSM2_CONF).",
    "NoSuchKey": "Check the label after object=, or make the key with `fenced-lab keygen`.",
    **dict.fromkeys(("PinIncorrect", "PinLenRange", "PinInvalid", "UserNotLoggedIn"), _PIN_TODO),
    "PinLocked": "Too many wrong PINs: have the token's security officer unlock it.",
}
_TODO_ELSE: Final = "Check the library after module-path=, the token and its PIN."


@dataclass(frozen=True)
class TokenUri:
    """Where a key is: the token's label, the key's label, and the path of the token's PKCS#11 library."""

    token: str
    key: str
    module_path: str

    def __str__(self) -> str:
        """The key as messages name it."""
        return f"key {shown(self.key)} of token {shown(self.token)}"


@dataclass(frozen=True)
class TokenSigner:
    """A signer whose private key stays in its token."""

    key: PublicKey
    _uri: TokenUri
    _pin: str | None

    def sign(self, message: bytes) -> bytes:
        """Return the raw signature over `message`, made inside the token. Raises Refused(BAD_PRIVATE_KEY)."""
        pkcs11 = _library()
        with _session(self._uri, self._pin) as session:
            private = session.get_key(object_class=pkcs11.ObjectClass.PRIVATE_KEY, label=self._uri.key)
            return bytes(private.sign(message, mechanism=pkcs11.Mechanism.EDDSA))


def is_token_uri(path: str | os.PathLike[str]) -> bool:
    """Say whether `path` names a key in a token rather than a file."""
    return os.fspath(path).startswith(SCHEME)


def parse_uri(uri: str | os.PathLike[str]) -> TokenUri:
    """Return the parts of `uri`. Raises LabRefused if it has another form."""
    found = _URI.fullmatch(os.fspath(uri))
    if found is None:
        raise LabRefused.options(
            "the URI of a token's key", expected="pkcs11:token=LABEL;object=KEY?module-path=LIBRARY",
            found=repr(os.fspath(uri)),
        )  # fmt: skip
    return TokenUri(*(unquote(part) for part in found.groups()))


def open_token(uri: str | os.PathLike[str], pin: str | None) -> TokenSigner:
    """Return the key that `uri` names, ready to sign.

    Raises Refused(BAD_PRIVATE_KEY) for a missing token or key or a wrong PIN, BAD_KEY for a key that is not Ed25519.
    """
    where = parse_uri(uri)
    pkcs11 = _library()
    with _session(where, pin) as session:
        public = session.get_key(object_class=pkcs11.ObjectClass.PUBLIC_KEY, label=where.key)
        return TokenSigner(_public_key(public[pkcs11.Attribute.EC_POINT]), where, pin)


def token_keygen(uri: str | os.PathLike[str], pin: str | None, public_path: str | os.PathLike[str]) -> PublicKey:
    """Make an Ed25519 key pair inside the token and write its public half to `public_path`.

    Raises FileExistsError rather than replace a file, Refused(BAD_PRIVATE_KEY) if the token already has such a key.
    """
    where = parse_uri(uri)
    pkcs11 = _library()
    if os.path.lexists(public_path):
        raise FileExistsError(errno.EEXIST, "File exists", os.fspath(public_path))
    with _session(where, pin) as session:
        if any(True for _ in session.get_objects({pkcs11.Attribute.LABEL: where.key})):
            found, todo = "a key of that name", "Name another key after object=, or use the one that is there."
            raise Refused(RefusalCode.BAD_PRIVATE_KEY, str(where), "a label that is free", found, todo)
        curve = pkcs11.util.ec.encode_named_curve_parameters(_ED25519_OID)
        parameters = session.create_domain_parameters(
            pkcs11.KeyType.EC_EDWARDS, {pkcs11.Attribute.EC_PARAMS: curve}, local=True
        )
        public, _ = parameters.generate_keypair(
            mechanism=pkcs11.Mechanism.EC_EDWARDS_KEY_PAIR_GEN, store=True, label=where.key
        )
        key = _public_key(public[pkcs11.Attribute.EC_POINT])
    write_public(public_path, key)
    return key


def _public_key(point: bytes) -> PublicKey:
    """Return the key at `point`: 32 bytes, or (PKCS#11 v2.40) a DER OCTET STRING of them."""
    raw = point[len(_OCTET_STRING) :] if point.startswith(_OCTET_STRING) and len(point) > len(_OCTET_STRING) else point
    return load_public_key(Algorithm.ED25519, SPKI_PREFIX[Algorithm.ED25519] + raw)


@contextlib.contextmanager
def _session(uri: TokenUri, pin: str | None) -> Iterator[Any]:
    """Open a session with the token, logged in; what the token refuses becomes Refused(BAD_PRIVATE_KEY)."""
    pkcs11 = _library()
    try:
        token = pkcs11.lib(uri.module_path).get_token(token_label=uri.token)
        with token.open(rw=True, user_pin=pin) as session:
            yield session
    except (pkcs11.exceptions.PKCS11Error, RuntimeError) as error:  # RuntimeError: the library cannot be loaded
        found = shown(f"{type(error).__name__} {error}".strip())
        todo = _TODO.get(type(error).__name__, _TODO_ELSE)
        raise Refused(RefusalCode.BAD_PRIVATE_KEY, str(uri), "a token that opens and signs", found, todo) from error


def _library() -> Any:
    """Return the pkcs11 package: an optional one, for only those who have a token need it."""
    try:
        importlib.import_module("pkcs11.util.ec")
        return importlib.import_module("pkcs11")
    except ImportError as error:
        raise LabRefused(
            LabRefusal.TOOL_MISSING, "keys in tokens", expected="the package python-pkcs11", found="none installed",
            todo="pip install python-pkcs11",
        ) from error  # fmt: skip
