"""A snapshot of a model's recurrent state: its header as a value, and the bytes that hold header and values.

The layout stands in `state.capnp`. `encode` is deterministic; `decode` copies no value: it returns views into what it
was given, which must not change meanwhile (a sealed memfd). Whether a snapshot fits a model is the daemon's to judge.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import capnp

from abi import canonical, schema
from abi.graph_values import DType
from abi.messages import is_name

__all__ = ["MAX_SNAPSHOT_BYTES", "SavedState", "SnapshotError", "StateSnapshot", "decode", "encode"]

MAGIC: Final = b"FENCEDS\1"
ALIGN_BYTES: Final = 64
MAX_HEADER_BYTES: Final = 1 << 20
MAX_STATES: Final = 256
MAX_DIMENSIONS: Final = 8
MAX_TEXT_BYTES: Final = 256
MAX_SNAPSHOT_BYTES: Final = 1 << 32
_PREFIX: Final = struct.Struct("<8sQ")
_DIGEST_BYTES: Final = 32


class SnapshotError(ValueError):
    """Bytes that are no snapshot, or values that cannot be one: `what` was wrong, what was `expected` and `found`."""

    def __init__(self, what: str, expected: str, found: str) -> None:
        super().__init__(f"{what}: expected {expected}, found {found}")
        self.what, self.expected, self.found = what, expected, found


@dataclass(frozen=True, slots=True)
class SavedState:
    """One state buffer: its contract's name, dtype and shape, and the bytes of its value."""

    name: str
    dtype: DType
    shape: tuple[int, ...]
    size_bytes: int


@dataclass(frozen=True, slots=True)
class StateSnapshot:
    """The header. Results of `timeline` whose fence value is at most `fence_value` came before it.

    model_digest: SHA-256 of the signed statement, 32 bytes. taken_ns: CLOCK_MONOTONIC.
    """

    model: str
    model_digest: bytes
    state_epoch: int
    timeline: int
    fence_value: int
    taken_ns: int
    states: tuple[SavedState, ...]


def encode(snapshot: StateSnapshot, values: Sequence[memoryview]) -> bytearray:
    """The whole snapshot. `values`: the bytes of each of `snapshot.states`, in their order. Raises SnapshotError."""
    _check(snapshot)
    for state, value in zip(snapshot.states, values, strict=True):
        if value.nbytes != state.size_bytes:
            raise SnapshotError(f"value of {state.name}", f"{state.size_bytes} bytes", f"{value.nbytes} bytes")
    header = _encode_header(snapshot)
    total = _padded(_PREFIX.size + len(header)) + sum(_padded(state.size_bytes) for state in snapshot.states)
    if total > MAX_SNAPSHOT_BYTES:
        raise SnapshotError("snapshot", f"at most {MAX_SNAPSHOT_BYTES} bytes", f"{total} bytes")
    data = bytearray(total)
    _PREFIX.pack_into(data, 0, MAGIC, len(header))
    data[_PREFIX.size : _PREFIX.size + len(header)] = header
    at = _padded(_PREFIX.size + len(header))
    for value in values:
        data[at : at + value.nbytes] = value.cast("B")
        at += _padded(value.nbytes)
    return data


def decode(data: bytes | bytearray | memoryview) -> tuple[StateSnapshot, tuple[memoryview, ...]]:
    """The header, and a view of each state's value in `data`. Raises SnapshotError for anything else."""
    view = memoryview(data)
    if view.nbytes < _PREFIX.size:
        raise SnapshotError("snapshot", f"at least {_PREFIX.size} bytes", f"{view.nbytes} bytes")
    magic, size = _PREFIX.unpack_from(view)
    if magic != MAGIC:
        raise SnapshotError("magic", repr(MAGIC), repr(magic))
    if size > min(MAX_HEADER_BYTES, view.nbytes - _PREFIX.size):
        raise SnapshotError("header", f"at most {MAX_HEADER_BYTES} bytes, inside the snapshot", f"{size} bytes")
    snapshot = _decode_header(bytes(view[_PREFIX.size : _PREFIX.size + size]))
    ends, values = [_PREFIX.size + size], []
    at = _padded(ends[0])
    for state in snapshot.states:
        values.append(view[at : at + state.size_bytes])
        ends.append(at + state.size_bytes)
        at += _padded(state.size_bytes)
    if view.nbytes != at:
        raise SnapshotError("length", f"{at} bytes, as the header says", f"{view.nbytes} bytes")
    if any(bytes(view[end : _padded(end)]).strip(b"\0") for end in ends):
        raise SnapshotError("padding", "zeros", "other bytes")
    return snapshot, tuple(values)


