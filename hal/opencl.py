"""The OpenCL driver: graphs as program binaries on an in-order queue, with fences that follow the device's events.

tinygrad's OpenCL bindings speak to the installed driver; nothing is compiled here, the code blob holds binaries for
exactly this device and driver version. Every loaded module has a queue, a timeline and a thread that waits for its
events. OpenCL cannot interrupt a kernel: a reset waits until the device is at rest and then rebuilds the context; where
a kernel does not end (on a CPU it would go on writing to host memory) the reset says so, for the process to exit.
"""

from __future__ import annotations

import math
import platform
import threading
import time

from hal.accelerator import DeviceBuffer, DeviceOptions, Executable, MemoryUse, Module, Properties
from hal.admit import Target, admit
from hal.bindings import Bindings
from hal.error import HalCode, HalError
from hal.fence import Fence
from hal.memory import PAGE_BYTES, HeldBytes, Mapping
from hal.opencl_api import OpenClApi
from hal.opencl_clock import ClockMap
from hal.opencl_device import Sharing, find_device, list_devices
from hal.opencl_environment import prepare_environment
from hal.opencl_executable import OpenClExecutable
from hal.opencl_memory import OpenClBuffer, OpenClContext, shares_directly

_UNLOAD_LIMIT_NS = 2_000_000_000
_UNUSED_OPTIONS = ("pin_cores", "fifo_priority", "lock_memory", "huge_pages", "spin_count")


class OpenClAccelerator:
    """One OpenCL device. sharing: how host memory is shared; None asks the device (`hal.opencl_device`)."""

    name = "opencl"

    def __init__(self, options: DeviceOptions, sharing: Sharing | None = None) -> None:
        _refuse_unused(options)
        prepare_environment()
        self._api = OpenClApi()
        self._device = find_device(self._api, options.device)
        self._context = OpenClContext(self._api, self._device, sharing or self._device.sharing)
        if self._context.sharing is Sharing.DIRECT and not shares_directly(self._context):
            self._context.sharing = Sharing.MAPPED
        self._clock = ClockMap()
        self._slots = options.queue_slots
        self._executables: list[OpenClExecutable] = []
        self._allocated = HeldBytes()
        self._gate = threading.RLock()  # short: between the owner and the thread that loads
        self._context_gate = threading.Lock()  # between building programs in the context and replacing it
        self._latched: HalError | None = None
        self._closed = False

    def devices(self) -> tuple[str, ...]:
        """Identities of every OpenCL device that the installed drivers list now."""
        return tuple(one.identity for one in list_devices(self._api))

    def properties(self) -> Properties:
        device = self._device
        return Properties("opencl", device.identity, platform.machine(), device.extensions, device.count,
                          device.compute_units, device.clock)  # fmt: skip

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

    def load(self, module: Module) -> OpenClExecutable:
        """Admit, then build the binaries. Raises AdmissionRefused, or HalError CODE, ALIGNMENT, OUT_OF_MEMORY."""
        self._refuse_closed()
        target = Target("opencl", platform.machine(), memory_bytes=self._device.memory_bytes)
        admission = admit(module.graph, module.code, module.weights.nbytes, target)
        with self._context_gate:
            executable = OpenClExecutable(module, admission, self._context, self._clock, self._slots)
            with self._gate:
                self._executables.append(executable)
        return executable

    def unload(self, executable: Executable) -> None:
        """Free a module once its runs have ended. Raises HalError DEVICE_HANG where a kernel does not end."""
        if not isinstance(executable, OpenClExecutable) or executable not in self._executables:
            raise HalError(HalCode.BINDING, "not loaded on this device")
        with self._gate:  # nobody but the caller touches it from here
            self._executables.remove(executable)
        try:
            with self._context_gate:
                executable.unload_until(time.monotonic_ns() + _UNLOAD_LIMIT_NS)
        except HalError:
            with self._gate:
                self._executables.append(executable)
            raise

    def import_frame(self, mapping: Mapping) -> DeviceBuffer:
        self._refuse_closed()
        if mapping.address % PAGE_BYTES:
            raise HalError(HalCode.ALIGNMENT, "a frame is not page aligned", expected=f"a multiple of {PAGE_BYTES}",
                           found=hex(mapping.address))  # fmt: skip
        with self._gate:
            return OpenClBuffer.over(self._context, mapping, 0, mapping.size_bytes, writable=False)

    def import_output(self, mapping: Mapping) -> DeviceBuffer:
        """Memory the caller shares with readers, for outputs. Raises HalError BINDING, ALIGNMENT."""
        self._refuse_closed()
        if not mapping.writable:
            raise HalError(HalCode.BINDING, "outputs need a writable mapping")
        with self._gate:
            return OpenClBuffer.over(self._context, mapping, 0, mapping.size_bytes, writable=True)

    def allocate(self, name: str, size_bytes: int) -> DeviceBuffer:
        self._refuse_closed()
        mapping = Mapping.anonymous(size_bytes)
        self._allocated.add(mapping)
        with self._gate:
            return OpenClBuffer.over(self._context, mapping, 0, size_bytes, writable=True)

    def submit(self, executable: Executable, bindings: Bindings) -> Fence:
        if not isinstance(executable, OpenClExecutable) or bindings.graph is not executable.graph:
            raise HalError(HalCode.BINDING, "the bindings were made for another module")
        bindings.require_complete()
        with self._gate:
            if executable.queue.lost is not None:
                self.latch(executable.queue.lost)
            if self._latched is not None:
                raise self._refusal(self._latched)
            return executable.submit(bindings)

    def check(self, now_ns: int) -> HalError | None:
        if self._latched is None:
            for executable in tuple(self._executables):
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
        """Wait for rest, then rebuild the context and everything in it; buffers bound before stay usable."""
        self._refuse_closed()
        todo = "exit the process; the service manager restarts it"
        if not self._context_gate.acquire(timeout=max(0, deadline_ns - time.monotonic_ns()) / 1e9):
            raise HalError(HalCode.RESET_IMPOSSIBLE, "another module is being loaded into the context", todo=todo)
        try:
            with self._gate:
                self._reset(deadline_ns, todo)
        finally:
            self._context_gate.release()

    def _reset(self, deadline_ns: int, todo: str) -> None:
        for executable in self._executables:
            executable.cancel()
        for executable in self._executables:
            if not executable.queue.idle_before(deadline_ns):
                what = f"a kernel of {executable.name} does not end and cannot be interrupted"
                raise HalError(HalCode.RESET_IMPOSSIBLE, what, todo=todo)
        for executable in self._executables:
            executable.release()
        self._context.close()
        self._context.open()
        for executable in self._executables:
            executable.rebuild()
            executable.timeline.unlatch()
        self._latched = None

    def close(self) -> None:
        while self._executables:
            self.unload(self._executables[-1])
        self._context.close()
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
            raise HalError(HalCode.NOT_PERMITTED, f"option {name} has no meaning for an OpenCL device",
                           expected=f"{name} left out", found=str(getattr(options, name)),
                           todo="take it out of the configuration")  # fmt: skip
    if options.queue_slots < 1 or math.log2(options.queue_slots) % 1:
        raise HalError(HalCode.SIZE, "queue_slots", expected="a power of two", found=str(options.queue_slots))
