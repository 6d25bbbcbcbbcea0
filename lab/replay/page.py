"""What a replay found as one self-contained HTML page: verdict, errors over time, the worst frames, latency, ledgers.

Plots are inline SVG and pictures inline JPEG, so the page needs no other file and no network.
"""

from __future__ import annotations

import html
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from lab.hil.html import Mark, page, svg, table
from lab.replay import page_pictures, page_plots
from lab.replay.compare import EXACT, Arrays, Comparison, Tolerance
from lab.replay.log import LogReader
from lab.replay.replay import ReplayReport

__all__ = ["replay_page", "replay_parts", "verdict"]

PLOTTED, PICTURED = 12, 6
"""Outputs whose error is plotted; worst frames that are shown."""
LISTED_ELEMENTS = 4
_STYLE = (
    "<style>img{width:100%;height:auto;border:1px solid #dde3ea;margin:.3rem 0}h3{font-size:.95rem;margin:.6rem 0 0}"
    ".grid{display:grid;grid-template-columns:repeat(auto-fill,minmax(26rem,1fr));gap:1rem 1.6rem}"
    ".grid table{font-size:.85em}"
    ".grid td{white-space:nowrap;min-width:0!important}"
    ".legend i{display:inline-block;width:.8em;height:.8em;border-radius:50%;margin:0 .4em 0 1.2em}</style>"
)


def replay_page(report: ReplayReport, log: Path) -> str:
    """The page as HTML text. `log`: the log that was replayed, for the pictures. Raises LogRefused."""
    return page(f"fenced replay: {report.log}", replay_parts(report, log))


def replay_parts(report: ReplayReport, log: Path) -> list[str]:
    """The page's parts below its title."""
    parts = [_STYLE, _lead(report), _notes(report)]
    parts += _comparison(report.compared, "Against the log", report)
    if report.against is not None:
        parts += _comparison(report.against, "The other bundle against the one that served", report)
    parts += ["<h2>Latency: start of frame to published</h2>", _latency_words(report)]
    if report.compared.compared:
        parts.append(svg(page_plots.latency(report.times)))
    parts.append(_ledger(report))
    shown = [(report.compared, "the log's")]
    shown += [] if report.against is None else [(report.against, "what served")]
    if not any(compared.worst for compared, _ in shown):
        parts += _sample(report, log)
    for compared, wanted in shown:
        parts += _worst(compared, wanted, report, log) if compared.worst else []
    return [*parts, _circumstances(report)]


def verdict(report: ReplayReport) -> Mark:
    """One word, coloured."""
    return Mark("reproduced", "good") if report.passed else Mark("NOT reproduced", "bad")


def _lead(report: ReplayReport) -> str:
    compared = report.compared
    counts = f"{compared.equal} equal in every bit, {compared.within} within tolerance, {compared.mismatched} outside"
    if report.against is not None:
        other = report.against
        counts += f"; the other bundle: {other.equal} equal, {other.within} within, {other.mismatched} outside"
    missing = [f"{count} {status}" for status, count in sorted(report.not_run.items())]
    counts += f"; of the rest: {', '.join(missing)}" if missing else ""
    for count, what in (
        (report.unrecorded, "results whose pixels are not in the log"),
        (report.uncertain, "results behind a hole in the log, not compared"),
        (report.not_logged, "results that the log does not have"),
    ):
        counts += f"; {count} {what}" if count else ""
    word = verdict(report)
    return (
        f'<p class="verdict"><span class="{word.kind}">{word}</span>: {report.frames} sets of frames played in '
        f"{report.mode}, {compared.compared} results compared: {html.escape(counts)}.</p>"
    )


def _notes(report: ReplayReport) -> str:
    items = "".join(f"<li>{html.escape(note)}</li>" for note in report.notes)
    return f"<ul>{items}</ul>" if items else ""


def _comparison(compared: Comparison, heading: str, report: ReplayReport) -> list[str]:
    """Table and plots of one comparison."""
    rows = [
        (name, report.units.get(name, ""), _allowed(compared.tolerances.of(name)), _number(one.largest),
         _number(one.mean), f"{one.outside} of {one.frames}",
         Mark("outside", "bad") if one.outside else Mark("equal" if not one.largest else "within", "good"))
        for name, one in compared.outputs.items()
    ]  # fmt: skip
    head = ("output", "unit", "allowed", "largest |difference|", "mean of frames", "frames outside", "")
    parts = [table(heading, head, rows)]
    differing = [name for name, one in compared.outputs.items() if one.largest or one.outside]
    ranked = sorted(differing, key=lambda name: (-compared.outputs[name].outside, -compared.outputs[name].largest))
    if ranked:
        left = len(ranked) - PLOTTED
        parts.append("<h2>Error over time</h2>")
        parts += [f"<p>The {PLOTTED} worst of {len(ranked)} outputs that differ.</p>"] if left > 0 else []
        parts.append(svg(page_plots.errors(compared, ranked[:PLOTTED], report.units)))
    elif compared.compared:
        parts.append("<p>Every bit of every output is equal: there is no error to plot.</p>")
    return parts


def _worst(compared: Comparison, wanted: str, report: ReplayReport, log: Path) -> list[str]:
    """The frames that are furthest off, as pictures with both sides' outputs on them, and their numbers."""
    worst = compared.worst[:PICTURED]
    shown = page_pictures.find(LogReader(log), [(one.model, one.sequence) for one in worst])
    spans = _spans(outputs for pair in compared.values.values() for outputs in pair)
    cards = []
    for one in worst:
        found, logged = compared.values[one]
        within = ", within" if one.within else ""
        parts = [f"<h3>Frame {one.sequence}: {html.escape(one.output)} off by {_number(one.absolute)}{within}</h3>"]
        frame = shown.get((one.model, one.sequence))
        if frame is not None:
            parts.append(page_pictures.draw(replace(frame, outputs=logged), found, spans, report.units))
        parts.append(_values(found, logged, report.units))
        cards.append(parts)
    colours = (page_pictures.WANTED, wanted), (page_pictures.FOUND, "found")
    legend = "".join(f'<i style="background:{colour}"></i>{html.escape(what)}' for colour, what in colours)
    return ["<h2>The worst frames</h2>", f'<p class="legend">{legend}</p>', _grid(cards)]


