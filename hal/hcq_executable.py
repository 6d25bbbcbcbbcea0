"""One module loaded on an HCQ device: its programs, memory, lanes and timeline.

Made by `hal.hcq.HcqAccelerator.load` from an admitted graph. A submit patches a lane's variables and rings the
device's doorbell, once; nothing in it waits for the device.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial
from typing import Any

from abi.graph import BufferKind, Graph
from hal.accelerator import DeviceBuffer, Module
from hal.admit import Admission
from hal.bindings import Bindings
from hal.error import HalCode, HalError
from hal.fence import Fence
from hal.hcq_device import REFUSE_AT, REWIND_AT, HcqDevice
from hal.hcq_lane import Lane, Programs
from hal.hcq_memory import HcqBuffer, HostMemories
from hal.hcq_queue import AHEAD, HcqQueue, Run, rewind_refusal
from hal.memory import Mapping
from hal.weights import map_weights

ALIGN_BYTES = 256
_STATE_ALIGN_BYTES = 256


class HcqExecutable:
    """See `hal.accelerator.Executable`. `name` is for messages: the first entrypoint's name."""

    def __init__(
        self, module: Module, admission: Admission, device: HcqDevice, memories: HostMemories, slots: int
    ) -> None:
        self.graph: Graph = module.graph
        self.admission = admission
        self.name = module.graph.entrypoints[0].name
        self._device = device
        self._regions: dict[BufferKind, Any] = {}
        self._lanes: list[list[Lane]] = []
        self._weights = map_weights(module)
        self._state, self._state_at = _place_states(module.graph)
        self._state_memory = memories.of(self._state) if self._state is not None else None
        self._fill_state()
        try:
            self._make_regions()
            programs = Programs(device, self.graph, module.code)
            for entry in self.graph.entrypoints:
                lanes: list[Lane] = []
                self._lanes.append(lanes)
                for _ in range(AHEAD):
                    lanes.append(Lane(device, self.graph, entry, programs, self._locate))
            self.queue = HcqQueue(device, slots)
        except BaseException:
            self.release()
            raise
        self.timeline = self.queue.timeline

    def bindings(self, entrypoint: int) -> Bindings:
        return Bindings(self.graph, entrypoint, ALIGN_BYTES)

    def submit(self, bindings: Bindings) -> Fence:
        """Hand one run over. The driver has checked that the bindings are this module's and complete."""
        timeline = self.timeline
        if not timeline.room():
            raise HalError(HalCode.QUEUE_FULL, f"{timeline.in_flight} runs are in flight",
                           expected=f"at most {timeline.slots}", todo="wait for a fence first")  # fmt: skip
        bound = [self._own(buffer) for buffer in bindings.bound]
        start = partial(self._start, bindings.entrypoint, bound)
        launches = self.graph.entrypoints[bindings.entrypoint].launch_count
        run = Run(timeline.issued + 1, launches, bindings.budget_ns, start)
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
                return self._state.view[at : at + size]
        raise HalError(HalCode.BINDING, f"no state {name!r}", expected=", ".join(s.name for s in self.graph.states))

    def reset_state(self) -> None:
        if self._state is not None:
            self._refuse_in_flight("state can be reset only between runs")
            self._fill_state()

    def launches_done(self) -> int:
        return self.queue.launches_done

    def cancel(self) -> None:
        """Runs that the device does not have yet never begin; those it has go on to their end, as cancelled."""
        self.queue.cancel()

    def unload_until(self, deadline_ns: int) -> None:
        """Wait for the queue and give everything back. Raises HalError DEVICE_HANG where a kernel does not end."""
        self.cancel()
        if not self.queue.idle_before(deadline_ns):
            raise HalError(HalCode.DEVICE_HANG, f"a kernel of {self.name} does not end; its memory stays mapped",
                           todo="exit the process")  # fmt: skip
        self.queue.close()
        self.release()

    def release(self) -> None:
        """Give back what the device holds; only while nothing is in flight."""
        for lanes in self._lanes:
            for lane in lanes:
                lane.release()
        self._lanes.clear()
        for region in self._regions.values():
            self._device.free(region)
        self._regions.clear()
        self._state_memory = None

    def _own(self, buffer: DeviceBuffer | None) -> HcqBuffer:
        if type(buffer) is not HcqBuffer or buffer.device is not self._device:
            raise HalError(HalCode.BINDING, "a buffer of another device is bound",
                           expected="buffers that this accelerator imported or allocated")  # fmt: skip
        return buffer

    def _start(self, entrypoint: int, bound: Sequence[HcqBuffer], run: Run) -> None:
        """Patch, submit, and note where the device will say that it is done; the device's lock is held."""
        raw = self._device.raw
        if raw.error_state is not None:
            raise HalError(HalCode.DEVICE_LOST, "the device was lost", found=str(raw.error_state)[:200],
                           todo="restart the process")  # fmt: skip
        if raw.timeline_value > REWIND_AT and raw.timeline_signal.value >= raw.timeline_value - 1:
            raw.synchronize()  # nothing to wait for; it begins the timeline anew
        elif raw.timeline_value > REFUSE_AT:
            raise rewind_refusal()
        memories = list(dict.fromkeys(buffer.memory for buffer in bound))
        if self._state_memory is not None:
            memories.append(self._state_memory)
        for memory in memories:
            memory.give()
        lane = next(one for one in self._lanes[entrypoint] if not one.busy)
        run.word, run.target = self._device.signal_word(raw.timeline_signal), raw.timeline_value
        values = [int(raw.timeline_signal.base_buf.va_addr), raw.timeline_value - 1]
        values += [buffer.device_address for buffer in bound]
        run.before_ns = time.monotonic_ns()
        lane.submit(values)
        raw.next_timeline()
        lane.busy, run.lane = True, lane
        run.shared = [memory for memory in memories if memory.is_taken_back]
        self.queue.ahead = 1 if run.shared else AHEAD

    def _make_regions(self) -> None:
        """The arena and the weights, both in the device's own memory."""
        if self.graph.arena_bytes:
            self._regions[BufferKind.ARENA] = self._device.allocate(self.graph.arena_bytes)
        if self._weights is not None:
            self._regions[BufferKind.WEIGHTS] = self._device.filled(self._weights.view)

    def _locate(self, index: int) -> int:
        buffer = self.graph.buffers[index]
        if buffer.kind is BufferKind.STATE:
            assert self._state_memory is not None
            return self._state_memory.address + self._state_at[index]
        return int(self._regions[buffer.kind].va_addr) + buffer.offset

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

    def _refuse_in_flight(self, what: str) -> None:
        if self.timeline.in_flight:
            raise HalError(HalCode.BINDING, what, found=f"{self.timeline.in_flight} in flight")


def _place_states(graph: Graph) -> tuple[Mapping | None, dict[int, int]]:
    """One zeroed mapping for all state, and each state buffer's offset in it."""
    at: dict[int, int] = {}
    used = 0
    for index, buffer in enumerate(graph.buffers):
        if buffer.kind is BufferKind.STATE:
            align = max(_STATE_ALIGN_BYTES, buffer.align_bytes)
            used = -(-used // align) * align
            at[index] = used
            used += buffer.size_bytes
    return (Mapping.anonymous(used) if used else None), at
