"""One line of the benchmark table: a measured quantity of ours beside a named peer's, from the same run."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace

BLOCKS = 8


@dataclass(frozen=True)
class Row:
    """ours, theirs: medians (or what the name says) in `unit`: "ns", "KiB" or "calls". ratio: theirs / ours, above 1
    where ours is faster or smaller.

    spread: the interquartile range of ours over its median; large means that the machine was busy. reach: the ratio
    that the design asks for, 0 where it asks for none. note: what was measured, for a person.

    ratios: the ratio in each block of the run, or in each repetition, empty where only the whole has one; `bench` and
    `load` are the suite's: the name to run it by, and the load average of the machine when it began.
    """

    name: str
    ours: float
    theirs: float
    unit: str
    peer: str
    ratio: float
    spread: float
    reach: float = 0.0
    note: str = ""
    ratios: tuple[float, ...] = ()
    bench: str = ""
    load: float = 0.0


def quantile(samples: Sequence[float], share: float) -> float:
    """The sample below which `share` of them lie: the nearest rank, so one that was measured."""
    return sorted(samples)[min(len(samples) - 1, int(share * len(samples)))]


def make_row(
    name: str, ours: Sequence[float], theirs: Sequence[float], peer: str, *, unit: str = "ns", reach: float = 0.0,
    note: str = "",
) -> Row:  # fmt: skip
    """A row from all samples of both sides, in the order they were taken: at least two of ours, one of the peer's."""
    mine, other = statistics.median(ours), statistics.median(theirs)
    low, _, high = statistics.quantiles(ours, n=4)
    return Row(
        name, mine, other, unit, peer, other / mine, (high - low) / mine, reach, note, block_ratios(ours, theirs)
    )


def block_ratios(ours: Sequence[float], theirs: Sequence[float]) -> tuple[float, ...]:
    """The ratio of medians in each of up to BLOCKS stretches of the run; a peer with fewer samples stands whole."""
    count = min(BLOCKS, len(ours))
    mine = _blocks(ours, count)
    other = _blocks(theirs, count) if len(theirs) >= count else [theirs] * count
    return tuple(statistics.median(b) / statistics.median(a) for a, b in zip(mine, other, strict=True))


def merge(repetitions: Sequence[Row]) -> Row:
    """One row of several runs of the same: medians of both sides and of the ratio, and every run's ratio."""
    first = repetitions[0]
    if len(repetitions) == 1:
        return first
    ratios = tuple(one.ratio for one in repetitions)
    return replace(
        first,
        ours=statistics.median(one.ours for one in repetitions),
        theirs=statistics.median(one.theirs for one in repetitions),
        ratio=statistics.median(ratios),
        spread=statistics.median(one.spread for one in repetitions),
        ratios=ratios,
    )


def _blocks(samples: Sequence[float], count: int) -> list[Sequence[float]]:
    edges = [len(samples) * at // count for at in range(count + 1)]
    return [samples[start:end] for start, end in itertools.pairwise(edges)]
