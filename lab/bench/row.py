"""One line of the benchmark table: a measured time of ours beside a named peer's, from the same run."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Row:
    """ours_ns, peer_ns: medians in nanoseconds. ratio: peer_ns / ours_ns, above 1 where ours is faster.

    spread: the interquartile range of ours over its median; large means that the machine was busy. reach: the ratio
    that the design asks for, 0 where it asks for none. note: what was measured, for a person.
    """

    name: str
    ours_ns: float
    peer_ns: float
    peer: str
    ratio: float
    spread: float
    reach: float = 0.0
    note: str = ""


def make_row(
    name: str, ours_ns: Sequence[float], peer_ns: Sequence[float], peer: str, *, reach: float = 0.0, note: str = ""
) -> Row:
    """A row from all samples of both sides, at least two of ours and one of the peer's."""
    ours, theirs = statistics.median(ours_ns), statistics.median(peer_ns)
    low, _, high = statistics.quantiles(ours_ns, n=4)
    return Row(name, ours, theirs, peer, theirs / ours, (high - low) / ours, reach, note)
