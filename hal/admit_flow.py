"""Admission, second half: each entrypoint's launches one after another, byte by byte.

The arena is one range of bytes that buffers may share at different times. For every byte we know through which buffer
it was written last; a read must find its own buffer there. So a byte read before it was written, and a byte whose
value was lost to another buffer, are both found, which proves that lifetimes are disjoint wherever buffers alias.
Outputs start undefined too, must end fully written, and what stands in them may not be overwritten unread.
Needs `hal.admit_tables` to have passed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from abi.graph import Access, BufferKind, Entrypoint, Graph
from hal.admit_tables import launch_name
from hal.refusal import AdmissionCode, AdmissionRefused
from hal.spans import SpanMap


class Writer(NamedTuple):
    """The buffer through which bytes were last written, and the launch that did. -1, -1: nobody yet."""

    buffer: int
    launch: int


NOBODY = Writer(-1, -1)


class _Range(NamedTuple):
    """An argument as a range of bytes in a space; ranges of different spaces never overlap."""

    space: int
    start: int
    end: int
    access: Access
    buffer: int


_ARENA_SPACE = -1


@dataclass(frozen=True, slots=True)
class Traffic:
    """What one run of an entrypoint moves and computes."""

    bytes_read: int
    bytes_written: int
    flops: int


class Flow:
    """The state of memory while the launches of one entrypoint are followed."""

    def __init__(self, graph: Graph, index: int, bound: tuple[int, ...]) -> None:
        self._graph = graph
        self._entry: Entrypoint = graph.entrypoints[index]
        self._where = f"entrypoint {index} ({self._entry.name})"
        self._bound = frozenset(bound)
        self._read_inputs: set[int] = set()
        self._arena: SpanMap[Writer] = SpanMap(max(1, graph.arena_bytes), NOBODY)
        outputs = [buffer for buffer in bound if graph.buffers[buffer].kind is BufferKind.OUTPUT]
        self._written: dict[int, SpanMap[Writer]] = {
            buffer: SpanMap(graph.buffers[buffer].size_bytes, NOBODY) for buffer in outputs
        }
        self._unread: dict[int, SpanMap[bool]] = {
            buffer: SpanMap(graph.buffers[buffer].size_bytes, False) for buffer in outputs
        }

    def follow(self) -> Traffic:
        """Prove the entrypoint. Raises AdmissionRefused that names the launch."""
        bytes_read = bytes_written = flops = 0
        first = self._entry.first_launch
        for index in range(first, first + self._entry.launch_count):
            ranges = self._ranges(index)
            self._refuse_alias(index, ranges)
            for item in ranges:
                if item.access is not Access.WRITE:
                    self._read(index, item)
                    bytes_read += item.end - item.start
            for item in ranges:
                if item.access is not Access.READ:
                    self._write(index, item)
                    bytes_written += item.end - item.start
            flops += self._graph.programs[self._graph.launches[index].program].flops
        self._finish()
        return Traffic(bytes_read, bytes_written, flops)

    def _ranges(self, index: int) -> list[_Range]:
        launch = self._graph.launches[index]
        ranges = []
        for argument, access in zip(
            launch.arguments, self._graph.programs[launch.program].argument_access, strict=True
        ):
            buffer = self._graph.buffers[argument.buffer]
            arena = buffer.kind is BufferKind.ARENA
            start = argument.offset + (buffer.offset if arena else 0)
            space = _ARENA_SPACE if arena else argument.buffer
            ranges.append(_Range(space, start, start + argument.size_bytes, access, argument.buffer))
            bindable = buffer.kind in (BufferKind.FRAME, BufferKind.AUX, BufferKind.OUTPUT)
            if bindable and argument.buffer not in self._bound:
                raise AdmissionRefused(
                    AdmissionCode.NOT_BOUND, launch_name(self._graph, index),
                    f"uses {buffer.kind.name.lower()} buffer {argument.buffer}, which {self._where} does not bind",
                    launch=index,
                )  # fmt: skip
        return ranges

    def _refuse_alias(self, index: int, ranges: list[_Range]) -> None:
        """Kernels promise the compiler that what they write overlaps no other argument (C `restrict`)."""
        for position, item in enumerate(ranges):
            for other in range(position):
                held = ranges[other]
                apart = item.space != held.space or item.end <= held.start or held.end <= item.start
                if not apart and not item.access is held.access is Access.READ:
                    raise AdmissionRefused(
                        AdmissionCode.ALIAS, launch_name(self._graph, index),
                        f"argument {position} overlaps argument {other}, and one of them is written",
                        expected="ranges apart, or one argument with access readWrite", launch=index,
                    )  # fmt: skip

    def _read(self, index: int, item: _Range) -> None:
        kind = self._graph.buffers[item.buffer].kind
        if kind is BufferKind.ARENA:
            self._must_hold(index, item, self._arena)
        elif kind is BufferKind.OUTPUT:
            self._must_hold(index, item, self._written[item.buffer])
            self._unread[item.buffer].assign(item.start, item.end, False)
        else:
            self._read_inputs.add(item.buffer)

    def _must_hold(self, index: int, item: _Range, held: SpanMap[Writer]) -> None:
        for start, end, writer in held.spans(item.start, item.end):
            if writer.buffer == item.buffer:
                continue
            where = launch_name(self._graph, index)
            base = self._graph.buffers[item.buffer].offset  # arena bytes back to the buffer's own; 0 for outputs
            read = f"reads bytes {start - base}..{end - base} of buffer {item.buffer}"
            if writer is NOBODY:
                raise AdmissionRefused(AdmissionCode.UNINITIALISED, where,
                                       f"{read} before anything wrote them",
                                       launch=index)  # fmt: skip
            raise AdmissionRefused(
                AdmissionCode.CLOBBERED, where,
                f"{read}, which {launch_name(self._graph, writer.launch)} overwrote through buffer {writer.buffer}",
                launch=index,
            )  # fmt: skip

    def _write(self, index: int, item: _Range) -> None:
        kind = self._graph.buffers[item.buffer].kind
        writer = Writer(item.buffer, index)
        if kind is BufferKind.ARENA:
            self._arena.assign(item.start, item.end, writer)
        elif kind is BufferKind.OUTPUT:
            for start, end, unread in self._unread[item.buffer].spans(item.start, item.end):
                if unread:
                    raise AdmissionRefused(
                        AdmissionCode.OVERWRITES_OUTPUT, launch_name(self._graph, index),
                        f"overwrites bytes {start}..{end} of output buffer {item.buffer} that nothing has read",
                        launch=index,
                    )  # fmt: skip
            self._unread[item.buffer].assign(item.start, item.end, True)
            self._written[item.buffer].assign(item.start, item.end, writer)

    def _finish(self) -> None:
        for buffer, written in self._written.items():
            size = self._graph.buffers[buffer].size_bytes
            for start, end, writer in written.spans(0, size):
                if writer is NOBODY:
                    raise AdmissionRefused(AdmissionCode.OUTPUT_NOT_COVERED, self._where,
                                           f"no launch writes bytes {start}..{end} of output buffer {buffer}",
                                           expected=f"all {size} bytes written")  # fmt: skip
        for buffer in sorted(self._bound - self._written.keys()):
            if buffer not in self._read_inputs:
                raise AdmissionRefused(AdmissionCode.INPUT_NOT_READ, self._where,
                                       f"no launch reads input buffer {buffer}",
                                       expected="results that depend on every input")  # fmt: skip
