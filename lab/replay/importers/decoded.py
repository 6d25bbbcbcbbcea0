"""Frames that PyAV decoded: their samples as they are, and what the coded stream says of their colour (ITU-T H.273).

A pixel format that no format of the ABI holds without loss (4:4:4, more than 8 bits of colour) is refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from abi.colour import ChromaSite, Matrix, Primaries, Range, Transfer
from lab.replay.importers.contract import Stated
from lab.replay.importers.samples import Family, Samples
from lab.replay.refusal import LogRefusal, LogRefused

__all__ = ["JPEG", "samples_of", "stated_by"]

_YUV: Final = {"yuv420p": Family.YUV420, "yuvj420p": Family.YUV420, "yuv422p": Family.YUV422, "yuvj422p": Family.YUV422}
_RGB: Final = {
    "rgb24": (0, 1, 2), "rgba": (0, 1, 2), "rgb0": (0, 1, 2), "bgr24": (2, 1, 0), "bgra": (2, 1, 0), "bgr0": (2, 1, 0),
}  # fmt: skip
_MONO: Final = {
    "gray": Family.MONO8, "gray10le": Family.MONO10, "gray12le": Family.MONO12, "gray16le": Family.MONO16,
    "gray16be": Family.MONO16,
}  # fmt: skip
_H273: Final[dict[str, dict[int, IntEnum]]] = {
    "matrix": {0: Matrix.IDENTITY, 1: Matrix.BT709, 5: Matrix.BT601, 6: Matrix.BT601, 9: Matrix.BT2020NC},
    "primaries": {1: Primaries.BT709, 5: Primaries.BT601_LINE625, 6: Primaries.BT601_LINE525,
                  7: Primaries.BT601_LINE525, 9: Primaries.BT2020},
    # 6, 14 and 15 are the function of 1 (H.273 table 3).
    "transfer": {1: Transfer.BT709, 6: Transfer.BT709, 8: Transfer.LINEAR, 13: Transfer.SRGB, 14: Transfer.BT709,
                 15: Transfer.BT709, 16: Transfer.PQ, 18: Transfer.HLG},
}  # fmt: skip
_ATTRIBUTES: Final = {"matrix": "colorspace", "primaries": "color_primaries", "transfer": "color_trc"}
_BY = "the coded stream"
JPEG: Final = {
    "range": Stated(Range.FULL, "JFIF (ITU-T T.871)"), "matrix": Stated(Matrix.BT601, "JFIF (ITU-T T.871)"),
    "chroma_site": Stated(ChromaSite.CENTER, "JFIF (ITU-T T.871)"),
}  # fmt: skip
"""What every JPEG file of colour is, by its standard."""


def samples_of(frame: Any, what: str) -> Samples:
    """The samples of an av.VideoFrame, `what` in a refusal; alpha is left out. Raises LogRefused (PICTURES)."""
    name = frame.format.name
    if name == "pal8":  # a table of colours: looking them up loses nothing
        frame, name = frame.reformat(format="rgb24"), "rgb24"
    if name in _YUV:
        width, height = frame.width, frame.height
        rows = -(-height // 2) if _YUV[name] is Family.YUV420 else height
        sizes = [(height, width), *2 * [(rows, -(-width // 2))]]
        planes = (_plane(plane, *size) for plane, size in zip(frame.planes, sizes, strict=True))
        return Samples(_YUV[name], tuple(planes))
    if name == "nv12":
        half = _plane(frame.planes[1], -(-frame.height // 2), 2 * -(-frame.width // 2))
        luma = _plane(frame.planes[0], frame.height, frame.width)
        return Samples(Family.YUV420, (luma, half[:, 0::2], half[:, 1::2]))
    if name == "gbrp":
        green, blue, red = (_plane(plane, frame.height, frame.width) for plane in frame.planes)
        return Samples(Family.RGB, (np.stack([red, green, blue], axis=2),))
    if name in _RGB:
        depth = 3 if name.endswith("24") else 4
        flat = _plane(frame.planes[0], frame.height, frame.width * depth)
        return Samples(Family.RGB, (flat.reshape(frame.height, frame.width, depth)[:, :, list(_RGB[name])],))
    if name in _MONO:
        if _MONO[name] is Family.MONO8:
            return Samples(Family.MONO8, (_plane(frame.planes[0], frame.height, frame.width),))
        wide = _plane(frame.planes[0], frame.height, 2 * frame.width)
        return Samples(_MONO[name], (np.ascontiguousarray(wide).view(">u2" if name.endswith("be") else "<u2"),))
    raise LogRefused(
        LogRefusal.PICTURES, what, expected=f"one of {', '.join((*_YUV, *_RGB, *_MONO, 'nv12', 'gbrp', 'pal8'))}",
        found=name, todo="no format of docs/pixel-formats.md holds these without loss: convert the file yourself first",
    )  # fmt: skip


def _plane(plane: Any, rows: int, row_bytes: int) -> NDArray[np.uint8]:
    return np.frombuffer(plane, np.uint8).reshape(-1, plane.line_size)[:rows, :row_bytes]


def stated_by(frame: Any, family: Family) -> Mapping[str, Stated]:
    """What the stream of a decoded frame says; a value that the ABI has no name for counts as not said."""
    found: dict[str, Stated] = {}
    ranges = {1: Range.LIMITED, 2: Range.FULL}
    if frame.format.name.startswith("yuvj"):
        found["range"] = Stated(Range.FULL, f"{_BY}, {frame.format.name}")
    elif int(frame.color_range) in ranges:
        found["range"] = Stated(ranges[int(frame.color_range)], _BY)
    for field, attribute in _ATTRIBUTES.items():
        value = _H273[field].get(int(getattr(frame, attribute)))
        if value is not None and not (field == "matrix" and family not in (Family.YUV420, Family.YUV422)):
            found[field] = Stated(value, f"{_BY}, {attribute} {int(getattr(frame, attribute))}")
    return found
