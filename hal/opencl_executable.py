"""One module loaded on an OpenCL device: its programs, memory, queue and timeline.

Made by `hal.opencl.OpenClAccelerator.load` from an admitted graph. A submit sets the arguments whose bound memory has
changed since the last run, and enqueues every launch; nothing in it waits for the device.
"""

from __future__ import annotations

import ctypes
import time
from functools import partial

from abi.graph import BufferKind, Graph
from hal.accelerator import DeviceBuffer, Module
from hal.admit import Admission
from hal.bindings import Bindings
from hal.error import HalCode, HalError
from hal.fence import Fence
from hal.memory import Mapping
from hal.opencl_clock import ClockMap
from hal.opencl_device import Sharing
from hal.opencl_launches import EntryPlan, Launches
from hal.opencl_memory import HostMemory, OpenClBuffer, OpenClContext, Region
from hal.opencl_queue import OpenClQueue, Run
from hal.weights import map_sealed_copy, map_weights


class OpenClExecutable:
    """See `hal.accelerator.Executable`. `name` is for messages: the first entrypoint's name."""

    def __init__(
        self, module: Module, admission: Admission, context: OpenClContext, clock: ClockMap, slots: int
    ) -> None:
        self.graph: Graph = module.graph
        self.admission = admission
        self.name = module.graph.entrypoints[0].name
        self._context, self._api = context, context.api
        self._code = map_sealed_copy("fenced-code", module.code)
        self._weights = map_weights(module)
        self._state, self._state_at = _place_states(module.graph, context.device.align_bytes)
        self._state_memory = (
            HostMemory(context, self._state.address, self._state.size_bytes, writable=True) if self._state else None
        )
        self._host_holds_state = True
        self._fill_state()
        self._regions: dict[BufferKind, Region] = {}
        self._make_regions()
        self._launches = Launches(context, self.graph, self._code, self._locate)
        try:
            self.queue = OpenClQueue(context, clock, slots)
        except BaseException:
            self._launches.release()
            raise
        self.timeline = self.queue.timeline
        self._enqueue = self._api.raw("clEnqueueNDRangeKernel")

    def bindings(self, entrypoint: int) -> Bindings:
        return Bindings(self.graph, entrypoint, self._context.device.align_bytes)

    def submit(self, bindings: Bindings) -> Fence:
        """Enqueue one run. The driver has checked that the bindings are this module's and complete."""
        timeline = self.timeline
        if not timeline.room():
            raise HalError(HalCode.QUEUE_FULL, f"{timeline.in_flight} runs are in flight",
                           expected=f"at most {timeline.slots}", todo="wait for a fence first")  # fmt: skip
        plan = self._launches.entries[bindings.entrypoint]
        bound = [self._own(buffer) for buffer in bindings.bound]
        run = Run(timeline.issued + 1, len(plan.launches), partial(self._start, plan, bound))
        submitted_ns = time.monotonic_ns()
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
            self._take_state()
            self._fill_state()

    def launches_done(self) -> int:
        return self.queue.launches_done

    def cancel(self) -> None:
        """Runs that have not begun never do; a run that the device has begun goes on to its end, as cancelled."""
        self.queue.cancel()

    def rebuild(self) -> None:
        """Make everything anew in the context's present generation; state gets its initial value."""
        self._launches.release()
        self.queue.rebuild()
        if self._state_memory is not None:
            self._state_memory.refresh()
            self._host_holds_state = True
            self._fill_state()
        self._make_regions()
        self._launches = Launches(self._context, self.graph, self._code, self._locate)

    def release(self) -> None:
        """Give back what the device holds, in the present generation. Only while nothing is in flight."""
        self._launches.release()
        self.queue.release()
        for region in self._regions.values():
            region.release()
        self._regions.clear()

    def unload_until(self, deadline_ns: int) -> None:
        """Wait for the queue and give everything back. Raises HalError DEVICE_HANG where a kernel does not end."""
        self.cancel()
        if not self.queue.idle_before(deadline_ns):
            raise HalError(HalCode.DEVICE_HANG, f"a kernel of {self.name} does not end; its memory stays mapped",
                           todo="exit the process")  # fmt: skip
        self.queue.close()
        self.release()

    def _own(self, buffer: DeviceBuffer | None) -> OpenClBuffer:
        if type(buffer) is not OpenClBuffer or buffer.context is not self._context:
            raise HalError(HalCode.BINDING, "a buffer of another device is bound",
                           expected="buffers that this accelerator imported or allocated")  # fmt: skip
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

    def _take_state(self) -> None:
        if not self._host_holds_state and self._state_memory is not None:
            self._state_memory.take(self.queue.handle, wait=True)
        self._host_holds_state = True

    def _fill_state(self) -> None:
        for index, at in self._state_at.items():
            buffer = self.graph.buffers[index]
            assert self._state is not None
            target = self._state.array[at : at + buffer.size_bytes]
            if buffer.initial_from_weights:
                assert self._weights is not None
                target[:] = self._weights.array[buffer.initial_offset : buffer.initial_offset + buffer.size_bytes]
            else:
                target[:] = 0

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
            return self._state_memory.handle(self._state_at[index] + offset, size_bytes)
        return self._regions[buffer.kind].part(buffer.offset + offset, size_bytes)

    def _refuse_in_flight(self, what: str) -> None:
        if self.timeline.in_flight:
            raise HalError(HalCode.BINDING, what, found=f"{self.timeline.in_flight} in flight")


def _place_states(graph: Graph, align_bytes: int) -> tuple[Mapping | None, dict[int, int]]:
    """One zeroed mapping for all state, and each state buffer's offset in it, where the device can address it."""
    at: dict[int, int] = {}
    used = 0
    for index, buffer in enumerate(graph.buffers):
        if buffer.kind is BufferKind.STATE:
            align = max(align_bytes, buffer.align_bytes)
            used = -(-used // align) * align
            at[index] = used
            used += buffer.size_bytes
    return (Mapping.anonymous(used) if used else None), at
