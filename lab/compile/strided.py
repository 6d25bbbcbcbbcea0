"""Byte indices that follow a rule, as a view of the frame: no table, no arithmetic for each byte.

A table of indices along one axis is a rule where it is a sum of nested steps: `0 3 6 9`, `0 0 1 1 2 2` (a chroma sample
for two columns) or `4 14 24 5 15 25` (the left and then the right tap of each pixel). Several such axes together are a
strided view. tinygrad has no strides, so the view is made of cuts and reshapes: the axis with the largest step first,
the bytes of one such step are then the row in which the next axis lies.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tinygrad import Tensor, dtypes

Table = NDArray[np.int64]


@dataclass(frozen=True)
class Step:
    """`count` indices, each `size` bytes after the one before."""

    count: int
    size: int

    @property
    def span(self) -> int:
        """Bytes from the first to the last."""
        return (self.count - 1) * abs(self.size)


@dataclass(frozen=True)
class Cut:
    """Of the last axis: `count` pieces of `size` bytes from `start` on."""

    start: int
    count: int
    size: int


def steps(table: Table) -> tuple[Step, ...] | None:
    """The nested steps of a table, outermost first, from its first index on; None where it follows no such rule."""
    found: tuple[Step, ...] = ()
    while table.size > 1:
        size = int(table[1] - table[0])
        breaks = np.flatnonzero(np.diff(table) != size)
        count = int(breaks[0]) + 1 if breaks.size else table.size
        if table.size % count:
            return None
        rows = table.reshape(-1, count)
        if (rows - rows[:, :1] != rows[0] - rows[0, 0]).any():
            return None
        found = (Step(count, size), *found)
        table = rows[:, 0]
    return found


class StridedView:
    """A view of a frame. Make it with `strided_view`.

    cuts: one for each moving step of `axes`, in the order of `moving`, and the last for the byte itself.
    """

    def __init__(self, axes: Sequence[tuple[Step, ...]], moving: Sequence[int], cuts: Sequence[Cut]) -> None:
        self._axes, self._moving, self._cuts = axes, moving, cuts

    def __call__(self, frame: Any) -> Any:
        """The bytes there, one axis each, lazy."""
        view = frame
        for one in self._cuts:
            view = _cut(view, one)
        every = [step for axis in self._axes for step in axis]
        view = view.reshape(tuple(every[one].count for one in self._moving))
        backwards = [at for at, one in enumerate(self._moving) if every[one].size < 0]
        if backwards:
            view = view.flip(backwards)
        view = view.permute(tuple(self._moving.index(one) for one in sorted(self._moving)))
        view = view.reshape(tuple(one.count if one.size else 1 for one in every))
        view = view.expand(tuple(one.count for one in every))
        return view.reshape(tuple(prod(one.count for one in axis) for axis in self._axes))


def _cut(view: Any, cut: Cut) -> Any:
    kept = tuple((0, one) for one in view.shape[:-1])
    view = view.shrink((*kept, (cut.start, cut.start + cut.count * cut.size)))
    return view.reshape(*view.shape[:-1], cut.count, cut.size)


def strided_view(tables: Sequence[Table], frame_bytes: int) -> StridedView | None:
    """The view at the sum of `tables`, one for each axis, each as long as its axis.

    None where one follows no rule, or where steps overlap or would need bytes behind the frame's end.
    """
    axes = [found for found in map(steps, tables) if found is not None]
    if len(axes) != len(tables):
        return None
    every = [one for axis in axes for one in axis]
    moving = sorted((one for one in range(len(every)) if every[one].size), key=lambda one: -abs(every[one].size))
    # a step that runs backwards is read forwards from its last index, and turned round
    first = sum(int(one[0]) for one in tables) - sum(one.span for one in every if one.size < 0)
    cuts = _cuts([every[one] for one in moving], first, frame_bytes)
    return None if cuts is None else StridedView(axes, moving, cuts)


def ruled_indices(axis: tuple[Step, ...]) -> Any:
    """What `steps` found (more than none), as int32 indices that a kernel computes from its loops."""
    total: Any = None
    for one in axis:
        own = Tensor.arange(one.count, dtype=dtypes.int32) * one.size
        total = own if total is None else (total.unsqueeze(-1) + own).reshape(-1)
    return total


def _cuts(plan: Sequence[Step], first: int, extent: int) -> list[Cut] | None:
    """The nested cuts for steps that fall in size; None where they do not fit into `extent` bytes or one another."""
    found = []
    for depth, one in enumerate(plan):
        size = abs(one.size)
        start = min(first, extent - one.count * size)
        first -= start
        if start < 0 or first + sum(inner.span for inner in plan[depth + 1 :]) >= size:
            return None
        found.append(Cut(start, one.count, size))
        extent = size
    return [*found, Cut(first, 1, 1)]
