"""Memory that an OpenCL device works on: host memory shared in one of three ways, and ranges of it as kernel arguments.

The contract of each way stands at `Sharing`. Before a run its buffers are *given* to the device, after it they are
*taken* back, both by commands in the run's own in-order queue, so neither waits. A buffer that two queues use hands
the last command's event on, and the next user's first command waits for it on the device.
"""

from __future__ import annotations

import ctypes
import itertools
import threading
import weakref
from dataclasses import dataclass, field

from hal.accelerator import DeviceBuffer
from hal.error import HalCode, HalError
from hal.memory import PAGE_BYTES, Mapping
from hal.opencl_api import OpenClApi
from hal.opencl_device import OpenClDevice, Sharing

_PROBE_BYTE = 0xA5
_serials = itertools.count(1)


class OpenClContext:
    """The device's context. `generation` rises when it was rebuilt: everything made in an earlier one is void.

    lock: held while commands are enqueued, which the owner's thread and the queues' threads both do.
    """

    def __init__(self, api: OpenClApi, device: OpenClDevice, sharing: Sharing) -> None:
        self.api = api
        self.device = device
        self.sharing = sharing
        self.lock = threading.RLock()
        self.generation = 0
        self.handle = 0
        self.open()

    def open(self) -> None:
        devices = ctypes.c_void_p(self.device.handle)
        self.handle = self.api.make("clCreateContext", None, 1, ctypes.addressof(devices), None, None)
        self.generation += 1

    def close(self) -> None:
        if self.handle:
            self.api.call("clReleaseContext", self.handle)
            self.handle = 0

    def queue(self) -> int:
        """A new in-order queue whose events carry times."""
        profiling = self.api.constant("CL_QUEUE_PROFILING_ENABLE")
        return self.api.make("clCreateCommandQueue", self.handle, self.device.handle, profiling)


class Region:
    """One cl_mem and the sub-buffers that kernels are given of it. Released when the object is gone."""

    def __init__(self, context: OpenClContext, flags: tuple[str, ...], size_bytes: int, host_address: int = 0) -> None:
        self._api, self._align = context.api, context.device.align_bytes
        bits = 0
        for flag in flags:
            bits |= self._api.constant(flag)
        self.size_bytes = size_bytes
        self.handle = self._api.make("clCreateBuffer", context.handle, bits, size_bytes, host_address or None)
        self._parts: dict[tuple[int, int], int] = {}
        self._end = weakref.finalize(self, _release, self._api, self.handle, self._parts)
        self._end.atexit = False  # at exit the driver may be gone before us

    def part(self, offset: int, size_bytes: int) -> int:
        """The handle of a range; the region's own where it starts at 0. Raises HalError ALIGNMENT."""
        if offset == 0:
            return self.handle
        handle = self._parts.get((offset, size_bytes))
        if handle is None:
            if offset % self._align:
                raise HalError(HalCode.ALIGNMENT, "a kernel argument starts where the device cannot address it",
                               expected=f"a multiple of {self._align}", found=str(offset),
                               todo="compile the model for this device")  # fmt: skip
            bounds = (ctypes.c_size_t * 2)(offset, size_bytes)
            kind = self._api.constant("CL_BUFFER_CREATE_TYPE_REGION")
            handle = self._api.make("clCreateSubBuffer", self.handle, 0, kind, ctypes.addressof(bounds))
            self._parts[offset, size_bytes] = handle
        return handle

    def release(self) -> None:
        """Let go now; commands that use it keep it until they are done. Idempotent."""
        self._end()


def _release(api: OpenClApi, handle: int, parts: dict[tuple[int, int], int]) -> None:
    release = api.raw("clReleaseMemObject")
    for part in parts.values():
        release(part)
    parts.clear()
    release(handle)


class _LastEvent:
    """The latest command on some memory, kept so that a command in another queue can wait for it."""

    def __init__(self, api: OpenClApi) -> None:
        self._release, self._info = api.raw("clReleaseEvent"), api.raw("clGetEventInfo")
        self._what = api.constant("CL_EVENT_COMMAND_EXECUTION_STATUS")
        self._held = ctypes.c_void_p()

    def wait_list(self) -> tuple[int, int | None]:
        """The two arguments of an enqueue call; the memory behind them lives until `replace`.

        Empty once the command has ended, well or badly: a command that waits for a failed one fails too.
        """
        status = ctypes.c_int32()
        if self._held.value and not self._info(self._held, self._what, 4, ctypes.addressof(status), None):
            return (1, ctypes.addressof(self._held)) if status.value > 0 else (0, None)
        return 0, None

    def replace(self, event: ctypes.c_void_p) -> None:
        if self._held.value:
            self._release(self._held)
        self._held = event

    def __del__(self) -> None:
        self.replace(ctypes.c_void_p())


