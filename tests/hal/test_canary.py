"""Poisoned outputs: whatever was not written shows."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest

from hal import canary
from hal.canary import POISON, Canary


def aligned(size: int) -> memoryview:
    whole = np.empty(size + 8, np.uint8)
    start = -whole.ctypes.data % 8
    return whole[start : start + size].data


@pytest.mark.parametrize("size", [8, 64, 4096, 4, 12, 13, 15])
def test_untouched_memory_is_seen_and_full_memory_passes(size: int) -> None:
    view = aligned(size)
    held = Canary(view)
    held.poison()
    assert not held.written()
    assert held.untouched()
    view[:] = bytes(size)
    assert held.written()
    assert not held.untouched()


@pytest.mark.parametrize("word", [0, 1, 7])
def test_one_word_left_is_enough(word: int) -> None:
    view = aligned(64)
    canary.poison(view)
    left = bytes(view[8 * word : 8 * word + 8])
    view[:] = bytes(64)
    view[8 * word : 8 * word + 8] = left
    assert not canary.check(view)


def test_a_tail_of_four_bytes_is_checked_and_one_of_three_only_poisoned() -> None:
    for size, seen in ((12, True), (11, False)):
        view = aligned(size)
        canary.poison(view)
        tail = bytes(view[8:])
        assert tail == POISON.to_bytes(8, "little")[: size - 8]
        view[:8] = bytes(8)
        assert canary.check(view) is not seen


def test_the_poison_is_no_number() -> None:
    raw = np.array([POISON], np.uint64)
    assert np.isnan(raw.view(np.float64)).all()
    assert np.isnan(raw.view(np.float32)).all()


def test_read_only_and_unaligned_memory_is_refused() -> None:
    with pytest.raises(ValueError, match="writable memory aligned"):
        Canary(memoryview(bytes(8)))
    with pytest.raises(ValueError, match="writable memory aligned"):
        Canary(aligned(17)[1:])


def test_poisoning_and_checking_allocate_nothing() -> None:
    held = Canary(aligned(1 << 16))
    for _ in range(3):
        held.poison()
        held.written()
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    for _ in range(100):
        held.poison()
        held.written()
    after = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert after - before < 1024


@pytest.mark.parametrize("missing", [(), (0,), (5, 63), tuple(range(64))])
def test_uncovered_bytes_are_counted_exactly(missing: tuple[int, ...]) -> None:
    view = aligned(64)
    covered = [at for at in range(64) if at not in missing]

    def run() -> None:
        for at in covered:
            view[at] = 0x5A  # even a byte that equals a poison

    assert canary.uncovered_bytes(view, run) == len(missing)
