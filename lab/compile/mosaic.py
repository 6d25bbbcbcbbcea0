"""Bilinear demosaicing as index tables: which samples of a Bayer mosaic each of R, G and B of a pixel is the mean of.

A pixel's own colour is its own sample. Red and blue elsewhere are the mean of the nearest samples of their colour: the
two beside it, the two above and below, or the four at its corners. Green elsewhere is the mean of its four neighbours.
At the valid picture's edges neighbours are mirrored about the edge pixel, which keeps the mosaic's order. No white
balance, no black level, no colour matrix: the samples stay code values of the sensor.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from abi.colour import CfaOrder

Indices = NDArray[np.int64]

_RED_AT = {CfaOrder.RGGB: (0, 0), CfaOrder.GRBG: (0, 1), CfaOrder.GBRG: (1, 0), CfaOrder.BGGR: (1, 1)}
"""Row and column of red in the top left 2x2; blue is at the opposite corner, green at the other two."""


@dataclass(frozen=True)
class Axis:
    """One axis of the pixels wanted: their own positions, and the mirrored ones before and after each."""

    own: Indices
    before: Indices
    after: Indices

    @classmethod
    def of(cls, positions: Indices, first: int, last: int) -> Axis:
        """For `positions` in a valid picture from `first` to `last`, at least two pixels long."""
        before, after = positions - 1, positions + 1
        return cls(positions, np.where(before < first, after, before), np.where(after > last, before, after))

    def nearest(self, parity: int) -> tuple[Indices, Indices]:
        """The two nearest positions of this parity (one twice where a pixel has it itself)."""
        has_it = self.own % 2 == parity
        return np.where(has_it, self.own, self.before), np.where(has_it, self.own, self.after)


@dataclass(frozen=True)
class Mosaic:
    """A mosaic seen at the grid of `rows` x `columns`."""

    rows: Axis
    columns: Axis
    cfa: CfaOrder

    def corners(self, colour: str) -> tuple[tuple[Indices, Indices], tuple[Indices, Indices]]:
        """The two rows and two columns whose four crossings are averaged for `red` or `blue`."""
        row, column = _RED_AT[self.cfa]
        if colour == "blue":
            row, column = 1 - row, 1 - column
        return self.rows.nearest(row), self.columns.nearest(column)

    def is_green(self) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        """One flag a row and one a column: a pixel is green where its two flags differ."""
        row, column = _RED_AT[self.cfa]
        return self.rows.own % 2 == row, self.columns.own % 2 == column

    def cross(self) -> tuple[tuple[Indices, Indices], ...]:
        """Rows and columns of a pixel's four neighbours: above, below, left, right."""
        return (
            (self.rows.before, self.columns.own), (self.rows.after, self.columns.own),
            (self.rows.own, self.columns.before), (self.rows.own, self.columns.after),
        )  # fmt: skip