class HostMemory:
    """Host memory as the device sees it. `writable`: whether kernels may write it; `sharing`: how it is shared.

    serial: changes whenever kernel arguments set before are void. The caller keeps the mapping alive while a run uses
    it (the timeline does).
    """

    def __init__(self, context: OpenClContext, address: int, size_bytes: int, writable: bool) -> None:
        if address % context.device.align_bytes:
            raise HalError(HalCode.ALIGNMENT, "memory starts where the device cannot address it",
                           expected=f"a multiple of {context.device.align_bytes}", found=hex(address))  # fmt: skip
        self._context, self._api = context, context.api
        self.address, self.size_bytes, self.writable = address, size_bytes, writable
        self.sharing = context.sharing
        self._mapped = 0  # MAPPED: what clEnqueueMapBuffer answered, while the host holds the bytes
        self._last = _LastEvent(context.api)
        self._make()

    def handle(self, offset: int, size_bytes: int) -> int:
        """What a kernel is given for a range of it."""
        return self._region.part(offset, size_bytes)

    def refresh(self) -> None:
        """Make it anew where the context was rebuilt since."""
        if self._generation != self._context.generation:
            self._make()

    def give(self, queue: int) -> None:
        """Enqueue what shows the host's bytes to the device."""
        if self.sharing is Sharing.MAPPED and self._mapped:
            self._enqueue("clEnqueueUnmapMemObject", queue, self._region.handle, self._mapped)
            self._mapped = 0
        elif self.sharing is Sharing.COPIED:
            self._enqueue("clEnqueueWriteBuffer", queue, self._region.handle, 0, 0, self.size_bytes, self.address)

    def take(self, queue: int, *, wait: bool = False) -> None:
        """Enqueue what shows the device's bytes to the host; `wait`: until it is done."""
        if self.sharing is Sharing.MAPPED and not self._mapped:
            self._map(queue, wait)
        elif self.sharing is Sharing.COPIED and self.writable:
            handle, size = self._region.handle, self.size_bytes
            self._enqueue("clEnqueueReadBuffer", queue, handle, int(wait), 0, size, self.address)

    def _make(self) -> None:
        access = "CL_MEM_READ_WRITE" if self.writable else "CL_MEM_READ_ONLY"
        self._generation = self._context.generation
        self.serial = next(_serials)
        self._mapped = 0
        self._last.replace(ctypes.c_void_p())
        if self.sharing is not Sharing.COPIED:
            try:
                self._region = Region(self._context, (access, "CL_MEM_USE_HOST_PTR"), self.size_bytes, self.address)
            except HalError:
                if self.writable or self.sharing is Sharing.DIRECT:
                    raise
                self.sharing = Sharing.COPIED  # some drivers cannot pin pages that we may only read
        if self.sharing is Sharing.COPIED:
            self._region = Region(self._context, (access,), self.size_bytes)
        elif self.sharing is Sharing.MAPPED:
            queue = self._context.queue()
            try:
                self._map(queue, wait=True)
            finally:
                self._api.call("clReleaseCommandQueue", queue)

    def _map(self, queue: int, wait: bool) -> None:
        """The host writes what kernels only read, so its bytes must not be overwritten by the device's: INVALIDATE."""
        reading = self._api.constant("CL_MAP_READ") | self._api.constant("CL_MAP_WRITE")
        flags = reading if self.writable else self._api.constant("CL_MAP_WRITE_INVALIDATE_REGION")
        event, status = ctypes.c_void_p(), ctypes.c_int32()
        mapped = self._api.raw("clEnqueueMapBuffer")(
            queue, self._region.handle, int(wait), flags, 0, self.size_bytes, *self._last.wait_list(),
            ctypes.addressof(event), ctypes.addressof(status),
        )  # fmt: skip
        if status.value or mapped != self.address:
            raise self._api.error("clEnqueueMapBuffer", status.value)
        self._mapped = mapped
        self._last.replace(event)

    def _enqueue(self, name: str, *arguments: int) -> None:
        event = ctypes.c_void_p()
        self._api.call(name, *arguments, *self._last.wait_list(), ctypes.addressof(event))
        self._last.replace(event)


@dataclass(frozen=True, slots=True)
class OpenClBuffer(DeviceBuffer):
    """A DeviceBuffer with the device's view of it. Parts are buffers of their own over the same host memory."""

    context: OpenClContext = field(kw_only=True, repr=False)
    memory: HostMemory = field(kw_only=True, repr=False)

    @classmethod
    def over(
        cls, context: OpenClContext, mapping: Mapping, offset: int, size_bytes: int, writable: bool
    ) -> OpenClBuffer:
        """`size_bytes` from `offset` of a mapping. Raises HalError ALIGNMENT, OUT_OF_MEMORY."""
        address = mapping.address + offset
        memory = HostMemory(context, address, size_bytes, writable)
        zero_copy = memory.sharing is not Sharing.COPIED
        return cls(address, size_bytes, mapping, offset, writable, zero_copy, context=context, memory=memory)

    def part(self, offset: int, size_bytes: int) -> OpenClBuffer:
        if offset < 0 or size_bytes < 1 or offset + size_bytes > self.size_bytes:
            raise HalError(HalCode.SIZE, "a part reaches past its buffer", expected=f"within {self.size_bytes} bytes",
                           found=f"{offset} + {size_bytes}")  # fmt: skip
        return OpenClBuffer.over(self.context, self.mapping, self.offset + offset, size_bytes, self.writable)


def shares_directly(context: OpenClContext) -> bool:
    """Whether the device really works in host memory: what it fills shows in the host's bytes without a map."""
    mapping = Mapping.anonymous(PAGE_BYTES)
    flags = ("CL_MEM_READ_WRITE", "CL_MEM_USE_HOST_PTR")
    region = Region(context, flags, PAGE_BYTES, mapping.address)
    queue, api = context.queue(), context.api
    pattern = ctypes.c_uint8(_PROBE_BYTE)
    try:
        fill = (queue, region.handle, ctypes.addressof(pattern), 1, 0, PAGE_BYTES, 0, None, None)
        api.call("clEnqueueFillBuffer", *fill)
        api.call("clFinish", queue)
    finally:
        api.call("clReleaseCommandQueue", queue)
        region.release()
    return bool((mapping.array == _PROBE_BYTE).all())
