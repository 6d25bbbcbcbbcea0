"""The CUDA driver: graphs as cubins on a GPU behind NVIDIA's own driver, with fences that follow the GPU's events.

The interface is libcuda.so.1 alone; nothing is compiled here: the code blob holds binaries for one architecture.
Every loaded module has a stream, a timeline, a CUDA graph for each entrypoint and a thread that waits for its events.
A kernel cannot be interrupted: a reset waits until the GPU is at rest; where it does not come to rest, or a run failed
on it (cuda.h: the process must then be started anew), the reset says so, for the process to exit.
"""

from __future__ import annotations

import threading
import time

from hal.accelerator import DeviceBuffer, DeviceOptions, Executable, MemoryUse, Module, Properties
from hal.admit import Target, admit
from hal.bindings import Bindings
from hal.cuda_api import CudaApi
from hal.cuda_device import CudaContext, find_device, list_devices, prepare_environment
from hal.cuda_executable import CudaExecutable
from hal.cuda_memory import CudaBuffer, HostMemories
from hal.error import HalCode, HalError
from hal.fence import Fence
from hal.memory import HeldBytes, Mapping

_UNLOAD_LIMIT_NS = 2_000_000_000
_UNUSED_OPTIONS = ("pin_cores", "fifo_priority", "lock_memory", "huge_pages", "spin_count")


class CudaAccelerator:
    """One GPU. library: the vendor's library where it is not in one of its usual folders."""

    name = "cuda"

    def __init__(self, options: DeviceOptions, library: str | None = None) -> None:
        _refuse_unused(options)
        prepare_environment()
        self._api = CudaApi(library)
        self._device = find_device(self._api, options.device)
        self._context = CudaContext(self._api, self._device)
        self._memories = HostMemories(self._context)
        self._slots = options.queue_slots
        self._executables: list[CudaExecutable] = []
        self._allocated = HeldBytes()
        self._gate = threading.RLock()  # between a reset and the thread that loads
        self._latched: HalError | None = None
        self._closed = False

    def devices(self) -> tuple[str, ...]:
        return tuple(one.identity for one in list_devices(self._api))

    def properties(self) -> Properties:
        device, count = self._device, len(self.devices())
        clock = "nanoseconds of the stream, by CUDA events"
        return Properties("cuda", device.identity, device.arch, (), count, device.processors, clock)

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

    def load(self, module: Module) -> CudaExecutable:
        """Admit, then load. Raises AdmissionRefused, or HalError CODE, OUT_OF_MEMORY, DEVICE_LOST, DEVICE_LATCHED."""
        self._refuse_closed()
        if self._latched is not None:  # loading waits for the device, which may never answer
            raise self._refusal(self._latched)
        target = Target("cuda", self._device.arch, memory_bytes=self._device.memory_bytes)
        admission = admit(module.graph, module.code, module.weights.nbytes, target)
        self._context.enter()
        executable = CudaExecutable(module, admission, self._context, self._slots)
        with self._gate:
            self._executables.append(executable)
        return executable

    def unload(self, executable: Executable) -> None:
        """Free a module once its runs have ended. Raises HalError DEVICE_HANG where a kernel does not end."""
        if not isinstance(executable, CudaExecutable) or executable not in self._executables:
            raise HalError(HalCode.BINDING, "not loaded on this device")
        self._context.enter()
        with self._gate:  # nobody but the caller touches it from here
            self._executables.remove(executable)
        try:
            executable.unload_until(time.monotonic_ns() + _UNLOAD_LIMIT_NS)
        except HalError:
            with self._gate:
                self._executables.append(executable)
            raise

    def import_frame(self, mapping: Mapping) -> DeviceBuffer:
        self._refuse_closed()
        return CudaBuffer.over(self._context, self._memories.of(mapping), mapping, writable=False)

    def import_output(self, mapping: Mapping) -> DeviceBuffer:
        """Memory the caller shares with readers, for outputs. Raises HalError BINDING, ALIGNMENT."""
        self._refuse_closed()
        if not mapping.writable:
            raise HalError(HalCode.BINDING, "outputs need a writable mapping")
        return CudaBuffer.over(self._context, self._memories.of(mapping), mapping, writable=True)

    def allocate(self, name: str, size_bytes: int) -> DeviceBuffer:
        self._refuse_closed()
        mapping = Mapping.anonymous(size_bytes)
        self._allocated.add(mapping)
        return CudaBuffer.over(self._context, self._memories.of(mapping), mapping, writable=True)

    def submit(self, executable: Executable, bindings: Bindings) -> Fence:
        if not isinstance(executable, CudaExecutable) or bindings.graph is not executable.graph:
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
        """Wait for rest; state is reset, everything loaded stays usable. A GPU on which a run failed stays lost."""
        self._refuse_closed()
        todo = "exit the process; the service manager restarts it"
        with self._gate:
            for executable in self._executables:
                executable.cancel()
            for executable in self._executables:
                if executable.queue.lost is not None:
                    found = str(executable.queue.lost)
                    raise HalError(HalCode.RESET_IMPOSSIBLE, "the GPU failed", found=found, todo=todo)
                if not executable.queue.idle_before(deadline_ns):
                    what = f"a kernel of {executable.name} does not end and cannot be interrupted"
                    raise HalError(HalCode.RESET_IMPOSSIBLE, what, todo=todo)
            for executable in self._executables:
                executable.timeline.unlatch()
                executable.reset_state()
            self._latched = None

    def close(self) -> None:
        while self._executables:
            self.unload(self._executables[-1])
        self._memories.close()
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
            raise HalError(HalCode.NOT_PERMITTED, f"option {name} has no meaning for a GPU",
                           expected=f"{name} left out", found=str(getattr(options, name)),
                           todo="take it out of the configuration")  # fmt: skip
    if options.queue_slots < 1 or options.queue_slots & (options.queue_slots - 1):
        raise HalError(HalCode.SIZE, "queue_slots", expected="a power of two", found=str(options.queue_slots))
