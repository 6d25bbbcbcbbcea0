"""Outputs of one model held against another's on the same frames: counted, and the worst of each remembered.

A set is within where every output that both models have is within the candidate's own tolerance of what was served.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from abi.graph import Output
from daemon.outputs import largest_difference, worst_difference


@dataclass
class Tally:
    """One output. worst: the largest difference so far, at `element` of the frame with this sequence."""

    name: str
    unit: str
    outside: int = 0
    worst: float = 0.0
    element: int = 0
    sequence: int = 0


class Comparison:
    """Counts for one candidate. `compared = within + outside`."""

    def __init__(self, candidate: Sequence[Output], served: Sequence[Output]) -> None:
        """The outputs of both, each in the order of its views."""
        self.compared = 0
        self.within = 0
        wanted = {output.view.name: (position, output.view) for position, output in enumerate(served)}
        self._pairs: list[tuple[int, int, Output, Tally]] = []
        self.left_out: list[str] = []
        # Outputs that only one of them has, or both in different dtypes or shapes.
        for position, output in enumerate(candidate):
            view = output.view
            other = wanted.pop(view.name, None)
            if other is not None and (other[1].dtype, other[1].shape) == (view.dtype, view.shape):
                self._pairs.append((position, other[0], output, Tally(view.name, view.unit)))
            else:
                self.left_out.append(view.name)
        self.left_out.extend(wanted)

    @property
    def outputs(self) -> tuple[Tally, ...]:
        """What is compared."""
        return tuple(tally for *_, tally in self._pairs)

    @property
    def outside(self) -> int:
        """Sets of which an output was outside."""
        return self.compared - self.within

    def add(self, found: Sequence[memoryview], served: Sequence[memoryview], sequence: int) -> None:
        """Compares the outputs of one set of frames; `sequence`: of its first frame."""
        within = True
        for mine, theirs, output, tally in self._pairs:
            a, b = found[mine], served[theirs]
            if worst_difference(output, a, b) is not None:
                tally.outside += 1
                within = False
            apart, element = largest_difference(output.view.dtype, a, b)
            if apart > tally.worst:
                tally.worst, tally.element, tally.sequence = apart, element, sequence
        self.compared += 1
        self.within += within
