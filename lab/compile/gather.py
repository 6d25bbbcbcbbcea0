"""Samples of one component from a frame's bytes, on the device: gathered by index tables, put together from their bits.

A sample of one whole byte is that byte. Otherwise each of its bytes is gathered, its bits are brought to a fixed place
by a multiplication (a power of two from a table: where in the byte they are depends on the column), cut out, and the
parts added; all in int32, so that the integer is the exact one. A float32 holds every sample of up to 24 bits exactly.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from tinygrad import Tensor, dtypes

from lab.compile.pixels import Bits, Component
from lab.compile.reference import Indices
from lab.compile.spec import InputSpec
from lab.compile.strided import ruled_indices, steps, strided_view

WHOLE_BYTE = 0xFF


def device_table(values: NDArray[Any]) -> Any:
    """An array as a tensor that becomes a weight of the bundle."""
    return Tensor(values).realize()


class SeparableIndex:
    """Byte indices that are a sum of one table per axis, kept as the tables: their sum is never stored."""

    def __init__(self, frame_bytes: int, *tables: NDArray[np.int64]) -> None:
        self._view = strided_view(tables, frame_bytes)
        self._axes = [_AxisIndices(one) for one in tables]

    @property
    def is_plain(self) -> bool:
        """Whether the bytes are a view of the frame."""
        return self._view is not None

    def bytes_of(self, frame: Any) -> Any:
        """The frame's bytes there, one axis for each table.

        A view of the frame where all tables follow a rule, which costs nothing. Otherwise written as bytes, a quarter
        of the memory to write and to read again.
        """
        if self._view is not None:
            return self._view(frame)
        total: Any = 0
        for at, one in enumerate(self._axes):
            total = total + one().reshape(*(-1 if axis == at else 1 for axis in range(len(self._axes))))
        return frame[total].contiguous()


class _AxisIndices:
    """One table as int32 indices: computed where it follows a rule, else from memory.

    What comes from memory is clamped to what the table holds, so that every sum is in bounds whatever the table holds,
    by arithmetic that vectorises (measured: 0.4 of the time of the test for each sample that tinygrad makes of an
    unbounded index).
    """

    def __init__(self, table: NDArray[np.int64]) -> None:
        self._rule = steps(table)
        self._first, self._range = int(table[0]), (int(table.min()), int(table.max()))
        self._table: Any = device_table(table.astype(np.int32)) if self._rule is None else None

    def __call__(self) -> Any:
        if self._rule == ():
            return Tensor.full((1,), self._first, dtype=dtypes.int32)
        if self._rule is not None:
            return ruled_indices(self._rule) + self._first
        least, most = self._range
        return self._table.minimum(most).maximum(least)


class Gather:
    """The samples of `part` at the grid of luma `rows` x `columns` of the whole picture."""

    def __init__(self, spec: InputSpec, part: Component, rows: Indices, columns: Indices) -> None:
        plane = spec.planes[part.plane]
        row_starts = plane.offset + rows // part.rows * plane.stride
        self._bits = [_GatheredBits(spec.buffer_bytes, one, row_starts, columns) for one in part.bits]

    @property
    def is_plain(self) -> bool:
        """Whether the samples are computed from a view of the frame, with nothing in between."""
        return all(one.is_plain for one in self._bits)

    def __call__(self, frame: Any) -> Any:
        """Float code values, float32 [rows, columns], lazy."""
        first, *others = (one(frame) for one in self._bits)
        for one in others:
            first = first + one
        return first.cast(dtypes.float)

    def whole_bytes(self, frame: Any) -> Any:
        """Code values of a component whose samples are whole bytes, as bytes in memory: uint8 [rows, columns]."""
        (only,) = self._bits
        return only(frame)


class _GatheredBits:
    """One entry of a component's `bits`."""

    def __init__(self, frame_bytes: int, bits: Bits, row_starts: Indices, columns: Indices) -> None:
        block, place = columns // bits.pixels, columns % bits.pixels
        column_bytes = bits.offset + block * bits.step + place * bits.spread
        self._index = SeparableIndex(frame_bytes, row_starts, column_bytes)
        self._mask, self._fall, self._rise = bits.mask, max(bits.turns), bits.rise
        # left by what the largest turn exceeds this pixel's, then all right by the largest
        lifts = 1 << (self._fall - np.array(bits.turns, np.int32)[place % len(bits.turns)])
        self._lifts = device_table(lifts[None, :].astype(np.int32)) if self._fall else None

    @property
    def is_plain(self) -> bool:
        return self._index.is_plain

    def __call__(self, frame: Any) -> Any:
        found = self._index.bytes_of(frame)
        if self._lifts is None and self._mask == WHOLE_BYTE and not self._rise:
            return found  # a whole byte: the cast to float is all it needs
        value = found.cast(dtypes.int32)
        if self._lifts is not None:
            value = (value * self._lifts) >> self._fall
        return (value & self._mask) << self._rise
