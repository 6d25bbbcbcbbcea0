"""Runs in order, and their timeline, for a device whose end of a run is awaited by a thread of ours.

What the device has been given can often not be taken back, so only `ahead` runs are: later ones are kept here and
handed over as earlier ones end, which leaves the device no gap and `cancel` something to withdraw. The thread waits for
each run; only what the device itself says of its end advances the timeline: record, then value, then eventfd.
"""

from __future__ import annotations

import os
import threading
import time
from abc import ABC, abstractmethod
from array import array
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any, Generic, TypeVar

from hal.clock import ClockMap
from hal.error import HalError
from hal.fence import RECORD_WORDS, RUN_CANCELLED, RUN_FAILED, RUN_OK, Fence, Timeline

AHEAD = 2  # one runs, one is ready behind it: the device never waits for the host


@dataclass(slots=True)
class Run:
    """One run. `start`, given the run, hands it to the device; it raises HalError only where nothing was begun.

    before_ns: CLOCK_MONOTONIC just before it was handed over. started_ns: in the device's clock. withdrawn: cancelled
    before it was handed over. error: why it was not begun, or not whole.
    """

    value: int
    launches: int
    budget_ns: int
    start: Callable[[Any], None]
    before_ns: int = 0
    started_ns: int = 0
    withdrawn: bool = False
    error: HalError | None = None


R = TypeVar("R", bound=Run)


class RunQueue(ABC, Generic[R]):
    """lock: held, shortly, by whoever hands over or takes back. clock: maps the device's time to CLOCK_MONOTONIC.

    `lost`: why the device must be latched, once that is known. A subclass says what waiting and taking back are, and
    calls `begin` when it is whole.
    """

    def __init__(self, name: str, slots: int, lock: threading.RLock, clock: ClockMap) -> None:
        self._word = memoryview(array("Q", [0]))
        self._records = memoryview(array("q", bytes(8 * RECORD_WORDS * slots)))
        self.timeline = Timeline(self._word, self._records, os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC))
        self.ahead = AHEAD
        self.launches_done = 0
        self.lost: HalError | None = None
        self.lock: Any = lock
        self._clock = clock
        self._cancelled = 0  # runs up to this value end as cancelled
        self._started = 0  # runs that the device has and that have not ended
        self._kept: deque[R] = deque()
        self._completed_ns = 0  # of the latest run
        self._runs: SimpleQueue[R | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._serve, name=name, daemon=True)

    def begin(self) -> None:
        """Runs may come."""
        self._thread.start()

    def submit(self, run: R, bound: object) -> Fence:
        """Hand the run over, or keep it where `ahead` are before it; its fence. `bound` lives until it has ended.

        Raises HalError where it could not be begun; it then never is.
        """
        submitted_ns = time.monotonic_ns()
        with self.lock:
            if self._started < self.ahead and not self._kept:
                self._start(run)
                self._started += 1
            else:
                self._kept.append(run)
            fence = self.timeline.issue(run.value, submitted_ns, run.budget_ns, bound)
        self._runs.put(run)
        return fence

    def cancel(self) -> None:
        """End every run in flight as cancelled; those not handed over yet never are."""
        with self.lock:
            self._cancelled = self.timeline.issued
            for run in self._kept:
                run.withdrawn = True
            self._kept.clear()

    def close(self) -> None:
        """Stop the thread and give everything back; nothing may be in flight."""
        self._runs.put(None)
        self._thread.join()
        self.release()
        self.timeline.close()

    def release(self) -> None:
        """Let go of the device's own queue. Idempotent."""

    @abstractmethod
    def _await(self, run: R) -> None:
        """Return when the run has ended well, by the device's own word; `run.error` or another HalError where not."""

    @abstractmethod
    def _stamp(self, run: R) -> None:
        """Set `run.started_ns` and `_completed_ns` from the device, and tell the clock. Raises HalError."""

    def _start(self, run: R) -> None:
        run.start(run)

    def _enter(self) -> None:
        """What the thread must do before its first call to the device."""

    def _take_back(self, run: R) -> None:
        """The run has ended, well or badly; the lock is held."""

    def _serve(self) -> None:
        self._enter()
        while (run := self._runs.get()) is not None:
            if run.withdrawn:
                run.started_ns = self._completed_ns
                self._record(run, RUN_CANCELLED)
                continue
            outcome = self._outcome(run)
            with self.lock:
                self._take_back(run)
                self._record(run, outcome)
                self._started -= 1
                self._start_kept()

    def _start_kept(self) -> None:
        while self._kept and self._started < self.ahead:
            run = self._kept.popleft()
            try:
                self._start(run)
            except HalError as error:
                run.error = error
            self._started += 1

    def _outcome(self, run: R) -> int:
        """Wait for the run. RUN_OK only where the device says that it ended."""
        try:
            self._await(run)
            self._stamp(run)
        except HalError as error:
            self.lost = self.lost or error
            return RUN_FAILED
        self.launches_done += run.launches
        return RUN_CANCELLED if run.value <= self._cancelled else RUN_OK

    def _tell_clock(self, low_ns: int, high_ns: int, seen_ns: int) -> None:
        """Two bounds for the clocks' offset, from a run whose end was seen at CLOCK_MONOTONIC `seen_ns`."""
        with self.lock:
            self._clock.sample(low_ns, high_ns, seen_ns)
            self.timeline.clock_offset_ns = self._clock.offset_ns
            self.timeline.clock_error_ns = self._clock.error_ns

    def _record(self, run: R, outcome: int) -> None:
        """Record first, then the value, then the descriptor: who sees the value finds the record."""
        at = run.value % self.timeline.slots * RECORD_WORDS
        fields = array("q", [run.value, run.started_ns, self._completed_ns, outcome])
        self._records[at : at + RECORD_WORDS] = memoryview(fields)
        self._word[0] = run.value
        os.eventfd_write(self.timeline.descriptor, 1)
