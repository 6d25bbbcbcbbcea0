"""One of tinygrad's HCQ devices, opened for its queues and memory only: no renderer, no tensor, no compiler.

HCQ is tinygrad's way to put commands into a GPU's hardware queue itself; completion is a word in host memory that the
GPU writes (the timeline signal). Its values are 32 bits wide on AMD and QCOM, so a timeline is begun anew at 2^31,
while nothing is in flight; a run therefore remembers the signal as well as the value.
"""

from __future__ import annotations

import ctypes
import struct
import threading
import time
from typing import Any

import numpy as np

from hal.clock import ClockMap
from hal.error import HalCode, HalError
from hal.hcq_barrier import Barrier
from hal.hcq_environment import prepare_environment
from hal.memory import PAGE_BYTES

REWIND_AT = 1 << 31  # tinygrad begins a timeline anew above it, when it synchronises
REFUSE_AT = 3 << 30  # never yet at rest since: the values would wrap
_TICKS_PER_S = {"AMD": 100_000_000, "NV": 1_000_000_000, "QCOM": 19_200_000}
_NS_PER_S = 1_000_000_000
_CALIBRATIONS = 8
_CALIBRATION_LIMIT_NS = 2 * _NS_PER_S
_SCRATCH = ("scratch", "_stack", "shader_local_mem")
_FAILURES = (RuntimeError, OSError, AssertionError, MemoryError, ImportError, ValueError, LookupError, struct.error)


