"""Index tables as views: a view gives the bytes at the tables' sums, and a table without a rule is told as one."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from lab.compile.toolchain import compile_context


@pytest.fixture(autouse=True)
def _device() -> Iterator[None]:
    with compile_context("x86_64", "x86_64_v3", 2):
        yield


def table(*values: int) -> NDArray[np.int64]:
    return np.array(values, np.int64)


ROWS, PIXELS = 20 * np.arange(5), 3 * np.arange(6)
CASES = {
    "pixels of three bytes in rows with padding": [ROWS, PIXELS, np.arange(3)],
    "three bytes backwards": [ROWS, PIXELS, table(2, 1, 0)],
    "a crop that ends with the frame": [ROWS + 40, PIXELS + 2, table(0)],
    "one sample for two columns and two rows": [np.repeat(ROWS, 2), np.repeat(PIXELS, 2)],
    "the left and then the right tap": [ROWS, np.concatenate((4 * np.arange(4), 4 * np.arange(4) + 1))],
    "every second row upside down": [40 * np.arange(3)[::-1], np.arange(20)],
    "one byte": [table(7)],
}


def test_the_rule_of_a_table_is_its_nested_steps() -> None:
    from lab.compile.strided import Step, steps  # noqa: PLC0415 (the device is open now)

    assert steps(table(5)) == ()
    assert steps(3 * np.arange(4)) == (Step(4, 3),)
    assert steps(table(0, 0, 1, 1, 2, 2)) == (Step(3, 1), Step(2, 0))
    assert steps(table(4, 14, 24, 5, 15, 25)) == (Step(2, 1), Step(3, 10))
    assert steps(table(0, 1, 3, 4, 5)) is None
    assert steps(table(0, 1, 3, 5)) is None


@pytest.mark.parametrize("name", CASES)
def test_a_view_gives_the_bytes_at_the_sums(name: str) -> None:
    from tinygrad import Tensor  # noqa: PLC0415

    from lab.compile.strided import strided_view  # noqa: PLC0415

    tables = CASES[name]
    frame = np.random.default_rng(2).integers(0, 256, 140, np.uint8)
    view = strided_view(tables, frame.size)
    assert view is not None
    assert np.array_equal(view(Tensor(frame)).numpy(), frame[sums(tables)])


def sums(tables: list[NDArray[np.int64]]) -> Any:
    total: Any = 0
    for one in tables:
        total = np.expand_dims(total, -1) + one
    return total


def test_no_view_reaches_beyond_the_frame_or_takes_a_byte_for_two_steps() -> None:
    from lab.compile.strided import strided_view  # noqa: PLC0415

    assert strided_view([ROWS, PIXELS], 100) is not None
    assert strided_view([ROWS, PIXELS], 99) is None  # its last row has no room behind it
    assert strided_view([4 * np.arange(5), np.arange(6)], 100) is None  # rows that overlap
    assert strided_view([table(0, 20, 45), np.arange(6)], 100) is None  # no rule


@pytest.mark.parametrize("tables", [[table(0, 7, 11, 60), PIXELS], [ROWS, table(0, 0, 1, 5)], [table(3, 90), table(2)]])
def test_a_table_without_a_rule_is_gathered(tables: list[NDArray[np.int64]]) -> None:
    from tinygrad import Tensor  # noqa: PLC0415

    from lab.compile.gather import SeparableIndex  # noqa: PLC0415

    frame = np.random.default_rng(2).integers(0, 256, 99, np.uint8)
    index = SeparableIndex(frame.size, *tables)
    assert np.array_equal(index.bytes_of(Tensor(frame)).numpy(), frame[sums(tables)])
