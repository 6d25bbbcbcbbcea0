"""Decoded pictures as samples, and how they lie in a frame's buffer: only ever moved, never converted.

A picture is of one family; each family is held without loss by some formats of the ABI's table. `pack` writes samples
into a buffer of such a format, strides and padding as the format says (padding is zero).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from abi.stream_format import StreamFormat

__all__ = ["LAYOUTS", "Family", "Samples", "pack"]


class Family(Enum):
    """What the samples of a picture are."""

    YUV420 = "Y, Cb, Cr of 8 bits, a 2x2 block sharing its chroma"
    YUV422 = "Y, Cb, Cr of 8 bits, two pixels of a row sharing their chroma"
    RGB = "R, G, B of 8 bits"
    MONO8 = "one sample of 8 bits: grey or a mosaic"
    MONO10 = "one sample of 10 bits"
    MONO12 = "one sample of 12 bits"
    MONO16 = "one sample in 16 bits, of which the format says how many count"


LAYOUTS: Final[dict[Family, tuple[str, ...]]] = {
    Family.YUV420: ("NV12", "NV21", "YU12"),
    Family.YUV422: ("YUYV", "UYVY"),
    Family.RGB: ("RGB24", "BGR24", "ABGR8888", "XRGB8888"),
    Family.MONO8: ("R8",),
    Family.MONO10: ("R10",),
    Family.MONO12: ("R12",),
    Family.MONO16: ("R16", "R12", "R10"),
}

_ORDERS = {"RGB24": (0, 1, 2), "BGR24": (2, 1, 0), "ABGR8888": (0, 1, 2), "XRGB8888": (2, 1, 0)}


@dataclass(frozen=True)
class Samples:
    """One picture. `planes`: Y [rows, columns], Cb and Cr of the shared chroma (rounded up); [rows, columns, 3] of RGB;
    or [rows, columns] of one sample, uint8 or uint16.
    """

    family: Family
    planes: tuple[NDArray[Any], ...]

    @property
    def size(self) -> tuple[int, int]:
        """Width and height in pixels."""
        rows, columns = self.planes[0].shape[:2]
        return columns, rows


def pack(samples: Samples, format: StreamFormat) -> NDArray[np.uint8]:
    """uint8 [bufferBytes] that holds the picture. `format` must be one of the family's, and of the picture's size."""
    name, buffer = format.pixel.name, np.zeros(format.buffer_bytes, np.uint8)
    assert name in LAYOUTS[samples.family]
    assert samples.size == (format.width, format.height)
    for plane, rows in zip(format.planes, _rows(samples, name), strict=True):
        flat = buffer[plane.offset : plane.offset + plane.size_bytes]
        whole = np.lib.stride_tricks.as_strided(flat, (plane.rows, rows.shape[1]), (plane.stride, 1))
        whole[:] = rows
    return buffer


def _rows(samples: Samples, name: str) -> list[NDArray[np.uint8]]:
    """Each plane of a format as uint8 [rows, bytes of a row]."""
    planes = samples.planes
    match samples.family:
        case Family.YUV420:
            luma, blue, red = planes
            if name == "YU12":
                return [luma, blue, red]
            pair = (blue, red) if name == "NV12" else (red, blue)
            return [luma, np.stack(pair, axis=2).reshape(blue.shape[0], -1)]
        case Family.YUV422:
            luma, blue, red = planes
            even, odd = luma[:, 0::2], luma[:, 1::2]
            if odd.shape != even.shape:  # an odd width: its last pixel stands twice in the last block
                odd = np.concatenate([odd, even[:, -1:]], axis=1)
            order = (even, blue, odd, red) if name == "YUYV" else (blue, even, red, odd)
            return [np.stack(order, axis=2).reshape(luma.shape[0], -1)]
        case Family.RGB:
            (picture,) = planes
            shown = picture[:, :, list(_ORDERS[name])]
            if name in ("ABGR8888", "XRGB8888"):
                shown = np.concatenate([shown, np.full((*shown.shape[:2], 1), 255, np.uint8)], axis=2)
            return [shown.reshape(shown.shape[0], -1)]
        case _:
            (picture,) = planes
            wide = picture if samples.family is Family.MONO8 else picture.astype("<u2", copy=False)
            return [np.ascontiguousarray(wide).view(np.uint8).reshape(wide.shape[0], -1)]
