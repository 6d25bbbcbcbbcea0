"""The plots of a replay's page: each output's error over time with what is allowed, and latency with its deadline."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from lab.hil.html import BAD, INK, ORANGE, PALE
from lab.replay.compare import Comparison
from lab.replay.times import RunTimes

__all__ = ["errors", "latency"]

WIDE, LOW = 10.5, 2.6
FAR = 4.0
"""A deadline beyond so many times the longest latency is said and not drawn."""
COLOURS = {"logged": ORANGE, "now": INK}
TITLES = {"logged": "as logged", "now": "in this replay"}


def errors(compared: Comparison, names: Sequence[str], units: Mapping[str, str]) -> Figure:
    """The largest |a - b| of every frame, a row for each output; frames outside their tolerance are red."""
    figure = Figure(figsize=(WIDE, 0.4 + 1.7 * len(names)), layout="constrained")
    cells = figure.subplots(len(names), 1, sharex=True, squeeze=False)[:, 0]
    at = np.array(compared.sequences)
    for axes, name in zip(cells, names, strict=True):
        values = np.array(compared.series[name])
        finite = np.isfinite(values)
        outside = np.array(compared.outside.get(name, np.zeros(len(at), bool)), bool)
        axes.plot(at[finite], values[finite], color=INK, linewidth=0.9)
        top = float(values[finite].max(initial=0.0))
        shown = np.where(finite, values, top or 1.0)
        axes.scatter(at[outside], shown[outside], color=BAD, s=12, zorder=3)
        absolute = compared.tolerances.of(name).absolute
        if absolute > 0:
            axes.axhline(absolute, color=BAD, linewidth=1, linestyle="--")
            axes.text(at[0], absolute, " allowed", color=BAD, fontsize=7, va="bottom")
        axes.set(ylim=(0, 1.15 * max(top, absolute) or 1.0))
        axes.set_ylabel(f"|difference| [{units.get(name, '')}]", fontsize=8)
        axes.set_title(name, fontsize=9, loc="left", pad=3)
        axes.tick_params(labelsize=8)
        _plain(axes)
    cells[-1].xaxis.set_major_locator(MaxNLocator(integer=True))
    cells[-1].set_xlabel("frame (sequence)", fontsize=8)
    return figure


def latency(times: Mapping[str, RunTimes]) -> Figure:
    """Start of frame to published, then and now: over the time of the log, and as histograms; deadlines and misses."""
    figure = Figure(figsize=(WIDE, 2 * LOW), layout="constrained")
    cells = figure.subplots(2, 2, width_ratios=(2.4, 1), squeeze=False)
    top = max((value for one in times.values() for value in one.latency_ms), default=1.0)
    for (over_time, histogram), (side, one) in zip(cells, times.items(), strict=True):
        _over_time(over_time, side, one, top)
        if one.latency_ms:
            count = min(60, max(10, math.isqrt(len(one.latency_ms))))
            histogram.hist(one.latency_ms, bins=np.linspace(0, top * 1.02, count + 1).tolist(), color=COLOURS[side])
        for due in {value for value in one.deadline_ms if value is not None and value <= top * 1.5}:
            histogram.axvline(due, color=BAD, linewidth=0.8, linestyle="--")
        histogram.set_xlabel("ms", fontsize=8)
        histogram.set_ylabel("frames", fontsize=8)
        for axes in (over_time, histogram):
            axes.tick_params(labelsize=8)
            _plain(axes)
    return figure


def _over_time(axes: Axes, side: str, one: RunTimes, top: float) -> None:
    """`top`: the longest latency of both sides, so that they have one scale."""
    axes.plot(one.at_s, one.latency_ms, color=COLOURS[side], linewidth=0.9, label="to published")
    axes.plot(one.at_s, one.device_ms, color=PALE, linewidth=0.9, label="on the device")
    due = [(at, value) for at, value in zip(one.at_s, one.deadline_ms, strict=True) if value is not None]
    if due:
        far = min(value for _, value in due) > FAR * top
        label = f"deadline: {due[0][1]:g} ms, far above" if far else "deadline"
        axes.plot(*zip(*due, strict=True), color=BAD, linewidth=1, linestyle="--", label=label)
        top = top if far else max(top, *(value for _, value in due))
        late = [(at, value) for at, value, limit in zip(one.at_s, one.latency_ms, one.deadline_ms, strict=True)
                if limit is not None and value > limit]  # fmt: skip
        if late:
            axes.plot(*zip(*late, strict=True), color=BAD, linestyle="", marker=".", markersize=6, label="missed")
    axes.set(ylim=(0, 1.3 * top))  # room for the legend
    axes.set_xlabel("s since the first compared frame", fontsize=8)
    axes.set_ylabel("ms", fontsize=8)
    axes.set_title(TITLES[side], fontsize=9, loc="left", pad=3)
    axes.legend(loc="upper right", frameon=False, fontsize=7, ncols=4)


def _plain(axes: Axes) -> None:
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
