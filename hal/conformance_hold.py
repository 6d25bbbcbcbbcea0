"""What a driver may hold, and for how long: the bindings of a run as they were at submit, and nothing after unload.

Parts of the suite in `hal.conformance`. Descriptors and threads are counted by the kernel, not by the driver.
"""

from __future__ import annotations

import gc
import os
import time
from dataclasses import astuple, replace
from typing import TYPE_CHECKING

from hal.accelerator import Accelerator
from hal.conformance_rig import CheckFailed, Rig, wait_done

if TYPE_CHECKING:
    from hal.conformance import Subject

_LONG_NS = 20_000_000
_LOOKS, _LOOK_S = 200, 0.005  # at threads that were told to end, on a busy machine that may stand still meanwhile


def rebound(accelerator: Accelerator, subject: Subject) -> str:
    """A run takes the bindings that it was submitted with; the daemon binds the next frame while it waits."""
    index = subject.entrypoint if subject.long_entrypoint is None else subject.long_entrypoint
    with Rig(accelerator, subject.module, index) as rig:
        if subject.long_entrypoint is not None:
            rig.calibrate(_LONG_NS, subject.limit_ns)
        lane, other = rig.lane(), rig.lane()
        for one in (lane, other):
            one.fill_rounds(1)
            one.poison(0xA5)
        running, waiting = rig.submit(), lane.submit()
        lane.bindings.clear()
        for position, output in enumerate(other.outputs):
            lane.bindings.bind_output(position, output)
        wait_done(running, subject.limit_ns)
        wait_done(waiting, subject.limit_ns)
        if not other.is_poison(0xA5):
            raise CheckFailed("a run wrote into what was bound after it was submitted")
        if lane.outputs and lane.is_poison(0xA5):
            raise CheckFailed("a run did not write into what was bound when it was submitted")
        return "a run that waits keeps the bindings that it was submitted with"


def gives_back(accelerator: Accelerator, subject: Subject) -> str:
    """Loading, running and unloading leaves no descriptor, no thread and no memory behind."""
    _once(accelerator, subject)  # what the device's libraries keep for good
    before = _held(accelerator)
    for _ in range(3):
        _once(accelerator, subject)
    after = _held(accelerator)
    for _ in range(_LOOKS):
        if all(has <= had for had, has in zip(before, after, strict=True)):
            break
        time.sleep(_LOOK_S)
        after = _held(accelerator)
    for what, had, has in zip(_HELD, before, after, strict=True):
        if has > had:
            raise CheckFailed(f"after a module was loaded and unloaded three times there are {has} {what}, not {had}")
    return "no descriptor, thread or memory is left of a module that was unloaded"


_HELD = (
    "descriptors",
    "threads",
    "executables",
    "bytes of arena",
    "bytes of weights",
    "bytes of state",
    "bytes of code",
)


def _held(accelerator: Accelerator) -> tuple[int, ...]:
    gc.collect()
    memory = replace(accelerator.memory(), allocated_bytes=0)
    return (len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task")), *astuple(memory)[: len(_HELD) - 2])


def _once(accelerator: Accelerator, subject: Subject) -> None:
    with Rig(accelerator, subject.module, subject.entrypoint) as rig:
        wait_done(rig.submit(), subject.limit_ns)
