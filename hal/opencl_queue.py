"""A command queue's timeline: a thread waits for each run's last event, and only a complete event advances the value.

The thread sits in clWaitForEvents without the interpreter lock. When the wait returns it asks the event itself for its
status; CL_COMPLETE writes the record, then the timeline's word, then the eventfd. An event that ended in an error, or a
run that could not be enqueued whole, gives a record that says so, and the device counts as lost.
"""

from __future__ import annotations

import ctypes
import os
import threading
import time
from array import array
from dataclasses import dataclass
from queue import SimpleQueue

from hal.error import HalCode, HalError
from hal.fence import RECORD_WORDS, RUN_CANCELLED, RUN_FAILED, RUN_OK, Timeline
from hal.opencl_clock import ClockMap
from hal.opencl_memory import OpenClContext

_RECHECK_S = 0.001


@dataclass(slots=True)
class Run:
    """What was enqueued for one fence. `first` and `last` are events (0: none), owned by the run; they may be one.

    before_ns, after_ns: CLOCK_MONOTONIC around the enqueue of the first launch. failure: the status of the enqueue
    call that failed, 0 where all went well.
    """

    value: int
    first: int
    last: int
    before_ns: int
    after_ns: int
    launches: int
    failure: int = 0


class OpenClQueue:
    """An in-order queue and its timeline. `lost`: why the device must be latched, once an event has said so."""

    def __init__(self, context: OpenClContext, clock: ClockMap, slots: int) -> None:
        self._context, self._api, self._clock = context, context.api, clock
        self._word = memoryview(array("Q", [0]))
        self._records = memoryview(array("q", bytes(8 * RECORD_WORDS * slots)))
        self.timeline = Timeline(self._word, self._records, os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC))
        self.launches_done = 0
        self.cancelled = 0  # runs up to this value end as cancelled
        self.lost: HalError | None = None
        self.handle = context.queue()
        self._runs: SimpleQueue[Run | None] = SimpleQueue()
        self._wait_for = self._api.raw("clWaitForEvents")
        self._thread = threading.Thread(target=self._serve, name="fenced-opencl", daemon=True)
        self._thread.start()

    def push(self, run: Run) -> None:
        """Have the run's end awaited. Its fence was issued before."""
        self._runs.put(run)

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
            status = self._await(run)
            started_ns = completed_ns = 0
            if status == 0:
                try:
                    started_ns, completed_ns = self._times(run)
                except HalError as error:
                    status, self.lost = -1, error
            for event in {run.first, run.last} - {0}:
                self._api.raw("clReleaseEvent")(event)
            self._finish(run, started_ns, completed_ns, status)

    def _await(self, run: Run) -> int:
        """0 once the last event's own status is CL_COMPLETE, else the error it ended with."""
        if not run.last:
            self._api.raw("clFinish")(self.handle)
            return run.failure
        event, status = ctypes.c_void_p(run.last), ctypes.c_int32()
        what = self._api.constant("CL_EVENT_COMMAND_EXECUTION_STATUS")
        while True:
            self._wait_for(1, ctypes.addressof(event))
            error = self._api.raw("clGetEventInfo")(run.last, what, 4, ctypes.addressof(status), None)
            if error or status.value <= 0:
                return int(error or status.value or run.failure)
            time.sleep(_RECHECK_S)  # a driver whose wait returns before the command has ended

    def _times(self, run: Run) -> tuple[int, int]:
        """Device times of the run's start and end; the offset of the clocks follows from them (see ClockMap)."""
        seen_ns = time.monotonic_ns()
        queued_ns = self._stamp(run.first, "CL_PROFILING_COMMAND_QUEUED")
        started_ns = self._stamp(run.first, "CL_PROFILING_COMMAND_START")
        completed_ns = self._stamp(run.last, "CL_PROFILING_COMMAND_END")
        high_ns = min(run.after_ns - queued_ns, seen_ns - completed_ns)
        self._clock.sample(run.before_ns - queued_ns, high_ns, seen_ns)
        self.timeline.clock_offset_ns = self._clock.offset_ns
        self.timeline.clock_error_ns = self._clock.error_ns
        return started_ns, completed_ns

    def _stamp(self, event: int, what: str) -> int:
        value = ctypes.c_uint64()
        constant = self._api.constant(what)
        self._api.call("clGetEventProfilingInfo", event, constant, 8, ctypes.addressof(value), None)
        return value.value

    def _finish(self, run: Run, started_ns: int, completed_ns: int, status: int) -> None:
        """Record first, then the value, then the descriptor: who sees the value finds the record."""
        outcome = RUN_OK
        if status:
            outcome = RUN_FAILED
            self.lost = self.lost or HalError(
                HalCode.DEVICE_LOST, f"run {run.value} failed on the device", found=self._api.status_name(status),
                todo="reset the device",
            )  # fmt: skip
        elif run.value <= self.cancelled:
            outcome = RUN_CANCELLED
        if not status:
            self.launches_done += run.launches
        record = run.value % self.timeline.slots * RECORD_WORDS
        self._records[record : record + RECORD_WORDS] = memoryview(
            array("q", [run.value, started_ns, completed_ns, outcome])
        )
        self._word[0] = run.value
        os.eventfd_write(self.timeline.descriptor, 1)
