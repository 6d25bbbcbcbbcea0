"""The one thing that may happen on another thread: a module is loaded and tried while the owner's runs go on.

A daemon loads the next model so. What it loads must compute as it would alone, and the owner's runs and the owner's
looks at the device (`check`, `due_ns`, `memory`) must not notice.
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

from hal.accelerator import Accelerator, Module
from hal.conformance_rig import CheckFailed, Rig, wait_done
from hal.error import HalError
from hal.fence import Fence

if TYPE_CHECKING:
    from hal.conformance import Subject

_LONG_NS = 100_000_000
_LOOK_S = 0.001
_END_S = 5.0  # unloading, after the last bounded wait
_NS_PER_S = 1e9


class _Loader(threading.Thread):
    """Loads the module, runs one entrypoint once, keeps its output, and unloads, as a self-test does."""

    def __init__(self, accelerator: Accelerator, module: Module, entrypoint: int, limit_ns: int) -> None:
        super().__init__(name="fenced-conformance", daemon=True)
        self._args = (accelerator, module, entrypoint)
        self._limit_ns = limit_ns
        self.output = b""
        self.failure: CheckFailed | HalError | None = None

    def run(self) -> None:
        try:
            with Rig(*self._args) as rig:
                wait_done(rig.submit(), self._limit_ns)
                self.output = rig.output()
        except (CheckFailed, HalError) as failure:
            self.failure = failure


def load_beside(accelerator: Accelerator, subject: Subject) -> str:
    """Load on another thread with two runs in flight all the time, long ones where the subject has any.

    The thread has ended when this returns or raises, or the check fails for that.
    """
    module, entrypoint, limit_ns = subject.module, subject.entrypoint, subject.limit_ns
    long = subject.long_entrypoint
    alone = _Loader(accelerator, module, entrypoint, limit_ns)
    alone.run()
    loader = _Loader(accelerator, module, entrypoint, limit_ns)
    with Rig(accelerator, module, entrypoint if long is None else long) as rig:
        if long is not None:
            rig.calibrate(_LONG_NS, limit_ns)
        flying = [rig.submit(), rig.submit()]
        loader.start()
        try:
            runs = _keep_running(rig, flying, loader, limit_ns)
        finally:
            loader.join(limit_ns / _NS_PER_S + _END_S)  # its own waits are bounded by the limit
        if loader.is_alive():
            raise CheckFailed(f"a module that was loaded while others ran is not there after {limit_ns} ns")
    for failure in (alone.failure, loader.failure):
        if failure is not None:
            raise CheckFailed(f"a module that was loaded while others ran: {failure}")
    if loader.output != alone.output:
        raise CheckFailed("a module that was loaded while others ran gives another output than alone")
    return f"{runs} runs went on while a module was loaded, tried and unloaded"


def _keep_running(rig: Rig, flying: list[Fence], loader: threading.Thread, limit_ns: int) -> int:
    """Two runs after two, while the loader loads and at least once; how many. Raises CheckFailed, HalError."""
    accelerator, runs, end_ns = rig.accelerator, 0, time.monotonic_ns() + limit_ns
    while loader.is_alive() or not runs:
        for fence in flying:
            wait_done(fence, limit_ns)
        runs += len(flying)
        cause = accelerator.check(time.monotonic_ns())
        if cause is not None:
            raise CheckFailed(f"while a module was loaded the device was latched: {cause}")
        accelerator.due_ns()
        accelerator.memory()
        if time.monotonic_ns() > end_ns:
            return runs  # the loader's fault, which the caller will name
        flying = [rig.submit(), rig.submit()]
        loader.join(_LOOK_S)
    for fence in flying:
        wait_done(fence, limit_ns)
    return runs
