"""The pixel formats the compiler can unpack: which bits of which bytes of which plane are a sample of which component.

One entry for each format of the camera ABI's table (`abi.pixels`), whose names, planes and strides these are. Chroma
that is subsampled covers 2x2 or 2x1 luma pixels and odd sizes round up, so that the last column and row have their own
chroma sample (cases/frames.md row 19). Packed Bayer is MIPI CSI-2's packing as V4L2 describes it (SRGGB10P, SRGGB12P):
the high eight bits of each sample of a block, then one byte of their low bits, the first sample's lowest.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from abi.pixels import PIXEL_FORMATS, ColourModel


@dataclass(frozen=True)
class Bits:
    """Some bits of a sample. For pixel x they are in byte `offset + (x // pixels) * step + (x % pixels) * spread` of
    its row: `((byte >> turns[x % pixels]) & mask) << rise`. `turns` is as long as `pixels`, or has one entry for all.
    """

    offset: int
    step: int
    pixels: int = 1
    spread: int = 0
    turns: tuple[int, ...] = (0,)
    mask: int = 0xFF
    rise: int = 0


@dataclass(frozen=True)
class Component:
    """One component of a format: sample (x, y) is the sum of its `bits`, in row `y // rows` of `plane`."""

    plane: int
    bits: tuple[Bits, ...]
    rows: int = 1


@dataclass(frozen=True)
class Unpacking:
    """A format's components in the order Y, Cb, Cr or R, G, B, or the only one; `depth` bits a sample."""

    model: ColourModel
    components: tuple[Component, ...]
    depth: int

    @property
    def is_yuv(self) -> bool:
        """Luma and colour difference: a matrix applies."""
        return self.model is ColourModel.YUV

    @property
    def is_rgb(self) -> bool:
        """Red, green and blue in every pixel."""
        return self.model is ColourModel.RGB

    @property
    def white(self) -> int:
        """The largest code value."""
        return (1 << self.depth) - 1


def _bytes(plane: int, offset: int, step: int, pixels: int = 1, rows: int = 1) -> Component:
    """A component of one whole byte a sample; `pixels` x `rows` luma pixels share it."""
    return Component(plane, (Bits(offset, step, pixels),), rows)


_Y = _bytes(0, 0, 1)
_RAW10 = (Bits(0, 5, 4, spread=1, rise=2), Bits(4, 5, 4, turns=(0, 2, 4, 6), mask=3))
_RAW12 = (Bits(0, 3, 2, spread=1, rise=4), Bits(2, 3, 2, turns=(0, 4), mask=15))


def _words(depth: int) -> tuple[Bits, ...]:
    """The low `depth` bits of a little-endian u16; what stands above them means nothing (drm_fourcc.h, `x:R`)."""
    return (Bits(0, 2), Bits(1, 2, mask=(1 << (depth - 8)) - 1, rise=8))


_COMPONENTS: dict[str, tuple[Component, ...]] = {
    "NV12": (_Y, _bytes(1, 0, 2, 2, 2), _bytes(1, 1, 2, 2, 2)),
    "NV21": (_Y, _bytes(1, 1, 2, 2, 2), _bytes(1, 0, 2, 2, 2)),
    "YU12": (_Y, _bytes(1, 0, 1, 2, 2), _bytes(2, 0, 1, 2, 2)),
    "YUYV": (_bytes(0, 0, 2), _bytes(0, 1, 4, 2), _bytes(0, 3, 4, 2)),
    "UYVY": (_bytes(0, 1, 2), _bytes(0, 0, 4, 2), _bytes(0, 2, 4, 2)),
    "RGB24": (_bytes(0, 0, 3), _bytes(0, 1, 3), _bytes(0, 2, 3)),
    "BGR24": (_bytes(0, 2, 3), _bytes(0, 1, 3), _bytes(0, 0, 3)),
    "ABGR8888": (_bytes(0, 0, 4), _bytes(0, 1, 4), _bytes(0, 2, 4)),
    "XRGB8888": (_bytes(0, 2, 4), _bytes(0, 1, 4), _bytes(0, 0, 4)),
    "R8": (_Y,),
    "R10": (Component(0, _words(10)),),
    "R12": (Component(0, _words(12)),),
    "R16": (Component(0, _words(16)),),
}


def _formats() -> Iterator[tuple[str, Unpacking]]:
    packed = {10: (Component(0, _RAW10),), 12: (Component(0, _RAW12),)}
    for name, pixel in PIXEL_FORMATS.items():
        components = packed[pixel.bits] if pixel.model is ColourModel.BAYER else _COMPONENTS[name]
        yield name, Unpacking(pixel.model, components, pixel.bits)


FORMATS = dict(_formats())


def coefficients(matrix: str) -> tuple[float, float]:
    """Kr and Kb of a matrix, by ITU-R BT.601-7 §2.5.1, BT.709-6 §3.2 and BT.2020-2 Table 4 (non-constant luminance)."""
    return {"bt601": (0.299, 0.114), "bt709": (0.2126, 0.0722), "bt2020nc": (0.2627, 0.0593)}[matrix]


def levels(range_: str, depth: int) -> tuple[float, float]:
    """Black level, and the factor that brings black..white to 0..2^depth - 1: luma, grey, or each of R, G and B.

    Limited range is 16..235 times 2^(depth - 8) (ITU-R BT.709-6 §4.6; ITU-T H.273 §8.3 for R'G'B' likewise).
    """
    if range_ == "full":
        return 0.0, 1.0
    return float(16 << (depth - 8)), ((1 << depth) - 1) / (219 << (depth - 8))
