"""One module loaded on a GPU: its kernels, graphs, memory, stream and timeline.

Made by `hal.cuda.CudaAccelerator.load` from an admitted graph. A submit writes the addresses that have changed since
the last run into the entrypoint's graph and launches it; nothing in it waits for the device.
"""

from __future__ import annotations

from functools import partial

from abi.graph import BufferKind
from hal.accelerator import DeviceBuffer, Module
from hal.admit import Admission
from hal.bindings import Bindings
from hal.cuda_device import CudaContext
from hal.cuda_graph import EntryGraph, Modules
from hal.cuda_memory import CudaBuffer, DeviceMemory, HostMemory
from hal.cuda_queue import CudaQueue, Run
from hal.fence import Fence
from hal.loaded import QueuedModule

ALIGN_BYTES = 256  # what cuMemAlloc aligns to at least


class CudaExecutable(QueuedModule):
    """See `hal.accelerator.Executable`."""

    queue: CudaQueue

    def __init__(self, module: Module, admission: Admission, context: CudaContext, slots: int) -> None:
        super().__init__(module, admission, ALIGN_BYTES)
        self._context = context
        self._entries: list[EntryGraph] = []
        self._memories: dict[BufferKind, DeviceMemory] = {}
        self._host_holds_state = True
        self._modules = Modules(context.api, self.graph, module.code)
        try:
            self._follow(CudaQueue(context, slots))
        except BaseException:
            self._modules.release()
            raise
        try:
            self._place()
            for entry in self.graph.entrypoints:
                made = EntryGraph(context.api, self.graph, entry, self._modules.functions, self._locate)
                self._entries.append(made)
        except BaseException:
            self.queue.close()
            self.release()
            raise

    def bindings(self, entrypoint: int) -> Bindings:
        return Bindings(self.graph, entrypoint)  # the GPU reaches host pages at any address

    def submit(self, bindings: Bindings) -> Fence:
        self._refuse_full()
        bound = [self._own(buffer) for buffer in bindings.bound]
        entry = self._entries[bindings.entrypoint]
        start = partial(self._enqueue, entry, bound)
        return self.queue.submit(Run(self.timeline.issued + 1, entry.launches, bindings.budget_ns, start), bound)

    def unload_until(self, deadline_ns: int) -> None:
        self._context.enter()
        super().unload_until(deadline_ns)

    def release(self) -> None:
        for entry in self._entries:
            entry.release()
        self._entries.clear()
        self._modules.release()
        for memory in self._memories.values():
            memory.release()

    def _own(self, buffer: DeviceBuffer | None) -> CudaBuffer:
        if type(buffer) is not CudaBuffer or buffer.context is not self._context:
            raise self._foreign()
        return buffer

    def _enqueue(self, entry: EntryGraph, bound: list[CudaBuffer], _: Run) -> None:
        """The run's copies and launches; the queue's lock is held and the context entered."""
        entry.bind([buffer.device_address for buffer in bound])
        for memory in dict[HostMemory, None].fromkeys(buffer.memory for buffer in bound):
            memory.give(self.queue.stream)
        held = self._state.mapping
        if self._host_holds_state and held is not None:
            target = self._memories[BufferKind.STATE].address
            self._context.copy_in(self.queue.stream, target, held.address, held.size_bytes)
        self._host_holds_state = False
        entry.launch(self.queue.stream)

    def _place(self) -> None:
        """Arena, weights and state on the GPU; the host's copy of the state is given with the next run."""
        if self.graph.arena_bytes:
            self._memories[BufferKind.ARENA] = DeviceMemory(self._context, self.graph.arena_bytes)
        if self._state.size_bytes:
            self._memories[BufferKind.STATE] = DeviceMemory(self._context, self._state.size_bytes)
        if self._weights is not None:
            memory = self._memories[BufferKind.WEIGHTS] = DeviceMemory(self._context, self._weights.size_bytes)
            stream = self.queue.stream
            self._context.copy_in(stream, memory.address, self._weights.address, self._weights.size_bytes)
            self.queue.synchronize()

    def _host_state(self, *, current: bool) -> None:
        held = self._state.mapping
        if current and not self._host_holds_state and held is not None:
            self._context.enter()
            source = self._memories[BufferKind.STATE].address
            self._context.api.call("cuMemcpyDtoHAsync_v2", held.address, source, held.size_bytes, self.queue.stream)
            self.queue.synchronize()
        self._host_holds_state = True

    def _locate(self, index: int, offset: int) -> int:
        buffer = self.graph.buffers[index]
        at = self._state.at[index] if buffer.kind is BufferKind.STATE else buffer.offset
        return self._memories[buffer.kind].address + at + offset
