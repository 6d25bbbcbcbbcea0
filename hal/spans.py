"""A map from every byte of a range to a label, kept as few spans: who wrote these bytes last?"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from typing import Generic, TypeVar

L = TypeVar("L")


class SpanMap(Generic[L]):
    """Labels for bytes 0 .. size - 1; every byte starts with `initial`."""

    def __init__(self, size: int, initial: L) -> None:
        self._size = size
        self._starts = [0]
        self._labels = [initial]

    def assign(self, start: int, end: int, label: L) -> None:
        """Label bytes start .. end - 1."""
        first = self._split(start)
        last = self._split(end)
        self._starts[first:last] = [start]
        self._labels[first:last] = [label]

    def spans(self, start: int, end: int) -> Iterator[tuple[int, int, L]]:
        """The parts of start .. end - 1 in order, as (start, end, label)."""
        index = bisect_right(self._starts, start) - 1
        while start < end:
            following = self._starts[index + 1] if index + 1 < len(self._starts) else self._size
            yield start, min(end, following), self._labels[index]
            start = following
            index += 1

    def _split(self, at: int) -> int:
        """The index of the span that starts at `at`, made by cutting one in two where needed."""
        index = bisect_left(self._starts, at)
        if at < self._size and (index == len(self._starts) or self._starts[index] != at):
            self._starts.insert(index, at)
            self._labels.insert(index, self._labels[index - 1])
        return index
