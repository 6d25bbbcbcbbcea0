"""What a vehicle must not forget: the last root, the trust epoch, and the rollback floor of each model.

The values and their JSON form; `signing.trust` says how they change, `signing.store` puts them on disk.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from signing import strict_json
from signing.container import ENVELOPE_LIMIT_BYTES
from signing.refusal import RefusalCode
from signing.statement import NAME, NAME_FORM, RELEASE_LIMIT
from signing.strict_json import Fields

STATE_TYPE: Final = "urn:fenced:state:v1"
STATE_LIMIT_BYTES: Final = 1024 * 1024
EPOCH_LIMIT: Final = 2**63 - 1
_FLOOR_LIMIT: Final = 4096


@dataclass(frozen=True)
class Floor:
    """The newest confirmed release of a model and its digest: nothing older, and nothing else of that number."""

    release: int
    digest: str


@dataclass(frozen=True)
class VehicleState:
    """The trust state of one vehicle. `trust_epoch` begins at 1 and rises by one with every accepted root."""

    root_envelope: bytes
    trust_epoch: int
    floors: Mapping[str, Floor] = field(default_factory=dict)


def encode_state(state: VehicleState) -> bytes:
    """Return the state as deterministic JSON."""
    return strict_json.encode(
        {
            "_type": STATE_TYPE,
            "trustEpoch": state.trust_epoch,
            "root": base64.b64encode(state.root_envelope).decode("ascii"),
            "floors": {
                name: {"release": floor.release, "digest": floor.digest} for name, floor in state.floors.items()
            },
        }
    )


def decode_state(data: bytes) -> VehicleState:
    """Return the state in `data`, or raise Refused (BAD_JSON, BAD_STATE, BAD_ENCODING)."""
    document = strict_json.parse(data, limit_bytes=STATE_LIMIT_BYTES, what="trust state")
    fields = Fields(document, "state", RefusalCode.BAD_STATE)
    fields.constant("_type", STATE_TYPE)
    trust_epoch = fields.integer("trustEpoch", 1, EPOCH_LIMIT)
    root_envelope = fields.base64("root", ENVELOPE_LIMIT_BYTES)
    floors: dict[str, Floor] = {}
    members = fields.mapping("floors", _FLOOR_LIMIT)
    fields.close()
    for name, value in members.items():
        floor = Fields(value, f"state.floors.{name}" if NAME.fullmatch(name) else "state.floors", RefusalCode.BAD_STATE)
        if not NAME.fullmatch(name):
            floor.refuse("name", NAME_FORM, ascii(name[:64]))
        floors[name] = Floor(floor.integer("release", 0, RELEASE_LIMIT), floor.sha256("digest"))
        floor.close()
    return VehicleState(root_envelope, trust_epoch, floors)
