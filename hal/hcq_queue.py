"""A module's runs on an HCQ device, and its timeline: a thread watches the words that the GPU writes.

The GPU ends a run by writing its value to the device's timeline signal, a word in host memory. The thread polls that
word and sleeps in between for a fraction of the time it has waited, so that it costs little and is late by little:
at most an eighth of the run, within 20 us and 1 ms. Then it writes the record, the timeline's word and the eventfd.
(It is a Python thread and no native code, because on the vehicle nothing is compiled and a bundle's code blob is the
GPU's. The kernel drivers' own waits are not used: NV has none, QCOM's has no limit.)

A lane's words are read by the device until its run ends, so AHEAD runs are handed over, in lanes of their own; later
ones are kept here, which gives `cancel` something to withdraw.
"""

from __future__ import annotations

import ctypes
import os
import threading
import time
from array import array
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from queue import SimpleQueue

from hal.error import HalCode, HalError
from hal.fence import RECORD_WORDS, RUN_CANCELLED, RUN_FAILED, RUN_OK, Timeline
from hal.hcq_device import HcqDevice
from hal.hcq_lane import Lane
from hal.hcq_memory import HostMemory

AHEAD = 2  # one runs, one is ready behind it: the device never waits for the host
_LEAST_SLEEP_NS, _MOST_SLEEP_NS, _SLEEP_FRACTION = 20_000, 1_000_000, 8
_OVERDUE_SLEEP_NS = 20_000_000  # a run past its budget is a hang that others have noticed
_FAULT_LOOK_NS = 200_000_000
_NS_PER_S = 1_000_000_000


@dataclass(slots=True)
class Run:
    """One run. `start` hands it to the device and fills in the rest; it raises HalError where it could not.

    word, target: it has ended when the device's timeline signal holds `target`. before_ns: CLOCK_MONOTONIC just before
    the doorbell. shared: memory to take back at its end. withdrawn: cancelled before it was handed over.
    """

    value: int
    launches: int
    budget_ns: int
    start: Callable[[Run], None]
    lane: Lane | None = None
    word: ctypes.c_uint64 | None = None
    target: int = 0
    before_ns: int = 0
    shared: list[HostMemory] = field(default_factory=list)
    withdrawn: bool = False
    error: HalError | None = None


class HcqQueue:
    """Runs in order, and their timeline. `lost`: why the device must be latched, once that is known."""

    def __init__(self, device: HcqDevice, slots: int) -> None:
        self._device = device
        self._word = memoryview(array("Q", [0]))
        self._records = memoryview(array("q", bytes(8 * RECORD_WORDS * slots)))
        self.timeline = Timeline(self._word, self._records, os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC))
        self.timeline.clock_offset_ns, self.timeline.clock_error_ns = device.clock.offset_ns, device.clock.error_ns
        self.ahead = AHEAD
        self.launches_done = 0
        self.lost: HalError | None = None
        self._cancelled = 0  # runs up to this value end as cancelled
        self._started = 0  # runs that the device has and that have not ended
        self._kept: deque[Run] = deque()
        self._times = (0, 0)  # started_ns, completed_ns of the latest run
        self._closing = False
        self._runs: SimpleQueue[Run | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._serve, name="fenced-hcq", daemon=True)
        self._thread.start()

    def add(self, run: Run) -> None:
        """Hand the run over, or keep it where `ahead` are before it. Raises HalError where it could not be begun.

        The caller issues its fence and then calls `follow`.
        """
        with self._device.lock:
            if self._started < self.ahead and not self._kept:
                run.start(run)
                self._started += 1
            else:
                self._kept.append(run)

    def follow(self, run: Run) -> None:
        """Have the run's end awaited."""
        self._runs.put(run)

    def cancel(self) -> None:
        """End every run in flight as cancelled; those not handed over yet never are."""
        with self._device.lock:
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

    def close(self) -> None:
        """Stop the thread and close the timeline; nothing may be in flight."""
        self._runs.put(None)
        self._thread.join()
        self.timeline.close()

    def _serve(self) -> None:
        while (run := self._runs.get()) is not None:
            if run.withdrawn:
                self._times = (self._times[1], self._times[1])
                self._record(run, RUN_CANCELLED)
                continue
            outcome = self._outcome(run)
            with self._device.lock:
                if run.lane is not None:
                    run.lane.busy = False
                self._started -= 1
                self._record(run, outcome)
                self._start_kept()

    def _start_kept(self) -> None:
        while self._kept and self._started < self.ahead:
            run = self._kept.popleft()
            try:
                run.start(run)
            except HalError as error:
                run.error = error
            self._started += 1

    def _outcome(self, run: Run) -> int:
        """Wait for the run. RUN_OK only where the device's own word says that it ended."""
        if run.error is not None or run.lane is None:
            self.lost = self.lost or run.error
            return RUN_FAILED
        self._await(run)
        seen_ns = time.monotonic_ns()
        for memory in run.shared:
            memory.take()
        self._times = (run.lane.started_ns, run.lane.completed_ns)
        self._map_clock(run.before_ns, seen_ns)
        self.launches_done += run.launches
        return RUN_CANCELLED if run.value <= self._cancelled else RUN_OK

    def _await(self, run: Run) -> None:
        """Return when the device has written the run's value. A fault is noted, and waited on: only a value frees."""
        assert run.word is not None
        began_ns = time.monotonic_ns()
        look_ns = began_ns + _FAULT_LOOK_NS
        while run.word.value < run.target:
            now_ns = time.monotonic_ns()
            waited_ns = now_ns - began_ns
            sleep_ns = min(_MOST_SLEEP_NS, max(_LEAST_SLEEP_NS, waited_ns // _SLEEP_FRACTION))
            if waited_ns > run.budget_ns:
                sleep_ns = _OVERDUE_SLEEP_NS
            if now_ns > look_ns and self.lost is None:
                look_ns = now_ns + _FAULT_LOOK_NS
                self._look_for_faults()
            time.sleep(sleep_ns / _NS_PER_S)

    def _look_for_faults(self) -> None:
        try:
            self._device.look_for_faults()
        except HalError as error:
            self.lost = error
            os.eventfd_write(self.timeline.descriptor, 1)  # whoever waits looks at the device again

    def _map_clock(self, before_ns: int, seen_ns: int) -> None:
        """The run began after its doorbell and ended before it was seen: two bounds for the clocks' offset."""
        started_ns, completed_ns = self._times
        with self._device.lock:
            clock = self._device.clock
            clock.sample(before_ns - started_ns - self._device.tick_ns, seen_ns - completed_ns, seen_ns)
            self.timeline.clock_offset_ns, self.timeline.clock_error_ns = clock.offset_ns, clock.error_ns

    def _record(self, run: Run, outcome: int) -> None:
        """Record first, then the value, then the descriptor: who sees the value finds the record."""
        at = run.value % self.timeline.slots * RECORD_WORDS
        self._records[at : at + RECORD_WORDS] = memoryview(array("q", [run.value, *self._times, outcome]))
        self._word[0] = run.value
        os.eventfd_write(self.timeline.descriptor, 1)


def rewind_refusal() -> HalError:
    """Why a run must wait for the ones before it: two thousand million in a row, never at rest in between."""
    return HalError(HalCode.QUEUE_FULL, "the device's timeline is to be begun anew", expected="nothing in flight",
                    todo="wait for the fences in flight")  # fmt: skip
