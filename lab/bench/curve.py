"""What a cost does while one thing grows: points beside a peer's, and a line through them whose slope has a name.

The line is least squares over the lower quartiles, which the machine's other work touches least. The largest sizes
decide it; its start is what is paid whatever the size.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Point:
    """Samples at one size, in ns: ours by median and quartiles, the peer's by median and lower quartile."""

    size: float
    ours: float
    low: float
    high: float
    theirs: float
    their_low: float


@dataclass(frozen=True)
class Line:
    """`start` ns, and `slope` ns for each unit of size. r2: the share of the variance that the line explains."""

    start: float
    slope: float
    r2: float

    def at(self, size: float) -> float:
        """Nanoseconds that the line gives for this size."""
        return self.start + self.slope * size


@dataclass(frozen=True)
class Curve:
    """name: what grows. unit: of the sizes, one of them ("launch"). cost: what was measured. peer: beside what.

    bench, load: as in `lab.bench.row.Row`.
    """

    name: str
    unit: str
    cost: str
    peer: str
    points: tuple[Point, ...]
    ours: Line
    theirs: Line
    note: str = ""
    bench: str = ""
    load: float = 0.0


Samples = tuple[Sequence[float], Sequence[float]]


def make_curve(name: str, unit: str, found: Mapping[float, Samples], *, cost: str, peer: str, note: str = "") -> Curve:
    """A curve from the samples (ours, the peer's) at each size: at least two sizes, and two of each side at each."""
    points = []
    for size, (ours, theirs) in sorted(found.items()):
        low, middle, high = statistics.quantiles(ours, n=4)
        their_low, their_middle, _ = statistics.quantiles(theirs, n=4)
        points.append(Point(size, middle, low, high, their_middle, their_low))
    sizes = [one.size for one in points]
    mine, other = fit(sizes, [one.low for one in points]), fit(sizes, [one.their_low for one in points])
    return Curve(name, unit, cost, peer, tuple(points), mine, other, note)


def fit(sizes: Sequence[float], costs: Sequence[float]) -> Line:
    """Least squares through at least two sizes."""
    slope, start = np.polyfit(np.array(sizes, np.float64), np.array(costs, np.float64), 1)
    line = Line(float(start), float(slope), 0.0)
    mean = statistics.fmean(costs)
    off = sum((cost - line.at(size)) ** 2 for size, cost in zip(sizes, costs, strict=True))
    around = sum((cost - mean) ** 2 for cost in costs)
    return Line(line.start, line.slope, max(0.0, 1.0 - off / around) if around else 1.0)
