"""One module loaded on the CPU: its code, memory, worker threads and timeline.

Made by `hal.cpu.CpuAccelerator.load` from an admitted graph. The order of loading is the order of trust: symbols are
resolved and the runtime's version compared before a worker starts; the workers are the only callers of kernels.
"""

from __future__ import annotations

import _ctypes
import ctypes
import mmap
import os
import platform
import threading
import time
from functools import partial

from abi.graph import BufferKind
from hal.accelerator import DeviceOptions, Module
from hal.admit import Admission
from hal.bindings import Bindings
from hal.cpu_layout import RUNTIME_SYMBOLS, VERSION, ControlBlock, Sizes
from hal.error import HalCode, HalError
from hal.fence import Fence, Timeline
from hal.loaded import LoadedModule
from hal.memory import Mapping, MemoryLock, seal_copy

_ALIGN_BYTES = 64


class CpuExecutable(LoadedModule):
    """See `hal.accelerator.Executable`."""

    def __init__(self, module: Module, admission: Admission, options: DeviceOptions, lock: MemoryLock | None) -> None:
        super().__init__(module, admission, _ALIGN_BYTES, partial(_zeroed, options))
        self._options = options
        self._descriptor = seal_copy("fenced-code", module.code, executable=True)
        self._library: ctypes.CDLL | None = None
        try:
            self._library = _map_code(self._descriptor)
            self._set_up(lock)
        except BaseException:
            self._close_code()
            raise

    def _set_up(self, lock: MemoryLock | None) -> None:
        assert self._library is not None
        self._calls = ctypes.PyDLL(None, handle=self._library._handle)  # short calls keep the interpreter lock
        self._resolve()
        self._enter = self._library.fenced_worker
        self._enter.argtypes = (ctypes.c_void_p, ctypes.c_uint32)
        self._enter.restype = None
        self._arena = _zeroed(self._options, self.admission.arena_bytes) if self.admission.arena_bytes else None
        if lock is not None:
            for held in (self._arena, self._weights, self._state.mapping):
                if held is not None:
                    lock.lock(held)
        event = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        spin_ns = self._options.spin_us * 1000
        idle_spin_ns = 0 if self._options.fifo_priority else spin_ns
        sizes = Sizes(self._options.queue_slots, self._options.spin_count, idle_spin_ns, event)
        self.control = ControlBlock(self.graph, self._bases(), self._shims(self._library), sizes)
        acquire = None if platform.machine() == "x86_64" else self._calls.fenced_acquire  # x86 loads stay in order
        self.timeline = Timeline(self.control.word, self.control.records, event, acquire, spin_ns)
        self._threads: list[threading.Thread] = []
        self._start()

    def submit(self, bindings: Bindings) -> Fence:
        """One native call. The driver has checked that the bindings are this module's and complete."""
        timeline = self.timeline
        if not timeline.room():
            raise self._full()
        submitted_ns = time.monotonic_ns()
        value = self._submit(self.control.address, bindings.entrypoint, bindings.addresses_at)
        if not value:
            raise self._full()
        return timeline.issue(value, submitted_ns, bindings.budget_ns, tuple(bindings.bound))

    def launches_done(self) -> int:
        return int(self.control.launches[0])

    def trace(self) -> memoryview:
        """Ask for a CLOCK_MONOTONIC stamp after every launch; the view holds those of the latest run."""
        return self.control.trace()

    def cancel(self) -> None:
        self._calls.fenced_cancel(self.control.address, self.timeline.issued)

    def unload_until(self, deadline_ns: int) -> None:
        """Stop the workers and give the memory back. Raises HalError DEVICE_HANG where a kernel keeps a worker."""
        self.cancel()
        self._calls.fenced_stop(self.control.address)
        for thread in self._threads:
            thread.join(max(0, deadline_ns - time.monotonic_ns()) / 1e9)
            if thread.is_alive():
                raise self._hang()
        self.timeline.close()
        self._close_code()

    def _close_code(self) -> None:
        if self._library is not None:
            _ctypes.dlclose(self._library._handle)
            self._library = None
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _resolve(self) -> None:
        missing = [name for name in RUNTIME_SYMBOLS if not hasattr(self._calls, name)]
        if missing:
            raise HalError(HalCode.CODE, "the code holds no queue runtime", expected=", ".join(RUNTIME_SYMBOLS),
                           found=f"without {missing[0]}", todo="link it with this version's lab")  # fmt: skip
        version = self._calls.fenced_version()
        if version != VERSION:
            raise HalError(HalCode.QUEUE_VERSION, "the code's queue runtime is of another version",
                           expected=str(VERSION), found=str(version), todo="compile the model again")  # fmt: skip
        self._calls.fenced_submit.argtypes = (ctypes.c_void_p, ctypes.c_uint32, ctypes.c_void_p)
        self._calls.fenced_submit.restype = ctypes.c_uint64
        self._calls.fenced_cancel.argtypes = (ctypes.c_void_p, ctypes.c_uint64)
        self._calls.fenced_cancel.restype = None
        self._calls.fenced_stop.argtypes = (ctypes.c_void_p,)
        self._calls.fenced_stop.restype = None
        self._calls.fenced_acquire.restype = None
        self._submit = self._calls.fenced_submit

    def _bases(self) -> dict[int, int]:
        bases: dict[int, int] = {}
        for index, buffer in enumerate(self.graph.buffers):
            if buffer.kind is BufferKind.ARENA and self._arena is not None:
                bases[index] = self._arena.address + buffer.offset
            elif buffer.kind is BufferKind.WEIGHTS and self._weights is not None:
                bases[index] = self._weights.address + buffer.offset
            elif buffer.kind is BufferKind.STATE and self._state.mapping is not None:
                bases[index] = self._state.mapping.address + self._state.at[index]
        return bases

    def _shims(self, library: ctypes.CDLL) -> list[int]:
        addresses = []
        for program in self.graph.programs:
            try:
                function = library[program.symbol]  # not by attribute: a symbol may be called as one of CDLL's own
            except AttributeError:
                raise HalError(HalCode.CODE, f"the code has no kernel {program.symbol!r}",
                               todo="compile the model again") from None  # fmt: skip
            addresses.append(ctypes.cast(function, ctypes.c_void_p).value or 0)
        return addresses

    def _start(self) -> None:
        failures: list[OSError] = []
        ready = threading.Barrier(self.graph.threads + 1)
        for worker in range(self.graph.threads):
            name = f"fenced-cpu-{worker}"
            thread = threading.Thread(target=self._work, args=(worker, ready, failures), name=name, daemon=True)
            thread.start()
            self._threads.append(thread)
        ready.wait()
        if failures:
            self.unload_until(time.monotonic_ns() + 1_000_000_000)
            raise HalError(HalCode.NOT_PERMITTED, "a worker's scheduling was refused", found=str(failures[0]),
                           todo="grant CAP_SYS_NICE or LimitRTPRIO, or turn fifo_priority off")  # fmt: skip

    def _work(self, worker: int, ready: threading.Barrier, failures: list[OSError]) -> None:
        try:
            if self._options.pin_cores:
                os.sched_setaffinity(0, {self._options.pin_cores[worker % len(self._options.pin_cores)]})
            if self._options.fifo_priority:
                os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(self._options.fifo_priority))
        except OSError as error:
            failures.append(error)
        enter, address = self._enter, self.control.address
        ready.wait()
        enter(address, worker)


def _map_code(descriptor: int) -> ctypes.CDLL:
    """The sealed code as a library. The descriptor stays open for as long as it is mapped: the loader knows objects by
    their path, and would take what another module's number names for this one.
    """
    try:
        return ctypes.CDLL(f"/proc/self/fd/{descriptor}", mode=os.RTLD_NOW | os.RTLD_LOCAL)
    except OSError as error:
        raise HalError(HalCode.CODE, "the code cannot be mapped", found=str(error), todo="compile again") from error


def _zeroed(options: DeviceOptions, size_bytes: int) -> Mapping:
    mapping = Mapping.anonymous(size_bytes)
    if options.huge_pages:
        mapping.advise(mmap.MADV_HUGEPAGE)
    return mapping
