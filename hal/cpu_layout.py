"""The memory that the CPU driver shares with the queue runtime inside a bundle's code.

The same layout stands in the runtime's header (lab/compile/queue.h); VERSION changes with it, and the driver refuses
code of another version. Everything a run needs is laid out once, at load: launch tables, argument arrays, the patch
list that puts a run's addresses into them, the ring of submissions and the records of finished runs.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from abi.graph import BufferKind, Entrypoint, Graph, Launch
from hal.bindings import bound_buffers
from hal.fence import RECORD_WORDS
from hal.memory import Mapping

MAGIC = 0x51434E46  # "FNCQ"
VERSION = 1
RUNTIME_SYMBOLS = (
    "fenced_version",
    "fenced_worker",
    "fenced_submit",
    "fenced_cancel",
    "fenced_stop",
    "fenced_acquire",
)

_CONTROL_BYTES = 832
_CONSTANTS = struct.Struct("<IIIIIIiIQQQQ")  # magic .. trace
AT_VALUE, AT_LAUNCHES = 128, 136
_AT_TRACE, _AT_IDLE_SPIN = 56, 92
_LAUNCH = struct.Struct("<QQII")
_PATCH = struct.Struct("<QQII")
_ENTRY = struct.Struct("<QQIIII")
_SUBMISSION_BYTES = 16
_RECORD_BYTES = 8 * RECORD_WORDS
_BOUND = (BufferKind.FRAME, BufferKind.AUX, BufferKind.OUTPUT)
_LINE = 64


@dataclass(frozen=True, slots=True)
class Sizes:
    """What the queue of one module holds."""

    ring_slots: int
    spin_count: int
    idle_spin_ns: int
    event: int


class ControlBlock:
    """The shared memory of one loaded module: `address` is what every runtime call takes."""

    def __init__(self, graph: Graph, bases: dict[int, int], shims: list[int], sizes: Sizes) -> None:
        """Lay out and fill. bases: address of each arena, weights and state buffer; shims: address of each program."""
        self._graph = graph
        self._bases = bases
        self._shims = shims
        bindings = max((len(bound_buffers(graph, entry)) for entry in graph.entrypoints), default=0)
        stride = _SUBMISSION_BYTES + 8 * bindings
        longest = max((entry.launch_count for entry in graph.entrypoints), default=0)
        fixed = _CONTROL_BYTES + _ENTRY.size * len(graph.entrypoints)
        fixed += sizes.ring_slots * (stride + _RECORD_BYTES) + 8 * longest + 8 * _LINE
        tables = sum(self._entry_bytes(entry) for entry in graph.entrypoints)
        self.mapping = Mapping.anonymous(fixed + tables)
        self.address = self.mapping.address
        self._bytes = self.mapping.view
        self._used = _CONTROL_BYTES
        entries = self._take(_ENTRY.size * len(graph.entrypoints))
        ring = self._take(sizes.ring_slots * stride)
        records = self._take(sizes.ring_slots * _RECORD_BYTES)
        self._trace = self._take(8 * longest)
        self._trace_count = longest
        for index, entry in enumerate(graph.entrypoints):
            self._fill_entry(entries + index * _ENTRY.size, entry)
        address = self.address
        _CONSTANTS.pack_into(
            self._bytes, 0, MAGIC, VERSION, graph.threads, sizes.ring_slots, bindings, sizes.spin_count, sizes.event,
            len(graph.entrypoints), address + entries, address + ring, address + records, 0,
        )  # fmt: skip
        struct.pack_into("<I", self._bytes, _AT_IDLE_SPIN, sizes.idle_spin_ns)
        self.word = self._bytes[AT_VALUE : AT_VALUE + 8].cast("Q")
        self.launches = self._bytes[AT_LAUNCHES : AT_LAUNCHES + 8].cast("Q")
        self.records = self._bytes[records : records + sizes.ring_slots * _RECORD_BYTES].cast("q")

    def trace(self) -> memoryview:
        """Turn on time stamps per launch and return them: i64 CLOCK_MONOTONIC ends of the latest run's launches."""
        struct.pack_into("<Q", self._bytes, _AT_TRACE, self.address + self._trace)
        return self._bytes[self._trace : self._trace + 8 * self._trace_count].cast("q")

    def _take(self, count: int) -> int:
        at = -(-self._used // _LINE) * _LINE
        self._used = at + count
        return at

    def _launches(self, entry: Entrypoint) -> tuple[Launch, ...]:
        return self._graph.launches[entry.first_launch : entry.first_launch + entry.launch_count]

    def _entry_bytes(self, entry: Entrypoint) -> int:
        launches = self._launches(entry)
        words = sum(len(launch.arguments) + len(launch.values) for launch in launches)
        patches = sum(len(launch.arguments) for launch in launches)
        return _LAUNCH.size * len(launches) + 8 * words + _PATCH.size * patches + 3 * _LINE

    def _fill_entry(self, at: int, entry: Entrypoint) -> None:
        launches = self._launches(entry)
        slots = {buffer: slot for slot, buffer in enumerate(bound_buffers(self._graph, entry))}
        table = self._take(_LAUNCH.size * len(launches))
        words = self._take(8 * sum(len(launch.arguments) + len(launch.values) for launch in launches))
        patches: list[tuple[int, int, int]] = []
        for index, launch in enumerate(launches):
            _LAUNCH.pack_into(
                self._bytes, table + index * _LAUNCH.size,
                self._shims[launch.program], self.address + words, launch.global_size[0], 0,
            )  # fmt: skip
            for argument in launch.arguments:
                if self._graph.buffers[argument.buffer].kind in _BOUND:
                    patches.append((self.address + words, argument.offset, slots[argument.buffer]))
                else:
                    struct.pack_into("<Q", self._bytes, words, self._bases[argument.buffer] + argument.offset)
                words += 8
            for value in launch.values:
                struct.pack_into("<q", self._bytes, words, value)
                words += 8
        list_at = self._take(_PATCH.size * len(patches))
        for index, (word, offset, binding) in enumerate(patches):
            _PATCH.pack_into(self._bytes, list_at + index * _PATCH.size, word, offset, binding, 0)
        _ENTRY.pack_into(
            self._bytes, at, self.address + table, self.address + list_at, len(launches), len(patches), len(slots), 0
        )
