"""Completion as a fact read from memory: a Timeline that a device advances, and Fences that wait on it.

A Timeline is one monotonic u64 in memory that the *device* writes. A Fence is (timeline, value); it is done when the
value read from that memory is at least its own, never because a call returned. Terms follow Linux sync_file:
ACTIVE, SIGNALED, ERROR, in-fence, out-fence. A hang latches the timeline: every fence in flight turns to ERROR with
the cause and stays there, even if the device wakes up later. One thread owns a timeline and its fences.
"""

from __future__ import annotations

import os
import select
import time
from collections.abc import Callable
from enum import IntEnum

from hal.error import HalCode, HalError

RECORD_WORDS = 4  # value, started_ns, completed_ns, status: i64 each, written by the device
RECORD_VALUE, RECORD_STARTED, RECORD_COMPLETED, RECORD_STATUS = range(RECORD_WORDS)
RUN_OK, RUN_CANCELLED, RUN_FAILED = 0, 1, 2  # RECORD_STATUS
_NS_PER_MS = 1_000_000


class FenceStatus(IntEnum):
    """The enumerants of FenceStatus in result.capnp."""

    ACTIVE = 0
    SIGNALED = 1
    ERROR = 2


_ACTIVE, _SIGNALED = FenceStatus.ACTIVE, FenceStatus.SIGNALED  # an enum's member costs a call


class Fence:
    """The end of one run. `poll()` tells where it stands; times are valid once it is SIGNALED.

    timeline, value: done means that the timeline's word is at least `value`.
    submitted_ns: CLOCK_MONOTONIC, when the host handed the run over. budget_ns: a run longer than this is a hang.
    started_ns, completed_ns: stamped by the device in its own clock; -1 unless the device reported them.
    error: why the status is ERROR, else None.
    """

    __slots__ = ("budget_ns", "completed_ns", "error", "started_ns", "status", "submitted_ns", "timeline", "value")

    def __init__(self, timeline: Timeline, value: int, submitted_ns: int, budget_ns: int) -> None:
        self.timeline = timeline
        self.value = value
        self.submitted_ns = submitted_ns
        self.budget_ns = budget_ns
        self.started_ns = -1
        self.completed_ns = -1
        self.status = _ACTIVE
        self.error: HalError | None = None

    def poll(self) -> FenceStatus:
        """The status now, from the device's memory. SIGNALED and ERROR are final."""
        if self.status is _ACTIVE:
            self.timeline.settle(self)
        return self.status

    def fileno(self) -> int:
        """A descriptor that turns readable when the timeline may have advanced: look with `poll()`.

        It belongs to the timeline and is shared by its fences; an event loop registers it once, and calls
        `timeline.drain()` before it polls the fences.
        """
        return self.timeline.descriptor

    def wait(self, deadline_ns: int) -> FenceStatus:
        """Block until the fence is done or CLOCK_MONOTONIC reaches `deadline_ns`; ACTIVE means that it was not done.

        The deadline is absolute: progress of other runs never extends it. It is kept to the next millisecond.
        """
        if self.timeline.spin_ns and self.poll() is _ACTIVE:
            self._spin(min(deadline_ns, time.monotonic_ns() + self.timeline.spin_ns))
        while self.poll() is _ACTIVE:
            left_ns = deadline_ns - time.monotonic_ns()
            if left_ns <= 0:
                break
            self.timeline.sleep(left_ns)
        return self.status

    def _spin(self, end_ns: int) -> None:
        """Look at the word until it has been reached; other threads of the process may run in between."""
        timeline, value = self.timeline, self.value
        while timeline.value < value and timeline.latched is None and time.monotonic_ns() < end_ns:
            os.sched_yield()

    @property
    def quiet(self) -> bool:
        """Whether the device itself says that it is done with the run's buffers, well or badly.

        An ERROR fence that is not quiet may still be written to by a stuck kernel: its buffers must not be reused
        until the device was reset.
        """
        return self.timeline.value >= self.value


