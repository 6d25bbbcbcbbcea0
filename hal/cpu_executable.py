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

from abi.graph import BufferKind, Graph
from hal.accelerator import DeviceOptions, Module
from hal.admit import Admission
from hal.bindings import Bindings
from hal.cpu_layout import RUNTIME_SYMBOLS, VERSION, ControlBlock, Sizes
from hal.error import HalCode, HalError
from hal.fence import Fence, Timeline
from hal.memory import Mapping, MemoryLock, seal_copy
from hal.weights import map_weights

_SLICE_NS = 1_000_000


class CpuExecutable:
    """See `hal.accelerator.Executable`. `name` is for messages: the first entrypoint's name."""

    def __init__(self, module: Module, admission: Admission, options: DeviceOptions, lock: MemoryLock | None) -> None:
        self.graph: Graph = module.graph
        self.admission = admission
        self.name = module.graph.entrypoints[0].name
        self._options = options
        self._library: ctypes.CDLL | None = _load_code(module.code)
        try:
            self._set_up(module, lock)
        except BaseException:
            self._close_code()
            raise

    def _set_up(self, module: Module, lock: MemoryLock | None) -> None:
        assert self._library is not None
        self._calls = ctypes.PyDLL(None, handle=self._library._handle)  # short calls keep the interpreter lock
        self._resolve()
        self._enter = self._library.fenced_worker
        self._enter.argtypes = (ctypes.c_void_p, ctypes.c_uint32)
        self._enter.restype = None
        self._arena = _zeroed(self.admission.arena_bytes, self._options)
        self._weights = map_weights(module)
        self._state, self._state_at = _place_states(module.graph, self._options)
        if lock is not None:
            for held in (self._arena, self._weights, self._state):
                if held is not None:
                    lock.lock(held)
        self.reset_state()
        event = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        sizes = Sizes(self._options.queue_slots, self._options.spin_count, event)
        self.control = ControlBlock(module.graph, self._bases(), self._shims(self._library), sizes)
        acquire = None if platform.machine() == "x86_64" else self._calls.fenced_acquire  # x86 loads stay in order
        self.timeline = Timeline(self.control.word, self.control.records, event, acquire)
        self._threads: list[threading.Thread] = []
        self._start()

    def bindings(self, entrypoint: int) -> Bindings:
        return Bindings(self.graph, entrypoint)

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

    def state(self, name: str) -> memoryview:
        self._refuse_in_flight("state can be read only between runs")
        for state in self.graph.states:
            if state.name == name:
                size = self.graph.buffers[state.buffer].size_bytes
                at = self._state_at[state.buffer]
                assert self._state is not None
                return self._state.view[at : at + size]
        raise HalError(HalCode.BINDING, f"no state {name!r}", expected=", ".join(s.name for s in self.graph.states))

    def reset_state(self) -> None:
        if self._state is None:
            return
        self._refuse_in_flight("state can be reset only between runs")
        for index, at in self._state_at.items():
            buffer = self.graph.buffers[index]
            target = self._state.array[at : at + buffer.size_bytes]
            if buffer.initial_from_weights:
                assert self._weights is not None
                target[:] = self._weights.array[buffer.initial_offset : buffer.initial_offset + buffer.size_bytes]
            else:
                target[:] = 0

    def launches_done(self) -> int:
        return int(self.control.launches[0])

    def trace(self) -> memoryview:
        """Ask for a CLOCK_MONOTONIC stamp after every launch; the view holds those of the latest run."""
        return self.control.trace()

    def cancel(self) -> None:
        self._calls.fenced_cancel(self.control.address, self.timeline.issued)

    def idle_before(self, deadline_ns: int) -> bool:
        """Wait until nothing is in flight, at most until CLOCK_MONOTONIC `deadline_ns`. Whether it came to rest."""
        while self.timeline.in_flight:
            left_ns = deadline_ns - time.monotonic_ns()
            if left_ns <= 0:
                return False
            self.timeline.sleep(min(left_ns, _SLICE_NS))
        return True

    def unload_until(self, deadline_ns: int) -> None:
        """Stop the workers and give the memory back. Raises HalError DEVICE_HANG where a kernel keeps a worker."""
        self.cancel()
        self._calls.fenced_stop(self.control.address)
        for thread in self._threads:
            thread.join(max(0, deadline_ns - time.monotonic_ns()) / 1e9)
            if thread.is_alive():
                raise HalError(HalCode.DEVICE_HANG, f"a kernel of {self.name} does not end; its memory stays mapped",
                               todo="exit the process")  # fmt: skip
        self.timeline.close()
        self._close_code()

    def _close_code(self) -> None:
        if self._library is not None:
            _ctypes.dlclose(self._library._handle)
            self._library = None

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
            elif buffer.kind is BufferKind.STATE and self._state is not None:
                bases[index] = self._state.address + self._state_at[index]
        return bases

    def _shims(self, library: ctypes.CDLL) -> list[int]:
        addresses = []
        for program in self.graph.programs:
            function = getattr(library, program.symbol, None)
            if function is None:
                raise HalError(HalCode.CODE, f"the code has no kernel {program.symbol!r}",
                               todo="compile the model again")  # fmt: skip
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

    def _refuse_in_flight(self, what: str) -> None:
        if hasattr(self, "timeline") and self.timeline.in_flight:
            raise HalError(HalCode.BINDING, what, found=f"{self.timeline.in_flight} in flight")

    def _full(self) -> HalError:
        return HalError(HalCode.QUEUE_FULL, f"{self.timeline.in_flight} runs are in flight",
                        expected=f"at most {self.timeline.slots}", todo="wait for a fence first")  # fmt: skip


def _load_code(code: memoryview) -> ctypes.CDLL:
    descriptor = seal_copy("fenced-code", code, executable=True)
    try:
        return ctypes.CDLL(f"/proc/self/fd/{descriptor}", mode=os.RTLD_NOW | os.RTLD_LOCAL)
    except OSError as error:
        raise HalError(HalCode.CODE, "the code cannot be mapped", found=str(error), todo="compile again") from error
    finally:
        os.close(descriptor)


def _zeroed(size_bytes: int, options: DeviceOptions) -> Mapping | None:
    if size_bytes == 0:
        return None
    mapping = Mapping.anonymous(size_bytes)
    if options.huge_pages:
        mapping.advise(mmap.MADV_HUGEPAGE)
    return mapping


def _place_states(graph: Graph, options: DeviceOptions) -> tuple[Mapping | None, dict[int, int]]:
    """One zeroed mapping for all state, and each state buffer's offset in it."""
    at: dict[int, int] = {}
    used = 0
    for index, buffer in enumerate(graph.buffers):
        if buffer.kind is BufferKind.STATE:
            align = max(64, buffer.align_bytes)
            used = -(-used // align) * align
            at[index] = used
            used += buffer.size_bytes
    return _zeroed(used, options), at
