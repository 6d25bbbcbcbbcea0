"""A stream's timeline: a thread waits for the event behind each run, and only a complete event advances the value.

The thread sits in cuEventSynchronize without the interpreter lock. When the wait returns it asks the event itself;
success writes the record, then the timeline's word, then the eventfd. A run that failed gives a record that says so,
and the device counts as lost. CUDA cannot take back what is enqueued, so only AHEAD runs are: later ones are kept here
and enqueued as earlier ones end, which leaves the GPU no gap and `cancel` something to withdraw.
"""

from __future__ import annotations

import ctypes
import os
import threading
import time
from array import array
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from queue import SimpleQueue

from hal.cuda_api import EVENT_BLOCKING_SYNC, NOT_READY, STREAM_NON_BLOCKING
from hal.cuda_device import CudaContext
from hal.error import HalCode, HalError
from hal.fence import RECORD_WORDS, RUN_CANCELLED, RUN_FAILED, RUN_OK, Timeline
from hal.opencl_clock import ClockMap

AHEAD = 2  # one runs, one is ready behind it: the GPU never waits for the host
_RECHECK_S = 0.001
_TICK_NS = 1_000  # events tell time to half a microsecond (cuEventElapsedTime)


@dataclass(slots=True)
class Run:
    """One run. `enqueue` puts its launches into the stream; it raises HalError only where nothing was enqueued.

    started, ended: events around them. before_ns: CLOCK_MONOTONIC before they were enqueued. started_ns: in the
    stream's clock. withdrawn: cancelled before it was enqueued. error: why it was not begun, or not whole.
    """

    value: int
    launches: int
    enqueue: Callable[[], None]
    started: int = 0
    ended: int = 0
    before_ns: int = 0
    started_ns: int = 0
    withdrawn: bool = False
    error: HalError | None = None


