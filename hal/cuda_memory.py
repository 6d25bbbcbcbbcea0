"""Memory that a CUDA device works on: the host's own pages, registered with the driver, and memory of the GPU.

Frames, aux inputs and outputs are host pages that the kernels reach over the bus, without a copy. A frame is mapped
read-only; where the GPU cannot use such pages its bytes are copied to the GPU just before the run, and `zero_copy` says
so. Arena, weights and state are the GPU's own memory.
"""

from __future__ import annotations

import weakref
from dataclasses import dataclass, field

from hal.accelerator import DeviceBuffer
from hal.cuda_api import REGISTER_DEVICEMAP, REGISTER_PORTABLE, REGISTER_READ_ONLY
from hal.cuda_device import CudaContext
from hal.error import HalCode, HalError
from hal.memory import PAGE_BYTES, Mapping


class DeviceMemory:
    """`size_bytes` of the GPU's own memory, given back when the object is gone."""

    def __init__(self, context: CudaContext, size_bytes: int) -> None:
        context.enter()
        self.address = context.api.make("cuMemAlloc_v2", size_bytes)
        self._end = weakref.finalize(self, _give_back, context, "cuMemFree_v2", self.address, None)
        self._end.atexit = False  # at exit the driver gives everything back

    def release(self) -> None:
        """Give it back now; nothing in flight may use it. Idempotent."""
        self._end()


class HostMemory:
    """A mapping as the device sees it, made once for each mapping. zero_copy: whether it sees the host's own pages."""

    def __init__(self, context: CudaContext, mapping: Mapping) -> None:
        if mapping.address % PAGE_BYTES:
            raise HalError(HalCode.ALIGNMENT, "memory is not page aligned", expected=f"a multiple of {PAGE_BYTES}",
                           found=hex(mapping.address))  # fmt: skip
        self.host, self.size_bytes = mapping.address, mapping.size_bytes
        self.zero_copy = mapping.writable or context.device.registers_read_only
        self._context = context
        self._copy: DeviceMemory | None = None
        if not self.zero_copy:
            self._copy = DeviceMemory(context, mapping.size_bytes)
            self.address = self._copy.address
            return
        context.enter()
        flags = REGISTER_PORTABLE | REGISTER_DEVICEMAP | (0 if mapping.writable else REGISTER_READ_ONLY)
        with context.lock:
            context.api.call("cuMemHostRegister_v2", self.host, self.size_bytes, flags)
        self._end = weakref.finalize(self, _give_back, context, "cuMemHostUnregister", self.host, mapping)
        self._end.atexit = False
        self.address = context.api.make("cuMemHostGetDevicePointer_v2", self.host, 0)

    def release(self) -> None:
        """Let go of the pages now. Idempotent."""
        if self._copy is not None:
            self._copy.release()
        else:
            self._end()

    def give(self, stream: int) -> None:
        """Enqueue what shows the host's bytes to the device; nothing where it sees them anyway."""
        if self._copy is not None:
            self._context.copy_in(stream, self.address, self.host, self.size_bytes)


def _give_back(context: CudaContext, call: str, address: int, mapping: Mapping | None) -> None:
    """`mapping` stays until the driver has let go of its pages."""
    if context.handle:  # with the context everything of it is gone
        with context.lock:
            context.enter()
            context.api.raw(call)(address)


class HostMemories:
    """The mappings that a device knows now: the driver refuses to register pages twice."""

    def __init__(self, context: CudaContext) -> None:
        self._context = context
        self._known: weakref.WeakKeyDictionary[Mapping, weakref.ref[HostMemory]] = weakref.WeakKeyDictionary()

    def of(self, mapping: Mapping) -> HostMemory:
        """Raises HalError ALIGNMENT, NOT_PERMITTED, OUT_OF_MEMORY."""
        with self._context.lock:
            known = self._known.get(mapping)
            memory = known() if known is not None else None
            if memory is None:
                memory = HostMemory(self._context, mapping)
                self._known[mapping] = weakref.ref(memory)
            return memory

    def close(self) -> None:
        """Let go of every page; nothing in flight may use them, and buffers over them are void."""
        for known in list(self._known.values()):
            memory = known()
            if memory is not None:
                memory.release()


@dataclass(frozen=True, slots=True)
class CudaBuffer(DeviceBuffer):
    """A DeviceBuffer with the device's view of it. `address` is the host's; parts share the memory."""

    memory: HostMemory = field(kw_only=True, repr=False)
    context: CudaContext = field(kw_only=True, repr=False)

    @classmethod
    def over(cls, context: CudaContext, memory: HostMemory, mapping: Mapping, *, writable: bool) -> CudaBuffer:
        """The whole of a mapping."""
        return cls(mapping.address, mapping.size_bytes, mapping, 0, writable, memory.zero_copy, memory=memory,
                   context=context)  # fmt: skip

    @property
    def device_address(self) -> int:
        """Where the kernels find it."""
        return self.memory.address + self.offset

    def part(self, offset: int, size_bytes: int) -> CudaBuffer:
        if offset < 0 or size_bytes < 1 or offset + size_bytes > self.size_bytes:
            raise HalError(HalCode.SIZE, "a part reaches past its buffer", expected=f"within {self.size_bytes} bytes",
                           found=f"{offset} + {size_bytes}")  # fmt: skip
        return CudaBuffer(self.address + offset, size_bytes, self.mapping, self.offset + offset, self.writable,
                          self.zero_copy, memory=self.memory, context=self.context)  # fmt: skip
