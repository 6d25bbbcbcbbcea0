"""One module loaded on an HCQ device: its programs, memory, lanes and timeline.

Made by `hal.hcq.HcqAccelerator.load` from an admitted graph. A submit patches a lane's variables and rings the
device's doorbell, once; nothing in it waits for the device.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial
from typing import Any

from abi.graph import BufferKind
from hal.accelerator import DeviceBuffer, Module
from hal.admit import Admission
from hal.bindings import Bindings
from hal.error import HalCode, HalError
from hal.fence import Fence
from hal.hcq_device import REFUSE_AT, REWIND_AT, HcqDevice
from hal.hcq_lane import Lane, Programs
from hal.hcq_memory import HcqBuffer, HostMemories
from hal.hcq_queue import HcqQueue, Run, rewind_refusal
from hal.loaded import QueuedModule
from hal.run_queue import AHEAD

ALIGN_BYTES = 256


class HcqExecutable(QueuedModule):
    """See `hal.accelerator.Executable`."""

    queue: HcqQueue

    def __init__(
        self, module: Module, admission: Admission, device: HcqDevice, memories: HostMemories, slots: int
    ) -> None:
        super().__init__(module, admission, ALIGN_BYTES)
        self._device = device
        self._regions: dict[BufferKind, Any] = {}
        self._lanes: list[list[Lane]] = []
        self._state_memory = memories.of(self._state.mapping) if self._state.mapping is not None else None
        try:
            self._make_regions()
            programs = Programs(device, self.graph, module.code)
            for entry in self.graph.entrypoints:
                lanes: list[Lane] = []
                self._lanes.append(lanes)
                for _ in range(AHEAD):
                    lanes.append(Lane(device, self.graph, entry, programs, self._locate))
            self._follow(HcqQueue(device, slots))
        except BaseException:
            self.release()
            raise

    def submit(self, bindings: Bindings) -> Fence:
        self._refuse_full()
        bound = [self._own(buffer) for buffer in bindings.bound]
        start = partial(self._start, bindings.entrypoint, bound)
        launches = self.graph.entrypoints[bindings.entrypoint].launch_count
        return self.queue.submit(Run(self.timeline.issued + 1, launches, bindings.budget_ns, start), bound)

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
            raise self._foreign()
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
            return self._state_memory.address + self._state.at[index]
        return int(self._regions[buffer.kind].va_addr) + buffer.offset
