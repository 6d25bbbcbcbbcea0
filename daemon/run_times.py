"""How long runs of one entrypoint take, as measured: the p99 by which frames are admitted.

A sliding window of the last 128 runs in log-spaced buckets: fixed memory, nothing allocated by a run. The p99 is an
upper bound within 9 % (one bucket) and lets one outlier in a full window pass; a window of fewer than 100 has its
maximum as p99. An estimate that only ever refuses runs would never be corrected: after a few frames in a row that did
not run for it alone the slowest sample is forgotten at each, until a run may show again how long it takes.
"""

from bisect import bisect_left

WINDOW_RUNS = 128
PATIENCE_DROPS = 4
_STEPS_AN_OCTAVE = 8
_SHORTEST_NS = 1_000  # all shorter runs share the first bucket
_BUCKETS = 255
_LONGEST_NS = tuple(round(_SHORTEST_NS * 2 ** (step / _STEPS_AN_OCTAVE)) for step in range(_BUCKETS))  # 1 us .. 1 h


class RunTimes:
    """Run times in nanoseconds of CLOCK_MONOTONIC; see the module. `last_ns` is the last one, 0 before the first."""

    __slots__ = ("_bucket_of_run", "_counts", "_drops", "_next", "_runs", "_top", "last_ns", "p99_ns")

    def __init__(self, first_ns: int = 0) -> None:
        """`first_ns`: a run that was measured before (the self-test's); 0: none."""
        self._counts = [0] * _BUCKETS
        self._bucket_of_run = bytearray([_BUCKETS] * WINDOW_RUNS)  # _BUCKETS: no run, or one that was forgotten
        self._next = 0
        self._runs = 0
        self._top = 0  # no bucket above it holds a run
        self._drops = 0
        self.last_ns = 0
        self.p99_ns = 0
        # 0 while nothing is known: every frame whose deadline has not passed may then run.
        if first_ns:
            self.add(first_ns)

    @property
    def runs(self) -> int:
        """How many runs the window holds."""
        return self._runs

    def add(self, run_ns: int) -> None:
        """A run has ended."""
        bucket = min(bisect_left(_LONGEST_NS, run_ns), _BUCKETS - 1)
        self._forget(self._bucket_of_run[self._next])
        self._bucket_of_run[self._next] = bucket
        self._next = (self._next + 1) % WINDOW_RUNS
        self._counts[bucket] += 1
        self._runs += 1
        self._top = max(self._top, bucket)
        self._drops = 0
        self.last_ns = run_ns
        self._update()

    def note_drop(self, keep_runs: int = 0) -> None:
        """A frame did not run for this estimate alone. `keep_runs`: so many samples, the fastest, always stay."""
        self._drops += 1
        if self._drops > PATIENCE_DROPS and self._runs > keep_runs:
            slowest = self._bucket_of_run.index(self._top)
            self._bucket_of_run[slowest] = _BUCKETS
            self._forget(self._top)
            self._update()

    def quantile_ns(self, percent: int) -> int:
        """At most so long were so many percent of the runs in the window; 0 where it is empty."""
        beyond = self._runs * (100 - percent) // 100
        for bucket in range(self._top, -1, -1):
            beyond -= self._counts[bucket]
            if beyond < 0:
                return _LONGEST_NS[bucket]
        return 0

    def _forget(self, bucket: int) -> None:
        if bucket != _BUCKETS:
            self._counts[bucket] -= 1
            self._runs -= 1

    def _update(self) -> None:
        while self._top and not self._counts[self._top]:
            self._top -= 1
        self.p99_ns = self.quantile_ns(99)