class HcqDevice:
    """The device, and what its backends do each in their own way.

    lock: held, shortly, by whoever submits; the timeline's value and a queue's doorbell belong together. Making memory,
    programs and queues needs no lock and waits for no run, so a module can be loaded while others run: what tinygrad
    does with the device's own queues for it (copies, and waits before memory is freed) is not used.

    name: "AMD:0". dev: what tinygrad's `DEV` says of it. arch: what programs are compiled for, "gfx1100", "sm_89".
    clock: maps device time to CLOCK_MONOTONIC.
    """

    def __init__(self, wanted: str) -> None:
        backend, _, index = wanted.partition(":")
        interface = prepare_environment(backend)
        self.lock = threading.RLock()
        self._signals = threading.Lock()
        self.backend, self.dev = interface.backend, interface.dev
        self.name = f"{self.backend}:{index or 0}"
        try:
            from tinygrad import device as runtime  # noqa: PLC0415 (only now is the environment fit for it)
            from tinygrad.helpers import Context  # noqa: PLC0415

            if interface.own_process:
                _load_no_library_but_libc()
            from tinygrad.runtime.support import hcq, system  # noqa: PLC0415

            vars(system.System)["atomic_lib"] = Barrier()  # looking for libatomic would start a process
            with Context(DEV=interface.dev):
                self.raw: Any = runtime.Device[self.name]
        except _FAILURES as error:
            raise HalError(HalCode.DRIVER_UNAVAILABLE, f"{self.name} does not open", found=str(error)[:300],
                           expected=f"a GPU behind {interface.dev}") from error  # fmt: skip
        self._spec, self._elf, self._buffer = runtime.BufferSpec, runtime.TinyELF, hcq.HCQBuffer
        self._target = runtime.Target(self.backend, arch=self.raw.arch)
        self.arch = str(self.raw.arch).partition(",")[0]
        self.count = int(self.raw.count())
        self.identity = f"{self.name} {self.arch}" + (" emulated" if interface.emulated else "")
        self._ticks_per_s = _TICKS_PER_S[self.backend]
        self.tick_ns = -(-_NS_PER_S // self._ticks_per_s)
        self.clock = ClockMap()
        self._calibrate()

    @property
    def names(self) -> tuple[str, ...]:
        """Identities of every device that the backend's kernel driver lists; they are of one kind."""
        own = self.identity.partition(" ")[2]
        return tuple(f"{self.backend}:{index} {own}" for index in range(self.count))

    @property
    def clock_name(self) -> str:
        return f"{self.backend} counter of {self._ticks_per_s} Hz"

    @property
    def scratch(self) -> tuple[int, ...]:
        """Where kernels spill to. Loading a program can move it, and a queue built before then names the old place."""
        held = (getattr(self.raw, name, None) for name in _SCRATCH)
        return tuple(int(one.va_addr) for one in held if one is not None)

    def program(self, code: bytes, symbol: str, scalars: int) -> Any:
        """Code in device memory, ready to be launched. Raises HalError CODE. scalars: how many `int` arguments."""
        from tinygrad.dtype import dtypes  # noqa: PLC0415 (loaded with the device)

        signature = tuple((None, slot, dtypes.int32, ()) for slot in range(scalars))
        try:
            return self.raw.runtime_t(_Loading(self), self._elf(code, symbol, self._target, signature))
        except (*_FAILURES, ctypes.ArgumentError) as error:
            raise HalError(HalCode.CODE, f"kernel {symbol} is not code for {self.arch}", found=str(error)[:200],
                           todo="compile the model again for this device") from error  # fmt: skip

    def allocate(self, size_bytes: int, *, host_writes: bool = False, shared: bool = False) -> Any:
        """Device memory that is the caller's until `free`. Raises HalError OUT_OF_MEMORY.

        host_writes: the host fills it by `host_address`. shared: it lies in host memory, which the device reaches.
        """
        spec = self._spec(cpu_access=host_writes or shared, host=shared, nolru=True)
        try:
            return self.raw.allocator._alloc(size_bytes, spec)
        except _FAILURES as error:
            raise HalError(HalCode.OUT_OF_MEMORY, f"{size_bytes} bytes of device memory", found=str(error)[:200],
                           todo="free device memory") from error  # fmt: skip

    def free(self, memory: Any) -> None:
        """Give memory back that no run in flight uses."""
        self.raw.allocator._do_free(memory, self._spec(nolru=True))

    def filled(self, data: memoryview) -> Any:
        """Device memory that holds a copy of `data`. Raises HalError OUT_OF_MEMORY.

        The host writes it itself. Where it reaches only a part of the device's memory (a GPU without a resizable BAR)
        and that is full, the device copies, behind the runs in flight, and submits wait for it.
        """
        try:
            memory = self.allocate(data.nbytes, host_writes=True)
        except HalError:
            memory = self.allocate(data.nbytes)
            with self.lock:
                self.raw.allocator._copyin(memory, data)
                self.raw.synchronize()
            return memory
        write_bytes(self.host_address(memory), data)
        return memory

    def new_signal(self) -> Any:
        """A word and a time stamp in host memory that the device writes."""
        with self._signals:
            return self.raw.new_signal()

    def give_back(self, queue: Any) -> None:
        """Free what a bound queue holds; its own clean-up would wait for the device."""
        queue.binded_device = None
        self.free(queue.hw_page)

    def import_host(self, address: int, size_bytes: int) -> Any:
        """The device's view of host pages, without a copy. Raises HalError NOT_PERMITTED where it takes none."""
        size = -(-size_bytes // PAGE_BYTES) * PAGE_BYTES
        try:
            return self.raw.iface.alloc(size, host=True, cpu_addr=address)
        except (*_FAILURES, AttributeError) as error:
            raise HalError(HalCode.NOT_PERMITTED, "the device cannot use these pages", found=str(error)[:200],
                           todo="let it work on a copy") from error  # fmt: skip

    def forget_host(self, memory: Any) -> None:
        """Undo `import_host`, leaving the pages mapped: they are not tinygrad's, which would unmap them."""
        if self.backend == "AMD":
            memory.va_addr = 0
        memory.view = None
        self.raw.iface.free(memory)

    @staticmethod
    def host_address(memory: Any) -> int:
        """Where the host finds device memory that was allocated for both."""
        return int(memory.cpu_view().addr)

    def placed(self, address: Any, size_bytes: int) -> Any:
        """A buffer at an address of the device, for kernel arguments; the address may be a variable."""
        return self._buffer(address, size_bytes)

    def signal_word(self, signal: Any) -> ctypes.c_uint64:
        """The signal's value as the GPU writes it; the time stamp is the word behind it (`stamp_ns`)."""
        return ctypes.c_uint64.from_address(signal.base_buf.cpu_view().addr)

    def stamp_ns(self, signal: Any) -> int:
        """The time a queue's timestamp command wrote, in ns of the device's clock."""
        ticks = ctypes.c_uint64.from_address(signal.base_buf.cpu_view().addr + 8).value
        return ticks * _NS_PER_S // self._ticks_per_s

    def look_for_faults(self) -> None:
        """Ask the kernel driver for faults, at most a millisecond. Raises HalError DEVICE_LOST."""
        look = getattr(getattr(self.raw, "iface", None), "sleep", None)
        try:
            if look is not None:
                look(1)
        except RuntimeError as error:
            raise HalError(HalCode.DEVICE_LOST, "the device reports a fault", found=str(error)[:300],
                           todo="restart the process: the queue is lost") from error  # fmt: skip

    def abandon(self) -> None:
        """Keep tinygrad from waiting for the device when the process exits."""
        from tinygrad.device import Device  # noqa: PLC0415 (loaded with the device)

        Device._opened_devices.discard(Device.canonicalize(self.name))

    def _calibrate(self) -> None:
        """The clocks' offset, by the host times around submissions that only stamp; the quickest tells most."""
        stamp = self.new_signal()
        for _ in range(_CALIBRATIONS):
            queue, raw = self.raw.hw_compute_queue_t(), self.raw
            before_ns = time.monotonic_ns()
            queue.wait(raw.timeline_signal, raw.timeline_value - 1).timestamp(stamp)
            value = raw.next_timeline()
            queue.signal(raw.timeline_signal, value).submit(raw)
            word = self.signal_word(raw.timeline_signal)
            while word.value < value:
                if time.monotonic_ns() > before_ns + _CALIBRATION_LIMIT_NS:
                    raise HalError(HalCode.DRIVER_UNAVAILABLE, f"{self.name} does not run its queue",
                                   expected="a timestamp within 2 s", todo="reset the GPU")  # fmt: skip
                time.sleep(0)  # let other threads run, no longer
            seen_ns, device_ns = time.monotonic_ns(), self.stamp_ns(stamp)
            self.clock.sample(before_ns - device_ns - self.tick_ns, seen_ns - device_ns, seen_ns)


class _Loading:
    """The device as a program sees it that puts its code there: memory that the host writes, and no wait for runs.

    renderer: programs ask which compiler made them, and asking the device would make one. None of those answers is for
    binaries of Mesa's compilers (NAK, IR3), which this driver does not take.
    """

    renderer = None

    def __init__(self, device: HcqDevice) -> None:
        self._device = device
        self.allocator = self

    def __getattr__(self, name: str) -> Any:
        return getattr(self._device.raw, name)

    def alloc(self, size_bytes: int, *spec: object) -> Any:
        return self._device.allocate(size_bytes, host_writes=True)

    def free(self, memory: Any, *spec: object) -> None:
        self._device.free(memory)

    def _copyin(self, memory: Any, data: memoryview) -> None:
        write_bytes(self._device.host_address(memory), data)

    def synchronize(self) -> None:
        """Nothing was given to a queue."""


def write_bytes(address: int, data: memoryview) -> None:
    """Copy `data` to host memory at `address`."""
    held = np.frombuffer(data, np.uint8)
    ctypes.memmove(address, held.ctypes.data, held.nbytes)


def _load_no_library_but_libc() -> None:
    """tinygrad maps what it finds of libusb, Mesa and others when it imports a device; none of them is needed here."""
    from tinygrad.runtime.support.c import DLL  # noqa: PLC0415 (loaded with the device)

    find = DLL.findlib

    def find_libc(name: str, *paths: object) -> str | None:
        return find(name, *paths) if name == "libc" else None

    DLL.findlib = staticmethod(find_libc)
