"""Where each intermediate result lies in the arena, for devices whose memory tinygrad does not plan.

A result lives from the first launch that uses it to the last. Results that never live at the same time may share
bytes; each gets the lowest place that is free for its whole life. Deterministic: larger results first, then older ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Lifetime:
    """`size_bytes` needed from launch `first` to launch `last`, both included."""

    size_bytes: int
    first: int
    last: int

    def meets(self, other: Lifetime) -> bool:
        """Whether both live at some launch."""
        return self.first <= other.last and other.first <= self.last


def place(lifetimes: Sequence[Lifetime], align_bytes: int) -> tuple[tuple[int, ...], int]:
    """The offset of each, a multiple of `align_bytes`, and the size of the arena."""
    offsets = [0] * len(lifetimes)
    placed: list[int] = []
    end = 0
    for index in sorted(range(len(lifetimes)), key=lambda one: (-lifetimes[one].size_bytes, lifetimes[one].first, one)):
        mine = lifetimes[index]
        taken = sorted((offsets[one], offsets[one] + _rounded(lifetimes[one].size_bytes, align_bytes))
                       for one in placed if lifetimes[one].meets(mine))  # fmt: skip
        at = 0
        for start, stop in taken:
            if at + mine.size_bytes <= start:
                break
            at = max(at, stop)
        offsets[index] = at
        placed.append(index)
        end = max(end, at + _rounded(mine.size_bytes, align_bytes))
    return tuple(offsets), end


def _rounded(size: int, align: int) -> int:
    return -(-size // align) * align
