"""Adding signatures: to a bundle at hand, or detached, so that the roles' keys can stay on separate machines.

What is signed is the payload that stands in the envelope, byte for byte, after every blob was compared with it. A
detached signature is a small JSON file that is carried back and attached; it is checked again there.
"""

from __future__ import annotations

import base64
import hashlib
import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from lab.refusal import LabRefusal, LabRefused
from lab.sign.keyfile import Signer
from lab.sign.pack import open_checked, replace_envelope, write_whole
from lab.sign.signer import open_signer
from signing import container, envelope, statement, strict_json
from signing.envelope import BUNDLE_PAYLOAD_TYPE, Envelope, Signature
from signing.keys import SPKI_LIMIT_BYTES, Algorithm, PublicKey, algorithm, load_public_key
from signing.refusal import RefusalCode, Refused
from signing.root import Root
from signing.statement import Statement
from signing.strict_json import Fields

SIGNATURE_TYPE: Final = "urn:fenced:signature:v1"
BUNDLE_ROLES: Final = ("build", "release")
_SIGNATURE_FILE_LIMIT_BYTES: Final = 64 * 1024


def sign_bundle(
    bundle_path: str | os.PathLike[str],
    key_path: str | os.PathLike[str],
    role: str,
    *,
    passphrase: str | None = None,
    root: Root | None = None,
) -> PublicKey:
    """Add the signature of the key at `key_path`, in `role`, to the bundle; return the key that signed.

    With `root`, the key must be one of that role's. An earlier signature by the same key is replaced.
    """
    return sign_bundle_with(bundle_path, open_signer(key_path, passphrase), role, root=root)


def sign_bundle_with(
    bundle_path: str | os.PathLike[str], signer: Signer, role: str, *, root: Root | None = None
) -> PublicKey:
    """Do as `sign_bundle` with a signer that is already open (a token, say)."""
    with open_checked(bundle_path) as (sealed, unsigned, stated):
        _require_fitting(signer.key, role, stated, root)
        replace_envelope(bundle_path, sealed, add_signature(unsigned, signer))
    return signer.key


def add_signature(unsigned: Envelope, signer: Signer) -> Envelope:
    """Return the envelope with `signer`'s signature over its exact payload, in place of an earlier one by that key."""
    signature = signer.sign(unsigned.pae)
    signer.key.verify(signature, unsigned.pae)
    return _with_signature(unsigned, Signature(signer.key.keyid, signature))


def sign_detached(
    path: str | os.PathLike[str],
    key_path: str | os.PathLike[str],
    role: str,
    signature_path: str | os.PathLike[str],
    *,
    passphrase: str | None = None,
    root: Root | None = None,
) -> PublicKey:
    """Sign the bundle at `path`, or its envelope alone (`export_envelope`), into a file of its own.

    Of a whole bundle every blob is checked first; of an envelope alone only the statement can be.
    """
    signer = open_signer(key_path, passphrase)
    unsigned, stated = _read_for_signing(path)
    _require_fitting(signer.key, role, stated, root)
    document = strict_json.encode(
        {
            "_type": SIGNATURE_TYPE,
            "role": role,
            "payloadSha256": hashlib.sha256(unsigned.payload).hexdigest(),
            "algorithm": signer.key.algorithm.value,
            "spki": base64.b64encode(signer.key.spki).decode("ascii"),
            "sig": base64.b64encode(signer.sign(unsigned.pae)).decode("ascii"),
        }
    )
    write_whole(signature_path, lambda file: file.write(document))
    return signer.key


def attach_signature(
    bundle_path: str | os.PathLike[str], signature_path: str | os.PathLike[str], *, root: Root | None = None
) -> PublicKey:
    """Add a detached signature to the bundle it was made for; return its key. With `root`, as `sign_bundle`.

    Raises Refused: DIGEST_MISMATCH if it is for another bundle, BAD_SIGNATURE if it does not verify, and the readers'.
    """
    data = Path(signature_path).read_bytes()
    document = strict_json.parse(data, limit_bytes=_SIGNATURE_FILE_LIMIT_BYTES, what="detached signature")
    fields = Fields(document, "signature", RefusalCode.BAD_ENVELOPE)
    fields.constant("_type", SIGNATURE_TYPE)
    role = fields.string("role", 16)
    payload_sha256 = fields.sha256("payloadSha256")
    kind = algorithm(fields.string("algorithm", 64), "signature.algorithm")
    key = load_public_key(kind, fields.base64("spki", SPKI_LIMIT_BYTES))
    signature = fields.base64("sig", 8192)
    fields.close()
    with open_checked(bundle_path) as (sealed, unsigned, stated):
        found = hashlib.sha256(unsigned.payload).hexdigest()
        if found != payload_sha256:
            raise Refused(RefusalCode.DIGEST_MISMATCH, "detached signature", f"one for {found}", payload_sha256)
        _require_fitting(key, role, stated, root)
        key.verify(signature, unsigned.pae)
        replace_envelope(bundle_path, sealed, _with_signature(unsigned, Signature(key.keyid, signature)))
    return key


