"""Frames of a log as pictures with what the model said drawn on them, as JPEG inside the page.

An output whose unit is `px` lies on the picture: [..., 2] are points, [..., 4] the left, upper, right and lower edge
of boxes. Every other scalar is a gauge below the picture, as wide as the largest that is shown; longer ones are a curve
of their elements; a lane on the synthetic road lies on the ground. What was wanted is orange, what was found blue.
"""

from __future__ import annotations

import base64
import io
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from numpy.typing import NDArray

from abi import messages
from abi.flat import RESULT, SUBMIT
from abi.messages import OpenStream, Subscribed
from abi.packet import Kind
from abi.receipt import Receipt
from abi.stream_format import StreamFormat
from lab.hil.html import INK, ORANGE
from lab.replay.compare import Arrays, arrays_of
from lab.replay.log import LogReader
from lab.replay.page_lane import draw_lane
from lab.replay.picture import rgb_of
from lab.replay.played import owner

__all__ = ["Shown", "draw", "find"]

WIDE = 7.0
PICTURE_PIXELS = 800
"""Wider pictures are shown in steps of whole pixels."""
GAUGES, CURVES, MARKS = 8, 3, 64
"""Of the outputs of a frame, at most so many are drawn; the table below it has the others."""
CURVE_ELEMENTS = 256
FOUND, WANTED = INK, ORANGE


@dataclass(frozen=True)
class Shown:
    """A frame that a result was computed from: the first of its run's frames, and the logged outputs."""

    model: str
    sequence: int
    stream: str
    format: StreamFormat | None
    picture: NDArray[np.uint8] | None
    """uint8 RGB of the crop; format and picture are None where the pixels are not in the log."""
    outputs: Mapping[str, NDArray[Any]]


def find(reader: LogReader, wanted: Iterable[tuple[str, int]]) -> dict[tuple[str, int], Shown]:
    """The frames behind results, by model and sequence; one pass over the log. An empty model: whichever has it."""
    missing = dict.fromkeys(wanted)
    sequences = {sequence for _, sequence in missing}
    formats: dict[str, StreamFormat] = {}
    layouts: dict[str, Subscribed] = {}
    pixels: dict[tuple[int, int], tuple[str, bytes]] = {}
    found: dict[tuple[str, int], Shown] = {}
    submit = (0, 0)
    pending: tuple[str, Receipt] | None = None
    for message in reader.messages() if missing else ():
        kind = message.kind
        if kind == "format":
            opened = messages.decode(Kind.OPEN_STREAM, message.data)
            assert isinstance(opened, OpenStream)
            formats[owner(message)] = opened.format
        elif kind == "layout":
            layout = messages.decode(Kind.SUBSCRIBED, message.data)
            assert isinstance(layout, Subscribed)
            layouts[owner(message)] = layout
        elif kind == "submit":
            one = SUBMIT.unpack(message.data)
            submit = one.sequence, one.sof_ns
        elif kind == "pixels" and submit[0] in sequences:
            pixels[submit] = owner(message), message.data
        elif kind == "result":
            pending = owner(message), Receipt.from_result(RESULT.unpack(message.data))
        elif kind == "outputs" and pending is not None:
            model, receipt = pending
            frame = receipt.frames[0]
            key = next((one for one in ((model, frame.sequence), ("", frame.sequence)) if one in missing), None)
            if key is None:
                continue
            stream, data = pixels.get((frame.sequence, frame.sof_ns), ("", b""))
            outputs = arrays_of(layouts[model].outputs, message.data)
            format = formats[stream] if data else None
            picture = None if format is None else rgb_of(data, format)
            found[key] = Shown(model, frame.sequence, stream, format, picture, outputs)
            del missing[key]
            if not missing:
                break
    return found


def draw(shown: Shown, found: Arrays | None, spans: Mapping[str, float], units: Mapping[str, str]) -> str:
    """The picture as an `<img>` element. `found`: what the replay gave (None: the same); `spans`: of each scalar the
    largest magnitude in the drive.
    """
    gauges, curves, marks = _sorted(shown.outputs, units)
    rows = len(gauges) + 3 * len(curves)
    picture = shown.picture
    height = 0.3 if picture is None else WIDE * picture.shape[0] / picture.shape[1]
    figure = Figure(figsize=(WIDE, height + 0.3 * rows + 0.15), layout="constrained")
    ratios = [height, *(0.3 for _ in gauges), *(0.9 for _ in curves)]
    cells = figure.subplots(len(ratios), 1, height_ratios=ratios, squeeze=False)[:, 0]
    _show_picture(cells[0], shown, found, marks)
    for axes, name in zip(cells[1:], gauges, strict=False):
        _gauge(axes, name, units.get(name, ""), shown.outputs[name], _of(found, name),
               span=spans.get(name, 0.0))  # fmt: skip
    for axes, name in zip(cells[1 + len(gauges) :], curves, strict=True):
        _curve(axes, name, units.get(name, ""), shown.outputs[name], _of(found, name))
    data = io.BytesIO()
    with mpl.rc_context({"savefig.facecolor": "white"}):
        figure.savefig(data, format="jpeg", dpi=100, pil_kwargs={"quality": 82, "subsampling": 0})
    text = base64.b64encode(data.getvalue()).decode("ascii")
    return f'<img alt="frame {shown.sequence}" src="data:image/jpeg;base64,{text}">'


