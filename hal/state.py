"""A module's recurrent state on the host: every state buffer in one zeroed mapping, and its initial value."""

from __future__ import annotations

from collections.abc import Callable

from abi.graph import BufferKind, Graph
from hal.error import HalCode, HalError
from hal.memory import Mapping


class StateMemory:
    """mapping: None where the graph has no state. at: the offset in it of each state buffer, by graph index.

    align_bytes: what the device needs each of them aligned to, at least. make: where the memory comes from.
    """

    def __init__(self, graph: Graph, align_bytes: int, make: Callable[[int], Mapping] = Mapping.anonymous) -> None:
        self._graph = graph
        self.at: dict[int, int] = {}
        used = 0
        for index, buffer in enumerate(graph.buffers):
            if buffer.kind is BufferKind.STATE:
                align = max(align_bytes, buffer.align_bytes)
                used = -(-used // align) * align
                self.at[index] = used
                used += buffer.size_bytes
        self.size_bytes = used
        self.mapping = make(used) if used else None

    def fill(self, weights: Mapping | None) -> None:
        """Give every buffer its initial value: bytes of `weights`, or zeros."""
        if self.mapping is None:
            return
        for index, at in self.at.items():
            buffer = self._graph.buffers[index]
            target = self.mapping.array[at : at + buffer.size_bytes]
            if buffer.initial_from_weights:
                assert weights is not None  # admission has seen to it
                target[:] = weights.array[buffer.initial_offset : buffer.initial_offset + buffer.size_bytes]
            else:
                target[:] = 0

    def view(self, name: str) -> memoryview:
        """The host's bytes of the state of this name. Raises HalError BINDING."""
        for state in self._graph.states:
            if state.name == name and self.mapping is not None:
                at = self.at[state.buffer]
                return self.mapping.view[at : at + self._graph.buffers[state.buffer].size_bytes]
        names = ", ".join(state.name for state in self._graph.states)
        raise HalError(HalCode.BINDING, f"no state {name!r}", expected=names)
