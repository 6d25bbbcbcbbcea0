"""One line of the benchmark table: a measured quantity of ours beside a named peer's, from the same run."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Row:
    """ours, theirs: medians (or what the name says) in `unit`: "ns", "KiB" or "calls". ratio: theirs / ours, above 1
    where ours is faster or smaller.

    spread: the interquartile range of ours over its median; large means that the machine was busy. reach: the ratio
    that the design asks for, 0 where it asks for none. note: what was measured, for a person.
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


def quantile(samples: Sequence[float], share: float) -> float:
    """The sample below which `share` of them lie: the nearest rank, so one that was measured."""
    return sorted(samples)[min(len(samples) - 1, int(share * len(samples)))]


def make_row(
    name: str, ours: Sequence[float], theirs: Sequence[float], peer: str, *, unit: str = "ns", reach: float = 0.0,
    note: str = "",
) -> Row:  # fmt: skip
    """A row from all samples of both sides, at least two of ours and one of the peer's."""
    mine, other = statistics.median(ours), statistics.median(theirs)
    low, _, high = statistics.quantiles(ours, n=4)
    return Row(name, mine, other, unit, peer, other / mine, (high - low) / mine, reach, note)