class Timeline:
    """One device queue's progress. Drivers create it over memory their device writes.

    word: a one-element view of type "Q", the timeline value; advanced by the device with release order.
    records: a view of type "q", RECORD_WORDS for each of the queue's slots; run `value` uses slot value % slots.
    descriptor: an eventfd (non-blocking) that the device writes after every advance; the timeline owns it.
    spin_ns: how long a wait looks at the word before it sleeps: for devices that end runs without Python.
    acquire: an acquire barrier for machines whose loads may pass one another (AArch64); None where none is needed.
    identity: drawn at creation; values of different timelines cannot be compared.
    """

    def __init__(
        self,
        word: memoryview,
        records: memoryview,
        descriptor: int,
        acquire: Callable[[], object] | None = None,
        spin_ns: int = 0,
    ) -> None:
        self.identity = int.from_bytes(os.urandom(8), "little") | 1
        self.slots = len(records) // RECORD_WORDS
        self.descriptor = descriptor
        self.issued = 0  # the last value handed to the device
        self.latched: HalError | None = None
        self.spin_ns = spin_ns
        self.clock_offset_ns = 0  # device clock + offset = CLOCK_MONOTONIC; kept up to date by the driver
        self.clock_error_ns = 0  # bound on the error of that conversion
        self._word = word
        self._records = records
        self._acquire = acquire
        self._latched_at = 0
        self._fences: list[Fence | None] = [None] * self.slots
        self._kept: list[object] = [None] * self.slots
        self._poller = select.poll()
        self._poller.register(descriptor, select.POLLIN)

    @property
    def value(self) -> int:
        """What the device last wrote."""
        return int(self._word[0])

    @property
    def in_flight(self) -> int:
        """Runs handed over whose end the device has not reported."""
        return self.issued - self.value

    def room(self) -> bool:
        """Whether one more run fits; settles the fence whose slot would be reused."""
        value = self.issued + 1
        if value - self._word[0] > self.slots:
            return False
        old = self._fences[value % self.slots]
        if old is not None:
            old.poll()
        return True

    def issue(self, value: int, submitted_ns: int, budget_ns: int, keep: object) -> Fence:
        """The fence of the run that was just handed over; `keep` (its buffers) lives until the device is done with it.

        Only for drivers. Raises RuntimeError where `value` is not the next one.
        """
        if value != self.issued + 1:
            raise RuntimeError(f"timeline values rise by one: {self.issued} is followed by {value}")
        self.issued = value
        fence = Fence(self, value, submitted_ns, budget_ns)
        self._fences[value % self.slots] = fence
        self._kept[value % self.slots] = keep
        return fence

    def settle(self, fence: Fence) -> None:
        """Give `fence` its final status if the device has reported the end of its run or the timeline is latched."""
        if self.latched is not None and fence.value > self._latched_at:
            fence.error = self.latched
            fence.status = FenceStatus.ERROR
            return
        if self._word[0] < fence.value:
            return
        if self._acquire is not None:
            self._acquire()
        slot = fence.value % self.slots
        record = slot * RECORD_WORDS
        if self._records[record + RECORD_VALUE] != fence.value:
            fence.error = HalError(HalCode.DEVICE_LOST, f"the device kept no record of run {fence.value}")
            fence.status = FenceStatus.ERROR
        else:
            fence.started_ns = self._records[record + RECORD_STARTED]
            fence.completed_ns = self._records[record + RECORD_COMPLETED]
            status = self._records[record + RECORD_STATUS]
            if status == RUN_OK:
                fence.status = _SIGNALED
            else:
                fence.error = _failed(fence, status)
                fence.status = FenceStatus.ERROR
        self._forget(slot, fence)

    def drain(self) -> None:
        """Clear the descriptor; every fence that was done before is seen by a `poll()` that follows."""
        try:
            os.eventfd_read(self.descriptor)
        except BlockingIOError:
            return

    def sleep(self, at_most_ns: int) -> None:
        """Block until the device advances, at most `at_most_ns` rounded up to a millisecond. For `Fence.wait`."""
        if self._poller.poll(-(-at_most_ns // _NS_PER_MS)):
            self.drain()

    def latch(self, cause: HalError) -> None:
        """Turn every fence in flight to ERROR with `cause`, and refuse later runs. The first cause stays."""
        if self.latched is None:
            self._latched_at = self.value
            self.latched = cause

    def unlatch(self) -> None:
        """After a completed reset: the fences of the lost runs become final, and new runs are accepted.

        Raises RuntimeError while the device still owes the end of a run.
        """
        if self.in_flight:
            raise RuntimeError(f"{self.in_flight} runs are still on the device")
        for slot, fence in enumerate(self._fences):
            if fence is not None:
                fence.poll()
                self._forget(slot, fence)
        self.latched = None

    def close(self) -> None:
        """Give every fence its final status and close the descriptor; the device is gone. Idempotent.

        Fences that the device had not finished turn to ERROR.
        """
        if self.descriptor < 0:
            return
        if self.in_flight:
            self.latch(HalError(HalCode.CLOSED, "the queue was closed"))
        for slot, fence in enumerate(self._fences):
            if fence is not None:
                fence.poll()
                self._forget(slot, fence)
        self._poller.unregister(self.descriptor)
        os.close(self.descriptor)
        self.descriptor = -1

    def overdue(self, now_ns: int) -> Fence | None:
        """The run that holds the device longer than its budget at CLOCK_MONOTONIC `now_ns`, if any."""
        due_ns = self.due_ns()
        if due_ns is None or now_ns <= due_ns:
            return None
        return self._fences[(self.value + 1) % self.slots]

    def due_ns(self) -> int | None:
        """When the run at the head of the queue becomes a hang, CLOCK_MONOTONIC; None where nothing is in flight."""
        done = self.value
        if done >= self.issued:
            return None
        fence = self._fences[(done + 1) % self.slots]
        if fence is None or fence.value != done + 1:  # the device advanced between the two reads
            return None
        before_ns = self._records[(done % self.slots) * RECORD_WORDS + RECORD_COMPLETED]
        return max(fence.submitted_ns, self.to_monotonic(before_ns)) + fence.budget_ns

    def to_monotonic(self, device_ns: int) -> int:
        """A time of the device's clock in CLOCK_MONOTONIC, within `clock_error_ns`."""
        return device_ns + self.clock_offset_ns

    def _forget(self, slot: int, fence: Fence) -> None:
        if self._fences[slot] is fence:
            self._fences[slot] = None
            self._kept[slot] = None


def _failed(fence: Fence, status: int) -> HalError:
    code = HalCode.RUN_CANCELLED if status == RUN_CANCELLED else HalCode.DEVICE_LOST
    return HalError(code, f"run {fence.value} ended with device status {status}")
