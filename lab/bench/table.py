"""The benchmarks' result in a terminal: rows beside their peers, curves with their slopes, then what was measured."""

from __future__ import annotations

from collections.abc import Sequence

from rich import box
from rich.console import Console
from rich.table import Table

from lab.bench.curve import Curve
from lab.bench.result import Machine, Result
from lab.bench.row import Row

_RIGHT = ("ours", "peer", "ratio", "lowest – highest", "reach", "load")


def show(console: Console, result: Result) -> None:
    """Prints all of it."""
    console.print(said_of(result.machine), highlight=False)
    if result.rows:
        console.print(_rows(result.rows))
        console.print(_notes(result.rows), highlight=False)
    if result.curves:
        console.print(_curves(result.curves))


def said_of(machine: Machine) -> str:
    """The machine in one sentence."""
    return (
        f"{machine.cpu}, {machine.cores} cores, {machine.memory_mib / 1024:.0f} GiB, Linux {machine.kernel}, Python "
        f"{machine.python}, fenced {machine.fenced}; began {machine.began}, load average {machine.load:.1f}"
    )


def ratio_range(row: Row) -> str:
    """The lowest and the highest ratio of the run's blocks, or of repetitions."""
    return f"{plain(min(row.ratios))} – {plain(max(row.ratios))}" if row.ratios else ""


def plain(ratio: float) -> str:
    """A ratio with no more digits than it is worth."""
    return f"{ratio:.0f}" if ratio >= 100 else f"{ratio:.2f}"


def reached(row: Row) -> bool | None:
    """Whether the ratio is what the design asks for; None where it asks for nothing."""
    return row.ratio >= row.reach if row.reach else None


def quantity(value: float, unit: str) -> str:
    """A value of a row in a unit that suits it."""
    if unit == "calls":
        return f"{value:.1f}"
    if unit == "KiB":
        return f"{value / 1024:.1f} MiB"
    if value >= 1e9:
        return f"{value / 1e9:.2f} s"
    return f"{value / 1e6:.2f} ms" if value >= 1e6 else f"{value / 1000:.1f} µs"


def slope(curve: Curve) -> str:
    """Ours and the peer's slope, named: what one more costs."""
    return f"{signed(curve.ours.slope)} beside {signed(curve.theirs.slope)} a further {curve.unit}"


def signed(ns: float) -> str:
    """A time that may be below zero, as slopes and starts of lines may."""
    text = quantity(abs(ns), "ns") if abs(ns) >= 1000 else f"{abs(ns):.0f} ns"
    return f"−{text}" if ns < 0 else text


def _table(title: str, headings: Sequence[str], wrapped: str) -> Table:
    table = Table(title=title, box=box.SIMPLE)
    for heading in headings:
        table.add_column(heading, justify="right" if heading in _RIGHT else "left", no_wrap=heading != wrapped)
    return table


def _rows(rows: Sequence[Row]) -> Table:
    headings = ("--only", "what", "ours", "peer", "ratio", "lowest – highest", "reach", "load", "the peer is")
    table = _table("ours beside its peer, same run", headings, "the peer is")
    for row in rows:
        table.add_row(
            row.bench, row.name, quantity(row.ours, row.unit), quantity(row.theirs, row.unit), _ratio(row),
            ratio_range(row), f"≥ {plain(row.reach)}×" if row.reach else "", f"{row.load:.1f}", row.peer,
        )  # fmt: skip
    return table


def _ratio(row: Row) -> str:
    return f"{plain(row.ratio)}×" + (", missed" if reached(row) is False else "")


def _curves(curves: Sequence[Curve]) -> Table:
    headings = ("--only", "what grows", "sizes", "slope", "the line's R²", "load", "the peer is")
    table = _table("cost against growth", headings, "the peer is")
    for one in curves:
        sizes = f"{one.points[0].size:g} – {one.points[-1].size:g} {one.unit}"
        table.add_row(one.bench, one.name, sizes, slope(one), f"{one.ours.r2:.3f}", f"{one.load:.1f}", one.peer)
    return table


def _notes(rows: Sequence[Row]) -> str:
    """Each row's note, rows with the same one together."""
    by_note: dict[str, list[str]] = {}
    for row in rows:
        if row.note:
            by_note.setdefault(row.note, []).append(row.name)
    return "\n".join(f"{', '.join(dict.fromkeys(names))}: {note}" for note, names in by_note.items())
