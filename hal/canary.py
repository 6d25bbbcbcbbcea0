"""Canaries in output memory: proof that a run wrote what its fence says it wrote.

Before a run every aligned 8-byte word of an output is set to one pattern; a word that still holds it afterwards was
not written. The pattern is a NaN in float64 and in both float32 halves, not a number that a model would return, so a
false alarm is a 1 in 2^64 event per word. What the words cannot show, single bytes, `uncovered_bytes` shows exactly,
with two runs over opposite poisons; it is for the self-test.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

POISON = 0x7FF4DEAD7FA4DEAD
_POISON_WORD = np.uint64(POISON)
_WORD_BYTES = 8
_LEAST_TAIL_BYTES = 4  # shorter remains say too little: one byte in 256 would be a false alarm

_any = np.logical_or.reduce  # as ndarray.any, which gets there through Python


class Canary:
    """The canary of one output buffer; made once, so that poisoning and checking allocate nothing.

    view: the buffer's writable bytes, aligned to 8. A last part of 4..7 bytes is checked too; one of 1..3 is only
    poisoned. Raises ValueError for read-only, empty or unaligned memory.
    """

    def __init__(self, view: memoryview) -> None:
        data: NDArray[np.uint8] = np.frombuffer(view, np.uint8)
        if view.readonly or data.ctypes.data % _WORD_BYTES:
            raise ValueError("a canary needs writable memory aligned to 8 bytes")
        whole = data.size // _WORD_BYTES * _WORD_BYTES
        self._words = data[:whole].view(np.uint64)
        self._kept = np.empty(self._words.size, np.bool_)
        self._tail = data[whole:]
        self._tail_poison = np.frombuffer(POISON.to_bytes(_WORD_BYTES, "little"), np.uint8)[: self._tail.size].copy()
        self._tail_kept = np.empty(self._tail.size, np.bool_)
        self._has_tail = bool(self._tail.size)
        self._checks_tail = self._tail.size >= _LEAST_TAIL_BYTES

    def poison(self) -> None:
        """Set the pattern; before a run is submitted."""
        self._words.fill(_POISON_WORD)
        if self._has_tail:
            self._tail[:] = self._tail_poison

    def written(self) -> bool:
        """Whether no word still holds the pattern; after the run's fence has signalled."""
        np.equal(self._words, _POISON_WORD, self._kept)
        if _any(self._kept):
            return False
        if not self._checks_tail:
            return True
        np.equal(self._tail, self._tail_poison, out=self._tail_kept)
        return not self._tail_kept.all()

    def untouched(self) -> bool:
        """Whether every word still holds the pattern: nothing has been written yet."""
        np.equal(self._words, POISON, out=self._kept)
        np.equal(self._tail, self._tail_poison, out=self._tail_kept)
        return bool(self._kept.all() and self._tail_kept.all())


def poison(view: memoryview) -> None:
    """`Canary(view).poison()`, for code off the frame path."""
    Canary(view).poison()


def check(view: memoryview) -> bool:
    """`Canary(view).written()`, for code off the frame path."""
    return Canary(view).written()


def uncovered_bytes(view: memoryview, run: Callable[[], None]) -> int:
    """How many bytes of `view` a run does not write. `run` runs to the end; it is called twice.

    Exact: a byte counts only if it keeps two opposite poisons.
    """
    data: NDArray[np.uint8] = np.frombuffer(view, np.uint8)
    data[:] = 0x5A
    run()
    kept = data == 0x5A
    data[:] = 0xA5
    run()
    return int(np.count_nonzero(kept & (data == 0xA5)))
