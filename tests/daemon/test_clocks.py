"""Camera times in CLOCK_MONOTONIC."""

import time

import pytest

from abi.format import ClockId
from daemon.clocks import ClockMap, Offset, sample


class Clocks:
    """Clocks whose offset is injected; each reading of any clock takes `step_ns`."""

    def __init__(self, offset_ns: int, step_ns: int) -> None:
        self.now_ns, self.offset_ns, self.step_ns, self.readings = 1_000_000, offset_ns, step_ns, 0

    def __call__(self, clock: int) -> int:
        self.now_ns += self.step_ns
        self.readings += 1
        return self.now_ns + (0 if clock == time.CLOCK_MONOTONIC else self.offset_ns)


@pytest.mark.parametrize("clock", [ClockId.BOOTTIME, ClockId.REALTIME, ClockId.TAI])
def test_the_offset_is_found_within_its_bound(clock: ClockId) -> None:
    found = sample(clock, Clocks(offset_ns=3_600 * 10**9, step_ns=40))
    assert abs(found.offset_ns - 3_600 * 10**9) <= found.error_ns == 40


def test_monotonic_needs_no_conversion() -> None:
    assert sample(ClockId.MONOTONIC) == Offset(0, 0)
    assert ClockMap(ClockId.MONOTONIC).to_monotonic(5, 10) == 5


def test_a_time_after_a_suspend_is_converted() -> None:
    clocks = ClockMap(ClockId.BOOTTIME, Clocks(offset_ns=7_000, step_ns=0))
    assert clocks.to_monotonic(17_000, now_ns=10_000) == 10_000
    assert clocks.error_ns == 0


def test_the_offset_is_sampled_again_after_a_while() -> None:
    read = Clocks(offset_ns=7_000, step_ns=0)
    clocks = ClockMap(ClockId.REALTIME, read)
    clocks.to_monotonic(0, now_ns=0)
    readings = read.readings
    read.offset_ns = 9_000
    assert clocks.to_monotonic(17_000, now_ns=99_999_999) == 10_000
    assert read.readings == readings
    assert clocks.to_monotonic(19_000, now_ns=100_000_000) == 10_000


def test_the_real_clocks_convert_to_now() -> None:
    for clock, number in ((ClockId.BOOTTIME, time.CLOCK_BOOTTIME), (ClockId.REALTIME, time.CLOCK_REALTIME)):
        clocks = ClockMap(clock)
        before = time.monotonic_ns()
        converted = clocks.to_monotonic(time.clock_gettime_ns(number), before)
        assert before - clocks.error_ns <= converted <= time.monotonic_ns() + clocks.error_ns