class CudaQueue:
    """A stream and its timeline. Its clock is nanoseconds since it was made, by the GPU's events.

    `lost`: why the device must be latched, once a run has failed on it.
    """

    def __init__(self, context: CudaContext, slots: int) -> None:
        self._context, self._api = context, context.api
        self._word = memoryview(array("Q", [0]))
        self._records = memoryview(array("q", bytes(8 * RECORD_WORDS * slots)))
        self.launches_done = 0
        self.lost: HalError | None = None
        self.lock = threading.RLock()
        self._clock = ClockMap()
        self._cancelled = 0  # runs up to this value end as cancelled
        self._started = 0  # runs that are enqueued and not finished
        self._kept: deque[Run] = deque()
        self._completed_ns = 0
        self._runs: SimpleQueue[Run | None] = SimpleQueue()
        self._events: list[int] = []  # made, and of no run now
        self.stream = self._api.make("cuStreamCreate", STREAM_NON_BLOCKING)
        self._base = 0  # the end of the run before, which elapsed times are counted from
        try:
            self._base = self._event()
            self._api.call("cuEventRecord", self._base, self.stream)
            self._api.call("cuStreamSynchronize", self.stream)
        except BaseException:
            self._give_back()
            raise
        self.timeline = Timeline(self._word, self._records, os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC))
        self._thread = threading.Thread(target=self._serve, name="fenced-cuda", daemon=True)
        self._thread.start()

    def add(self, run: Run) -> None:
        """Enqueue the run, or keep it where AHEAD are before it. Raises HalError where it could not be begun.

        The caller holds `lock`, issues the run's fence and then calls `follow`.
        """
        if self._started < AHEAD and not self._kept:
            self._start(run)
            self._started += 1
        else:
            self._kept.append(run)

    def follow(self, run: Run) -> None:
        """Have the run's end awaited."""
        self._runs.put(run)

    def cancel(self) -> None:
        """End every run in flight as cancelled; those not enqueued yet never are."""
        with self.lock:
            self._cancelled = self.timeline.issued
            for run in self._kept:
                run.withdrawn = True
            self._kept.clear()

    def idle_before(self, deadline_ns: int) -> bool:
        """Wait until nothing is in flight, at most until CLOCK_MONOTONIC `deadline_ns`. Whether it came to rest."""
        while self.timeline.in_flight:
            left_ns = deadline_ns - time.monotonic_ns()
            if left_ns <= 0:
                return False
            self.timeline.sleep(left_ns)
        return True

    def synchronize(self) -> None:
        """Wait for copies that were enqueued by themselves; only while no run is in flight."""
        self._api.call("cuStreamSynchronize", self.stream)

    def close(self) -> None:
        """Stop the thread and give everything back; nothing may be in flight."""
        self._runs.put(None)
        self._thread.join()
        self._give_back()
        self.timeline.close()

    def _give_back(self) -> None:
        for event in [event for event in (*self._events, self._base) if event]:
            self._api.raw("cuEventDestroy_v2")(event)
        self._api.raw("cuStreamDestroy_v2")(self.stream)

    def _event(self) -> int:
        return self._events.pop() if self._events else self._api.make("cuEventCreate", EVENT_BLOCKING_SYNC)

    def _start(self, run: Run) -> None:
        self._context.enter()
        run.started, run.ended = self._event(), self._event()
        try:
            run.before_ns = time.monotonic_ns()
            self._api.call("cuEventRecord", run.started, self.stream)
            run.enqueue()
        except HalError:
            self._events += [run.started, run.ended]
            raise
        status = self._api.raw("cuEventRecord")(run.ended, self.stream)
        if status:
            run.error = self._api.error("cuEventRecord", status)

    def _serve(self) -> None:
        self._context.enter()
        while (run := self._runs.get()) is not None:
            if run.withdrawn:
                run.started_ns = self._completed_ns
                self._record(run, RUN_CANCELLED)
                continue
            outcome = self._outcome(run)
            with self.lock:
                self._record(run, outcome)
                self._started -= 1
                while self._kept and self._started < AHEAD:
                    self._start_kept(self._kept.popleft())

    def _start_kept(self, run: Run) -> None:
        try:
            self._start(run)
        except HalError as error:
            run.error, run.ended = error, 0
        self._started += 1

    def _outcome(self, run: Run) -> int:
        """Wait for the run. RUN_OK only where the event behind it is complete."""
        try:
            self._await(run)
            self._stamp(run)
        except HalError as error:
            self.lost = self.lost or error
            return RUN_FAILED
        self.launches_done += run.launches
        return RUN_CANCELLED if run.value <= self._cancelled else RUN_OK

    def _await(self, run: Run) -> None:
        """Raises HalError where the run failed, was not begun, or was not enqueued whole; it is over in any case."""
        if run.error is not None:
            if run.ended:
                self._api.raw("cuStreamSynchronize")(self.stream)
            raise run.error
        while True:
            status = self._api.raw("cuEventSynchronize")(run.ended) or self._api.raw("cuEventQuery")(run.ended)
            if status != NOT_READY:
                break
            time.sleep(_RECHECK_S)
        if status:
            raise HalError(HalCode.DEVICE_LOST, f"run {run.value} failed on the device",
                           found=self._api.status_name(status), todo="restart the process")  # fmt: skip

    def _stamp(self, run: Run) -> None:
        """Times of the run's start and end in the stream's clock, and what they tell of its offset (see ClockMap)."""
        seen_ns = time.monotonic_ns()
        run.started_ns = self._completed_ns + self._elapsed_ns(self._base, run.started)
        self._completed_ns = run.started_ns + self._elapsed_ns(run.started, run.ended)
        with self.lock:
            self._events += [self._base, run.started]
            self._base = run.ended
            low_ns, high_ns = run.before_ns - run.started_ns, seen_ns - self._completed_ns
            self._clock.sample(low_ns - _TICK_NS, high_ns + _TICK_NS, seen_ns)
            self.timeline.clock_offset_ns = self._clock.offset_ns
            self.timeline.clock_error_ns = self._clock.error_ns

    def _elapsed_ns(self, first: int, last: int) -> int:
        milliseconds = ctypes.c_float()
        self._api.call("cuEventElapsedTime", ctypes.addressof(milliseconds), first, last)
        return max(0, round(milliseconds.value * 1e6))

    def _record(self, run: Run, outcome: int) -> None:
        """Record first, then the value, then the descriptor: who sees the value finds the record."""
        at = run.value % self.timeline.slots * RECORD_WORDS
        fields = array("q", [run.value, run.started_ns, self._completed_ns, outcome])
        self._records[at : at + RECORD_WORDS] = memoryview(fields)
        self._word[0] = run.value
        os.eventfd_write(self.timeline.descriptor, 1)