def _of(found: Arrays | None, name: str) -> NDArray[Any] | None:
    return None if found is None else found.get(name)


def _sorted(outputs: Mapping[str, NDArray[Any]], units: Mapping[str, str]) -> tuple[list[str], list[str], list[str]]:
    """Names of gauges, of curves, and of what lies on the picture."""
    marks = [name for name, one in outputs.items()
             if units.get(name) == "px" and one.ndim and one.shape[-1] in (2, 4)]  # fmt: skip
    others = [name for name in outputs if name not in marks]
    gauges = [name for name in others if outputs[name].size == 1]
    return gauges[:GAUGES], [name for name in others if outputs[name].size > 1][:CURVES], marks


def _show_picture(axes: Axes, shown: Shown, found: Arrays | None, marks: Sequence[str]) -> None:
    axes.set_axis_off()
    if shown.picture is None or shown.format is None:
        axes.text(0, 0, "The pixels of this frame are not in the log.", fontsize=10)
        return
    rows, columns = shown.picture.shape[:2]
    step = max(1, -(-columns // PICTURE_PIXELS))
    axes.imshow(shown.picture[::step, ::step], extent=(0, columns, rows, 0), interpolation="antialiased")
    for outputs, colour, line in ((shown.outputs, WANTED, 3.4), (found or {}, FOUND, 1.4)):
        draw_lane(axes, shown.format, outputs, colour, line)
        for name in marks:
            if name in outputs:
                _mark(axes, outputs[name], colour, line)
    axes.set(xlim=(0, columns), ylim=(rows, 0))


def _mark(axes: Axes, places: NDArray[Any], colour: str, line: float) -> None:
    width = places.shape[-1]
    flat = places.reshape(-1, width)[:MARKS].astype(np.float64)
    if width == 2:
        axes.plot(flat[:, 0], flat[:, 1], linestyle="", marker="o", markersize=2 + 2 * line, markerfacecolor="none",
                  markeredgecolor=colour, markeredgewidth=line)  # fmt: skip
        return
    for left, top, right, bottom in flat:
        box = Rectangle((left, top), right - left, bottom - top, fill=False, edgecolor=colour, linewidth=line)
        axes.add_patch(box)


def _gauge(axes: Axes, name: str, unit: str, wanted: NDArray[Any], found: NDArray[Any] | None, *,
           span: float) -> None:  # fmt: skip
    """A scalar on its own scale, zero in the middle where it has a sign."""
    logged = float(wanted.reshape(-1)[0])
    now = None if found is None or found.size != 1 else float(found.reshape(-1)[0])
    finite = [abs(one) for one in (logged, now, span) if one is not None and np.isfinite(one)]
    limit = max([*finite, 1e-12]) * 1.05
    axes.set(xlim=(-limit, limit), ylim=(0, 1))
    axes.set_axis_off()
    axes.axhline(0.5, color="#dde3ea", linewidth=7, solid_capstyle="round", zorder=0)
    axes.axvline(0, 0.2, 0.8, color="#8a97a6", linewidth=0.8)
    axes.plot([logged], [0.5], marker="o", markersize=10, color=WANTED, clip_on=False)
    text = f"{name}  {logged:+.5g} {unit}"
    if now is not None:
        axes.plot([now], [0.5], marker="o", markersize=5, color=FOUND, clip_on=False)
        text += f"   found {now:+.5g}"
    axes.text(-limit, 1.0, text, fontsize=8, va="center")
    axes.text(limit, 1.0, f"±{limit / 1.05:.3g}", fontsize=7, va="center", ha="right", color="#5b6b7b")


def _curve(axes: Axes, name: str, unit: str, wanted: NDArray[Any], found: NDArray[Any] | None) -> None:
    """The elements one after another; of many those around the largest difference."""
    flat = wanted.reshape(-1).astype(np.float64)
    other = None if found is None or found.shape != wanted.shape else found.reshape(-1).astype(np.float64)
    begin = 0
    if flat.size > CURVE_ELEMENTS and other is not None:
        apart = np.nan_to_num(np.abs(other - flat), nan=np.inf)
        begin = max(0, min(int(apart.argmax()) - CURVE_ELEMENTS // 2, flat.size - CURVE_ELEMENTS))
    shown = slice(begin, begin + CURVE_ELEMENTS)
    at = np.arange(flat.size)[shown]
    axes.plot(at, flat[shown], color=WANTED, linewidth=2.6)
    if other is not None:
        axes.plot(at, other[shown], color=FOUND, linewidth=1)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    axes.tick_params(labelsize=7)
    part = "" if flat.size <= CURVE_ELEMENTS else f", elements {at[0]} to {at[-1]} of {flat.size}"
    axes.set_title(f"{name} [{unit}]{part}", fontsize=8, loc="left", pad=2)
