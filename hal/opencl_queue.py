"""A command queue's timeline: a thread waits for each run's last event, and only a complete event advances the value.

The thread sits in clWaitForEvents without the interpreter lock. When the wait returns it asks the event itself for its
status; CL_COMPLETE writes the record, then the timeline's word, then the eventfd. An event that ended in an error, or a
run that could not be enqueued whole, gives a record that says so, and the device counts as lost.

OpenCL cannot take back what is enqueued, so only AHEAD runs are: later ones are kept here and enqueued as earlier ones
end, which leaves the device no gap and `cancel` something to withdraw. (Failing a user event would be the standard's
way; PoCL 3.1 aborts the process in it.)
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

from hal.error import HalCode, HalError
from hal.fence import RECORD_WORDS, RUN_CANCELLED, RUN_FAILED, RUN_OK, Timeline
from hal.opencl_clock import ClockMap
from hal.opencl_memory import OpenClContext

AHEAD = 2  # one runs, one is ready behind it: the device never waits for the host
_RECHECK_S = 0.001


@dataclass(slots=True)
class Run:
    """One run. `start` enqueues it and fills in the rest; it raises HalError only where nothing was enqueued.

    first, last: events (0: none), owned by the run; they may be one. before_ns, after_ns: CLOCK_MONOTONIC around the
    enqueue of the first launch. failure: the status of the enqueue call that failed, 0 where all went well.
    started_ns: in the device's clock. withdrawn: cancelled before it was enqueued. error: why it was not begun.
    """

    value: int
    launches: int
    start: Callable[[Run], None]
    first: int = 0
    last: int = 0
    before_ns: int = 0
    after_ns: int = 0
    failure: int = 0
    started_ns: int = 0
    withdrawn: bool = False
    error: HalError | None = None


class OpenClQueue:
    """An in-order queue and its timeline. `lost`: why the device must be latched, once an event has said so."""

    def __init__(self, context: OpenClContext, clock: ClockMap, slots: int) -> None:
        self._context, self._api, self._clock = context, context.api, clock
        self._word = memoryview(array("Q", [0]))
        self._records = memoryview(array("q", bytes(8 * RECORD_WORDS * slots)))
        self.timeline = Timeline(self._word, self._records, os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC))
        self.launches_done = 0
        self.lost: HalError | None = None
        self.handle = context.queue()
        self._cancelled = 0  # runs up to this value end as cancelled
        self._started = 0  # runs that are enqueued and not finished
        self._kept: deque[Run] = deque()
        self._completed_ns = 0
        self._runs: SimpleQueue[Run | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._serve, name="fenced-opencl", daemon=True)
        self._thread.start()

    def add(self, run: Run) -> None:
        """Enqueue the run, or keep it where AHEAD are before it. Raises HalError where it could not be begun.

        The caller issues its fence and then calls `follow`.
        """
        with self._context.lock:
            if self._started < AHEAD and not self._kept:
                run.start(run)
                self._started += 1
            else:
                self._kept.append(run)

    def follow(self, run: Run) -> None:
        """Have the run's end awaited."""
        self._runs.put(run)

    def cancel(self) -> None:
        """End every run in flight as cancelled; those not enqueued yet never are."""
        with self._context.lock:
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

    def rebuild(self) -> None:
        """A new queue in the context's present generation; nothing may be in flight."""
        self.release()
        self.handle = self._context.queue()
        self.lost = None

    def release(self) -> None:
        """Let go of the device's queue. Idempotent."""
        if self.handle:
            self._api.raw("clReleaseCommandQueue")(self.handle)
            self.handle = 0

    def close(self) -> None:
        """Stop the thread and close the timeline; nothing may be in flight."""
        self._runs.put(None)
        self._thread.join()
        self.release()
        self.timeline.close()

    def _serve(self) -> None:
        while (run := self._runs.get()) is not None:
            if run.withdrawn:
                run.started_ns = self._completed_ns
                self._record(run, RUN_CANCELLED)
                continue
            outcome = self._outcome(run)
            for event in {run.first, run.last} - {0}:
                self._api.raw("clReleaseEvent")(event)
            with self._context.lock:
                self._record(run, outcome)
                self._started -= 1
                self._start_kept()

    def _start_kept(self) -> None:
        while self._kept and self._started < AHEAD:
            run = self._kept.popleft()
            try:
                run.start(run)
            except HalError as error:
                run.error = error
            self._started += 1

    def _outcome(self, run: Run) -> int:
        """Wait for the run. RUN_OK only where its last event is complete."""
        error = run.error
        if error is None:
            status = self._await(run)
            if status:
                error = HalError(HalCode.DEVICE_LOST, f"run {run.value} failed on the device",
                                 found=self._api.status_name(status), todo="reset the device")  # fmt: skip
        try:
            if error is None:
                self._stamp(run)
        except HalError as failed:
            error = failed
        if error is not None:
            self.lost = self.lost or error
            return RUN_FAILED
        self.launches_done += run.launches
        return RUN_CANCELLED if run.value <= self._cancelled else RUN_OK

    def _await(self, run: Run) -> int:
        """0 once the last event's own status is CL_COMPLETE, else the error it ended with."""
        if not run.last:
            self._api.raw("clFinish")(self.handle)
            return run.failure
        event, status = ctypes.c_void_p(run.last), ctypes.c_int32()
        what = self._api.constant("CL_EVENT_COMMAND_EXECUTION_STATUS")
        while True:
            self._api.raw("clWaitForEvents")(1, ctypes.addressof(event))
            error = self._api.raw("clGetEventInfo")(run.last, what, 4, ctypes.addressof(status), None)
            if error or status.value <= 0:
                return int(error or status.value or run.failure)
            time.sleep(_RECHECK_S)  # a driver whose wait returns before the command has ended

    def _stamp(self, run: Run) -> None:
        """Device times of the run's start and end; the offset of the clocks follows from them (see ClockMap)."""
        seen_ns = time.monotonic_ns()
        queued_ns = self._time(run.first, "CL_PROFILING_COMMAND_QUEUED")
        run.started_ns = self._time(run.first, "CL_PROFILING_COMMAND_START")
        self._completed_ns = self._time(run.last, "CL_PROFILING_COMMAND_END")
        high_ns = min(run.after_ns - queued_ns, seen_ns - self._completed_ns)
        with self._context.lock:
            self._clock.sample(run.before_ns - queued_ns, high_ns, seen_ns)
            self.timeline.clock_offset_ns = self._clock.offset_ns
            self.timeline.clock_error_ns = self._clock.error_ns

    def _time(self, event: int, what: str) -> int:
        value = ctypes.c_uint64()
        constant = self._api.constant(what)
        self._api.call("clGetEventProfilingInfo", event, constant, 8, ctypes.addressof(value), None)
        return value.value

    def _record(self, run: Run, outcome: int) -> None:
        """Record first, then the value, then the descriptor: who sees the value finds the record."""
        at = run.value % self.timeline.slots * RECORD_WORDS
        fields = array("q", [run.value, run.started_ns, self._completed_ns, outcome])
        self._records[at : at + RECORD_WORDS] = memoryview(fields)
        self._word[0] = run.value
        os.eventfd_write(self.timeline.descriptor, 1)
