"""One module loaded on a GPU: its kernels, graphs, memory, stream and timeline.

Made by `hal.cuda.CudaAccelerator.load` from an admitted graph. A submit writes the addresses that have changed since
the last run into the entrypoint's graph and launches it; nothing in it waits for the device.
"""

from __future__ import annotations

import time
from functools import partial

from abi.graph import BufferKind, Graph
from hal.accelerator import DeviceBuffer, Module
from hal.admit import Admission
from hal.bindings import Bindings
from hal.cuda_device import CudaContext
from hal.cuda_graph import EntryGraph, Modules
from hal.cuda_memory import CudaBuffer, DeviceMemory, HostMemory
from hal.cuda_queue import CudaQueue, Run
from hal.error import HalCode, HalError
from hal.fence import Fence
from hal.memory import Mapping
from hal.weights import map_weights

ALIGN_BYTES = 256  # what cuMemAlloc aligns to at least


class CudaExecutable:
    """See `hal.accelerator.Executable`. `name` is for messages: the first entrypoint's name."""

    def __init__(self, module: Module, admission: Admission, context: CudaContext, slots: int) -> None:
        self.graph: Graph = module.graph
        self.admission = admission
        self.name = module.graph.entrypoints[0].name
        self._context = context
        self._entries: list[EntryGraph] = []
        self._memories: dict[BufferKind, DeviceMemory] = {}
        self._state: Mapping | None = None
        self._host_holds_state = True
        self._modules = Modules(context.api, self.graph, module.code)
        try:
            self.queue = CudaQueue(context, slots)
        except BaseException:
            self._modules.release()
            raise
        self.timeline = self.queue.timeline
        try:
            self._place(module)
            for entry in self.graph.entrypoints:
                made = EntryGraph(context.api, self.graph, entry, self._modules.functions, self._locate)
                self._entries.append(made)
        except BaseException:
            self._close()
            raise

    def bindings(self, entrypoint: int) -> Bindings:
        return Bindings(self.graph, entrypoint)

    def submit(self, bindings: Bindings) -> Fence:
        """Enqueue one run. The driver has checked that the bindings are this module's and complete."""
        timeline = self.timeline
        if not timeline.room():
            raise HalError(HalCode.QUEUE_FULL, f"{timeline.in_flight} runs are in flight",
                           expected=f"at most {timeline.slots}", todo="wait for a fence first")  # fmt: skip
        bound = [self._own(buffer) for buffer in bindings.bound]
        entry = self._entries[bindings.entrypoint]
        run = Run(timeline.issued + 1, entry.launches, partial(self._enqueue, entry, bound))
        submitted_ns = time.monotonic_ns()
        with self.queue.lock:
            self.queue.add(run)
            fence = timeline.issue(run.value, submitted_ns, bindings.budget_ns, bound)
        self.queue.follow(run)
        return fence

    def state(self, name: str) -> memoryview:
        self._refuse_in_flight("state can be read only between runs")
        for state in self.graph.states:
            if state.name == name:
                size = self.graph.buffers[state.buffer].size_bytes
                at = self._state_at[state.buffer]
                assert self._state is not None
                self._take_state()
                return self._state.view[at : at + size]
        raise HalError(HalCode.BINDING, f"no state {name!r}", expected=", ".join(s.name for s in self.graph.states))

    def reset_state(self) -> None:
        if self._state is not None:
            self._refuse_in_flight("state can be reset only between runs")
            self._fill_state()

    def launches_done(self) -> int:
        return self.queue.launches_done

    def cancel(self) -> None:
        """Runs that have not begun never do; a run that the device has begun goes on to its end, as cancelled."""
        self.queue.cancel()

    def unload_until(self, deadline_ns: int) -> None:
        """Wait for the stream and give everything back. Raises HalError DEVICE_HANG where a kernel does not end."""
        self.cancel()
        if not self.queue.idle_before(deadline_ns):
            raise HalError(HalCode.DEVICE_HANG, f"a kernel of {self.name} does not end; its memory stays mapped",
                           todo="exit the process")  # fmt: skip
        self._close()

    def _close(self) -> None:
        self.queue.close()
        for entry in self._entries:
            entry.release()
        self._entries.clear()
        self._modules.release()
        for memory in self._memories.values():
            memory.release()

    def _own(self, buffer: DeviceBuffer | None) -> CudaBuffer:
        if type(buffer) is not CudaBuffer or buffer.context is not self._context:
            raise HalError(HalCode.BINDING, "a buffer of another device is bound",
                           expected="buffers that this accelerator imported or allocated")  # fmt: skip
        return buffer

    def _enqueue(self, entry: EntryGraph, bound: list[CudaBuffer]) -> None:
        """The run's copies and launches; the queue's lock is held and the context entered."""
        entry.bind([buffer.device_address for buffer in bound])
        for memory in dict[HostMemory, None].fromkeys(buffer.memory for buffer in bound):
            memory.give(self.queue.stream)
        if self._host_holds_state and self._state is not None:
            target = self._memories[BufferKind.STATE].address
            self._context.copy_in(self.queue.stream, target, self._state.address, self._state.size_bytes)
        self._host_holds_state = False
        entry.launch(self.queue.stream)

    def _place(self, module: Module) -> None:
        """Arena, weights and state on the GPU, and the host's copy of the state, which is given with the next run."""
        self._weights = map_weights(module)
        self._state_at: dict[int, int] = {}
        used = 0
        for index, buffer in enumerate(self.graph.buffers):
            if buffer.kind is BufferKind.STATE:
                align = max(ALIGN_BYTES, buffer.align_bytes)
                used = -(-used // align) * align
                self._state_at[index] = used
                used += buffer.size_bytes
        self._state = Mapping.anonymous(used) if used else None
        if self.graph.arena_bytes:
            self._memories[BufferKind.ARENA] = DeviceMemory(self._context, self.graph.arena_bytes)
        if used:
            self._memories[BufferKind.STATE] = DeviceMemory(self._context, used)
        if self._weights is not None:
            memory = self._memories[BufferKind.WEIGHTS] = DeviceMemory(self._context, self._weights.size_bytes)
            stream = self.queue.stream
            self._context.copy_in(stream, memory.address, self._weights.address, self._weights.size_bytes)
            self.queue.synchronize()
        self._fill_state()

    def _fill_state(self) -> None:
        self._host_holds_state = True
        for index, at in self._state_at.items():
            buffer = self.graph.buffers[index]
            assert self._state is not None
            target = self._state.array[at : at + buffer.size_bytes]
            if buffer.initial_from_weights:
                assert self._weights is not None
                target[:] = self._weights.array[buffer.initial_offset : buffer.initial_offset + buffer.size_bytes]
            else:
                target[:] = 0

    def _take_state(self) -> None:
        if not self._host_holds_state and self._state is not None:
            self._context.enter()
            source, size = self._memories[BufferKind.STATE].address, self._state.size_bytes
            self._context.api.call("cuMemcpyDtoHAsync_v2", self._state.address, source, size, self.queue.stream)
            self.queue.synchronize()
        self._host_holds_state = True

    def _locate(self, index: int, offset: int) -> int:
        buffer = self.graph.buffers[index]
        at = self._state_at[index] if buffer.kind is BufferKind.STATE else buffer.offset
        return self._memories[buffer.kind].address + at + offset

    def _refuse_in_flight(self, what: str) -> None:
        if self.timeline.in_flight:
            raise HalError(HalCode.BINDING, what, found=f"{self.timeline.in_flight} in flight")
