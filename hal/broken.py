"""Drivers that each break one promise, to show that the conformance suite would notice.

A broken driver wraps a good one. It is for tests and self-tests, never for the driver table: it cannot be
opened by name. Each fault was chosen because a real runtime has had it.
"""

from __future__ import annotations

import ctypes
import os
import time
from dataclasses import replace
from enum import Enum

from abi.graph import Graph
from hal.accelerator import Accelerator, DeviceBuffer, Executable, MemoryUse, Module, Properties
from hal.admit import Admission
from hal.bindings import Bindings
from hal.error import HalCode, HalError
from hal.fence import RECORD_WORDS, Fence, FenceStatus, Timeline
from hal.memory import Mapping

_SLOTS = 1024


class Fault(Enum):
    """The promise that is broken. `caught_by` names a conformance check that must fail."""

    EARLY_FENCE = "the fence signals before the work is done"
    NO_WORK = "the fence signals and nothing was done"
    NEVER_SIGNALS = "the fence never signals"
    IGNORES_DEADLINE = "a wait goes on past its deadline"
    STALE_OUTPUT = "the first run's output is returned for ever"
    DEVICE_COUNT = "the runtime sees another number of devices than the driver lists"
    WRITES_OUTSIDE = "bytes beside the output are written"
    HOST_FALLBACK = "the host computes the result and the device nothing"
    TIME_BACKWARDS = "a run ends before it started"
    OUT_OF_ORDER = "a later run is reported before an earlier one"
    FORGETS_HANG = "runs are accepted after a hang"
    BLOCKS = "submit returns when the work is done"
    LOAD_ENDS_RUNS = "loading a module ends the runs of others"
    LATE_BINDINGS = "a run writes into what was bound after it was submitted"
    KEEPS_MODULES = "an unloaded module keeps its descriptors and threads, and the driver says that it does not"
    KEEPS_STATE = "a module that is loaded again goes on with its old state"
    EARLY_RESET = "a reset returns while a lost run goes on, and says that it is over"

    @property
    def caught_by(self) -> str:
        return _CAUGHT_BY[self]


_CAUGHT_BY = {
    Fault.EARLY_FENCE: "completion",
    Fault.NO_WORK: "completion",
    Fault.NEVER_SIGNALS: "signals",
    Fault.IGNORES_DEADLINE: "deadline",
    Fault.STALE_OUTPUT: "fresh-output",
    Fault.DEVICE_COUNT: "devices",
    Fault.WRITES_OUTSIDE: "bounds",
    Fault.HOST_FALLBACK: "residency",
    Fault.TIME_BACKWARDS: "times",
    Fault.OUT_OF_ORDER: "order",
    Fault.FORGETS_HANG: "hang",
    Fault.BLOCKS: "long-run",
    Fault.LOAD_ENDS_RUNS: "load-beside",
    Fault.LATE_BINDINGS: "rebound",
    Fault.KEEPS_MODULES: "gives-back",
    Fault.KEEPS_STATE: "fresh-output",
    Fault.EARLY_RESET: "hang",
}


class _Veil(Fence):
    """A real run's fence, told wrongly."""

    __slots__ = ("_bindings", "_fault", "_held", "_real", "lost")

    def __init__(self, real: Fence, fault: Fault, bindings: Bindings) -> None:
        super().__init__(real.timeline, real.value, real.submitted_ns, real.budget_ns)
        self._real = real
        self._fault = fault
        self._bindings = bindings
        self._held = _outputs(bindings)
        self.lost: HalError | None = None

    @property
    def quiet(self) -> bool:
        return self.lost is not None or super().quiet

    def poll(self) -> FenceStatus:
        status = self._real.poll()
        if self._fault is Fault.EARLY_FENCE:
            status = FenceStatus.SIGNALED
        elif self._fault is Fault.NEVER_SIGNALS or (self._fault is Fault.OUT_OF_ORDER and self.value % 2):
            status = FenceStatus.ACTIVE
        self.status = status
        self.error = self._real.error
        self.started_ns, self.completed_ns = self._real.started_ns, self._real.completed_ns
        if self.lost is not None:
            self.status, self.error = FenceStatus.ERROR, self.lost
        if self._fault is Fault.LATE_BINDINGS and status is FenceStatus.SIGNALED:
            for was, now in zip(self._held, _outputs(self._bindings), strict=False):
                if now is not was:
                    now.view[:] = was.view
        if self._fault is Fault.TIME_BACKWARDS:
            self.started_ns, self.completed_ns = self.completed_ns + 1, self.started_ns
        return self.status

    def wait(self, deadline_ns: int) -> FenceStatus:
        if self._fault is Fault.IGNORES_DEADLINE:
            while self.poll() is FenceStatus.ACTIVE:
                self.timeline.sleep(1_000_000)
            return self.status
        return super().wait(deadline_ns)

    @property
    def overdue(self) -> bool:
        """Whether the run goes on beyond its budget, counted from submit."""
        late = time.monotonic_ns() - self.submitted_ns > self.budget_ns
        return late and self._real.poll() is FenceStatus.ACTIVE


def _outputs(bindings: Bindings) -> list[DeviceBuffer]:
    held = [bindings.bound[bindings.buffers.index(buffer)] for buffer in bindings.output_buffers]
    return [buffer for buffer in held if buffer is not None]


