"""Several entrypoints' captures as one: the same inputs, outputs, kernels and weights are there once.

Inputs, states and outputs are told by their number in the whole spec, kernels and weights by their content: networks
that share a part need not share its memory when they are captured. Each capture's arena begins at 0, so that the one
arena is as large as the largest: a run leaves nothing in it for the next.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from abi.graph import BufferKind
from lab.compile.capture import Capture, CapturedBuffer, CapturedLaunch, Kernel, Span

Place = tuple[BufferKind, int]
"""An input, state or output, by its kind and number."""


@dataclass(frozen=True)
class Part:
    """One entrypoint's capture. `numbers`: for each kind the spec's number of each of the capture's own."""

    capture: Capture
    numbers: Mapping[BufferKind, Sequence[int]]


@dataclass(frozen=True)
class Merged:
    """All captures in one, and the launches of each. `output_buffers` of the capture: of each output of the spec."""

    capture: Capture
    launches: tuple[range, ...]


class _Merger:
    def __init__(self, weights_align_bytes: int) -> None:
        self.align = weights_align_bytes
        self.kernels: dict[Kernel, int] = {}
        self.launches: list[CapturedLaunch] = []
        self.buffers: list[CapturedBuffer] = []
        self.named: dict[Place, int] = {}
        self.constants: dict[bytes, int] = {}
        self.weights = bytearray()

    def add(self, part: Part) -> range:
        """Takes everything of `part`; the range of its launches."""
        capture = part.capture
        kernels = [self.kernels.setdefault(one, len(self.kernels)) for one in capture.kernels]
        buffers = [self._buffer(part, one) for one in capture.buffers]
        first = len(self.launches)
        for launch in capture.launches:
            spans = tuple(Span(buffers[one.buffer], one.offset, one.size_bytes) for one in launch.arguments)
            self.launches.append(CapturedLaunch(kernels[launch.kernel], spans))
        return range(first, len(self.launches))

    def _buffer(self, part: Part, buffer: CapturedBuffer) -> int:
        if buffer.kind is BufferKind.WEIGHTS:
            return self._constant(part.capture.weights[buffer.offset : buffer.offset + buffer.size_bytes])
        if buffer.kind is BufferKind.ARENA:
            return self._add(buffer)
        place = (buffer.kind, part.numbers[buffer.kind][buffer.index])
        if place not in self.named:
            self.named[place] = self._add(replace(buffer, index=place[1]))
        return self.named[place]

    def _constant(self, data: bytes) -> int:
        if data not in self.constants:
            self.weights += bytes(-len(self.weights) % self.align)
            self.constants[data] = self._add(CapturedBuffer(BufferKind.WEIGHTS, len(data), offset=len(self.weights)))
            self.weights += data
        return self.constants[data]

    def _add(self, buffer: CapturedBuffer) -> int:
        self.buffers.append(buffer)
        return len(self.buffers) - 1


def merge(parts: Sequence[Part], weights_align_bytes: int) -> Merged:
    """One capture of all `parts`, in their order."""
    merger = _Merger(weights_align_bytes)
    launches = tuple(map(merger.add, parts))
    outputs = sorted(number for kind, number in merger.named if kind is BufferKind.OUTPUT)
    capture = Capture(
        kernels=tuple(merger.kernels),
        launches=tuple(merger.launches),
        buffers=tuple(merger.buffers),
        arena_bytes=max(one.capture.arena_bytes for one in parts),
        weights=bytes(merger.weights),
        output_buffers=tuple(merger.named[BufferKind.OUTPUT, number] for number in outputs),
    )
    return Merged(capture, launches)
