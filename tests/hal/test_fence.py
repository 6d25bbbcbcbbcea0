"""Timeline and Fence over memory that the test, in the device's place, writes."""

from __future__ import annotations

import os
import select
import threading
import time

import pytest

from hal.error import HalCode, HalError
from hal.fence import RECORD_WORDS, RUN_CANCELLED, RUN_FAILED, Fence, FenceStatus, Timeline

ACTIVE, SIGNALED, ERROR = FenceStatus.ACTIVE, FenceStatus.SIGNALED, FenceStatus.ERROR
BUDGET_NS = 1000


class Device:
    """A queue of four slots, advanced by hand."""

    def __init__(self, slots: int = 4) -> None:
        self.word = memoryview(bytearray(8)).cast("Q")
        self.records = memoryview(bytearray(8 * RECORD_WORDS * slots)).cast("q")
        self.slots = slots
        self.acquired = 0
        event = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self.timeline = Timeline(self.word, self.records, event, self._acquire)

    def _acquire(self) -> None:
        self.acquired += 1

    def submit(self, submitted_ns: int = 100, keep: object = None) -> Fence:
        assert self.timeline.room()
        return self.timeline.issue(self.timeline.issued + 1, submitted_ns, BUDGET_NS, keep)

    def finish(self, started_ns: int = 200, completed_ns: int = 300, status: int = 0) -> None:
        value = self.word[0] + 1
        at = value % self.slots * RECORD_WORDS
        for offset, item in enumerate((value, started_ns, completed_ns, status)):
            self.records[at + offset] = item
        self.word[0] = value
        os.eventfd_write(self.timeline.descriptor, 1)


def test_a_fence_is_done_when_the_device_has_written_its_value() -> None:
    device = Device()
    first, second = device.submit(), device.submit()
    assert (first.poll(), first.started_ns, first.completed_ns, first.quiet) == (ACTIVE, -1, -1, False)
    device.finish(200, 300)
    assert (first.poll(), first.started_ns, first.completed_ns, first.quiet) == (SIGNALED, 200, 300, True)
    assert (second.poll(), second.quiet) == (ACTIVE, False)
    device.finish(310, 320)
    assert (second.poll(), second.started_ns, second.error) == (SIGNALED, 310, None)
    assert device.timeline.in_flight == 0


def test_loads_are_ordered_once_for_each_fence_that_is_done() -> None:
    device = Device()
    fence = device.submit()
    fence.poll()
    assert device.acquired == 0
    device.finish()
    fence.poll()
    fence.poll()
    assert device.acquired == 1


def test_final_status_never_changes() -> None:
    device = Device()
    fence = device.submit()
    device.finish()
    assert fence.poll() is SIGNALED
    device.timeline.latch(HalError(HalCode.DEVICE_HANG, "later"))
    assert fence.poll() is SIGNALED


@pytest.mark.parametrize(
    ("status", "code"), [(RUN_CANCELLED, HalCode.RUN_CANCELLED), (RUN_FAILED, HalCode.DEVICE_LOST)]
)
def test_a_run_that_the_device_ended_badly_is_an_error_with_times(status: int, code: HalCode) -> None:
    device = Device()
    fence = device.submit()
    device.finish(status=status)
    assert fence.poll() is ERROR
    assert fence.error is not None
    assert fence.error.code is code
    assert (fence.started_ns, fence.completed_ns, fence.quiet) == (200, 300, True)


def test_a_value_without_a_record_is_an_error() -> None:
    device = Device()
    fence = device.submit()
    device.word[0] = 1
    assert fence.poll() is ERROR
    assert fence.error is not None
    assert fence.error.code is HalCode.DEVICE_LOST


def test_a_hang_latches_every_fence_in_flight_and_the_device_cannot_undo_it() -> None:
    device = Device()
    done, running, waiting = device.submit(), device.submit(), device.submit()
    device.finish()
    cause = HalError(HalCode.DEVICE_HANG, "stuck")
    device.timeline.latch(cause)
    device.timeline.latch(HalError(HalCode.DEVICE_LOST, "the first cause stays"))
    device.finish()
    device.finish()
    assert done.poll() is SIGNALED
    for fence in (running, waiting):
        assert fence.poll() is ERROR
        assert fence.error is cause
        assert fence.quiet


def test_buffers_of_a_hung_run_are_kept_until_the_reset() -> None:
    class Buffer:
        pass

    import weakref  # noqa: PLC0415

    device = Device()
    kept = Buffer()
    alive = weakref.ref(kept)
    fence = device.submit(keep=kept)
    del kept
    device.timeline.latch(HalError(HalCode.DEVICE_HANG, "stuck"))
    assert fence.poll() is ERROR
    assert alive() is not None
    with pytest.raises(RuntimeError, match="1 runs are still on the device"):
        device.timeline.unlatch()
    device.finish()
    device.timeline.unlatch()
    assert alive() is None
    assert device.timeline.latched is None
    again = device.submit()
    device.finish()
    assert again.poll() is SIGNALED


def test_buffers_are_let_go_when_the_run_is_seen_to_be_done() -> None:
    import weakref  # noqa: PLC0415

    class Buffer:
        pass

    device = Device()
    kept = Buffer()
    alive = weakref.ref(kept)
    fence = device.submit(keep=kept)
    del kept
    fence.poll()
    assert alive() is not None
    device.finish()
    fence.poll()
    assert alive() is None


def test_a_full_queue_has_no_room_and_a_reused_slot_settles_its_old_fence() -> None:
    device = Device()
    fences = [device.submit() for _ in range(4)]
    assert not device.timeline.room()
    device.finish(1, 2)
    assert fences[0].status is ACTIVE
    assert device.timeline.room()
    assert (fences[0].status, fences[0].completed_ns) == (SIGNALED, 2)


