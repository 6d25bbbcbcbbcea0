"""Histograms of times with fixed buckets: counting one allocates nothing that stays.

The bounds are chosen for cameras of 10 to 60 Hz: fine where a deadline of 16 to 100 ms is met or missed, with a tail
that shows a stall. They are the same for every histogram, so that a dashboard may add or divide them.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left

_US = 1_000
BOUNDS_NS = tuple(
    one * _US
    for one in (100, 250, 500, 1_000, 2_000, 5_000, 10_000, 20_000, 30_000, 50_000, 75_000, 100_000, 200_000,
                500_000, 1_000_000)
)  # fmt: skip
"""Upper bounds of the buckets, in ns; one more bucket takes what is longer."""


class Histogram:
    """Counts times in nanoseconds. A negative one, of clocks that differ by their error, counts as 0."""

    __slots__ = ("_counts", "sum_ns")

    def __init__(self) -> None:
        self._counts = array("Q", bytes(8 * (len(BOUNDS_NS) + 1)))
        self.sum_ns = 0

    def observe(self, time_ns: int) -> None:
        """Counts one."""
        self._counts[bisect_left(BOUNDS_NS, time_ns)] += 1
        if time_ns > 0:
            self.sum_ns += time_ns

    def cumulative(self) -> list[int]:
        """How many were at most each bound; the last: how many there were."""
        total, sums = 0, []
        for count in self._counts:
            total += count
            sums.append(total)
        return sums


class StageTimes:
    """Where the time of a published result went; one histogram a stage, and their sum.

    queue: SOF of the oldest frame to the device. run: from there to the fence. publish: from there to the consumers.
    """

    __slots__ = ("latency", "publish", "queue", "run")

    def __init__(self) -> None:
        self.latency = Histogram()
        self.queue = Histogram()
        self.run = Histogram()
        self.publish = Histogram()

    def observe(self, sof_ns: int, submitted_ns: int, completed_ns: int, published_ns: int) -> None:
        """A result was published. All times CLOCK_MONOTONIC."""
        self.latency.observe(published_ns - sof_ns)
        self.queue.observe(submitted_ns - sof_ns)
        self.run.observe(completed_ns - submitted_ns)
        self.publish.observe(published_ns - completed_ns)