def _padded(size: int) -> int:
    return -(-size // ALIGN_BYTES) * ALIGN_BYTES


def _encode_header(snapshot: StateSnapshot) -> bytes:
    message = schema.state.StateSnapshot.new_message(num_first_segment_words=MAX_HEADER_BYTES // 8)
    try:
        message.model, message.modelDigest = snapshot.model, snapshot.model_digest
        message.stateEpoch, message.timeline = snapshot.state_epoch, snapshot.timeline
        message.fenceValue, message.takenNs = snapshot.fence_value, snapshot.taken_ns
        builders = message.init("states", len(snapshot.states))
        for builder, state in zip(builders, snapshot.states, strict=True):
            builder.name, builder.dtype, builder.sizeBytes = state.name, int(state.dtype), state.size_bytes
            builder.shape = list(state.shape)
    except (capnp.KjException, OverflowError, TypeError) as error:
        raise SnapshotError("header", "values that its fields can hold", _first_line(error)) from None
    return bytes(message.to_bytes())


def _decode_header(data: bytes) -> StateSnapshot:
    try:
        canonical.check(data)
        words = len(data) // 2 + 64  # every word up to four times: a list counts anew for each look at its length
        with schema.state.StateSnapshot.from_bytes(data, traversal_limit_in_words=words, nesting_limit=8) as m:
            snapshot = StateSnapshot(
                m.model, bytes(m.modelDigest), m.stateEpoch, m.timeline, m.fenceValue, m.takenNs,
                tuple(_read_state(state) for state in m.states),
            )  # fmt: skip
    except canonical.CanonicalError as error:
        raise SnapshotError("header", "one canonical message", str(error)) from None
    except (capnp.KjException, ValueError) as error:  # a dtype or a text that is none
        raise SnapshotError("header", "a message of its struct", _first_line(error)) from None
    _check(snapshot)
    return snapshot


def _read_state(m: Any) -> SavedState:
    return SavedState(m.name, DType(m.dtype.raw), tuple(m.shape), m.sizeBytes)


def _check(snapshot: StateSnapshot) -> None:
    if not is_name(snapshot.model):
        raise SnapshotError("model", "1 to 64 of a-z 0-9 _ . -", ascii(snapshot.model[:64]))
    if len(snapshot.model_digest) != _DIGEST_BYTES:
        raise SnapshotError("modelDigest", f"{_DIGEST_BYTES} bytes", f"{len(snapshot.model_digest)} bytes")
    if len(snapshot.states) > MAX_STATES:
        raise SnapshotError("states", f"at most {MAX_STATES}", str(len(snapshot.states)))
    seen = set()
    for state in snapshot.states:
        name = ascii(state.name[:64])
        if not 1 <= len(state.name.encode()) <= MAX_TEXT_BYTES or state.name in seen:
            raise SnapshotError("state name", f"1 to {MAX_TEXT_BYTES} bytes, each name once", name)
        seen.add(state.name)
        if len(state.shape) > MAX_DIMENSIONS:
            raise SnapshotError(f"shape of {name}", f"at most {MAX_DIMENSIONS} dimensions", str(len(state.shape)))
        least = math.prod(state.shape) * state.dtype.item_bytes
        if not 1 <= least <= state.size_bytes <= MAX_SNAPSHOT_BYTES:
            expected = f"1 to {MAX_SNAPSHOT_BYTES} bytes, at least those of {state.dtype.name} {state.shape}"
            raise SnapshotError(f"sizeBytes of {name}", expected, str(state.size_bytes))


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:200]
