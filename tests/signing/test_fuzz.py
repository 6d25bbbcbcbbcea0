"""Any bytes at all give a value or a Refused, and no changed byte of a bundle gives the same model."""

from __future__ import annotations

import contextlib
import functools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lab.sign.root import encode_root
from signing import container, envelope, statement, strict_json
from signing.envelope import BUNDLE_PAYLOAD_TYPE
from signing.refusal import Refused
from signing.root import decode_root
from signing.state import VehicleState, decode_state, encode_state
from tests.simulators import BundleSimulator, RoleKeys, make_root

QUICK = settings(
    max_examples=150,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
READERS: dict[str, Callable[[bytes], object]] = {
    "json": lambda data: strict_json.parse(data, limit_bytes=4096, what="fuzz"),
    "header": container.read_header,
    "envelope": lambda data: envelope.parse(data, payload_type=BUNDLE_PAYLOAD_TYPE),
    "statement": statement.decode,
    "root": decode_root,
    "state": decode_state,
}
JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=8,
)


@pytest.mark.parametrize("name", READERS)
@given(data=st.binary(max_size=300) | JSON_VALUES.map(lambda value: json.dumps(value).encode()))
@QUICK
def test_any_bytes_are_read_or_refused(name: str, data: bytes) -> None:
    with contextlib.suppress(Refused):
        READERS[name](data)


def places(node: Any) -> list[tuple[Any, Any]]:
    """Return every (container, key) in a JSON document."""
    found: list[tuple[Any, Any]] = []
    pairs = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    for key, value in pairs:
        found += [(node, key), *places(value)]
    return found


@functools.cache
def good_bundle(folder: Path) -> tuple[BundleSimulator, bytes, str]:
    """Return a simulator, the file it writes and the model's digest, made once for all examples."""
    sim = BundleSimulator(folder)
    return sim, sim.file_bytes(), sim.verify().digest


@functools.cache
def documents(folder: Path) -> dict[str, bytes]:
    sim, _, _ = good_bundle(folder)
    return {
        "envelope": sim.envelope().encode(),
        "statement": sim.payload(),
        "root": encode_root(make_root(RoleKeys.make(), minimum_releases={"lane": 1}, reset_floors=("lane",))),
        "state": encode_state(VehicleState(b"x", 1)),
    }


@pytest.mark.parametrize("name", ["envelope", "statement", "root", "state"])
@given(data=st.data(), value=JSON_VALUES)
@QUICK
def test_document_with_any_value_anywhere_is_read_or_refused(
    tmp_path: Path, name: str, data: st.DataObject, value: object
) -> None:
    document = json.loads(documents(tmp_path)[name])
    node, key = data.draw(st.sampled_from(places(document)))
    node[key] = value
    with contextlib.suppress(Refused):
        READERS[name](json.dumps(document).encode())


@given(data=st.data())
@QUICK
def test_changed_bundle_is_refused_or_is_the_same_model(tmp_path: Path, data: st.DataObject) -> None:
    """Where a change is not refused (an unknown key id, white space), the signed payload and the blobs are the same."""
    sim, good, digest = good_bundle(tmp_path)
    offset = data.draw(st.integers(0, len(good) - 1) | st.integers(0, 4096))
    bit = data.draw(st.integers(0, 7))
    trusted = sim.fresh_trust()
    sim.write(good[:offset] + bytes([good[offset] ^ 1 << bit]) + good[offset + 1 :])
    with contextlib.suppress(Refused):
        verified = sim.verify_file(trusted)
        assert verified.digest == digest
        assert {name: bytes(verified.blob(name)) for name in sim.blobs} == sim.blobs
