"""What is the same in every driver: who may load, run, latch and reset, and what is held meanwhile.

A driver names the device, makes `LoadedModule`s and shares host memory with it; this base does the rest of
`hal.accelerator.Accelerator`. One lock, held shortly, stands between the owner's thread and the one that loads.
A kernel cannot be interrupted on any device here: a reset waits until the device is at rest, and where it does not come
to rest it says so, for the process to exit.
"""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Generic, TypeVar

from hal.accelerator import DeviceBuffer, DeviceOptions, Executable, MemoryUse, Module, Properties
from hal.admit import Admission, Target, admit
from hal.bindings import Bindings
from hal.error import HalCode, HalError
from hal.fence import Fence
from hal.loaded import LoadedModule
from hal.memory import HeldBytes, Mapping

CPU_OPTIONS = ("pin_cores", "fifo_priority", "lock_memory", "huge_pages", "spin_count", "spin_us")
"""Options that only the CPU driver has a use for."""
_UNLOAD_LIMIT_NS = 2_000_000_000
EXIT = "exit the process; the service manager restarts it"

L = TypeVar("L", bound=LoadedModule)


class Driver(ABC, Generic[L]):
    """See `hal.accelerator.Accelerator`.

    kind: the class of its loaded modules. failure_is_final: whether a device on which a run failed stays lost.
    """

    name: str
    kind: type[L]
    failure_is_final = False

    def __init__(self) -> None:
        self._executables: list[L] = []
        self._allocated = HeldBytes()
        self._gate = threading.RLock()
        self._building: AbstractContextManager[object] = nullcontext()  # while a module is made or taken apart
        self._latched: HalError | None = None
        self._closed = False

    @abstractmethod
    def devices(self) -> tuple[str, ...]: ...

    @abstractmethod
    def properties(self) -> Properties: ...

    @abstractmethod
    def _target(self) -> Target:
        """What graphs are admitted for."""

    @abstractmethod
    def _make(self, module: Module, admission: Admission) -> L:
        """The module on the device. Raises HalError, and then leaves nothing behind."""

    @abstractmethod
    def _share(self, mapping: Mapping, *, writable: bool) -> DeviceBuffer:
        """Host memory as the device sees it. Raises HalError ALIGNMENT, NOT_PERMITTED, OUT_OF_MEMORY."""

    def _abandon(self) -> None:
        """A kernel does not end: the process will, and must not wait for the device then."""

    def _renew(self) -> None:
        """The device is at rest and to be made usable again; part of a reset."""

    def _close(self) -> None:
        """Everything is unloaded: let go of the device."""

    def memory(self) -> MemoryUse:
        held = tuple(self._executables)
        return MemoryUse(
            executables=len(held),
            arena_bytes=sum(e.admission.arena_bytes for e in held),
            weights_bytes=sum(e.admission.weights_bytes for e in held),
            state_bytes=sum(e.admission.state_bytes for e in held),
            code_bytes=sum(e.admission.code_bytes for e in held),
            allocated_bytes=self._allocated.total_bytes,
        )

    def load(self, module: Module) -> L:
        """Admit, then make. Raises AdmissionRefused, or HalError DEVICE_LATCHED, CLOSED and what `_make` meets."""
        self._refuse_closed()
        self._refuse_latched()  # loading may wait for the device, which may never answer
        admission = admit(module.graph, module.code, module.weights.nbytes, self._target())
        with self._building:
            executable = self._make(module, admission)
            with self._gate:
                self._executables.append(executable)
        return executable

    def unload(self, executable: Executable) -> None:
        """Free a module; what is in flight is cancelled. Raises HalError DEVICE_HANG where a kernel does not end."""
        if not isinstance(executable, self.kind) or executable not in self._executables:
            raise HalError(HalCode.BINDING, "not loaded on this device")
        with self._gate:  # nobody but the caller touches it from here
            self._executables.remove(executable)
        try:
            with self._building:
                executable.unload_until(time.monotonic_ns() + _UNLOAD_LIMIT_NS)
        except HalError:
            self._abandon()
            with self._gate:
                self._executables.append(executable)
            raise

    def import_frame(self, mapping: Mapping) -> DeviceBuffer:
        self._refuse_closed()
        return self._share(mapping, writable=False)

    def import_output(self, mapping: Mapping) -> DeviceBuffer:
        """Memory the caller shares with readers, for outputs. Raises HalError BINDING, ALIGNMENT."""
        self._refuse_closed()
        if not mapping.writable:
            raise HalError(HalCode.BINDING, "outputs need a writable mapping")
        return self._share(mapping, writable=True)

    def allocate(self, name: str, size_bytes: int) -> DeviceBuffer:
        self._refuse_closed()
        mapping = Mapping.anonymous(size_bytes)
        self._allocated.add(mapping)
        return self._share(mapping, writable=True)

    def submit(self, executable: Executable, bindings: Bindings) -> Fence:
        if not isinstance(executable, self.kind) or bindings.graph is not executable.graph:
            raise HalError(HalCode.BINDING, "the bindings were made for another module")
        if bindings.missing:
            bindings.require_complete()
        with self._gate:
            if executable.lost is not None:
                self.latch(executable.lost)
            if self._latched is not None:
                self._refuse_latched()
            return executable.submit(bindings)

    def check(self, now_ns: int) -> HalError | None:
        for executable in tuple(self._executables) if self._latched is None else ():
            late = executable.timeline.overdue(now_ns)
            if executable.lost is not None:
                self.latch(executable.lost)
            elif late is not None:
                self.latch(HalError(
                    HalCode.DEVICE_HANG, f"run {late.value} of {executable.name} does not end",
                    expected=f"at most {late.budget_ns} ns", todo="restart the daemon if a reset is impossible",
                ))  # fmt: skip
        return self._latched

    def due_ns(self) -> int | None:
        due = [at for at in (e.timeline.due_ns() for e in tuple(self._executables)) if at is not None]
        return min(due, default=None)

    def latch(self, cause: HalError) -> None:
        with self._gate:
            if self._latched is None:
                self._latched = cause
                for executable in self._executables:
                    executable.timeline.latch(cause)
                    executable.cancel()

    def reset(self, deadline_ns: int) -> None:
        """Wait for rest; state is reset, what is loaded and shared stays usable. Raises HalError RESET_IMPOSSIBLE."""
        self._refuse_closed()
        with self._gate:
            for executable in self._executables:
                executable.cancel()
            for executable in self._executables:
                self._await_rest(executable, deadline_ns)
            self._renew()
            for executable in self._executables:
                executable.timeline.unlatch()
                executable.reset_state()
            self._latched = None

    def close(self) -> None:
        while self._executables:
            self.unload(self._executables[-1])
        self._close()
        self._closed = True

    def _await_rest(self, executable: L, deadline_ns: int) -> None:
        what = ""
        if self.failure_is_final and executable.lost is not None:
            what = f"the device failed in a run of {executable.name}"
        elif not executable.idle_before(deadline_ns):
            what = f"a kernel of {executable.name} does not end and cannot be interrupted"
        if what:
            self._abandon()
            raise HalError(HalCode.RESET_IMPOSSIBLE, what, found=str(executable.lost or ""), todo=EXIT)

    def _refuse_latched(self) -> None:
        if self._latched is not None:
            raise HalError(HalCode.DEVICE_LATCHED, "the device takes no runs", found=str(self._latched),
                           todo="reset it")  # fmt: skip

    def _refuse_closed(self) -> None:
        if self._closed:
            raise HalError(HalCode.CLOSED, "the accelerator was closed")


def refuse_options(options: DeviceOptions, unused: Sequence[str], device: str) -> None:
    """Raises HalError NOT_PERMITTED for an option that `device` has no use for, SIZE for an impossible queue."""
    plain = DeviceOptions()
    for name in unused:
        if getattr(options, name) != getattr(plain, name):
            raise HalError(HalCode.NOT_PERMITTED, f"option {name} has no meaning for {device}",
                           expected=f"{name} left out", found=str(getattr(options, name)),
                           todo="take it out of the configuration")  # fmt: skip
    if options.queue_slots < 1 or options.queue_slots & (options.queue_slots - 1):
        raise HalError(HalCode.SIZE, "queue_slots", expected="a power of two", found=str(options.queue_slots))
