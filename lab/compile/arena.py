"""The arena of a capture as values with lifetimes.

tinygrad's memory planner gives one big buffer in which several intermediate results use the same bytes one after
another. Admission proves that they never overlap while alive, so each result becomes a buffer of its own here: it is
born where a launch writes it and named by every later argument that reads it.
"""

from __future__ import annotations

from dataclasses import dataclass

from abi.graph import Access, BufferKind
from lab.compile.capture import Capture, Span


@dataclass(frozen=True)
class ArenaValue:
    """One intermediate result: its place in the arena, in bytes."""

    offset: int
    size_bytes: int

    @property
    def end(self) -> int:
        """One past its last byte."""
        return self.offset + self.size_bytes


@dataclass(frozen=True)
class ArenaSpan:
    """`size_bytes` from `offset` of value `value`."""

    value: int
    offset: int
    size_bytes: int


@dataclass(frozen=True)
class ArenaPlan:
    """The values in order of birth, and by (launch, argument) the span of a value that it means."""

    values: tuple[ArenaValue, ...]
    spans: dict[tuple[int, int], ArenaSpan]


def plan_arena(capture: Capture) -> ArenaPlan:
    """Splits the arena of `capture` into values. Raises ValueError where a launch reads what none has written."""
    values: list[ArenaValue] = []
    alive: list[int] = []
    spans: dict[tuple[int, int], ArenaSpan] = {}
    for number, launch in enumerate(capture.launches):
        access = capture.kernels[launch.kernel].access
        places = [_place(capture, span) for span in launch.arguments]
        written: list[int] = []
        # what a launch reads was alive before it; only then may it write over dead values
        for argument, place in enumerate(places):
            if place is not None and access[argument] is not Access.WRITE:
                spans[number, argument] = _find(values, alive, place, number)
        for argument, place in enumerate(places):
            if place is not None and access[argument] is Access.WRITE:
                alive = [one for one in alive if values[one].end <= place.offset or values[one].offset >= place.end]
                values.append(place)
                written.append(len(values) - 1)
                spans[number, argument] = ArenaSpan(len(values) - 1, 0, place.size_bytes)
        alive += written
    return ArenaPlan(tuple(values), spans)


def _place(capture: Capture, span: Span) -> ArenaValue | None:
    buffer = capture.buffers[span.buffer]
    return ArenaValue(buffer.offset + span.offset, span.size_bytes) if buffer.kind is BufferKind.ARENA else None


def _find(values: list[ArenaValue], alive: list[int], place: ArenaValue, launch: int) -> ArenaSpan:
    for index in alive:
        if values[index].offset <= place.offset and place.end <= values[index].end:
            return ArenaSpan(index, place.offset - values[index].offset, place.size_bytes)
    raise ValueError(f"launch {launch} reads arena bytes {place.offset}..{place.end}, which no earlier launch wrote")
