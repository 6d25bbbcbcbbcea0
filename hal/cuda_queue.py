"""A stream's timeline: a thread waits for the event behind each run, and only a complete event advances the value.

The thread sits in cuEventSynchronize without the interpreter lock. When the wait returns it asks the event itself. A
run that failed gives a record that says so, and the device counts as lost. CUDA cannot take back what is enqueued, so
later runs are kept (`hal.run_queue`).
"""

from __future__ import annotations

import ctypes
import threading
import time
from dataclasses import dataclass

from hal import run_queue
from hal.clock import ClockMap
from hal.cuda_api import EVENT_BLOCKING_SYNC, NOT_READY, STREAM_NON_BLOCKING
from hal.cuda_device import CudaContext
from hal.error import HalCode, HalError

_RECHECK_S = 0.001
_TICK_NS = 1_000  # events tell time to half a microsecond (cuEventElapsedTime)


@dataclass(slots=True)
class Run(run_queue.Run):
    """started, ended: events around its launches, 0 where there are none."""

    started: int = 0
    ended: int = 0


class CudaQueue(run_queue.RunQueue[Run]):
    """A stream and its timeline. Its clock is nanoseconds since it was made, by the GPU's events."""

    def __init__(self, context: CudaContext, slots: int) -> None:
        self._context, self._api = context, context.api
        self._events: list[int] = []  # made, and of no run now
        self.stream = self._api.make("cuStreamCreate", STREAM_NON_BLOCKING)
        self._base = 0  # the end of the run before, which elapsed times are counted from
        try:
            self._base = self._event()
            self._api.call("cuEventRecord", self._base, self.stream)
            self._api.call("cuStreamSynchronize", self.stream)
        except BaseException:
            self.release()
            raise
        super().__init__("fenced-cuda", slots, threading.RLock(), ClockMap())
        self.begin()

    def synchronize(self) -> None:
        """Wait for copies that were enqueued by themselves; only while no run is in flight."""
        self._api.call("cuStreamSynchronize", self.stream)

    def release(self) -> None:
        for event in [event for event in (*self._events, self._base) if event]:
            self._api.raw("cuEventDestroy_v2")(event)
        self._events, self._base = [], 0
        if self.stream:
            self._api.raw("cuStreamDestroy_v2")(self.stream)
            self.stream = 0

    def _event(self) -> int:
        return self._events.pop() if self._events else self._api.make("cuEventCreate", EVENT_BLOCKING_SYNC)

    def _enter(self) -> None:
        self._context.enter()

    def _start(self, run: Run) -> None:
        self._context.enter()
        started, ended = self._event(), self._event()
        try:
            run.before_ns = time.monotonic_ns()
            self._api.call("cuEventRecord", started, self.stream)
            run.start(run)
        except HalError:
            self._events += [started, ended]
            raise
        run.started, run.ended = started, ended
        status = self._api.raw("cuEventRecord")(ended, self.stream)
        if status:
            run.error = self._api.error("cuEventRecord", status)

    def _await(self, run: Run) -> None:
        """A run that was begun is over in any case."""
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
        self._tell_clock(low_ns - _TICK_NS, high_ns + _TICK_NS, seen_ns)

    def _elapsed_ns(self, first: int, last: int) -> int:
        milliseconds = ctypes.c_float()
        self._api.call("cuEventElapsedTime", ctypes.addressof(milliseconds), first, last)
        return max(0, round(milliseconds.value * 1e6))
