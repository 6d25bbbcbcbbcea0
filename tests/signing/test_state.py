"""The vehicle's state: both ways without loss, and damage is refused."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest

from signing.refusal import RefusalCode, Refused
from signing.state import STATE_LIMIT_BYTES, Floor, VehicleState, decode_state, encode_state
from tests.simulators import refusal

STATE = VehicleState(b"an envelope", 3, {"lane": Floor(2**63 - 1, "a" * 64), "sign": Floor(0, "b" * 64)})
BAD = RefusalCode.BAD_STATE


def changed(*path: str, value: object) -> bytes:
    document = json.loads(encode_state(STATE))
    node: Any = document
    for part in path[:-1]:
        node = node[part]
    node[path[-1]] = value
    return json.dumps(document).encode()


def test_state_comes_back_as_it_was_written() -> None:
    assert decode_state(encode_state(STATE)) == STATE
    assert decode_state(encode_state(VehicleState(b"", 2**63 - 1))) == VehicleState(b"", 2**63 - 1, {})


def test_state_is_readable_json() -> None:
    assert json.loads(encode_state(STATE)) == {
        "_type": "urn:fenced:state:v1",
        "trustEpoch": 3,
        "root": "YW4gZW52ZWxvcGU=",
        "floors": {
            "lane": {"release": 2**63 - 1, "digest": "a" * 64},
            "sign": {"release": 0, "digest": "b" * 64},
        },
    }


@pytest.mark.parametrize(
    ("path", "value", "code", "expected", "found"),
    [
        (("_type",), "urn:fenced:state:v2", BAD, "urn:fenced:state:v1", "'urn:fenced:state:v2'"),
        (("trustEpoch",), 0, BAD, f"an integer from 1 to {2**63 - 1}", "0"),
        (("trustEpoch",), 2**63, BAD, f"an integer from 1 to {2**63 - 1}", str(2**63)),
        (("root",), "Zh==", RefusalCode.BAD_ENCODING, "canonical standard base64 with padding", "'Zh=='"),
        (("root",), None, BAD, "a string of at most 349528 characters", "None"),
        (("floors",), [], BAD, "an object of at most 1024 members", "[]"),
        (("floors", "lane"), 5, BAD, "an object", "5"),
        (("floors", "lane", "release"), -1, BAD, f"an integer from 0 to {2**63 - 1}", "-1"),
        (("floors", "lane", "release"), 2**63, BAD, f"an integer from 0 to {2**63 - 1}", str(2**63)),
        (("floors", "lane", "digest"), "A", RefusalCode.BAD_ENCODING, "64 lowercase hexadecimal digits", "'A'"),
    ],
    ids=itertools.count(),
)
def test_damage_is_refused(path: tuple[str, ...], value: object, code: RefusalCode, expected: str, found: str) -> None:
    with refusal(code, ".".join(("state", *path)), expected, found):
        decode_state(changed(*path, value=value))


@pytest.mark.parametrize("path", [(), ("floors", "lane")])
def test_unknown_field_is_refused(path: tuple[str, ...]) -> None:
    where = ".".join(("state", *path))
    with refusal(BAD, where, f"no field beyond those of {where}", "unknown field 'x'"):
        decode_state(changed(*path, "x", value=1))


@pytest.mark.parametrize("name", ["_type", "trustEpoch", "root", "floors"])
def test_missing_field_is_refused(name: str) -> None:
    document = json.loads(encode_state(STATE))
    del document[name]
    with pytest.raises(Refused) as refused:
        decode_state(json.dumps(document).encode())
    assert (refused.value.code, refused.value.what, refused.value.found) == (BAD, f"state.{name}", "nothing")


def test_odd_model_name_is_refused() -> None:
    form = "a name of 1 to 64 letters, digits, '.', '_', '-', beginning with a letter or digit"
    floor = {"release": 1, "digest": "a" * 64}
    with refusal(RefusalCode.BAD_NAME, "state.floors.'../x'", form, "another form"):
        decode_state(changed("floors", "../x", value=floor))


@pytest.mark.parametrize("data", [b"", b"\0" * 100, b"{", encode_state(STATE)[:-1]], ids=itertools.count())
def test_torn_file_is_refused(data: bytes) -> None:
    with pytest.raises(Refused) as refused:
        decode_state(data)
    assert (refused.value.code, refused.value.what) == (RefusalCode.BAD_JSON, "trust state")


def test_state_that_could_not_be_read_again_is_not_written() -> None:
    floors = {f"m{i}": Floor(i, "a" * 64) for i in range(1024)}
    assert decode_state(encode_state(VehicleState(bytes(256 * 1024), 1, floors))).floors == floors
    with refusal(BAD, "state.floors", "an object of at most 1024 members", "1025 members"):
        encode_state(VehicleState(b"", 1, {**floors, "one-more": Floor(0, "a" * 64)}))


def test_size_is_bounded() -> None:
    with refusal(RefusalCode.BAD_JSON, "trust state", f"at most {STATE_LIMIT_BYTES} bytes", "1048577 bytes"):
        decode_state(b" " * 1048577)
