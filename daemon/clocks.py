"""A time in a camera's clock, said in CLOCK_MONOTONIC, with a bound on the error of saying so.

The offset between two clocks is sampled by reading CLOCK_MONOTONIC just before and just after the other clock: the true
offset then lies within half the bracket of its midpoint (NTP's argument, RFC 5905 §8). The tightest of a few brackets
counts. A realtime clock may jump and boottime steps at resume, so offsets are sampled again and again.
"""

import time
from collections.abc import Callable
from typing import NamedTuple

from abi.format import ClockId

_CLOCKS = {
    ClockId.MONOTONIC: time.CLOCK_MONOTONIC,
    ClockId.BOOTTIME: time.CLOCK_BOOTTIME,
    ClockId.REALTIME: time.CLOCK_REALTIME,
    ClockId.TAI: time.CLOCK_TAI,
}
_BRACKETS = 3
_SAMPLE_AGAIN_NS = 100_000_000

ReadClock = Callable[[int], int]


class Offset(NamedTuple):
    """`camera clock = CLOCK_MONOTONIC + offset_ns`, give or take `error_ns`."""

    offset_ns: int
    error_ns: int


def sample(clock: ClockId, read_ns: ReadClock = time.clock_gettime_ns) -> Offset:
    """Measures the offset now. Exactly 0 ± 0 for CLOCK_MONOTONIC itself."""
    if clock is ClockId.MONOTONIC:
        return Offset(0, 0)
    best = Offset(0, 1 << 62)
    for _ in range(_BRACKETS):
        before = read_ns(time.CLOCK_MONOTONIC)
        other = read_ns(_CLOCKS[clock])
        after = read_ns(time.CLOCK_MONOTONIC)
        error = (after - before + 1) // 2
        if error < best.error_ns:
            best = Offset(other - (before + after) // 2, error)
    return best


class ClockMap:
    """Converts one stream's times; samples its clock at most every 100 ms.

    error_ns: bound on the error of the last conversion. moves: whether it is another clock than CLOCK_MONOTONIC.
    """

    def __init__(self, clock: ClockId, read_ns: ReadClock = time.clock_gettime_ns) -> None:
        self.moves = clock is not ClockId.MONOTONIC
        self.error_ns = 0
        self._clock = clock
        self._read_ns = read_ns
        self._sampled_ns = -_SAMPLE_AGAIN_NS
        self._offset = Offset(0, 0)

    def to_monotonic(self, time_ns: int, now_ns: int) -> int:
        """`time_ns` in the camera's clock as CLOCK_MONOTONIC; `now_ns` is CLOCK_MONOTONIC now."""
        if now_ns - self._sampled_ns >= _SAMPLE_AGAIN_NS:
            self._offset = sample(self._clock, self._read_ns)
            self.error_ns = self._offset.error_ns
            self._sampled_ns = now_ns
        return time_ns - self._offset.offset_ns
