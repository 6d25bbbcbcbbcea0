"""Host memory that an HCQ device works on, and buffers over it.

The device gets the host's own pages where its kernel driver takes them; both then see the same bytes, as far as the
queue's barriers order them. A frame is mapped read-only, and the kernel drivers of AMD and NV pin pages only for
writing; QCOM's takes host pages only behind cache maintenance that tinygrad would compile. Where pages are refused the
device works on a copy: filled just before the run is submitted, and taken back, where it is writable, when it ended.
"""

from __future__ import annotations

import ctypes
import threading
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from hal.accelerator import DeviceBuffer
from hal.error import HalCode, HalError
from hal.hcq_device import HcqDevice
from hal.memory import PAGE_BYTES, Mapping


class HostMemory:
    """A mapping as the device sees it, made once for each mapping. zero_copy: whether it sees the host's own pages."""

    def __init__(self, device: HcqDevice, mapping: Mapping) -> None:
        if mapping.address % PAGE_BYTES:
            raise HalError(HalCode.ALIGNMENT, "memory is not page aligned", expected=f"a multiple of {PAGE_BYTES}",
                           found=hex(mapping.address))  # fmt: skip
        self._host, self._size_bytes, self._writable = mapping.address, mapping.size_bytes, mapping.writable
        self._copy = 0
        try:
            seen = device.import_host(mapping.address, mapping.size_bytes)
            forget = device.forget_host
        except HalError:
            seen = device.allocate(mapping.size_bytes, shared=True)
            self._copy, forget = device.host_address(seen), device.free
        self.zero_copy = not self._copy
        self.address = int(seen.va_addr)
        self._end = weakref.finalize(self, _let_go, forget, seen, mapping)
        self._end.atexit = False  # at exit the kernel driver lets go of everything

    @property
    def is_taken_back(self) -> bool:
        """Whether a run's end needs `take`; the next run may then not be handed over before it."""
        return bool(self._copy) and self._writable

    def give(self) -> None:
        """Show the host's bytes to the device, before a run is submitted."""
        if self._copy:
            ctypes.memmove(self._copy, self._host, self._size_bytes)

    def take(self) -> None:
        """Show the device's bytes to the host, when a run has ended."""
        if self.is_taken_back:
            ctypes.memmove(self._host, self._copy, self._size_bytes)


def _let_go(forget: Callable[[Any], None], seen: Any, mapping: Mapping) -> None:
    """`mapping` stays until the device has let go of its pages."""
    forget(seen)


class HostMemories:
    """The mappings that a device knows now: pages that are imported twice would have two places on the device."""

    def __init__(self, device: HcqDevice) -> None:
        self._device = device
        self._lock = threading.Lock()
        self._known: weakref.WeakKeyDictionary[Mapping, weakref.ref[HostMemory]] = weakref.WeakKeyDictionary()

    def of(self, mapping: Mapping) -> HostMemory:
        """Raises HalError ALIGNMENT, NOT_PERMITTED."""
        with self._lock:
            known = self._known.get(mapping)
            memory = known() if known is not None else None
            if memory is None:
                memory = HostMemory(self._device, mapping)
                self._known[mapping] = weakref.ref(memory)
            return memory


@dataclass(frozen=True, slots=True)
class HcqBuffer(DeviceBuffer):
    """A DeviceBuffer with the device's view of it. `address` is the host's; parts share the memory."""

    device: HcqDevice = field(kw_only=True, repr=False)
    memory: HostMemory = field(kw_only=True, repr=False)

    @classmethod
    def over(cls, device: HcqDevice, memory: HostMemory, mapping: Mapping, writable: bool) -> HcqBuffer:
        """The whole of a mapping."""
        return cls(mapping.address, mapping.size_bytes, mapping, 0, writable, memory.zero_copy, device=device,
                   memory=memory)  # fmt: skip

    @property
    def device_address(self) -> int:
        """Where the device finds it."""
        return self.memory.address + self.offset

    def part(self, offset: int, size_bytes: int) -> HcqBuffer:
        if offset < 0 or size_bytes < 1 or offset + size_bytes > self.size_bytes:
            raise HalError(HalCode.SIZE, "a part reaches past its buffer", expected=f"within {self.size_bytes} bytes",
                           found=f"{offset} + {size_bytes}")  # fmt: skip
        return HcqBuffer(self.address + offset, size_bytes, self.mapping, self.offset + offset, self.writable,
                         self.zero_copy, device=self.device, memory=self.memory)  # fmt: skip
