"""Looking at output bytes: which elements are not finite, and whether they are what was expected.

Checks are made once for each output's place in memory, so that a look at a result allocates nothing that stays.
"""

from math import isfinite

import numpy as np
from numpy.typing import NDArray

from abi.graph import DType, Output

_NUMPY = {
    DType.FLOAT32: np.float32, DType.FLOAT16: np.float16, DType.INT8: np.int8, DType.UINT8: np.uint8,
    DType.INT16: np.int16, DType.UINT16: np.uint16, DType.INT32: np.int32, DType.UINT32: np.uint32,
    DType.INT64: np.int64, DType.UINT64: np.uint64, DType.BOOL8: np.uint8, DType.BFLOAT16: np.uint16,
}  # fmt: skip
_FEW_BYTES = 256
_BFLOAT16_EXPONENT = np.uint16(0x7F80)  # all ones: infinity or NaN


class FiniteCheck:
    """Whether every element of one output is finite now. Always so for integers, of which `is_float` is False.

    The largest and the smallest tell: a NaN is taken for either (numpy's argmax and argmin return the first). They are
    found in one pass each without a ufunc, whose way through numpy costs more than a small output when it is cold; a
    few numbers are looked at one by one.
    """

    def __init__(self, dtype: DType, data: memoryview) -> None:
        """`data`: the output's bytes, at the place where it is always looked for, aligned to its elements."""
        self.is_float = dtype in (DType.FLOAT32, DType.FLOAT16, DType.BFLOAT16)
        self._values = np.frombuffer(data, _NUMPY[dtype]) if self.is_float and len(data) else None
        self._few = data.cast("f") if dtype is DType.FLOAT32 and 0 < len(data) <= _FEW_BYTES else None
        self._exponents = np.empty(len(data) // 2, np.uint16) if dtype is DType.BFLOAT16 and len(data) else None

    def __call__(self) -> bool:
        """Looks at all of them."""
        if self._few is not None:
            return all(map(isfinite, self._few.tolist()))
        values = self._values
        if values is None:
            return True
        if self._exponents is not None:
            np.bitwise_and(values, _BFLOAT16_EXPONENT, self._exponents)
            return int(self._exponents.max()) != _BFLOAT16_EXPONENT
        return isfinite(values.item(values.argmax())) and isfinite(values.item(values.argmin()))


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