def test_values_rise_by_one() -> None:
    device = Device()
    with pytest.raises(RuntimeError, match="0 is followed by 2"):
        device.timeline.issue(2, 0, BUDGET_NS, None)


def test_timelines_can_be_told_apart() -> None:
    identities = {Device().timeline.identity for _ in range(8)}
    assert len(identities) == 8
    assert all(0 < identity < 1 << 64 for identity in identities)


def test_the_descriptor_turns_readable_and_is_drained() -> None:
    device = Device()
    fence = device.submit()
    poller = select.poll()
    poller.register(fence.fileno(), select.POLLIN)
    assert poller.poll(0) == []
    device.finish()
    assert poller.poll(0)
    device.timeline.drain()
    assert poller.poll(0) == []
    device.timeline.drain()
    assert fence.poll() is SIGNALED


def test_a_wait_returns_when_the_device_advances() -> None:
    device = Device()
    fence = device.submit()
    thread = threading.Thread(target=device.finish)
    thread.start()
    assert fence.wait(time.monotonic_ns() + 60_000_000_000) is SIGNALED
    thread.join()


def test_a_wait_ends_at_its_deadline_and_not_before() -> None:
    fence = Device().submit()
    deadline_ns = time.monotonic_ns() + 5_000_000
    assert fence.wait(deadline_ns) is ACTIVE
    assert time.monotonic_ns() >= deadline_ns


def test_a_wait_for_the_past_looks_once() -> None:
    device = Device()
    first, second = device.submit(), device.submit()
    device.finish()
    assert first.wait(0) is SIGNALED
    assert second.wait(0) is ACTIVE


def test_progress_of_other_runs_does_not_extend_a_wait() -> None:
    device = Device(slots=1024)
    last = [device.submit() for _ in range(1024)][-1]
    stop = threading.Event()

    def advance() -> None:
        while not stop.is_set() and device.word[0] < 1023:
            device.finish()

    thread = threading.Thread(target=advance)
    thread.start()
    assert last.wait(time.monotonic_ns() + 20_000_000) is ACTIVE
    stop.set()
    thread.join()


def test_the_head_of_the_queue_is_overdue_after_its_budget() -> None:
    device = Device()
    timeline = device.timeline
    assert timeline.due_ns() is None
    assert timeline.overdue(1 << 62) is None
    first, second = device.submit(100), device.submit(110)
    assert timeline.due_ns() == 100 + BUDGET_NS
    assert timeline.overdue(100 + BUDGET_NS) is None
    assert timeline.overdue(101 + BUDGET_NS) is first
    device.finish(200, 900)
    assert timeline.due_ns() == 900 + BUDGET_NS  # counted from when the device was free
    assert timeline.overdue(901 + BUDGET_NS) is second
    device.finish(900, 950)
    assert timeline.due_ns() is None
    device.submit(5000)
    assert timeline.due_ns() == 5000 + BUDGET_NS


def test_a_device_clock_is_mapped_to_the_hosts() -> None:
    device = Device()
    device.timeline.clock_offset_ns = 50
    assert device.timeline.to_monotonic(7) == 57
    device.submit(100)
    device.submit(100)
    device.finish(200, 900)
    assert device.timeline.due_ns() == 950 + BUDGET_NS


def test_closing_settles_every_fence() -> None:
    device = Device()
    done, lost = device.submit(), device.submit()
    device.finish()
    device.timeline.close()
    device.timeline.close()
    assert done.status is SIGNALED
    assert lost.status is ERROR
    assert lost.error is not None
    assert lost.error.code is HalCode.CLOSED
    assert device.timeline.descriptor == -1


def test_an_error_says_everything_in_one_line() -> None:
    error = HalError(HalCode.SIZE, "too large", expected="1", found="2", todo="shrink it")
    assert str(error) == "size-refused: too large; expected 1; found 2; shrink it"
    assert str(HalError(HalCode.CLOSED, "gone")) == "closed: gone"


def test_a_wait_looks_before_it_sleeps(monkeypatch: pytest.MonkeyPatch) -> None:
    """The device ends the run while the wait looks; sleeping is never come to."""
    device = Device()
    device.timeline.spin_ns = 3_600_000_000_000
    fence, looks = device.submit(), list[int]()

    def give_way() -> None:
        looks.append(1)
        if len(looks) == 3:
            device.finish()

    monkeypatch.setattr(os, "sched_yield", give_way)
    monkeypatch.setattr(device.timeline, "sleep", lambda at_most_ns: pytest.fail("it slept"))
    assert fence.wait(time.monotonic_ns() + 60_000_000_000) is SIGNALED
    assert len(looks) == 3


def test_looking_ends_at_its_time_at_the_deadline_and_when_the_device_is_latched(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    device, clock, slept = Device(), [0], list[int]()
    device.timeline.spin_ns = 1000

    def give_way() -> None:
        clock[0] += 100

    def sleep(at_most_ns: int) -> None:
        slept.append(clock[0])
        clock[0] += at_most_ns

    monkeypatch.setattr(time, "monotonic_ns", lambda: clock[0])
    monkeypatch.setattr(os, "sched_yield", give_way)
    monkeypatch.setattr(device.timeline, "sleep", sleep)
    fence = device.submit()
    assert fence.wait(5000) is ACTIVE
    assert slept == [1000]  # looked for 1000 ns, slept for the rest
    assert fence.wait(5500) is ACTIVE
    assert (slept, clock[0]) == ([1000], 5500)  # never past the deadline
    device.timeline.latch(HalError(HalCode.DEVICE_HANG, "hung"))
    assert fence.wait(9000) is ERROR
    assert clock[0] == 5500