def require_algorithms(bundle_path: str | os.PathLike[str], role: str, algorithms: Sequence[Algorithm]) -> None:
    """State in an unsigned bundle that `role` must sign with each of `algorithms`, whatever a root asks for.

    Raises LabRefused (SIGNED) for a bundle that carries signatures, which are over the statement as it was.
    """

    def required(stated: Statement) -> Statement:
        changed = replace(stated.required_algorithms, **{role: tuple(algorithms)})
        return replace(stated, required_algorithms=changed)

    _restate(bundle_path, "what is required", required)


def state_expiry(bundle_path: str | os.PathLike[str], expires_unix_s: int | None) -> None:
    """State in an unsigned bundle until when it may be activated (seconds since 1970); None: for ever.

    Raises LabRefused (SIGNED) for a bundle that carries signatures, ValueError for a time that no statement can hold.
    """
    _restate(bundle_path, "when it expires", lambda stated: replace(stated, expires_unix_s=expires_unix_s))


def _restate(bundle_path: str | os.PathLike[str], what: str, change: Callable[[Statement], Statement]) -> None:
    with open_checked(bundle_path) as (sealed, unsigned, stated):
        if unsigned.signatures:
            raise LabRefused(
                LabRefusal.SIGNED, os.fspath(bundle_path), expected="a bundle without signatures", found="a signed one",
                todo=f"say {what} before the first signature",
            )  # fmt: skip
        payload = statement.encode(change(stated))
        replace_envelope(bundle_path, sealed, replace(unsigned, payload=payload))


def bundle_digest(bundle_path: str | os.PathLike[str]) -> str:
    """Return the digest by which a root revokes the bundle: the SHA-256 of its statement, lowercase hexadecimal."""
    with open_checked(bundle_path) as (_, parsed, _stated):
        return hashlib.sha256(parsed.payload).hexdigest()


def export_envelope(bundle_path: str | os.PathLike[str], envelope_path: str | os.PathLike[str]) -> None:
    """Write the bundle's envelope alone, to be carried to a machine that signs without the blobs."""
    with open_checked(bundle_path) as (_, parsed, _stated):
        raw = parsed.encode()
    write_whole(envelope_path, lambda file: file.write(raw))


def _read_for_signing(path: str | os.PathLike[str]) -> tuple[Envelope, Statement]:
    with open(path, "rb") as file:
        head = file.read(container.ENVELOPE_LIMIT_BYTES + 1)
    if head.startswith(container.MAGIC):
        with open_checked(path) as (_, parsed, stated):
            return parsed, stated
    parsed = envelope.parse(head, payload_type=BUNDLE_PAYLOAD_TYPE)
    return parsed, statement.decode(parsed.payload)


def _with_signature(unsigned: Envelope, added: Signature) -> Envelope:
    kept = tuple(one for one in unsigned.signatures if one.keyid != added.keyid)
    return Envelope(unsigned.payload_type, unsigned.payload, (*kept, added))


def _require_fitting(key: PublicKey, role: str, stated: Statement, root: Root | None) -> None:
    """Refuse to sign where the signature could not count: a wrong role, algorithm or key."""
    required = {"build": stated.required_algorithms.build, "release": stated.required_algorithms.release}
    if role not in required:
        raise ValueError(f"a bundle is signed as one of {', '.join(BUNDLE_ROLES)}, not as {role!r}")
    counted = {*required[role], *(root.roles[role].algorithms if root is not None else ())}
    if key.algorithm not in counted:
        expected = " and ".join(sorted(one.value for one in counted))
        raise Refused(RefusalCode.ALGORITHM_MISSING, f"key for the role {role}", expected, key.algorithm.value)
    if root is not None and key.keyid not in root.roles[role].keyids:
        expected = f"a key of the role {role} in root version {root.version}"
        raise Refused(RefusalCode.THRESHOLD_NOT_MET, f"key for the role {role}", expected, key.keyid)
