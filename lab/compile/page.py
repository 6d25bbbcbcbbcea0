"""What a compile did, as one self-contained HTML page: contract, launches in time, arena, accuracy, checks.

Plots are inline SVG by matplotlib, so the page needs no other file and no network. Times are of this machine and of one
compile; nothing of the page goes into the bundle.
"""

from __future__ import annotations

import html
import io
import re
from collections.abc import Iterable, Sequence
from enum import IntEnum

import matplotlib as mpl
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from lab.compile.report import Accuracy, CompileReport
from lab.compile.spec import EntrySpec, Spec

_STYLE = """body{font:15px/1.5 system-ui,sans-serif;max-width:64rem;margin:2rem auto;padding:0 1rem;color:#1c2733}
h1{font-size:1.5rem}h2{font-size:1.1rem;margin-top:2rem}table{border-collapse:collapse;margin-bottom:1rem}
td,th{padding:.2rem .8rem .2rem 0;text-align:left;border-bottom:1px solid #dde3ea;vertical-align:top}
td{font-variant-numeric:tabular-nums}code{font-size:.85em;word-break:break-all}svg{max-width:100%;height:auto}"""
_BLUE, _ORANGE, _GREY = "#0b63c5", "#d2691e", "#8a97a6"
_US = 1e-3
_SHOWN_LAUNCHES = 40

Row = Sequence[object]


def compile_page(report: CompileReport) -> str:
    """The page as HTML text."""
    details, spec = report.details, report.details.spec
    title = f"{report.name} {report.version} (release {report.release})"
    lead = (
        f"For {report.target}. {len(report.launches)} launches of {report.kernels} kernels, "
        f"{report.flops / 1e6:.1f} MFLOP a run; bundle {report.bundle_bytes} bytes."
    )
    parts = [f"<h1>{_text(title)}</h1>", f"<p>{_text(lead)}</p>", _heading("Contract"), *_contract(spec)]
    parts += [_heading("Checks"), _table(("check", "seen"), ((one.name, one.seen) for one in report.checks))]
    parts += [_heading("Accuracy"), *_accuracy(details.accuracy, spec)]
    parts += [_heading("Launch timeline"), *_timeline(report)]
    parts += [_heading("Time per launch"), *_launch_times(report)]
    parts += [_heading("Arena map"), *_arena(report)]
    sizes = (("code", report.code_bytes), ("weights", report.weights_bytes), ("graph", report.graph_bytes),
             ("arena (at run time)", report.arena_bytes))  # fmt: skip
    parts += [_heading("Sizes"), _table(("part", "bytes"), sizes)]
    stages = ((one.name, f"{one.seconds:.2f}") for one in report.stages)
    parts += [_heading("Time to compile"), _table(("stage", "seconds"), stages)]
    body = "\n".join(parts)
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{_text(title)}</title>'
        f"<style>{_STYLE}</style>\n{body}\n</html>\n"
    )


def _contract(spec: Spec) -> list[str]:
    frames = (
        (one.name, one.stream, one.format, f"{one.stream_format.width}x{one.stream_format.height}",
         f"{one.range}, {one.matrix}", one.layout if one.layout == "bytes" else f"float32 {list(one.shape)}")
        for one in spec.inputs
    )  # fmt: skip
    tables = [_table(("frame", "stream", "format", "size", "colour", "becomes"), frames)]
    if spec.aux:
        rows = (
            (one.name, one.dtype.name.lower(), list(one.shape), f"{one.max_age_ms:g} ms" if one.max_age_ms else "any",
             "the run is refused" if one.default is None else "the default stands in")
            for one in spec.aux
        )  # fmt: skip
        tables.append(_table(("aux input", "type", "shape", "oldest", "if missing"), rows))
    if spec.states:
        kept = ((one.name, one.dtype.name.lower(), list(one.shape), "handed over" if one.hand_over else "reset")
                for one in spec.states)  # fmt: skip
        tables.append(_table(("state", "type", "shape", "at a new release"), kept))
    outputs = ((one.name, one.tensor, one.slice or "whole", one.unit, one.nan) for one in spec.outputs)
    tables.append(_table(("output", "tensor", "slice", "unit", "NaN"), outputs))
    limits = (
        (one.name, _word(one.role), f"{one.timing.deadline_ms:g} ms" if one.timing.deadline_ms else "none",
         f"{one.timing.budget_ms:g} ms", f"{one.timing.max_skew_ms:g} ms", _misses(one))
        for one in spec.entries
    )  # fmt: skip
    head = ("entrypoint", "role", "deadline", "budget", "largest skew", "if deadlines are missed")
    return [*tables, _table(head, limits)]


def _misses(entry: EntrySpec) -> str:
    if not entry.miss_window:
        return "counted"
    return f"more than {entry.miss_limit} of {entry.miss_window} runs: {_word(entry.on_misses)}"


