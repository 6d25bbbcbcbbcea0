"""The CPU driver: graphs on a queue runtime that comes linked into the bundle's own code (DESIGN §8).

Code is copied from verified memory into a sealed memfd and mapped by the dynamic loader from there, so its pages are
R-X and were never writable. Workers are threads that enter C once and stay, without the interpreter lock. A run is one
native call; its end is a value in shared memory and a written eventfd. A kernel cannot be interrupted: `cancel` acts
between launches, and a reset that meets a stuck kernel says so, for the process to exit.
"""

from __future__ import annotations

import os
import platform

from hal.accelerator import DeviceBuffer, DeviceOptions, Module, Properties
from hal.admit import Admission, Target
from hal.cpu_executable import CpuExecutable
from hal.driver import Driver, refuse_options
from hal.error import HalCode, HalError
from hal.features import cpu_name, machine_features
from hal.memory import PAGE_BYTES, Mapping, MemoryLock

MAX_SPIN_US = 1_000_000


class CpuAccelerator(Driver[CpuExecutable]):
    """The machine's own processors as an accelerator. Every loaded module has a queue and a timeline of its own."""

    name = "cpu"
    kind = CpuExecutable

    def __init__(self, options: DeviceOptions) -> None:
        super().__init__()
        refuse_options(options, ("device",), "the CPU")
        if not 0 <= options.fifo_priority <= 99:
            raise HalError(HalCode.SIZE, "fifo_priority", expected="0..99", found=str(options.fifo_priority))
        if not 0 <= options.spin_us <= MAX_SPIN_US:
            raise HalError(HalCode.SIZE, "spin_us", expected=f"0..{MAX_SPIN_US}", found=str(options.spin_us))
        usable = os.sched_getaffinity(0)
        foreign = [core for core in options.pin_cores if core not in usable]
        if foreign:
            raise HalError(HalCode.NOT_PERMITTED, f"pin_cores names core {foreign[0]}",
                           expected=f"one of {sorted(usable)}")  # fmt: skip
        self._options = options
        self._lock = MemoryLock() if options.lock_memory else None
        self._arch = platform.machine()
        self._features = tuple(sorted(machine_features()))

    def devices(self) -> tuple[str, ...]:
        return (cpu_name(),)

    def properties(self) -> Properties:
        cores = len(os.sched_getaffinity(0))
        return Properties("cpu", cpu_name(), self._arch, self._features, 1, cores, "CLOCK_MONOTONIC")

    def allocate(self, name: str, size_bytes: int) -> DeviceBuffer:
        buffer = super().allocate(name, size_bytes)
        if self._lock is not None:
            self._lock.lock(buffer.mapping)
        return buffer

    def _target(self) -> Target:
        return Target("cpu", self._arch, memory_bytes=os.sysconf("SC_PHYS_PAGES") * PAGE_BYTES)

    def _make(self, module: Module, admission: Admission) -> CpuExecutable:
        return CpuExecutable(module, admission, self._options, self._lock)

    def _share(self, mapping: Mapping, *, writable: bool) -> DeviceBuffer:
        """Never a copy: the kernels work on the shared mapping itself."""
        if not writable and mapping.address % PAGE_BYTES:
            raise HalError(HalCode.ALIGNMENT, "a frame is not page aligned", expected=f"a multiple of {PAGE_BYTES}",
                           found=hex(mapping.address))  # fmt: skip
        return DeviceBuffer(mapping.address, mapping.size_bytes, mapping, 0, writable=writable, zero_copy=True)
