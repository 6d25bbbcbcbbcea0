"""Keeps memory accesses on both sides of a point in their order, for words that two processes share."""

from __future__ import annotations

import threading

__all__ = ["Barrier"]


class Barrier:
    """Call it between two accesses to shared memory. Not for use from two threads at once.

    Python has no fence, but leaving a lock stores with release order and taking it loads with acquire order, and no
    access passes both, on weakly ordered machines neither (Arm ARM B2.3: load-acquire after store-release).
    """

    __slots__ = ("_lock",)

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lock.acquire()

    def __call__(self) -> None:
        self._lock.release()
        self._lock.acquire()
