"""Runs that do not end well: a full queue, runs that are withdrawn, and a run that hangs.

Parts of the suite in `hal.conformance`. After a reset the memory itself is watched: a driver that says that a lost run
is over while its kernel goes on would hand out buffers that are still written to.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from hal.accelerator import Accelerator
from hal.conformance_rig import CheckFailed, CheckSkipped, Rig, expect_refusal, wait_done
from hal.error import HalCode, HalError
from hal.fence import Fence, FenceStatus

if TYPE_CHECKING:
    from hal.conformance import Subject

_MS = 1_000_000
_LONG_NS = 300 * _MS
_WATCHED_RUNS = 5  # for so many times what one run took just now: two are lost, and the machine may be busy
_LOOK_S = 0.02
_ATTEMPTS = 3


def long_of(subject: Subject) -> int:
    """The entrypoint of adjustable length. Raises CheckSkipped where there is none."""
    if subject.long_entrypoint is None:
        raise CheckSkipped("the module has no entrypoint of adjustable length")
    return subject.long_entrypoint


def queue_full(accelerator: Accelerator, subject: Subject) -> str:
    """More runs than the queue has slots: one is refused, and taken again when there is room."""
    with Rig(accelerator, subject.module, long_of(subject)) as rig:
        rig.calibrate(_LONG_NS, subject.limit_ns)
        fences: list[Fence] = []
        slots = rig.executable.timeline.slots
        try:
            for _ in range(slots + 1):
                fences.append(rig.submit())
        except HalError as error:
            if error.code is not HalCode.QUEUE_FULL:
                raise
        rig.executable.cancel()
        last = fences[-1]
        last.wait(time.monotonic_ns() + subject.limit_ns)
        if last.status is FenceStatus.ACTIVE:
            raise CheckFailed("a full queue did not empty after cancel")
        if len(fences) > slots:
            raise CheckFailed(f"a queue of {slots} took {len(fences)} runs, each of {_LONG_NS // _MS} ms")
        rig.fill_rounds(1)
        wait_done(rig.submit(), subject.limit_ns)
        return f"run {slots + 1} refused, and taken again when there was room"


def cancel(accelerator: Accelerator, subject: Subject) -> str:
    """Runs that are cancelled end with an error and hold no buffer any more."""
    with Rig(accelerator, subject.module, long_of(subject)) as rig:
        rig.calibrate(_LONG_NS, subject.limit_ns)
        running, waiting = rig.submit(), rig.submit()
        rig.executable.cancel()
        status = waiting.wait(time.monotonic_ns() + subject.limit_ns)
        running.poll()
        if status is not FenceStatus.ERROR or waiting.error is None or waiting.error.code is not HalCode.RUN_CANCELLED:
            raise CheckFailed(f"a cancelled run's fence is {status.name} with {waiting.error}")
        if not (running.quiet and waiting.quiet):
            raise CheckFailed("the device does not say that it is done with a cancelled run's buffers")
        rig.fill_rounds(1)
        wait_done(rig.submit(), subject.limit_ns)
        return "ended with an error, and the next run passed"


def hang(accelerator: Accelerator, subject: Subject) -> str:
    """A run beyond its budget latches the device; after the reset nothing of it writes any more."""
    for attempt in range(_ATTEMPTS):
        if _hang(accelerator, subject, last=attempt == _ATTEMPTS - 1):
            break  # or the machine stood still, and the run was over before it could be looked at
    return "latched, refused, reset, and ran again"


def _hang(accelerator: Accelerator, subject: Subject, *, last: bool) -> bool:
    """Whether memory was watched as long as the lost run could write, or the reset had waited for its end."""
    with Rig(accelerator, subject.module, long_of(subject), budget_ns=10 * _MS) as rig:
        rig.calibrate(_LONG_NS, subject.limit_ns)
        took_ns = _took_ns(rig, subject.limit_ns)
        fence, behind = rig.submit(), rig.submit()
        deadline_ns = time.monotonic_ns() + subject.limit_ns
        while accelerator.check(time.monotonic_ns()) is None:
            if fence.poll() is not FenceStatus.ACTIVE or time.monotonic_ns() > deadline_ns:
                if not last:
                    return False
                raise CheckFailed(f"a run of {_LONG_NS // _MS} ms with a budget of 10 ms was not called a hang")
            fence.wait(time.monotonic_ns() + _MS)
        for held in (fence, behind):
            if held.poll() is not FenceStatus.ERROR or held.error is None or held.error.code is not HalCode.DEVICE_HANG:
                raise CheckFailed(f"after a hang a fence in flight is {held.status.name} with {held.error}")
        expect_refusal(HalCode.DEVICE_LATCHED, rig.submit)
        began_ns = time.monotonic_ns()
        accelerator.reset(began_ns + subject.limit_ns)
        waited_ns = time.monotonic_ns() - began_ns
        if fence.poll() is not FenceStatus.ERROR:
            raise CheckFailed("a latched fence changed its mind")
        if not fence.quiet:
            raise CheckFailed("after the reset the device still holds the buffers of the run that hung")
        rig.poison(0xA5)
        watched_ns = time.monotonic_ns() - fence.submitted_ns
        _stays_away(rig, fence.submitted_ns + _WATCHED_RUNS * took_ns)
        rig.fill_rounds(1)
        wait_done(rig.submit(), subject.limit_ns)
        return watched_ns < took_ns or waited_ns > took_ns // 4


def _took_ns(rig: Rig, limit_ns: int) -> int:
    """How long a run takes by the host's clock, with all that the machine does beside it."""
    fence = rig.submit()
    wait_done(fence, limit_ns)
    return time.monotonic_ns() - fence.submitted_ns


def _stays_away(rig: Rig, until_ns: int) -> None:
    """The outputs stay as they are until the runs that were lost would have been over."""
    while time.monotonic_ns() < until_ns:
        if not rig.is_poison(0xA5):
            raise CheckFailed("after the reset a run that was lost still wrote its output")
        time.sleep(_LOOK_S)
    if not rig.is_poison(0xA5):
        raise CheckFailed("after the reset a run that was lost still wrote its output")