def _sample(report: ReplayReport, log: Path) -> list[str]:
    """Where every frame is equal: the first, one in the middle, the last."""
    sequences = report.compared.sequences
    places = sorted({0, len(sequences) // 2, len(sequences) - 1}) if sequences else []
    shown = page_pictures.find(LogReader(log), [("", sequences[at]) for at in places])
    spans = _spans(one.outputs for one in shown.values())
    cards = [[f"<h3>Frame {one.sequence}</h3>", page_pictures.draw(one, None, spans, report.units)]
             for one in shown.values()]  # fmt: skip
    return ["<h2>Frames of the log, and what was said of them</h2>", _grid(cards)] if cards else []


def _grid(cards: Sequence[Sequence[str]]) -> str:
    return '<div class="grid">' + "".join(f"<section>{''.join(one)}</section>" for one in cards) + "</div>"


def _spans(shown: Iterable[Arrays]) -> Mapping[str, float]:
    """The largest magnitude of each scalar among the frames that are shown."""
    spans: dict[str, float] = {}
    for outputs in shown:
        for name, array in outputs.items():
            if array.size == 1 and np.isfinite(array).all():
                spans[name] = max(spans.get(name, 0.0), float(np.abs(array.astype(np.float64)).max()))
    return spans


def _values(found: Arrays, wanted: Arrays, units: Mapping[str, str]) -> str:
    """The numbers of a frame, each output at the elements that are furthest off."""
    rows = []
    for name in dict.fromkeys((*wanted, *found)):
        a, b = found.get(name), wanted.get(name)
        if a is None or b is None or a.shape != b.shape:
            shapes = ("missing" if one is None else f"shape {one.shape}" for one in (b, a))
            rows.append((name, "", *shapes, "∞"))
            continue
        flat_a, flat_b = a.reshape(-1).astype(np.float64), b.reshape(-1).astype(np.float64)
        apart = np.nan_to_num(np.abs(flat_a - flat_b), nan=np.inf)
        for at in np.argsort(-apart, kind="stable")[: LISTED_ELEMENTS if a.size > 1 else 1]:
            if apart[at] or a.size == 1:
                place = name if a.size == 1 else f"{name}[{', '.join(map(str, np.unravel_index(at, a.shape)))}]"
                values = f"{flat_b[at]:.6g}", f"{flat_a[at]:.6g}", _number(float(apart[at]))
                rows.append((place, units.get(name, ""), *values))
    body = table("", ("output", "unit", "wanted", "found", "|difference|"), rows)
    return body.replace("<h2></h2>", "")


def _latency_words(report: ReplayReport) -> str:
    rows = []
    for side, one in report.times.items():
        limits = [value for value in one.deadline_ms if value is not None]
        missed = Mark(f"{one.missed} of {len(limits)}", "bad" if one.missed else "good")
        missed = missed if limits else Mark("no deadline", "none")
        quantiles = [_number(one.quantile(share)) for share in (0.5, 0.9, 0.99, 1.0)]
        rows.append((page_plots.TITLES[side], *quantiles, missed))
    said = "" if report.mode == "real-time" else (
        "<p>In lock-step one set of frames goes after another, as fast as they settle: what the daemon needs, not what "
        "a drive would see.</p>"
    )  # fmt: skip
    body = table("", ("ms", "p50", "p90", "p99", "worst", "deadlines missed"), rows)
    return said + body.replace("<h2></h2>", "")


def _ledger(report: ReplayReport) -> str:
    columns = ("submitted", "run", "superseded", "late", "torn", "refused", "lost", "held", "unknown", "camera_dropped")
    sides = {"logged": "as logged", "now": "in this replay", "against": "in the other bundle's daemon"}
    rows = [
        (stream, sides[side], *(row.get(name, "") for name in columns))
        for side, streams in report.ledgers.items() for stream, row in streams.items()
    ]  # fmt: skip
    names = ("stream", "", *(name.replace("_", " ") for name in columns))
    said = (
        "<p>submitted = run + superseded + late + torn + refused + lost + held. Unknown: the log was made by a camera "
        "that recorded no ends, or was cut off.</p>"
    )
    return table("What became of every frame", names, rows) + said


def _circumstances(report: ReplayReport) -> str:
    rows: list[tuple[object, object]] = [
        ("log", report.log), ("SHA-256 over the log's messages", report.log_sha256), ("model", report.model),
        ("statement of the bundle that was logged", report.logged_digest),
        ("statement of the bundle that served", report.served_digest),
    ]  # fmt: skip
    rows += [("statement of the other bundle", report.against_digest)] if report.against_digest else []
    return table("Digests and circumstances", ("", ""), [*rows, *report.circumstances.items()])


def _allowed(tolerance: Tolerance) -> str:
    if tolerance == EXACT:
        return "equal bits"
    parts = [f"{tolerance.absolute:g}"] * (tolerance.absolute > 0) + [f"{tolerance.relative:g} · |b|"] * (
        tolerance.relative > 0
    )
    return " or ".join(parts)


def _number(value: float) -> str:
    if math.isnan(value):
        return "–"
    return f"{value:.4g}" if math.isfinite(value) else "∞"
