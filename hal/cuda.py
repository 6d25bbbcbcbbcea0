"""The CUDA driver: graphs as cubins on a GPU behind NVIDIA's own driver, with fences that follow the GPU's events.

The interface is libcuda.so.1 alone; nothing is compiled here: the code blob holds binaries for one architecture.
Every loaded module has a stream, a timeline, a CUDA graph for each entrypoint and a thread that waits for its events.
A kernel cannot be interrupted: a reset waits until the GPU is at rest; where it does not come to rest, or a run failed
on it (cuda.h: the process must then be started anew), the reset says so, for the process to exit.
"""

from __future__ import annotations

from hal.accelerator import DeviceBuffer, DeviceOptions, Module, Properties
from hal.admit import Admission, Target
from hal.cuda_api import CudaApi
from hal.cuda_device import CudaContext, find_device, list_devices, prepare_environment
from hal.cuda_executable import CudaExecutable
from hal.cuda_memory import CudaBuffer, HostMemories
from hal.driver import CPU_OPTIONS, Driver, refuse_options
from hal.memory import Mapping


class CudaAccelerator(Driver[CudaExecutable]):
    """One GPU. library: the vendor's library where it is not in one of its usual folders."""

    name = "cuda"
    kind = CudaExecutable
    failure_is_final = True

    def __init__(self, options: DeviceOptions, library: str | None = None) -> None:
        super().__init__()
        refuse_options(options, CPU_OPTIONS, "a GPU")
        prepare_environment()
        self._api = CudaApi(library)
        self._device = find_device(self._api, options.device)
        self._context = CudaContext(self._api, self._device)
        self._memories = HostMemories(self._context)
        self._slots = options.queue_slots

    def devices(self) -> tuple[str, ...]:
        return tuple(one.identity for one in list_devices(self._api))

    def properties(self) -> Properties:
        device, count = self._device, len(self.devices())
        clock = "nanoseconds of the stream, by CUDA events"
        return Properties("cuda", device.identity, device.arch, (), count, device.processors, clock)

    def _target(self) -> Target:
        return Target("cuda", self._device.arch, memory_bytes=self._device.memory_bytes)

    def _make(self, module: Module, admission: Admission) -> CudaExecutable:
        self._context.enter()
        return CudaExecutable(module, admission, self._context, self._slots)

    def _share(self, mapping: Mapping, *, writable: bool) -> DeviceBuffer:
        return CudaBuffer.over(self._context, self._memories.of(mapping), mapping, writable=writable)

    def _close(self) -> None:
        self._memories.close()
        self._context.close()
