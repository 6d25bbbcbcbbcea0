"""A snapshot comes back from its bytes; any other bytes are refused, and never with another exception."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from abi import schema, snapshot
from abi.graph_values import DType
from abi.snapshot import SavedState, SnapshotError, StateSnapshot

STATES = (SavedState("queue", DType.FLOAT32, (2, 5), 40), SavedState("flag", DType.BOOL8, (), 64))
SNAPSHOT = StateSnapshot("tiny", bytes(range(32)), 3, 2**64 - 1, 17, -5, STATES)
VALUES = (memoryview(bytes(range(40))), memoryview(bytes(range(64))))
GOOD = bytes(snapshot.encode(SNAPSHOT, VALUES))


def header(**fields: object) -> bytes:
    """A snapshot without values whose header is made by hand."""
    given = {"model": "tiny", "modelDigest": bytes(32)} | fields
    body = bytes(schema.state.StateSnapshot.new_message(num_first_segment_words=1 << 14, **given).to_bytes())
    size = -(-(16 + len(body)) // 64) * 64
    return (b"FENCEDS\1" + len(body).to_bytes(8, "little") + body).ljust(size, b"\0")


def state(**fields: object) -> dict[str, object]:
    return {"name": "s", "dtype": 1, "shape": [1], "sizeBytes": 4} | fields


def test_a_snapshot_comes_back_from_its_bytes() -> None:
    found, values = snapshot.decode(GOOD)
    assert (found, values) == (SNAPSHOT, VALUES)
    assert len(GOOD) % 64 == 0
    assert snapshot.decode(memoryview(header())) == (StateSnapshot("tiny", bytes(32), 0, 0, 0, 0, ()), ())


BAD = {
    "nothing": (b"", "snapshot: expected at least 16 bytes, found 0"),
    "other magic": (b"FENCEDS\2" + GOOD[8:], "magic: expected"),
    "a header beyond the end": (GOOD[:8] + b"\xff" * 8 + GOOD[16:], "header: expected at most 1048576 bytes"),
    "cut short": (GOOD[:-64], "length: expected"),
    "too long": (GOOD + bytes(64), "length: expected"),
    "no message": (GOOD[:16] + b"\xff" * 8 + GOOD[24:], "header: expected one canonical message"),
    "an unknown dtype": (header(states=[state(dtype=13)]), "header: expected a message of its struct"),
    "a dtype of no size": (header(states=[state(dtype=0)]), "sizeBytes of 's': expected 1 to"),
    "an empty value": (header(states=[state(shape=[0])]), "sizeBytes of 's': expected 1 to"),
    "a value that is too small": (header(states=[state(shape=[2])]), "at least those of FLOAT32"),
    "a value that is too large": (header(states=[state(sizeBytes=2**63)]), "sizeBytes of 's': expected 1 to"),
    "a name that repeats": (header(states=[state(), state()]), "each name once, found 's'"),
    "no name": (header(states=[state(name="")]), "state name: expected 1 to 256"),
    "many dimensions": (header(states=[state(shape=[1] * 9)]), "at most 8 dimensions, found 9"),
    "many states": (header(states=[state(name=f"s{at}") for at in range(257)]), "states: expected at most 256"),
    "another model's name": (header(model="Tiny"), "model: expected 1 to 64"),
    "a short digest": (header(modelDigest=bytes(31)), "modelDigest: expected 32 bytes, found 31"),
}


@pytest.mark.parametrize("case", BAD)
def test_other_bytes_are_refused_by_name(case: str) -> None:
    data, words = BAD[case]
    with pytest.raises(SnapshotError) as refused:
        snapshot.decode(data)
    assert words in str(refused.value)


def test_padding_is_zero() -> None:
    data = bytearray(GOOD)
    end = len(GOOD) - 64 - 64 + 40  # of the first value
    assert snapshot.decode(bytes(data))
    data[end] = 1
    with pytest.raises(SnapshotError, match="padding: expected zeros"):
        snapshot.decode(data)


@given(st.integers(0, len(GOOD) - 1), st.integers(1, 255))
def test_a_changed_byte_is_read_or_refused(at: int, change: int) -> None:
    data = bytearray(GOOD)
    data[at] ^= change
    try:
        found, values = snapshot.decode(data)
    except SnapshotError:
        return
    assert (values == VALUES) == (at < len(GOOD) - 128)  # a value's byte changes a value, no other does
    assert found == SNAPSHOT or values == VALUES


def test_a_snapshot_beyond_all_memory_is_not_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshot, "MAX_SNAPSHOT_BYTES", len(GOOD))
    assert snapshot.encode(SNAPSHOT, VALUES) == GOOD
    monkeypatch.setattr(snapshot, "MAX_SNAPSHOT_BYTES", len(GOOD) - 1)
    with pytest.raises(SnapshotError, match="snapshot: expected at most"):
        snapshot.encode(SNAPSHOT, VALUES)


@pytest.mark.parametrize(
    ("changed", "values", "words"),
    [
        (replace(SNAPSHOT, state_epoch=-1), VALUES, "values that its fields can hold"),
        (SNAPSHOT, (VALUES[1], VALUES[0]), "value of queue: expected 40 bytes, found 64 bytes"),
        (replace(SNAPSHOT, model=""), VALUES, "model: expected"),
    ],
)
def test_what_cannot_be_a_snapshot_is_not_made(
    changed: StateSnapshot, values: tuple[memoryview, ...], words: str
) -> None:
    with pytest.raises(SnapshotError, match=words):
        snapshot.encode(changed, values)
