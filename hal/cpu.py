"""The CPU driver: graphs on a queue runtime that comes linked into the bundle's own code (DESIGN §8).

Code is copied from verified memory into a sealed memfd and mapped by the dynamic loader from there, so its pages are
R-X and were never writable. Workers are threads that enter C once and stay, without the interpreter lock. A run is one
native call; its end is a value in shared memory and a written eventfd. A kernel cannot be interrupted: `cancel` acts
between launches, and a reset that meets a stuck kernel says so, for the process to exit.
"""

from __future__ import annotations

import os
import platform
import threading
import time

from hal.accelerator import DeviceBuffer, DeviceOptions, Executable, MemoryUse, Module, Properties
from hal.admit import Target, admit
from hal.bindings import Bindings
from hal.cpu_executable import CpuExecutable
from hal.error import HalCode, HalError
from hal.features import cpu_name, machine_features
from hal.fence import Fence
from hal.memory import PAGE_BYTES, HeldBytes, Mapping, MemoryLock

_NS_PER_S = 1_000_000_000
_UNLOAD_LIMIT_NS = 2 * _NS_PER_S


class CpuAccelerator:
    """The machine's own processors as an accelerator. Every loaded module has a queue and a timeline of its own."""

    name = "cpu"

    def __init__(self, options: DeviceOptions) -> None:
        if options.queue_slots < 1 or options.queue_slots & (options.queue_slots - 1):
            raise HalError(HalCode.SIZE, "queue_slots", expected="a power of two", found=str(options.queue_slots))
        if not 0 <= options.fifo_priority <= 99:
            raise HalError(HalCode.SIZE, "fifo_priority", expected="0..99", found=str(options.fifo_priority))
        if options.device:
            raise HalError(HalCode.NOT_PERMITTED, "option device has no meaning for the CPU", found=options.device,
                           todo="take it out of the configuration")  # fmt: skip
        usable = os.sched_getaffinity(0)
        foreign = [core for core in options.pin_cores if core not in usable]
        if foreign:
            raise HalError(HalCode.NOT_PERMITTED, f"pin_cores names core {foreign[0]}",
                           expected=f"one of {sorted(usable)}")  # fmt: skip
        self._options = options
        self._lock = MemoryLock() if options.lock_memory else None
        self._executables: list[CpuExecutable] = []
        self._allocated = HeldBytes()
        self._gate = threading.RLock()  # between a reset and the thread that loads
        self._latched: HalError | None = None
        self._closed = False
        self._arch = platform.machine()
        self._features = tuple(sorted(machine_features()))

    def devices(self) -> tuple[str, ...]:
        return (cpu_name(),)

    def properties(self) -> Properties:
        cores = len(os.sched_getaffinity(0))
        return Properties("cpu", cpu_name(), self._arch, self._features, 1, cores, "CLOCK_MONOTONIC")

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

    def load(self, module: Module) -> CpuExecutable:
        """Admit, then map. Raises AdmissionRefused, or HalError CODE, QUEUE_VERSION, OUT_OF_MEMORY, NOT_PERMITTED."""
        self._refuse_closed()
        memory_bytes = os.sysconf("SC_PHYS_PAGES") * PAGE_BYTES
        target = Target("cpu", self._arch, memory_bytes=memory_bytes)
        admission = admit(module.graph, module.code, module.weights.nbytes, target)
        executable = CpuExecutable(module, admission, self._options, self._lock)
        with self._gate:
            self._executables.append(executable)
        return executable

    def unload(self, executable: Executable) -> None:
        """Free a module; what is in flight is cancelled. Raises HalError DEVICE_HANG where a kernel does not end."""
        if not isinstance(executable, CpuExecutable) or executable not in self._executables:
            raise HalError(HalCode.BINDING, "not loaded on this device")
        with self._gate:  # nobody but the caller touches it from here
            self._executables.remove(executable)
        try:
            executable.unload_until(time.monotonic_ns() + _UNLOAD_LIMIT_NS)
        except HalError:
            with self._gate:
                self._executables.append(executable)
            raise

    def import_frame(self, mapping: Mapping) -> DeviceBuffer:
        """Never a copy: the kernels read the shared mapping itself."""
        self._refuse_closed()
        if mapping.address % PAGE_BYTES:
            raise HalError(HalCode.ALIGNMENT, "a frame is not page aligned", expected=f"a multiple of {PAGE_BYTES}",
                           found=hex(mapping.address))  # fmt: skip
        return DeviceBuffer(mapping.address, mapping.size_bytes, mapping, 0, writable=False, zero_copy=True)

    def import_output(self, mapping: Mapping) -> DeviceBuffer:
        """Memory the caller shares with readers, for outputs to be written to directly. Raises HalError."""
        self._refuse_closed()
        if not mapping.writable:
            raise HalError(HalCode.BINDING, "outputs need a writable mapping")
        return DeviceBuffer(mapping.address, mapping.size_bytes, mapping, 0, writable=True, zero_copy=True)

    def allocate(self, name: str, size_bytes: int) -> DeviceBuffer:
        self._refuse_closed()
        mapping = Mapping.anonymous(size_bytes)
        if self._lock is not None:
            self._lock.lock(mapping)
        self._allocated.add(mapping)
        return DeviceBuffer(mapping.address, size_bytes, mapping, 0, writable=True, zero_copy=True)

    def submit(self, executable: Executable, bindings: Bindings) -> Fence:
        if not isinstance(executable, CpuExecutable) or bindings.graph is not executable.graph:
            raise HalError(HalCode.BINDING, "the bindings were made for another module")
        bindings.require_complete()
        with self._gate:
            if self._latched is not None:
                raise self._refusal(self._latched)
            return executable.submit(bindings)

    def check(self, now_ns: int) -> HalError | None:
        if self._latched is None:
            for executable in tuple(self._executables):
                late = executable.timeline.overdue(now_ns)
                if late is not None:
                    self.latch(HalError(
                        HalCode.DEVICE_HANG, f"run {late.value} of {executable.name} does not end",
                        expected=f"at most {late.budget_ns} ns", todo="restart the daemon if a reset is impossible",
                    ))  # fmt: skip
                    break
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
        self._refuse_closed()
        with self._gate:
            for executable in self._executables:
                executable.cancel()
            for executable in self._executables:
                if not executable.idle_before(deadline_ns):
                    raise HalError(
                        HalCode.RESET_IMPOSSIBLE,
                        f"a kernel of {executable.name} does not end and cannot be interrupted",
                        todo="exit the process; the service manager restarts it",
                    )
            for executable in self._executables:
                executable.timeline.unlatch()
                executable.reset_state()
            self._latched = None

    def close(self) -> None:
        while self._executables:
            self.unload(self._executables[-1])
        self._closed = True

    def _refuse_closed(self) -> None:
        if self._closed:
            raise HalError(HalCode.CLOSED, "the accelerator was closed")

    @staticmethod
    def _refusal(cause: HalError) -> HalError:
        return HalError(HalCode.DEVICE_LATCHED, "the device takes no runs", found=str(cause), todo="reset it")
