"""Public keys: two algorithms, one encoding, an id that is the SHA-256 of that encoding.

A key is its SubjectPublicKeyInfo in DER, whose form for these algorithms is one fixed prefix and the raw key, so it is
compared, not parsed: no ASN.1 reader stands between a file and a key, and one key has exactly one id.
Sources: RFC 8410 §4 (Ed25519), RFC 9881 §4 (ML-DSA-65), FIPS 204 table 2 (sizes). ML-DSA is used with the empty
context: the DSSE PAE that is signed carries the domain.
"""

from __future__ import annotations

import enum
import hashlib
from dataclasses import dataclass, field
from typing import Final

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.mldsa import MLDSA65PublicKey

from signing import ed25519_point
from signing.refusal import RefusalCode, Refused, shown


class Algorithm(enum.Enum):
    """A signature algorithm. There is no agility beyond this list."""

    ED25519 = "ed25519"
    ML_DSA_65 = "ml-dsa-65"


SPKI_PREFIX: Final = {
    Algorithm.ED25519: bytes.fromhex("302a300506032b6570032100"),
    Algorithm.ML_DSA_65: bytes.fromhex("308207b2300b0609608648016503040312038207a100"),
}
RAW_KEY_BYTES: Final = {Algorithm.ED25519: 32, Algorithm.ML_DSA_65: 1952}
SIGNATURE_BYTES: Final = {Algorithm.ED25519: 64, Algorithm.ML_DSA_65: 3309}
SPKI_LIMIT_BYTES: Final = 2048


@dataclass(frozen=True)
class PublicKey:
    """A checked public key. `raw` is what thresholds count by; `keyid` is lowercase hex SHA-256 of the SPKI."""

    algorithm: Algorithm
    spki: bytes
    keyid: str
    _verifier: Ed25519PublicKey | MLDSA65PublicKey = field(repr=False, compare=False)

    @property
    def raw(self) -> bytes:
        """The key without its SPKI wrapping."""
        return self.spki[len(SPKI_PREFIX[self.algorithm]) :]

    def verify(self, signature: bytes, message: bytes) -> None:
        """Return if `signature` over `message` is this key's; raise Refused(BAD_SIGNATURE) if not."""
        expected_bytes = SIGNATURE_BYTES[self.algorithm]
        what = f"{self.algorithm.value} signature by key {self.keyid[:16]}"
        if len(signature) != expected_bytes:
            raise Refused(RefusalCode.BAD_SIGNATURE, what, f"{expected_bytes} bytes", f"{len(signature)} bytes")
        try:
            self._verifier.verify(signature, message)
        except InvalidSignature:
            raise Refused(
                RefusalCode.BAD_SIGNATURE, what, "a signature over these bytes", "one that does not verify"
            ) from None


def algorithm(name: object, where: str) -> Algorithm:
    """Return the algorithm called `name`, or raise Refused(UNKNOWN_ALGORITHM)."""
    for one in Algorithm:
        if one.value == name:
            return one
    known = ", ".join(one.value for one in Algorithm)
    raise Refused(RefusalCode.UNKNOWN_ALGORITHM, where, f"one of {known}", shown(name))


def load_public_key(kind: Algorithm, spki: bytes) -> PublicKey:
    """Return the key in `spki`, or raise Refused(BAD_KEY): wrong form, low order, non-canonical, off the curve.

    Raises Refused(UNKNOWN_ALGORITHM) where the cryptography library has no support for the algorithm.
    """
    prefix = SPKI_PREFIX[kind]
    raw = spki[len(prefix) :]
    what = f"{kind.value} public key"
    if not spki.startswith(prefix) or len(raw) != RAW_KEY_BYTES[kind]:
        expected = f"a SubjectPublicKeyInfo of {len(prefix) + RAW_KEY_BYTES[kind]} bytes"
        raise Refused(RefusalCode.BAD_KEY, what, expected, f"{len(spki)} bytes beginning {spki[:12].hex()}")
    verifier: Ed25519PublicKey | MLDSA65PublicKey
    try:
        if kind is Algorithm.ED25519:
            fault = ed25519_point.fault(raw)
            if fault is not None:
                raise Refused(RefusalCode.BAD_KEY, what, "a canonical point of prime order", fault)
            verifier = Ed25519PublicKey.from_public_bytes(raw)
        else:
            verifier = MLDSA65PublicKey.from_public_bytes(raw)
    except UnsupportedAlgorithm:
        expected = "a cryptography library that has it"
        raise Refused(RefusalCode.UNKNOWN_ALGORITHM, what, expected, "one that has not") from None
    return PublicKey(kind, spki, hashlib.sha256(spki).hexdigest(), verifier)
