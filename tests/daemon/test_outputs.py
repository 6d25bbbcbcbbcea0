"""What is finite, and what is within a contract's tolerance."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from abi.graph import DType, Output, OutputView
from daemon.entry import covers
from daemon.outputs import FiniteCheck, worst_difference
from hal.canary import POISON


def output(dtype: DType, count: int, absolute: float = 0.0, relative: float = 0.0) -> Output:
    view = OutputView("values", dtype, (count,), "1", 0, count * dtype.item_bytes)
    return Output(view, 0, absolute, relative)


def raw(values: NDArray[np.generic]) -> memoryview:
    return memoryview(values.tobytes())


def bfloat16(*values: float) -> NDArray[np.uint16]:
    return (np.array(values, np.float32).view(np.uint32) >> np.uint32(16)).astype(np.uint16)


@pytest.mark.parametrize("bad", [np.nan, -np.nan, np.inf, -np.inf])
@pytest.mark.parametrize(("count", "place"), [(4, 0), (4, 3), (1000, 0), (1000, 517), (1000, 999)])
def test_one_value_that_is_not_finite_is_seen(bad: float, count: int, place: int) -> None:
    many = np.linspace(-3, 3, count, dtype=np.float32)
    many[place] = bad
    for dtype, values in (
        (DType.FLOAT32, many),
        (DType.FLOAT16, many.astype(np.float16)),
        (DType.BFLOAT16, bfloat16(*many)),
    ):
        check = FiniteCheck(dtype, memoryview(values).cast("B"))
        assert check.is_float
        assert not check()
        values[place] = values[place - 1]
        assert check()


def test_the_largest_finite_values_are_finite() -> None:
    assert FiniteCheck(DType.FLOAT32, raw(np.array([3.4e38, -3.4e38], np.float32)))()
    assert FiniteCheck(DType.FLOAT16, raw(np.array([65504, -65504], np.float16)))()
    assert FiniteCheck(DType.BFLOAT16, raw(np.array([0x7F7F, 0xFF7F], np.uint16)))()


def test_integers_are_always_finite() -> None:
    check = FiniteCheck(DType.INT32, raw(np.array([0x7F800000, -1], np.int32)))
    assert check()
    assert not check.is_float


@pytest.mark.parametrize("dtype", [DType.FLOAT32, DType.FLOAT16, DType.BFLOAT16])
@pytest.mark.parametrize("place", range(4))
def test_the_poison_of_unwritten_memory_is_not_finite(dtype: DType, place: int) -> None:
    """Any word of it, and a last half, at any place of an output of numbers (`OutputSet.finite_is_written`)."""
    for left in (8, 4):
        for more in (0, 4096):
            values = bytearray(24 + left + more)
            at = more + (8 * place if left == 8 else 24)
            values[at : at + left] = POISON.to_bytes(8, "little")[:left]
            assert not FiniteCheck(dtype, memoryview(values))()


def test_without_a_tolerance_only_equal_bits_will_do() -> None:
    one, other = np.array([0.0, 1.0], np.float32), np.array([-0.0, 1.0], np.float32)
    assert worst_difference(output(DType.FLOAT32, 2), raw(one), raw(one)) is None
    assert (
        worst_difference(output(DType.FLOAT32, 2), raw(other), raw(one)) == "1 of 8 bytes differ, the first at byte 3"
    )


@pytest.mark.parametrize(
    ("found", "expected", "absolute", "relative", "good"),
    [
        (1.0, 1.5, 0.5, 0.0, True),
        (1.0, 1.5, 0.49, 0.0, False),
        (90.0, 100.0, 0.0, 0.1, True),
        (89.0, 100.0, 0.0, 0.1, False),
        (100.0, 90.0, 0.0, 0.1, False),  # relative to what is expected, not to what was found
        (1.0, 2.0, 0.5, 0.5, True),  # the larger of the two counts
        (np.nan, np.nan, 1e-3, 0.0, True),
        (np.nan, 1.0, 1e9, 0.0, False),
        (1.0, np.nan, 1e9, 0.0, False),
        (np.inf, np.inf, 1e-3, 1e-3, True),
        (-np.inf, np.inf, 1e9, 0.0, False),
    ],
)
def test_a_tolerance_is_kept_to(found: float, expected: float, absolute: float, relative: float, good: bool) -> None:
    a, b = np.array([7, found], np.float32), np.array([7, expected], np.float32)
    difference = worst_difference(output(DType.FLOAT32, 2, absolute, relative), raw(a), raw(b))
    assert (difference is None) == good
    if difference is not None:
        assert difference.startswith("element 1 is ")


def test_bfloat16_is_compared_by_value() -> None:
    tolerant = output(DType.BFLOAT16, 1, absolute=0.1)
    assert worst_difference(tolerant, raw(bfloat16(1.0)), raw(bfloat16(1.0625))) is None
    assert worst_difference(tolerant, raw(bfloat16(1.0)), raw(bfloat16(1.25))) == "element 0 is 1, expected 1.25"


def test_booleans_know_no_tolerance() -> None:
    tolerant = output(DType.BOOL8, 2, absolute=5.0)
    assert worst_difference(tolerant, memoryview(b"\0\1"), memoryview(b"\0\0")) is not None


def floats(offset: int, size: int, dtype: DType = DType.FLOAT32) -> OutputView:
    return OutputView("values", dtype, (size // dtype.item_bytes,), "1", offset, size)


@pytest.mark.parametrize(
    ("views", "covered"),
    [
        ([floats(0, 64)], True),
        ([floats(32, 32, DType.FLOAT16), floats(0, 32)], True),
        ([floats(0, 40), floats(32, 32)], True),
        ([floats(0, 60)], False),
        ([floats(4, 60)], False),
        ([floats(0, 28), floats(32, 32)], False),
        ([floats(0, 62, DType.FLOAT16), floats(62, 4)], False),  # its numbers straddle the words of the poison
        ([], False),
    ],
)
def test_finite_numbers_show_that_a_buffer_was_written_only_where_they_cover_it(
    views: list[OutputView], covered: bool
) -> None:
    assert covers(64, views) is covered
