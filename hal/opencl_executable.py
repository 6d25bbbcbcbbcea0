"""One module loaded on an OpenCL device: its programs, memory, queue and timeline.

Made by `hal.opencl.OpenClAccelerator.load` from an admitted graph. A submit sets the arguments whose bound memory has
changed since the last run, and enqueues every launch; nothing in it waits for the device.
"""

from __future__ import annotations

import ctypes
import time
from functools import partial

from abi.graph import BufferKind
from hal.accelerator import DeviceBuffer, Module
from hal.admit import Admission
from hal.bindings import Bindings
from hal.clock import ClockMap
from hal.error import HalError
from hal.fence import Fence
from hal.loaded import QueuedModule
from hal.opencl_device import Sharing
from hal.opencl_launches import EntryPlan, Launches
from hal.opencl_memory import HostMemory, OpenClBuffer, OpenClContext, Region
from hal.opencl_queue import OpenClQueue, Run
from hal.weights import map_sealed_copy


class OpenClExecutable(QueuedModule):
    """See `hal.accelerator.Executable`."""

    queue: OpenClQueue

    def __init__(
        self, module: Module, admission: Admission, context: OpenClContext, clock: ClockMap, slots: int
    ) -> None:
        super().__init__(module, admission, context.device.align_bytes)
        self._context, self._api = context, context.api
        self._code = map_sealed_copy("fenced-code", module.code)
        held = self._state.mapping
        self._state_memory = HostMemory(context, held.address, held.size_bytes, writable=True) if held else None
        self._host_holds_state = True
        self._regions: dict[BufferKind, Region] = {}
        self._make_regions()
        self._launches = Launches(context, self.graph, self._code, self._locate)
        try:
            self._follow(OpenClQueue(context, clock, slots))
        except BaseException:
            self._launches.release()
            raise
        self._enqueue = self._api.raw("clEnqueueNDRangeKernel")

    def submit(self, bindings: Bindings) -> Fence:
        self._refuse_full()
        plan = self._launches.entries[bindings.entrypoint]
        bound = [self._own(buffer) for buffer in bindings.bound]
        start = partial(self._start, plan, bound)
        return self.queue.submit(Run(self.timeline.issued + 1, len(plan.launches), bindings.budget_ns, start), bound)

    def rebuild(self) -> None:
        """Make everything anew in the context's present generation; the state is then the host's to fill."""
        self._launches.release()
        self.queue.rebuild()
        if self._state_memory is not None:
            self._state_memory.refresh()
            self._host_holds_state = True
        self._make_regions()
        self._launches = Launches(self._context, self.graph, self._code, self._locate)

    def release(self) -> None:
        """Give back what the device holds, in the present generation. Only while nothing is in flight."""
        self._launches.release()
        self.queue.release()
        for region in self._regions.values():
            region.release()
        self._regions.clear()

    def _own(self, buffer: DeviceBuffer | None) -> OpenClBuffer:
        if type(buffer) is not OpenClBuffer or buffer.context is not self._context:
            raise self._foreign()
        return buffer

    def _start(self, plan: EntryPlan, bound: list[OpenClBuffer], run: Run) -> None:
        """Enqueue the run; the queue's lock is held."""
        for buffer in bound:
            buffer.memory.refresh()
        self._set_bound(plan, bound)
        shared = [] if self._context.sharing is Sharing.DIRECT else bound
        for buffer in shared:
            buffer.memory.give(self.queue.handle)
        self._give_state()
        self._enqueue_all(plan, run)
        if not run.failure and shared:
            self._take_back(shared, run)
        self._api.raw("clFlush")(self.queue.handle)

    def _set_bound(self, plan: EntryPlan, bound: list[OpenClBuffer]) -> None:
        for argument in plan.bound:
            memory = bound[argument.slot].memory
            if argument.serial != memory.serial:
                handle = memory.handle(argument.offset, argument.size_bytes)
                self._launches.set_handle(argument.kernel, argument.position, handle)
                argument.serial = memory.serial

    def _enqueue_all(self, plan: EntryPlan, run: Run) -> None:
        """Every launch of the entrypoint. Raises HalError where not even the first could be enqueued."""
        enqueue, queue = self._enqueue, self.queue.handle
        first, last = ctypes.c_void_p(), ctypes.c_void_p()
        kernel, whole, local = plan.launches[0]
        run.before_ns = time.monotonic_ns()
        failure = enqueue(queue, kernel, 3, None, whole, local, 0, None, ctypes.addressof(first))
        run.after_ns = time.monotonic_ns()
        if failure:
            raise self._api.error("clEnqueueNDRangeKernel", failure)
        for kernel, whole, local in plan.launches[1:-1]:
            failure = enqueue(queue, kernel, 3, None, whole, local, 0, None, None)
            if failure:
                break
        if len(plan.launches) > 1 and not failure:
            kernel, whole, local = plan.launches[-1]
            failure = enqueue(queue, kernel, 3, None, whole, local, 0, None, ctypes.addressof(last))
        run.first = first.value or 0
        run.last = last.value or run.first
        if failure:
            self._close(run, failure)

    def _take_back(self, shared: list[OpenClBuffer], run: Run) -> None:
        """Bytes that the device keeps for itself come back behind the launches, and end the run."""
        try:
            for buffer in shared:
                buffer.memory.take(self.queue.handle)
            self._close(run, 0)
        except HalError:
            self._close(run, self._api.constant("CL_OUT_OF_RESOURCES"))

    def _close(self, run: Run, failure: int) -> None:
        """End the run with a marker behind what was enqueued; without one the whole queue is awaited."""
        marker = ctypes.c_void_p()
        status = self._api.raw("clEnqueueMarkerWithWaitList")(self.queue.handle, 0, None, ctypes.addressof(marker))
        if run.last not in (0, run.first):
            self._api.raw("clReleaseEvent")(run.last)
        run.last = marker.value or 0
        run.failure = failure or status

    def _give_state(self) -> None:
        if self._host_holds_state and self._state_memory is not None:
            self._state_memory.give(self.queue.handle)
        self._host_holds_state = False

    def _host_state(self, *, current: bool) -> None:
        if not self._host_holds_state and self._state_memory is not None:
            self._state_memory.take(self.queue.handle, wait=True)
        self._host_holds_state = True

    def _make_regions(self) -> None:
        """The arena, which the host never sees, and the weights: host memory itself where the device can read it."""
        self._regions.clear()
        if self.graph.arena_bytes:
            flags = ("CL_MEM_READ_WRITE", "CL_MEM_HOST_NO_ACCESS")
            self._regions[BufferKind.ARENA] = Region(self._context, flags, self.graph.arena_bytes)
        if self._weights is not None:
            copied = self._context.sharing is Sharing.COPIED
            flags = ("CL_MEM_READ_ONLY", "CL_MEM_COPY_HOST_PTR" if copied else "CL_MEM_USE_HOST_PTR")
            size, address = self._weights.size_bytes, self._weights.address
            self._regions[BufferKind.WEIGHTS] = Region(self._context, flags, size, address)

    def _locate(self, index: int, offset: int, size_bytes: int) -> int:
        buffer = self.graph.buffers[index]
        if buffer.kind is BufferKind.STATE:
            assert self._state_memory is not None
            return self._state_memory.handle(self._state.at[index] + offset, size_bytes)
        return self._regions[buffer.kind].part(buffer.offset + offset, size_bytes)
