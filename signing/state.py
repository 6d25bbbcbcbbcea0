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
from signing.refusal import RefusalCode, shown
from signing.statement import NAME, NAME_FORM, RELEASE_LIMIT
from signing.strict_json import Fields

STATE_TYPE: Final = "urn:fenced:state:v1"
STATE_LIMIT_BYTES: Final = 1024 * 1024
EPOCH_LIMIT: Final = 2**63 - 1
_FLOOR_LIMIT: Final = 1024


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
    """Return the state as deterministic JSON that `decode_state` accepts, or raise as that does."""
    data = strict_json.encode(
        {
            "_type": STATE_TYPE,
            "trustEpoch": state.trust_epoch,
            "root": base64.b64encode(state.root_envelope).decode("ascii"),
            "floors": {
                name: {"release": floor.release, "digest": floor.digest} for name, floor in state.floors.items()
            },
        }
    )
    decode_state(data)
    return data


def decode_state(data: bytes) -> VehicleState:
    """Return the state in `data`, or raise Refused (BAD_JSON, BAD_STATE, BAD_ENCODING)."""
    document = strict_json.parse(data, limit_bytes=STATE_LIMIT_BYTES, what="trust state")
    fields = Fields(document, "state", RefusalCode.BAD_STATE)
    fields.constant("_type", STATE_TYPE)
    trust_epoch = fields.integer("trustEpoch", 1, EPOCH_LIMIT)
    root_envelope = fields.base64("root", ENVELOPE_LIMIT_BYTES)
    members = fields.mapping("floors", _FLOOR_LIMIT)
    fields.close()
    floors = Fields(members, "state.floors", RefusalCode.BAD_STATE)
    for name in members:
        if not NAME.fullmatch(name):
            floors.refuse(shown(name), NAME_FORM, "another form", RefusalCode.BAD_NAME)
    return VehicleState(root_envelope, trust_epoch, {name: _floor(floors.fields(name)) for name in members})


def _floor(fields: Fields) -> Floor:
    floor = Floor(fields.integer("release", 0, RELEASE_LIMIT), fields.sha256("digest"))
    fields.close()
    return floor
