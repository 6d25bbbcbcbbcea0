"""What was seen of a drive: one record a frame period, and what became of every request."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

__all__ = ["FrameRecord", "RequestRecord", "Trace"]

QUANTILES = {"p50": 50, "p90": 90, "p99": 99, "max": 100}


@dataclass(frozen=True)
class FrameRecord:
    """One frame period. `status`: run, superseded, late, torn, lost, a refusal's code, `dropped` or `stalled`.

    `latency_ms`: start of frame to published, NaN without a result. `outputs`: of one element each; `truth`: what is
    known of the scene. `left_m`: the car's place left of the lane's centre, NaN without a car.
    """

    at_s: float
    status: str
    latency_ms: float = float("nan")
    device_ms: float = float("nan")
    outputs: Mapping[str, float] = field(default_factory=dict)
    truth: Mapping[str, float] = field(default_factory=dict)
    left_m: float = float("nan")
    digest: str = ""


@dataclass(frozen=True)
class RequestRecord:
    """One event that asked the daemon for something. `answer`: the refusal's words, empty where it was done."""

    at_s: float
    event: str
    answer: str = ""


@dataclass
class Trace:
    """Everything that was seen, in order."""

    frames: list[FrameRecord] = field(default_factory=list)
    requests: list[RequestRecord] = field(default_factory=list)
    units: dict[str, str] = field(default_factory=dict)
    left_lane_at_s: float | None = None

    def results(self) -> list[FrameRecord]:
        """The periods that brought a result."""
        return [one for one in self.frames if one.status == "run"]

    def longest_gap(self) -> int:
        """Most frame periods without a result in a row."""
        longest = now = 0
        for one in self.frames:
            now = 0 if one.status == "run" else now + 1
            longest = max(longest, now)
        return longest

    def latency_ms(self) -> dict[str, float]:
        """p50, p90, p99, max and mean of the latency; NaN where nothing ran."""
        values = [one.latency_ms for one in self.results()]
        if not values:
            return dict.fromkeys((*QUANTILES, "mean"), float("nan"))
        found = np.percentile(values, list(QUANTILES.values()))
        return {**dict(zip(QUANTILES, map(float, found), strict=True)), "mean": float(np.mean(values))}

    def statuses(self) -> dict[str, int]:
        """How many periods ended how."""
        counts: dict[str, int] = {}
        for one in self.frames:
            counts[one.status] = counts.get(one.status, 0) + 1
        return counts

    def lateral_m(self) -> list[float]:
        """The car's distance from the lane's centre, a value a period; empty without a car."""
        return [abs(one.left_m) for one in self.frames if not math.isnan(one.left_m)]
