"""The HCQ driver: graphs as hardware queues of a GPU that tinygrad drives without a vendor's runtime (AMD, NV, QCOM).

Every entrypoint is one queue of commands, bound at load; a run patches the addresses and the timeline values in it and
is submitted by one write to the device's doorbell. A fence follows the device's own timeline signal. Nothing is
compiled: the code blob holds each kernel's binary for exactly one architecture. A kernel cannot be interrupted: a reset
waits until the device is at rest, and where it does not come to rest the process must exit.
"""

from __future__ import annotations

import math
import threading
import time

from hal.accelerator import DeviceBuffer, DeviceOptions, Executable, MemoryUse, Module, Properties
from hal.admit import Target, admit
from hal.bindings import Bindings
from hal.error import HalCode, HalError
from hal.fence import Fence
from hal.hcq_device import HcqDevice
from hal.hcq_executable import HcqExecutable
from hal.hcq_memory import HcqBuffer, HostMemories
from hal.memory import HeldBytes, Mapping

_UNLOAD_LIMIT_NS = 2_000_000_000
_UNUSED_OPTIONS = ("pin_cores", "fifo_priority", "lock_memory", "huge_pages", "spin_count")


class HcqAccelerator:
    """One HCQ device. `DeviceOptions.device` is "AMD:0" and the like, or empty for the only one."""

    name = "hcq"

    def __init__(self, options: DeviceOptions) -> None:
        _refuse_unused(options)
        self._device = HcqDevice(options.device.partition(" ")[0])
        if self._device.count > 1 and not options.device:
            listed = "; ".join(self._device.names)
            raise HalError(HalCode.DRIVER_UNAVAILABLE, "the GPU is not certain", expected="one GPU, or one named",
                           found=listed, todo="name one of these in DeviceOptions.device")  # fmt: skip
        self._memories = HostMemories(self._device)
        self._slots = options.queue_slots
        self._executables: list[HcqExecutable] = []
        self._allocated = HeldBytes()
        self._gate = threading.RLock()  # short: between the owner and the thread that loads
        self._latched: HalError | None = None
        self._closed = False

    def devices(self) -> tuple[str, ...]:
        return self._device.names

    def properties(self) -> Properties:
        device = self._device
        units = int(getattr(device.raw, "cu_cnt", 1))
        return Properties("hcq", device.identity, device.arch, (), device.count, units, device.clock_name)

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

    def load(self, module: Module) -> HcqExecutable:
        """Admit, then build the queues. Raises AdmissionRefused, or HalError CODE, OUT_OF_MEMORY, DEVICE_LATCHED."""
        self._refuse_closed()
        if self._latched is not None:
            raise self._refusal(self._latched)
        target = Target("hcq", self._device.arch)
        admission = admit(module.graph, module.code, module.weights.nbytes, target)
        executable = HcqExecutable(module, admission, self._device, self._memories, self._slots)
        with self._gate:
            self._executables.append(executable)
        return executable

    def unload(self, executable: Executable) -> None:
        """Free a module once its runs have ended. Raises HalError DEVICE_HANG where a kernel does not end."""
        if not isinstance(executable, HcqExecutable) or executable not in self._executables:
            raise HalError(HalCode.BINDING, "not loaded on this device")
        with self._gate:  # nobody but the caller touches it from here
            self._executables.remove(executable)
        try:
            executable.unload_until(time.monotonic_ns() + _UNLOAD_LIMIT_NS)
        except HalError:
            self._device.abandon()
            with self._gate:
                self._executables.append(executable)
            raise

    def import_frame(self, mapping: Mapping) -> DeviceBuffer:
        self._refuse_closed()
        return HcqBuffer.over(self._device, self._memories.of(mapping), mapping, writable=False)

    def import_output(self, mapping: Mapping) -> DeviceBuffer:
        """Memory the caller shares with readers, for outputs. Raises HalError BINDING, ALIGNMENT."""
        self._refuse_closed()
        if not mapping.writable:
            raise HalError(HalCode.BINDING, "outputs need a writable mapping")
        return HcqBuffer.over(self._device, self._memories.of(mapping), mapping, writable=True)

    def allocate(self, name: str, size_bytes: int) -> DeviceBuffer:
        self._refuse_closed()
        mapping = Mapping.anonymous(size_bytes)
        self._allocated.add(mapping)
        return HcqBuffer.over(self._device, self._memories.of(mapping), mapping, writable=True)

    def submit(self, executable: Executable, bindings: Bindings) -> Fence:
        if not isinstance(executable, HcqExecutable) or bindings.graph is not executable.graph:
            raise HalError(HalCode.BINDING, "the bindings were made for another module")
        bindings.require_complete()
        with self._gate:
            if executable.queue.lost is not None:
                self.latch(executable.queue.lost)
            if self._latched is not None:
                raise self._refusal(self._latched)
            return executable.submit(bindings)

    def check(self, now_ns: int) -> HalError | None:
        for executable in tuple(self._executables) if self._latched is None else ():
            late = executable.timeline.overdue(now_ns)
            if executable.queue.lost is not None:
                self.latch(executable.queue.lost)
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
        """Wait for rest; state is reset, queues and buffers stay usable. A device that reported a fault stays lost."""
        self._refuse_closed()
        with self._gate:
            self._reset(deadline_ns)

    def _reset(self, deadline_ns: int) -> None:
        for executable in self._executables:
            executable.cancel()
        for executable in self._executables:
            if executable.queue.lost is not None or not executable.queue.idle_before(deadline_ns):
                self._device.abandon()
                found = str(executable.queue.lost or "no end of its run")
                raise HalError(
                    HalCode.RESET_IMPOSSIBLE, f"a kernel of {executable.name} does not end and cannot be interrupted",
                    found=found, todo="exit the process; the service manager restarts it",
                )  # fmt: skip
        for executable in self._executables:
            executable.timeline.unlatch()
            executable.reset_state()
        self._latched = None

    def close(self) -> None:
        """Unload everything; the process keeps the GPU open until it ends."""
        while self._executables:
            self.unload(self._executables[-1])
        self._closed = True

    def _refuse_closed(self) -> None:
        if self._closed:
            raise HalError(HalCode.CLOSED, "the accelerator was closed")

    @staticmethod
    def _refusal(cause: HalError) -> HalError:
        return HalError(HalCode.DEVICE_LATCHED, "the device takes no runs", found=str(cause), todo="reset it")


def _refuse_unused(options: DeviceOptions) -> None:
    plain = DeviceOptions()
    for name in _UNUSED_OPTIONS:
        if getattr(options, name) != getattr(plain, name):
            raise HalError(HalCode.NOT_PERMITTED, f"option {name} has no meaning for an HCQ device",
                           expected=f"{name} left out", found=str(getattr(options, name)),
                           todo="take it out of the configuration")  # fmt: skip
    if options.queue_slots < 1 or math.log2(options.queue_slots) % 1:
        raise HalError(HalCode.SIZE, "queue_slots", expected="a power of two", found=str(options.queue_slots))