class BrokenExecutable:
    """A loaded module whose device counts no launches where the fault is HOST_FALLBACK."""

    def __init__(self, inner: Executable, fault: Fault) -> None:
        self.inner = inner
        self.graph: Graph = inner.graph
        self.admission: Admission = inner.admission
        self.timeline: Timeline = inner.timeline
        self._fault = fault
        self.first_outputs: list[bytes] | None = None

    def bindings(self, entrypoint: int) -> Bindings:
        return self.inner.bindings(entrypoint)

    def state(self, name: str) -> memoryview:
        return self.inner.state(name)

    def reset_state(self) -> None:
        self.inner.reset_state()

    def launches_done(self) -> int:
        return 0 if self._fault is Fault.HOST_FALLBACK else self.inner.launches_done()

    def cancel(self) -> None:
        self.inner.cancel()


class BrokenAccelerator:
    """`inner` with one fault."""

    def __init__(self, inner: Accelerator, fault: Fault) -> None:
        self.name = inner.name
        self._inner = inner
        self._fault = fault
        self._told = _SelfTold()
        self._loaded: list[BrokenExecutable] = []
        self._before = inner.memory()
        self._left: dict[str, bytes] = {}
        self._flying: list[_Veil] = []
        self._lost: HalError | None = None

    def devices(self) -> tuple[str, ...]:
        return self._inner.devices()

    def properties(self) -> Properties:
        found = self._inner.properties()
        more = 1 if self._fault is Fault.DEVICE_COUNT else 0
        return replace(found, device_count=found.device_count + more)

    def memory(self) -> MemoryUse:
        return self._before if self._fault is Fault.KEEPS_MODULES else self._inner.memory()

    def load(self, module: Module) -> BrokenExecutable:
        if self._fault is Fault.LOAD_ENDS_RUNS:
            for executable in self._loaded:
                executable.cancel()
        loaded = BrokenExecutable(self._inner.load(module), self._fault)
        self._loaded.append(loaded)
        if self._fault is Fault.KEEPS_STATE:
            for name, left in self._left.items():
                loaded.state(name)[:] = left
        return loaded

    def unload(self, executable: Executable) -> None:
        assert isinstance(executable, BrokenExecutable)
        self._loaded.remove(executable)
        if self._fault is Fault.KEEPS_STATE:
            self._left = {one.name: bytes(executable.state(one.name)) for one in executable.graph.states}
        if self._fault is not Fault.KEEPS_MODULES:
            self._inner.unload(executable.inner)

    def import_frame(self, mapping: Mapping) -> DeviceBuffer:
        return self._inner.import_frame(mapping)

    def import_output(self, mapping: Mapping) -> DeviceBuffer:
        return self._inner.import_output(mapping)

    def allocate(self, name: str, size_bytes: int) -> DeviceBuffer:
        return self._inner.allocate(name, size_bytes)

    def submit(self, executable: Executable, bindings: Bindings) -> Fence:
        assert isinstance(executable, BrokenExecutable)
        if self._fault is Fault.NO_WORK:
            return self._told.done(bindings.budget_ns)
        if self._lost is not None:
            raise HalError(HalCode.DEVICE_LATCHED, "a run was lost")
        held = _outputs(bindings)
        if self._fault is Fault.STALE_OUTPUT and executable.first_outputs is not None:
            for buffer, first in zip(held, executable.first_outputs, strict=True):
                buffer.view[:] = first
            return self._told.done(bindings.budget_ns)
        real = self._inner.submit(executable.inner, bindings)
        if self._fault is Fault.WRITES_OUTSIDE:
            for buffer in (b for b in held if b.offset + b.size_bytes < b.mapping.size_bytes):
                ctypes.memset(buffer.address + buffer.size_bytes, 0xEE, 1)
        if self._fault in (Fault.BLOCKS, Fault.STALE_OUTPUT):
            real.wait(time.monotonic_ns() + 10 * real.budget_ns)
        if self._fault is Fault.STALE_OUTPUT:
            executable.first_outputs = [bytes(buffer.view) for buffer in held]
        self._flying = [*(veil for veil in self._flying if not veil.quiet), _Veil(real, self._fault, bindings)]
        return self._flying[-1]

    def check(self, now_ns: int) -> HalError | None:
        if self._fault is Fault.EARLY_RESET:
            return self._check_early()
        cause = self._inner.check(now_ns)
        return None if self._fault is Fault.FORGETS_HANG else cause

    def _check_early(self) -> HalError | None:
        if self._lost is None and any(veil.overdue for veil in self._flying):
            self._lost = HalError(HalCode.DEVICE_HANG, "a run is over its budget")
            for veil in self._flying:
                veil.lost = self._lost
        return self._lost

    def due_ns(self) -> int | None:
        return self._inner.due_ns()

    def latch(self, cause: HalError) -> None:
        self._inner.latch(cause)

    def reset(self, deadline_ns: int) -> None:
        if self._fault is Fault.EARLY_RESET:
            self._lost = None
        else:
            self._inner.reset(deadline_ns)

    def close(self) -> None:
        self._inner.close()


class _SelfTold:
    """A timeline that the driver advances by itself, with no device behind it."""

    def __init__(self) -> None:
        self._word = memoryview(bytearray(8)).cast("Q")
        self._records = memoryview(bytearray(8 * RECORD_WORDS * _SLOTS)).cast("q")
        event = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._timeline = Timeline(self._word, self._records, event)

    def done(self, budget_ns: int) -> Fence:
        """A fence that has signalled for nothing."""
        self._timeline.room()
        value, now_ns = self._timeline.issued + 1, time.monotonic_ns()
        at = value % _SLOTS * RECORD_WORDS
        self._records[at], self._records[at + 1], self._records[at + 2] = value, now_ns, now_ns
        self._word[0] = value
        os.eventfd_write(self._timeline.descriptor, 1)
        return self._timeline.issue(value, now_ns, budget_ns, None)
