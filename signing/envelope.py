"""DSSE v1 envelopes, strictly: the exact payload bytes are signed and verified, never re-encoded.

`parse` takes an envelope apart and believes nothing; `verified_keys` checks its signatures over the DSSE PAE and
returns the keys that made them. What those keys are worth is `signing.threshold`'s matter.
Source: github.com/secure-systems-lab/dsse, protocol.md and envelope.md, v1.0. Stricter than it in three points: unknown
fields, url-safe or unpadded base64, and key ids other than SHA-256 of the SPKI are refused.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from signing import strict_json
from signing.container import ENVELOPE_LIMIT_BYTES
from signing.keys import PublicKey
from signing.refusal import RefusalCode, Refused, shown
from signing.strict_json import Fields

BUNDLE_PAYLOAD_TYPE: Final = "application/vnd.in-toto+json"
ROOT_PAYLOAD_TYPE: Final = "application/vnd.fenced.root+json"
SIGNATURE_LIMIT: Final = 32
_SIGNATURE_LIMIT_BYTES: Final = 8192
_PAYLOAD_TYPE: Final = re.compile(r"[!-~]{1,128}")


@dataclass(frozen=True)
class Signature:
    """One signature: the id of the key that claims to have made it, and its bytes."""

    keyid: str
    signature: bytes


@dataclass(frozen=True)
class Envelope:
    """A parsed envelope. Nothing in it is verified; `payload` is what the signatures are over, byte for byte."""

    payload_type: str
    payload: bytes
    signatures: tuple[Signature, ...]

    @property
    def pae(self) -> bytes:
        """The pre-authentication encoding: the bytes that are signed. Lengths count bytes (DSSE protocol.md)."""
        return pae(self.payload_type, self.payload)

    def encode(self) -> bytes:
        """Return the envelope as deterministic JSON."""
        return strict_json.encode(
            {
                "payload": base64.b64encode(self.payload).decode("ascii"),
                "payloadType": self.payload_type,
                "signatures": [
                    {"keyid": one.keyid, "sig": base64.b64encode(one.signature).decode("ascii")}
                    for one in self.signatures
                ],
            }
        )


def pae(payload_type: str, payload: bytes) -> bytes:
    """Return `"DSSEv1" SP LEN(type) SP type SP LEN(payload) SP payload`, lengths in bytes and decimal."""
    kind = payload_type.encode("utf-8")
    return b"DSSEv1 %d %b %d %b" % (len(kind), kind, len(payload), payload)


def parse(data: bytes, *, payload_type: str, limit_bytes: int = ENVELOPE_LIMIT_BYTES) -> Envelope:
    """Return the envelope in `data` if it carries `payload_type`.

    Raises Refused: BAD_JSON, BAD_ENVELOPE, BAD_ENCODING, WRONG_PAYLOAD_TYPE, or NO_VALID_SIGNATURE for an empty
    signature. An empty list of signatures is a well-formed, unsigned envelope.
    """
    document = strict_json.parse(data, limit_bytes=limit_bytes, what="envelope")
    fields = Fields(document, "envelope", RefusalCode.BAD_ENVELOPE)
    found = fields.text("payloadType", _PAYLOAD_TYPE, "printable ASCII")
    if found != payload_type:
        raise Refused(RefusalCode.WRONG_PAYLOAD_TYPE, "envelope.payloadType", payload_type, shown(found))
    payload = fields.base64("payload", limit_bytes)
    signatures = tuple(
        _signature(item, f"envelope.signatures[{i}]")
        for i, item in enumerate(fields.items("signatures", SIGNATURE_LIMIT))
    )
    fields.close()
    return Envelope(found, payload, signatures)


def _signature(item: object, where: str) -> Signature:
    fields = Fields(item, where, RefusalCode.BAD_ENVELOPE)
    keyid = fields.sha256("keyid")
    signature = fields.base64("sig", _SIGNATURE_LIMIT_BYTES)
    fields.close()
    if not signature:
        raise Refused(RefusalCode.NO_VALID_SIGNATURE, f"{where}.sig", "a signature", "zero bytes")
    return Signature(keyid, signature)


def verified_keys(envelope: Envelope, keys: Mapping[str, PublicKey]) -> tuple[PublicKey, ...]:
    """Return the keys among `keys` (by key id) that signed `envelope`, each once.

    A signature by a key that is not in `keys` counts for nothing; a wrong one by a key that is raises
    Refused(BAD_SIGNATURE). The result may be empty.
    """
    message = envelope.pae
    signed: dict[str, PublicKey] = {}
    for one in envelope.signatures:
        key = keys.get(one.keyid)
        if key is not None:
            key.verify(one.signature, message)
            signed[key.keyid] = key
    return tuple(signed.values())
