"""Private key files: PKCS#8 PEM, mode 0600, owned by the user, outside every vehicle tree; checked on write and use.

`load_signer` opens a private key for signing; anything else that can sign, such as a token, only has to look like
`Signer`. `load_public` reads the public half, of which roots are made.
"""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.mldsa import MLDSA65PrivateKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    PublicFormat,
    load_pem_private_key,
    load_pem_public_key,
)

import signing
from signing.keys import Algorithm, PublicKey, load_public_key
from signing.refusal import RefusalCode, Refused, shown

VEHICLE_PACKAGES: Final = ("abi", "hal", "signing", "client", "daemon")
_KEY_FILE_LIMIT_BYTES: Final = 64 * 1024

PrivateKey = Ed25519PrivateKey | MLDSA65PrivateKey


class Signer(Protocol):
    """Whatever can sign: a key file, a token. `key` is its public key."""

    @property
    def key(self) -> PublicKey:
        """The public key that verifies what `sign` returns."""

    def sign(self, message: bytes) -> bytes:
        """Return the raw signature over `message`, with the empty context for ML-DSA."""


@dataclass(frozen=True)
class FileSigner:
    """A signer whose private key came from a file."""

    key: PublicKey
    _private: PrivateKey

    def sign(self, message: bytes) -> bytes:
        """Return the raw signature over `message`."""
        return self._private.sign(message)


def public_path(path: str | os.PathLike[str]) -> Path:
    """Return where `keygen` puts the public half of the private key at `path`."""
    return Path(f"{os.fspath(path)}.pub")


def load_public(path: str | os.PathLike[str]) -> PublicKey:
    """Return the public key in a SubjectPublicKeyInfo PEM file, or raise Refused(BAD_KEY)."""
    data = Path(path).read_bytes()[:_KEY_FILE_LIMIT_BYTES]
    try:
        spki = load_pem_public_key(data).public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    except (ValueError, UnsupportedAlgorithm) as error:
        raise Refused(RefusalCode.BAD_KEY, shown(str(path)), "a public key in PEM", shown(str(error))) from error
    kind = Algorithm.ED25519 if len(spki) < 64 else Algorithm.ML_DSA_65
    return load_public_key(kind, spki)


def load_signer(path: str | os.PathLike[str], passphrase: str | None = None) -> FileSigner:
    """Return the private key at `path`, ready to sign.

    Raises Refused: UNSAFE_KEY_FILE (readable by others, a link, another owner, inside the vehicle tree),
    UNREADABLE_FILE or BAD_PRIVATE_KEY.
    """
    target = Path(path)
    require_outside_vehicle(target)
    data = _read_private(target)
    try:
        private = load_pem_private_key(data, passphrase.encode() if passphrase else None)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:  # TypeError: a passphrase too many or too few
        expected = "PKCS#8 PEM and its passphrase"
        raise Refused(RefusalCode.BAD_PRIVATE_KEY, shown(str(path)), expected, shown(str(error))) from error
    if not isinstance(private, (Ed25519PrivateKey, MLDSA65PrivateKey)):
        found = type(private).__name__
        raise Refused(RefusalCode.BAD_PRIVATE_KEY, shown(str(path)), "an Ed25519 or ML-DSA-65 key", found)
    return FileSigner(public_of(private), private)


def public_of(private: PrivateKey) -> PublicKey:
    """Return the checked public half of a private key."""
    spki = private.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    return load_public_key(Algorithm.ED25519 if isinstance(private, Ed25519PrivateKey) else Algorithm.ML_DSA_65, spki)


def _read_private(path: Path) -> bytes:
    """Read a private key file after looking at the very file that was opened, not at its name."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except FileNotFoundError:
        raise Refused(RefusalCode.UNREADABLE_FILE, shown(str(path)), "a private key file", "nothing") from None
    except OSError as error:
        expected = "a regular file, no link"
        raise Refused(RefusalCode.UNSAFE_KEY_FILE, shown(str(path)), expected, str(error.strerror)) from error
    status = os.fstat(fd)
    if stat.S_ISDIR(status.st_mode):
        os.close(fd)
        raise Refused(RefusalCode.UNSAFE_KEY_FILE, shown(str(path)), "a regular file", "a directory")
    with open(fd, "rb") as file:
        mode = stat.S_IMODE(status.st_mode)
        faults = (
            (not stat.S_ISREG(status.st_mode), "a regular file", "another kind of file"),
            (bool(mode & 0o177), "mode 0600 or 0400", f"mode {mode:04o}"),
            (status.st_uid != os.geteuid(), "this user as owner", f"owner {status.st_uid}"),
        )
        for wrong, expected, found in faults:
            if wrong:
                raise Refused(RefusalCode.UNSAFE_KEY_FILE, shown(str(path)), expected, found)
        return file.read(_KEY_FILE_LIMIT_BYTES)


def require_outside_vehicle(path: Path) -> None:
    """Refuse a key path inside what is, or will become, a vehicle's files."""
    resolved = path.resolve()
    for folder in resolved.parents:
        if _is_vehicle_tree(folder):
            expected = "a path outside the vehicle tree"
            raise Refused(RefusalCode.UNSAFE_KEY_FILE, shown(str(path)), expected, f"inside {shown(str(folder))}")


def _is_vehicle_tree(folder: Path) -> bool:
    """Say whether `folder` is a vehicle package, an installation of the vehicle's wheel, /opt/fenced, or an image."""
    packages = Path(signing.__file__).resolve().parent.parent
    if folder.parent == packages and folder.name in VEHICLE_PACKAGES:
        return True
    if folder.parts[-2:] == ("opt", "fenced") or any(folder.glob("fenced-*.dist-info")):
        return True
    return folder != Path(folder.anchor) and (folder / "opt" / "fenced").is_dir()
