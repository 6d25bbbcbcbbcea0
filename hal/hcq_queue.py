"""A module's runs on an HCQ device, and its timeline: a thread watches the words that the GPU writes.

The GPU ends a run by writing its value to the device's timeline signal, a word in host memory. The thread polls that
word and sleeps in between for a fraction of the time it has waited, so that it costs little and is late by little:
at most an eighth of the run, within 20 us and 1 ms.
(It is a Python thread and no native code, because on the vehicle nothing is compiled and a bundle's code blob is the
GPU's. The kernel drivers' own waits are not used: NV has none, QCOM's has no limit.)

A lane's words are read by the device until its run ends, so the runs that are handed over are in lanes of their own.
"""

from __future__ import annotations

import ctypes
import os
import time
from dataclasses import dataclass, field

from hal import run_queue
from hal.error import HalCode, HalError
from hal.hcq_device import HcqDevice
from hal.hcq_lane import Lane
from hal.hcq_memory import HostMemory

_LEAST_SLEEP_NS, _MOST_SLEEP_NS, _SLEEP_FRACTION = 20_000, 1_000_000, 8
_OVERDUE_SLEEP_NS = 20_000_000  # a run past its budget is a hang that others have noticed
_FAULT_LOOK_NS = 200_000_000
_NS_PER_S = 1_000_000_000


@dataclass(slots=True)
class Run(run_queue.Run):
    """word, target: it has ended when the device's timeline signal holds `target`. shared: memory to take back at its
    end. `before_ns` is just before the doorbell.
    """

    lane: Lane | None = None
    word: ctypes.c_uint64 | None = None
    target: int = 0
    shared: list[HostMemory] = field(default_factory=list)


class HcqQueue(run_queue.RunQueue[Run]):
    """See above."""

    def __init__(self, device: HcqDevice, slots: int) -> None:
        self._device = device
        super().__init__("fenced-hcq", slots, device.lock, device.clock)
        self.timeline.clock_offset_ns, self.timeline.clock_error_ns = device.clock.offset_ns, device.clock.error_ns
        self.begin()

    def _take_back(self, run: Run) -> None:
        if run.lane is not None:
            run.lane.busy = False

    def _await(self, run: Run) -> None:
        """Return when the device has written the run's value. A fault is noted, and waited on: only a value frees."""
        if run.error is not None:
            raise run.error
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

    def _stamp(self, run: Run) -> None:
        """The run began after its doorbell and ended before it was seen: two bounds for the clocks' offset."""
        assert run.lane is not None
        seen_ns = time.monotonic_ns()
        for memory in run.shared:
            memory.take()
        run.started_ns, self._completed_ns = run.lane.started_ns, run.lane.completed_ns
        low_ns = run.before_ns - run.started_ns - self._device.tick_ns
        self._tell_clock(low_ns, seen_ns - self._completed_ns, seen_ns)


def rewind_refusal() -> HalError:
    """Why a run must wait for the ones before it: two thousand million in a row, never at rest in between."""
    return HalError(HalCode.QUEUE_FULL, "the device's timeline is to be begun anew", expected="nothing in flight",
                    todo="wait for the fences in flight")  # fmt: skip
