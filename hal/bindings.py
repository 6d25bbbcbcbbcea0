"""What one run works on: the frames, aux inputs and outputs bound to an entrypoint's buffers.

Made once per entrypoint and reused, so that a submit allocates nothing but its fence: binding checks size, access and
overlap when a buffer changes, and writes the address into a table that the device copies at submit. Binding while a
run is in flight is safe; the run keeps the addresses and the buffers it was submitted with.
"""

from __future__ import annotations

import ctypes

from abi.graph import Access, BufferKind, Entrypoint, Graph
from hal.accelerator import DeviceBuffer
from hal.error import HalCode, HalError


def bound_buffers(graph: Graph, entry: Entrypoint) -> tuple[int, ...]:
    """Indices of the buffers that a run of `entry` needs bound: frames, then aux, then outputs, each buffer once."""
    wanted = [graph.frames[i].buffer for i in entry.frames]
    wanted += [graph.aux[i].buffer for i in entry.aux]
    wanted += [graph.outputs[i].buffer for i in entry.outputs]
    return tuple(dict.fromkeys(wanted))


def written_states(graph: Graph, entry: Entrypoint) -> tuple[int, ...]:
    """Indices in `graph.states`, in order, of the states that some launch of `entry` writes."""
    written = set()
    for launch in graph.launches[entry.first_launch : entry.first_launch + entry.launch_count]:
        access = graph.programs[launch.program].argument_access
        written |= {one.buffer for one, how in zip(launch.arguments, access, strict=True) if how is not Access.READ}
    return tuple(index for index, state in enumerate(graph.states) if state.buffer in written)


def golden_bytes(graph: Graph, entry: Entrypoint) -> int:
    """How many bytes a golden vector of `entry` expects: its outputs, or where it has none, the states it writes."""
    if entry.outputs:
        return sum(graph.outputs[index].view.size_bytes for index in entry.outputs)
    return sum(graph.buffers[graph.states[index].buffer].size_bytes for index in written_states(graph, entry))


class Bindings:
    """One entrypoint's bound buffers. `buffers` holds graph buffer indices in binding order.

    addresses: the table the driver reads, one u64 for each of `buffers`; 0 where nothing is bound.
    """

    def __init__(self, graph: Graph, entrypoint: int, align_bytes: int = 64) -> None:
        if not 0 <= entrypoint < len(graph.entrypoints):
            raise HalError(HalCode.UNKNOWN_ENTRYPOINT, f"no entrypoint {entrypoint}",
                           expected=f"0..{len(graph.entrypoints) - 1}")  # fmt: skip
        entry = graph.entrypoints[entrypoint]
        self.graph = graph
        self.entrypoint = entrypoint
        self.budget_ns = entry.budget_ns
        self.buffers = bound_buffers(graph, entry)
        self.bound: list[DeviceBuffer | None] = [None] * len(self.buffers)
        self.missing = len(self.buffers)
        self.addresses = (ctypes.c_uint64 * max(1, len(self.buffers)))()
        self.addresses_at = ctypes.addressof(self.addresses)
        self._frames = tuple(self.buffers.index(graph.frames[i].buffer) for i in entry.frames)
        self._aux = tuple(self.buffers.index(graph.aux[i].buffer) for i in entry.aux)
        self._outputs = tuple(dict.fromkeys(self.buffers.index(graph.outputs[i].buffer) for i in entry.outputs))
        self._align_bytes = align_bytes

    def bind_frame(self, position: int, buffer: DeviceBuffer) -> None:
        """Bind the entrypoint's frame number `position`. Raises HalError BINDING, BINDING_ALIAS."""
        self._bind(self._frames[position], buffer)

    def bind_aux(self, position: int, buffer: DeviceBuffer) -> None:
        """Bind the entrypoint's aux input number `position`. Raises HalError BINDING, BINDING_ALIAS."""
        self._bind(self._aux[position], buffer)

    def bind_output(self, position: int, buffer: DeviceBuffer) -> None:
        """Bind the entrypoint's output *buffer* number `position` (see `output_buffers`)."""
        self._bind(self._outputs[position], buffer)

    @property
    def output_buffers(self) -> tuple[int, ...]:
        """Graph buffer indices of the distinct output buffers, in binding order; several outputs may share one."""
        return tuple(self.buffers[slot] for slot in self._outputs)

    def output_bytes(self) -> tuple[int, ...]:
        """The size of each of `output_buffers`."""
        return tuple(self.graph.buffers[index].size_bytes for index in self.output_buffers)

    def require_complete(self) -> None:
        """Raise HalError BINDING_MISSING, naming the first buffer of the run that nothing is bound to."""
        if self.missing:
            unbound = self.buffers[self.bound.index(None)]
            raise HalError(HalCode.BINDING_MISSING, f"buffer {unbound} is not bound",
                           expected=f"{len(self.buffers)} bound buffers")  # fmt: skip

    def clear(self) -> None:
        """Unbind everything, so that the buffers may be freed; a run in flight keeps its own hold."""
        for slot in range(len(self.buffers)):
            self.bound[slot] = None
            self.addresses[slot] = 0
        self.missing = len(self.buffers)

    def _bind(self, slot: int, buffer: DeviceBuffer) -> None:
        index = self.buffers[slot]
        wanted = self.graph.buffers[index]
        if buffer.size_bytes < wanted.size_bytes:
            raise HalError(HalCode.BINDING, f"buffer {index} is bound to too little memory",
                           expected=f"{wanted.size_bytes} bytes", found=f"{buffer.size_bytes}")  # fmt: skip
        if wanted.kind is BufferKind.OUTPUT and not buffer.writable:
            raise HalError(HalCode.BINDING, f"output buffer {index} is bound to read-only memory")
        align = max(wanted.align_bytes, self._align_bytes)
        if buffer.address % align:
            raise HalError(HalCode.BINDING, f"buffer {index} is bound to unaligned memory",
                           expected=f"a multiple of {align}", found=hex(buffer.address))  # fmt: skip
        self._refuse_overlap(slot, buffer.address, buffer.address + wanted.size_bytes)
        if self.bound[slot] is None:
            self.missing -= 1
        self.bound[slot] = buffer
        self.addresses[slot] = buffer.address

    def _refuse_overlap(self, slot: int, start: int, end: int) -> None:
        for other, held in enumerate(self.bound):
            if held is None or other == slot:
                continue
            if start < held.address + self.graph.buffers[self.buffers[other]].size_bytes and held.address < end:
                raise HalError(HalCode.BINDING_ALIAS, "two bindings of one run share memory",
                               expected=f"buffers {self.buffers[slot]} and {self.buffers[other]} apart",
                               found=f"{start:#x}..{end:#x} overlaps {held.address:#x}",
                               todo="bind each input and output to memory of its own")  # fmt: skip
