"""One self-contained HTML page about a drive: truth against output, latency with its deadline, ledger, digests.

Plots are inline SVG by matplotlib, so the page needs no other file and no network.
"""

from __future__ import annotations

import html
import io
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure

_STYLE = """body{font:15px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem;color:#1c2733}
h1{font-size:1.5rem}h2{font-size:1.1rem;margin-top:2rem}table{border-collapse:collapse}
td,th{padding:.2rem .8rem .2rem 0;text-align:left;border-bottom:1px solid #dde3ea}
td{font-variant-numeric:tabular-nums}code{font-size:.85em;word-break:break-all}svg{max-width:100%;height:auto}"""


@dataclass
class DriveTrace:
    """What was seen of each frame, in order; latencies in milliseconds from start of frame to published."""

    truth: dict[str, list[float]] = field(default_factory=dict)
    output: dict[str, list[float]] = field(default_factory=dict)
    latency_ms: list[float] = field(default_factory=list)
    device_ms: list[float] = field(default_factory=list)

    def add(self, truth: Mapping[str, float], output: Mapping[str, float], latency_ms: float, device_ms: float) -> None:
        """Append one frame."""
        for name, value in output.items():
            self.output.setdefault(name, []).append(value)
            self.truth.setdefault(name, []).append(truth.get(name, float("nan")))
        self.latency_ms.append(latency_ms)
        self.device_ms.append(device_ms)

    def mean_error(self, name: str) -> float:
        """Mean |output - truth| of one output, in its unit."""
        return float(np.mean(np.abs(np.subtract(self.output[name], self.truth[name]))))


def drive_page(title: str, lead: str, trace: DriveTrace, units: Mapping[str, str],
               tables: Mapping[str, Mapping[str, object]], *, deadline_ms: float | None = None) -> str:  # fmt: skip
    """The page as HTML text. `lead`: what the reader sees here; `tables`: heading to rows of name and value."""
    parts = [f"<h1>{html.escape(title)}</h1>", f"<p>{html.escape(lead)}</p>"]
    for name in trace.output:
        parts.append(f"<h2>{html.escape(name)}: truth and output</h2>")
        parts.append(_svg(_against_truth(trace, name, units.get(name, ""))))
    parts.append("<h2>Latency: start of frame to published</h2>")
    parts.append(_svg(_latency(trace, deadline_ms)))
    for heading, rows in tables.items():
        parts.append(f"<h2>{html.escape(heading)}</h2><table>")
        for key, value in rows.items():
            parts.append(f"<tr><th>{html.escape(key)}</th><td><code>{html.escape(str(value))}</code></td></tr>")
        parts.append("</table>")
    body = "\n".join(parts)
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{html.escape(title)}</title>'
        f"<style>{_STYLE}</style>\n{body}\n</html>\n"
    )


def _against_truth(trace: DriveTrace, name: str, unit: str) -> Figure:
    figure = Figure(figsize=(10, 3.2), layout="constrained")
    axes = figure.add_subplot()
    axes.plot(trace.truth[name], color="#8a97a6", linewidth=3, label="truth")
    axes.plot(trace.output[name], color="#0b63c5", linewidth=1.2, label="output")
    axes.set_xlabel("frame")
    axes.set_ylabel(f"{name} [{unit}]")
    axes.legend(loc="best", frameon=False)
    return figure


def _latency(trace: DriveTrace, deadline_ms: float | None) -> Figure:
    figure = Figure(figsize=(10, 3.2), layout="constrained")
    over_time, histogram = figure.subplots(1, 2)
    frames: Sequence[int] = range(len(trace.latency_ms))
    over_time.plot(frames, trace.latency_ms, color="#0b63c5", linewidth=1, label="to published")
    over_time.plot(frames, trace.device_ms, color="#d2691e", linewidth=1, label="on the device")
    if deadline_ms is not None:
        over_time.axhline(deadline_ms, color="#b00020", linewidth=1, linestyle="--", label="deadline")
    over_time.set(xlabel="frame", ylabel="ms", ylim=(0, None))
    over_time.legend(loc="upper right", frameon=False)
    histogram.hist(trace.latency_ms, bins=40, color="#0b63c5")
    histogram.set(xlabel="ms", ylabel="frames")
    return figure


def _svg(figure: Figure) -> str:
    text = io.StringIO()
    with mpl.rc_context({"svg.hashsalt": "fenced", "svg.fonttype": "path"}):
        figure.savefig(text, format="svg", metadata={"Date": None})
    return re.sub(r"^.*?(?=<svg)", "", text.getvalue(), flags=re.DOTALL)
