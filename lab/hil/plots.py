"""The pictures of a drive: the car's trajectory in its lane, outputs beside the truth, latency, how frames ended."""

from __future__ import annotations

import math

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from lab.hil.html import BAD, INK, ORANGE, PALE
from lab.hil.trace import Trace

__all__ = ["latency", "output", "statuses", "trajectory"]

LANE_HALF_M, CAR_HALF_M = 1.75, 0.9
WIDE, LOW = 10.5, 2.6
_ENDS = {"dropped": PALE, "stalled": PALE}
"""Colours of frame periods in which the camera sent nothing; other ends than a run are faults."""


def trajectory(trace: Trace, limit_m: float | None) -> Figure:
    """Where the car was in its lane, seen from above: time to the right, left of the lane's centre upwards."""
    figure, axes = _figure(3.4)
    at_s = np.array([one.at_s for one in trace.frames])
    left_m = np.array([one.left_m for one in trace.frames])
    axes.axhspan(-LANE_HALF_M, LANE_HALF_M, color="#f1f4f7", zorder=0)
    for edge_m in (-LANE_HALF_M, LANE_HALF_M):
        axes.axhline(edge_m, color="#5b6b7b", linewidth=2.5)
    axes.axhline(0.0, color=PALE, linewidth=0.8, linestyle=":")
    axes.fill_between(at_s, left_m - CAR_HALF_M, left_m + CAR_HALF_M, color=INK, alpha=0.16, linewidth=0, label="car")
    axes.plot(at_s, left_m, color=INK, linewidth=1.6, label="middle of the car")
    if limit_m is not None:
        for sign in (-1, 1):
            axes.axhline(sign * limit_m, color=BAD, linewidth=1, linestyle="--", label="limit" if sign > 0 else None)
    _mark_ends(axes, trace)
    _mark_requests(axes, trace, 2.02)
    axes.set(ylim=(-2.1, 2.1), xlim=(at_s[0], at_s[-1]), xlabel="s", ylabel="left of the lane's centre [m]")
    axes.legend(loc="lower right", frameon=True, framealpha=0.9, edgecolor="none", ncols=4, fontsize=8)
    return figure


def output(trace: Trace, name: str) -> Figure:
    """One output beside the truth, where it is known."""
    figure, axes = _figure(LOW)
    rows = [one for one in trace.results() if name in one.outputs]
    if any(name in one.truth for one in rows):
        known = [(one.at_s, one.truth[name]) for one in trace.frames if name in one.truth]
        axes.plot(*zip(*known, strict=True), color=PALE, linewidth=3, label="truth")
    axes.plot([one.at_s for one in rows], [one.outputs[name] for one in rows], color=INK, linewidth=1, label="output")
    _mark_ends(axes, trace)
    axes.set(xlabel="s", ylabel=f"{name} [{trace.units.get(name, '')}]", xlim=_span(trace))
    axes.legend(loc="upper right", frameon=False, fontsize=8)
    return figure


def latency(trace: Trace, deadline_ms: float | None) -> Figure:
    """Start of frame to published, over time and as a histogram."""
    figure = Figure(figsize=(WIDE, LOW), layout="constrained")
    over_time, histogram = figure.subplots(1, 2, width_ratios=(2, 1))
    rows = trace.results()
    values = [one.latency_ms for one in rows]
    over_time.plot([one.at_s for one in rows], values, color=INK, linewidth=0.9, label="to published")
    over_time.plot([one.at_s for one in rows], [one.device_ms for one in rows], color=ORANGE, linewidth=0.9,
                   label="on the device")  # fmt: skip
    if deadline_ms:
        over_time.axhline(deadline_ms, color=BAD, linewidth=1, linestyle="--", label="deadline")
    over_time.set(xlabel="s", ylabel="ms", ylim=(0, None), xlim=_span(trace))
    over_time.legend(loc="upper right", frameon=False, fontsize=8)
    if values:
        histogram.hist(values, bins=min(60, max(10, math.isqrt(len(values)))), color=INK)
    histogram.set(xlabel="ms", ylabel="frames")
    for axes in (over_time, histogram):
        _plain(axes)
    return figure


def statuses(trace: Trace) -> Figure:
    """How each frame period ended, one row for each end."""
    names = sorted(trace.statuses(), key=lambda name: (name != "run", name))
    figure, axes = _figure(0.9 + 0.22 * len(names))
    for row, name in enumerate(names):
        at_s = [one.at_s for one in trace.frames if one.status == name]
        colour = INK if name == "run" else _ENDS.get(name, BAD)
        axes.scatter(at_s, [row] * len(at_s), marker="|", s=60, color=colour, linewidths=1.2)
    axes.set(xlabel="s", xlim=_span(trace), ylim=(len(names) - 0.5, -0.5))
    axes.set_yticks(range(len(names)), names)
    return figure


def _figure(height: float) -> tuple[Figure, Axes]:
    figure = Figure(figsize=(WIDE, height), layout="constrained")
    axes = figure.add_subplot()
    _plain(axes)
    return figure, axes


def _plain(axes: Axes) -> None:
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def _span(trace: Trace) -> tuple[float, float]:
    return trace.frames[0].at_s, max(trace.frames[-1].at_s, trace.frames[0].at_s + 1e-3)


def _mark_ends(axes: Axes, trace: Trace) -> None:
    """A stripe for every period without a result."""
    for one in trace.frames:
        if one.status != "run":
            axes.axvline(one.at_s, color=_ENDS.get(one.status, BAD), alpha=0.35, linewidth=1.2, zorder=0.5)


def _mark_requests(axes: Axes, trace: Trace, height: float) -> None:
    for one in trace.requests:
        axes.text(one.at_s, height, one.event, fontsize=7, rotation=0, ha="left", va="top", color=BAD if one.answer else
                  "#1c2733")  # fmt: skip
        axes.axvline(one.at_s, color="#1c2733", linewidth=0.6, linestyle=":", zorder=0.6)
