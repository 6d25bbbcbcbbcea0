"""An OpenCL command queue's timeline: a thread waits for each run's last event, and only a complete event advances it.

The thread sits in clWaitForEvents without the interpreter lock. When the wait returns it asks the event itself for its
status; CL_COMPLETE ends the run. An event that ended in an error, or a run that could not be enqueued whole, gives a
record that says so, and the device counts as lost.

OpenCL cannot take back what is enqueued, so later runs are kept (`hal.run_queue`). Failing a user event would be the
standard's way to withdraw them; PoCL 3.1 aborts the process in it.
"""

from __future__ import annotations

import ctypes
import time
from dataclasses import dataclass

from hal import run_queue
from hal.clock import ClockMap
from hal.error import HalCode, HalError
from hal.opencl_memory import OpenClContext

_RECHECK_S = 0.001


@dataclass(slots=True)
class Run(run_queue.Run):
    """first, last: events (0: none), owned by the run; they may be one. after_ns: CLOCK_MONOTONIC after the enqueue of
    the first launch, as `before_ns` is before it. failure: the status of the enqueue call that failed, 0 where all
    went well.
    """

    first: int = 0
    last: int = 0
    after_ns: int = 0
    failure: int = 0


class OpenClQueue(run_queue.RunQueue[Run]):
    """An in-order queue and its timeline."""

    def __init__(self, context: OpenClContext, clock: ClockMap, slots: int) -> None:
        self._context, self._api = context, context.api
        self.handle = context.queue()
        super().__init__("fenced-opencl", slots, context.lock, clock)
        self.begin()

    def rebuild(self) -> None:
        """A new queue in the context's present generation; nothing may be in flight."""
        self.release()
        self.handle = self._context.queue()
        self.lost = None

    def release(self) -> None:
        if self.handle:
            self._api.raw("clReleaseCommandQueue")(self.handle)
            self.handle = 0

    def _await(self, run: Run) -> None:
        if run.error is not None:
            raise run.error
        status = self._status(run)
        if status:
            raise HalError(HalCode.DEVICE_LOST, f"run {run.value} failed on the device",
                           found=self._api.status_name(status), todo="reset the device")  # fmt: skip

    def _status(self, run: Run) -> int:
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
        self._tell_clock(run.before_ns - queued_ns, high_ns, seen_ns)

    def _time(self, event: int, what: str) -> int:
        value = ctypes.c_uint64()
        constant = self._api.constant(what)
        self._api.call("clGetEventProfilingInfo", event, constant, 8, ctypes.addressof(value), None)
        return value.value

    def _take_back(self, run: Run) -> None:
        for event in {run.first, run.last} - {0}:
            self._api.raw("clReleaseEvent")(event)
