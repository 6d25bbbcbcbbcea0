"""Looking at output bytes: which elements are not finite, and whether they are what was expected.

Scratch memory is made once for each output, so that a look at a result on the frame path allocates nothing that stays.
"""

import numpy as np
from numpy.typing import NDArray

from abi.graph import DType, Output

_NUMPY = {
    DType.FLOAT32: np.float32, DType.FLOAT16: np.float16, DType.INT8: np.int8, DType.UINT8: np.uint8,
    DType.INT16: np.int16, DType.UINT16: np.uint16, DType.INT32: np.int32, DType.UINT32: np.uint32,
    DType.INT64: np.int64, DType.UINT64: np.uint64, DType.BOOL8: np.uint8, DType.BFLOAT16: np.uint16,
}  # fmt: skip
_BFLOAT16_EXPONENT = np.uint16(0x7F80)  # all ones: infinity or NaN


class FiniteCheck:
    """Whether every element of one output is finite. Always so for integers."""

    def __init__(self, dtype: DType, size_bytes: int) -> None:
        self._dtype = dtype
        self._checked = dtype in (DType.FLOAT32, DType.FLOAT16, DType.BFLOAT16)
        count = size_bytes // max(1, dtype.item_bytes) if self._checked else 0
        self._finite: NDArray[np.bool_] = np.empty(count, np.bool_)
        self._exponent: NDArray[np.uint16] = np.empty(count if dtype is DType.BFLOAT16 else 0, np.uint16)

    def __call__(self, data: memoryview) -> bool:
        """`data` holds the output's bytes, aligned to its elements."""
        if not self._checked:
            return True
        values = np.frombuffer(data, _NUMPY[self._dtype])
        if self._dtype is DType.BFLOAT16:
            np.bitwise_and(values, _BFLOAT16_EXPONENT, out=self._exponent)
            np.not_equal(self._exponent, _BFLOAT16_EXPONENT, out=self._finite)
        else:
            np.isfinite(values, out=self._finite)
        return bool(self._finite.all())


def differing_bytes(found: memoryview, expected: memoryview) -> str | None:
    """None for equal bytes; otherwise how many differ and where the first is, for a person. Both are of one length."""
    if found == expected:
        return None
    differing = np.flatnonzero(np.frombuffer(found, np.uint8) != np.frombuffer(expected, np.uint8))
    return f"{differing.size} of {len(found)} bytes differ, the first at byte {differing[0]}"


def worst_difference(output: Output, found: memoryview, expected: memoryview) -> str | None:
    """None when `found` is within the output's tolerance of `expected`; otherwise what differs most, for a person.

    Accepts |a - b| <= max(absolute, relative * |b|), b expected; with both 0, equal bits only (graph.capnp).
    """
    if found == expected:
        return None
    view = output.view
    if view.dtype is DType.BOOL8 or not (output.absolute_tolerance or output.relative_tolerance):
        return differing_bytes(found, expected)
    a, b = _as_float(found, view.dtype), _as_float(expected, view.dtype)
    with np.errstate(invalid="ignore"):
        excess = np.abs(a - b) - np.maximum(output.absolute_tolerance, output.relative_tolerance * np.abs(b))
    excess[a == b] = 0.0  # also for equal infinities
    excess[np.isnan(a) & np.isnan(b)] = 0.0
    excess[np.isnan(excess)] = np.inf
    worst = int(excess.argmax())
    if excess[worst] <= 0.0:
        return None
    return f"element {worst} is {a[worst]:.9g}, expected {b[worst]:.9g}"


def largest_difference(dtype: DType, found: memoryview, expected: memoryview) -> tuple[float, int]:
    """The largest |found - expected| and its element; infinite where only one of the two is a number."""
    a, b = _as_float(found, dtype), _as_float(expected, dtype)
    with np.errstate(invalid="ignore"):
        apart = np.abs(a - b)
    apart[(a == b) | (np.isnan(a) & np.isnan(b))] = 0.0
    apart[np.isnan(apart)] = np.inf
    worst = int(apart.argmax())
    return float(apart[worst]), worst


def _as_float(data: memoryview, dtype: DType) -> NDArray[np.float64]:
    values = np.frombuffer(data, _NUMPY[dtype])
    if dtype is DType.BFLOAT16:
        return (values.astype(np.uint32) << np.uint32(16)).view(np.float32).astype(np.float64)
    return values.astype(np.float64)