def _word(value: IntEnum) -> str:
    return value.name.lower().replace("_", " ")


def _accuracy(found: Sequence[Accuracy], spec: Spec) -> list[str]:
    if not found:
        return ["<p>Nothing to compare with: the pipeline is Python, and its own eager run is the reference.</p>"]
    return [_svg(_accuracy_figure(one, spec.check.onnxruntime_tolerance)) for one in found]


def _accuracy_figure(one: Accuracy, tolerance: float) -> Figure:
    figure = Figure(figsize=(10, 3.2), layout="constrained")
    steps, points = figure.subplots(1, 2)
    steps.plot(one.worst_by_step, color=_BLUE, marker=".", linewidth=1, label="worst element")
    steps.axhline(tolerance, color="#b00020", linewidth=1, linestyle="--", label="allowed")
    steps.set(xlabel="step", ylabel=f"|{one.tensor} - onnxruntime's|")
    steps.set_yscale("symlog", linthresh=1e-9)
    steps.xaxis.get_major_locator().set_params(integer=True)
    steps.legend(frameon=False)
    points.scatter(one.expected, one.found, s=8, color=_BLUE)
    points.axline((0, 0), slope=1, color=_GREY, linewidth=1)
    points.set(xlabel="onnxruntime, last step", ylabel=one.tensor)
    return figure


def _timeline(report: CompileReport) -> list[str]:
    """A row of launches for each entrypoint."""
    spans = report.details.launch_spans_ns
    if not spans:
        return ["<p>This device gives no times of single launches.</p>"]
    rows = len(report.entries)
    figure = Figure(figsize=(10, 1.2 + rows), layout="constrained")
    axes = figure.add_subplot()
    for row, entry in enumerate(report.entries):
        for index, (start, end) in enumerate(spans[entry.launches]):
            axes.barh(row, (end - start) * _US, left=start * _US, color=(_BLUE, _ORANGE)[index % 2], height=0.6)
    axes.set(xlabel="µs from the run's start, each launch the median of several runs")
    axes.set_yticks(range(rows), [one.name for one in report.entries])
    axes.invert_yaxis()
    return [_svg(figure)]


def _launch_times(report: CompileReport) -> list[str]:
    spans = report.details.launch_spans_ns
    order = sorted(range(len(report.launches)), key=lambda at: spans[at][0] - spans[at][1] if spans else 0)
    rows = []
    for at in order[:_SHOWN_LAUNCHES]:
        one, span = report.launches[at], spans[at] if spans else None
        micros = f"{(span[1] - span[0]) * _US:.1f}" if span else "–"
        rate = f"{one.flops / (span[1] - span[0]):.2f}" if span and span[1] > span[0] else "–"
        rows.append((at, one.kernel, micros, f"{one.flops / 1e6:.2f}", rate, f"{one.bytes / 1e3:.1f}", one.cores))
    said = f"<p>The {len(rows)} longest of {len(order)}.</p>" if len(rows) < len(order) else ""
    return [said, _table(("launch", "kernel", "µs", "MFLOP", "GFLOP/s", "kB", "cores"), rows)]


def _arena(report: CompileReport) -> list[str]:
    ranges = report.details.arena
    if not ranges:
        return ["<p>No launch needs scratch memory.</p>"]
    figure = Figure(figsize=(10, 3.6), layout="constrained")
    axes = figure.add_subplot()
    for index, one in enumerate(ranges):
        width = one.last_launch - one.first_launch + 1
        colour = (_BLUE, _ORANGE, _GREY)[index % 3]
        place = (one.first_launch, one.offset / 1e3)
        axes.add_patch(Rectangle(place, width, one.size_bytes / 1e3, facecolor=colour, edgecolor="white", alpha=0.8))
    axes.set(xlabel="launch", ylabel="kB of the arena", xlim=(0, len(report.launches)),
             ylim=(0, report.arena_bytes / 1e3))  # fmt: skip
    return [_svg(figure)]


def _heading(text: str) -> str:
    return f"<h2>{_text(text)}</h2>"


def _table(head: Sequence[str], rows: Iterable[Row]) -> str:
    lines = ["<table><tr>" + "".join(f"<th>{_text(one)}</th>" for one in head) + "</tr>"]
    lines += ["<tr>" + "".join(f"<td>{_text(one)}</td>" for one in row) + "</tr>" for row in rows]
    return "\n".join(lines) + "</table>"


def _text(value: object) -> str:
    return html.escape(str(value))


def _svg(figure: Figure) -> str:
    text = io.StringIO()
    with mpl.rc_context({"svg.hashsalt": "fenced", "svg.fonttype": "path"}):
        figure.savefig(text, format="svg", metadata={"Date": None})
    return re.sub(r"^.*?(?=<svg)", "", text.getvalue(), flags=re.DOTALL)
