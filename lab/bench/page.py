"""A run of the benchmarks as one self-contained HTML page: ratios with their spread, and costs as things grow.

Plots are inline SVG by matplotlib, so the page needs no other file and no network.
"""

from __future__ import annotations

import html
from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from lab.bench.curve import Curve
from lab.bench.result import Result
from lab.bench.row import Row
from lab.bench.table import plain, quantity, ratio_range, reached, said_of, signed, slope
from lab.hil.html import BAD, GOOD, INK, ORANGE, PALE, Mark, page, svg, table

__all__ = ["bench_page"]

WIDE_IN, A_ROW_IN = 10.5, 0.27
_LEAD = (
    "A ratio is the peer's over ours: above 1 ours is faster, or smaller. The bar spans the ratios of one run's blocks "
    "(or of repetitions); a tick is what the design asks for. Both sides were measured in turn in the same run; "
    "absolute times say more about the machine than about the code."
)


def bench_page(result: Result) -> str:
    """The page as HTML text."""
    parts = [f"<p>{html.escape(said_of(result.machine))}.</p>", f"<p>{_LEAD}</p>", *_verdict(result.rows)]
    if result.failed:
        parts.append(f'<p class="bad">Failed, and so missing here: {html.escape(", ".join(result.failed))}.</p>')
    if result.rows:
        parts += ["<h2>Ratios</h2>", svg(_ratios(result.rows))]
    if result.curves:
        parts.append("<h2>Cost against growth</h2>")
        parts += [svg(_growth(pair)) for pair in _pairs(result.curves)]
        lines = (
            (one.name, f"{one.cost}, beside {one.peer}", f"{slope(one)} (R² {one.ours.r2:.2f})", _starts(one),
             f"{one.load:.1f}", one.bench)
            for one in result.curves
        )  # fmt: skip
        parts.append(table("Slopes", ("what grows", "cost", "slope", "start of the line", "load", "--only"), lines))
    parts.append(table("Rows", ("what", "the peer is", "ours", "peer", "ratio", "lowest – highest", "asked", "load",
                                "--only"), map(_cells, result.rows)))  # fmt: skip
    parts.append(table("What was measured", ("row", "note"), _notes(result)))
    return page("fenced: benchmarks", parts)


def _verdict(rows: Sequence[Row]) -> list[str]:
    asked = [one for one in rows if reached(one) is not None]
    if not asked:
        return []
    missed = [one.name for one in asked if not reached(one)]
    said = "all reached" if not missed else f"{len(missed)} missed: {'; '.join(dict.fromkeys(missed))}"
    return [f'<p class="verdict">Of {len(asked)} ratios that the design asks for, {html.escape(said)}.</p>']


def _cells(row: Row) -> tuple[object, ...]:
    good = reached(row)
    ratio = Mark(f"{plain(row.ratio)}×", "none" if good is None else "good" if good else "bad")
    asked = f"≥ {plain(row.reach)}×" if row.reach else ""
    numbers = (quantity(row.ours, row.unit), quantity(row.theirs, row.unit), ratio, ratio_range(row), asked)
    shown = (one if isinstance(one, Mark) else Mark(one, "number") for one in numbers)
    return (row.name, row.peer, *shown, f"{row.load:.1f}", Mark(row.bench, "number"))


def _starts(curve: Curve) -> str:
    return f"{signed(curve.ours.start)} beside {signed(curve.theirs.start)}"


def _notes(result: Result) -> list[tuple[str, str]]:
    """Each note once, with the names of all that it belongs to."""
    by_note: dict[str, list[str]] = {}
    noted = [(one.name, one.note) for one in result.rows] + [(one.name, one.note) for one in result.curves]
    for name, note in noted:
        if note:
            by_note.setdefault(note, []).append(name)
    return [(", ".join(dict.fromkeys(names)), note) for note, names in by_note.items()]


def _ratios(rows: Sequence[Row]) -> Figure:
    """A line for each row, from the top: its ratio, the range of it, and the tick that it should reach."""
    figure = Figure(figsize=(WIDE_IN, 1.0 + A_ROW_IN * len(rows)), layout="constrained")
    axes = figure.add_subplot()
    axes.axvline(1.0, color=PALE, linewidth=1)
    for at, row in enumerate(rows):
        colour = {None: INK, True: GOOD, False: BAD}[reached(row)]
        if row.ratios:
            axes.hlines(at, min(row.ratios), max(row.ratios), color=colour, alpha=0.35, linewidth=5)
        axes.plot(row.ratio, at, "o", color=colour, markersize=5)
        if row.reach:
            axes.plot(row.reach, at, "|", color="black", markersize=11)
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}×")
    axes.set_yticks(range(len(rows)), [f"{row.name}  ·  {row.peer}" for row in rows], fontsize=8)
    axes.set_ylim(len(rows) - 0.4, -0.6)
    axes.grid(axis="x", color="#e3e8ee", linewidth=0.7)
    axes.set_axisbelow(True)
    axes.set_xlabel("the peer's over ours: further right is better", fontsize=8)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.tick_params(axis="y", length=0)
    return figure


def _pairs(curves: Sequence[Curve]) -> list[Sequence[Curve]]:
    return [curves[at : at + 2] for at in range(0, len(curves), 2)]


def _growth(curves: Sequence[Curve]) -> Figure:
    figure = Figure(figsize=(WIDE_IN, 3.6), layout="constrained")
    for place, curve in enumerate(curves, 1):
        _curve(figure.add_subplot(1, 2, place), curve)
    return figure


def _curve(axes: Axes, curve: Curve) -> None:
    """Ours with its quartiles and its line, and the peer's, on two logarithmic axes where sizes span two decades."""
    sizes = [one.size for one in curve.points]
    largest = max(max(one.high, one.theirs) for one in curve.points)
    scale, unit = (1e6, "ms") if largest >= 2e6 else (1e3, "µs")
    ours = [one.ours / scale for one in curve.points]
    spread = ([(one.ours - one.low) / scale for one in curve.points],
              [(one.high - one.ours) / scale for one in curve.points])  # fmt: skip
    theirs = [one.theirs / scale for one in curve.points]
    axes.errorbar(
        sizes, ours, yerr=spread, fmt="o", color=INK, markersize=4, capsize=2, label="ours: median, quartiles"
    )
    axes.plot(sizes, theirs, "s", color=ORANGE, markersize=4, label=curve.peer)
    for line, colour in ((curve.ours, INK), (curve.theirs, ORANGE)):
        axes.plot(sizes, [line.at(size) / scale for size in sizes], color=colour, linewidth=1, alpha=0.6)
    if sizes[-1] / sizes[0] >= 100:
        axes.set(xscale="log", yscale="log")
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    else:
        axes.set_ylim(bottom=0)
    axes.set_title(f"{curve.name}: {slope(curve)}", fontsize=9, loc="left")
    axes.set_xlabel(curve.name if curve.unit in curve.name else f"{curve.name} [{curve.unit}]", fontsize=8)
    axes.set_ylabel(f"{curve.cost} [{unit}]", fontsize=8)
    axes.tick_params(labelsize=8)
    axes.grid(color="#e3e8ee", linewidth=0.7)
    axes.set_axisbelow(True)
    axes.legend(frameon=False, fontsize=8)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
