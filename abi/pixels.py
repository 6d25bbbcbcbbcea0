"""The pixel formats of the ABI, as data.

A format is a list of planes; a plane's row is made of blocks of `block_pixels` samples in `block_bytes` bytes, after
subsampling by (`step_x`, `step_y`). Names and codes are those of DRM (`drm_fourcc.h`) or, for names that DRM does
not have (RGB24, BGR24, packed Bayer such as SBGGR10P), of V4L2 (`videodev2.h`). Mind that DRM names the order in
a little-endian word: ABGR8888 lies in memory as R, G, B, A. A packed Bayer code fixes the mosaic's order.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from abi.colour import CfaOrder

__all__ = ["PIXEL_FORMATS", "ColourModel", "PixelFormat", "PlaneShape", "fourcc", "pixel_format"]


class ColourModel(Enum):
    """What the samples are, which decides the colour fields that make sense."""

    YUV = "luma and subsampled colour difference"
    RGB = "red, green and blue in each pixel"
    MONO = "one sample a pixel: grey, or a Bayer mosaic"
    BAYER = "packed Bayer mosaic in the order that the code names"


@dataclass(frozen=True)
class PlaneShape:
    """How one plane's rows are built. `step_x`, `step_y`: luma pixels and rows that one sample covers."""

    block_bytes: int
    block_pixels: int = 1
    step_x: int = 1
    step_y: int = 1

    def row_bytes(self, width: int) -> int:
        """Bytes of one row of a picture `width` pixels wide; odd widths round up."""
        samples = -(-width // self.step_x)
        return -(-samples // self.block_pixels) * self.block_bytes

    def rows(self, height: int) -> int:
        """Rows of a picture `height` pixels high; odd heights round up."""
        return -(-height // self.step_y)


@dataclass(frozen=True)
class PixelFormat:
    """One row of the table. `bits` are the significant bits of a sample, `cfa` the order a Bayer code names."""

    name: str
    fourcc: int
    model: ColourModel
    bits: int
    planes: tuple[PlaneShape, ...]
    cfa: CfaOrder = CfaOrder.NONE


def fourcc(code: str) -> int:
    """The u32 of four ASCII characters, first one lowest (`fourcc_code` in drm_fourcc.h)."""
    return int.from_bytes(code.encode("ascii"), "little")


_LUMA = PlaneShape(1)
_HALF = PlaneShape(1, step_x=2, step_y=2)
_HALF_PAIRS = PlaneShape(2, step_x=2, step_y=2)
_RAW10 = (PlaneShape(5, block_pixels=4),)
_RAW12 = (PlaneShape(3, block_pixels=2),)


def _table() -> dict[str, PixelFormat]:
    yuv, rgb, mono, bayer = ColourModel.YUV, ColourModel.RGB, ColourModel.MONO, ColourModel.BAYER
    rows = [
        PixelFormat("NV12", fourcc("NV12"), yuv, 8, (_LUMA, _HALF_PAIRS)),  # Y; Cb, Cr pairs
        PixelFormat("NV21", fourcc("NV21"), yuv, 8, (_LUMA, _HALF_PAIRS)),  # Y; Cr, Cb pairs
        PixelFormat("YU12", fourcc("YU12"), yuv, 8, (_LUMA, _HALF, _HALF)),  # Y; Cb; Cr (I420)
        PixelFormat("YUYV", fourcc("YUYV"), yuv, 8, (PlaneShape(4, block_pixels=2),)),  # Y0 Cb Y1 Cr
        PixelFormat("UYVY", fourcc("UYVY"), yuv, 8, (PlaneShape(4, block_pixels=2),)),  # Cb Y0 Cr Y1
        PixelFormat("RGB24", fourcc("RGB3"), rgb, 8, (PlaneShape(3),)),  # V4L2: in memory R, G, B
        PixelFormat("BGR24", fourcc("BGR3"), rgb, 8, (PlaneShape(3),)),  # V4L2: in memory B, G, R
        PixelFormat("ABGR8888", fourcc("AB24"), rgb, 8, (PlaneShape(4),)),  # in memory R, G, B, A
        PixelFormat("XRGB8888", fourcc("XR24"), rgb, 8, (PlaneShape(4),)),  # in memory B, G, R, x
        PixelFormat("R8", fourcc("R8  "), mono, 8, (PlaneShape(1),)),
        PixelFormat("R10", fourcc("R10 "), mono, 10, (PlaneShape(2),)),  # low bits of a little-endian u16
        PixelFormat("R12", fourcc("R12 "), mono, 12, (PlaneShape(2),)),
        PixelFormat("R16", fourcc("R16 "), mono, 16, (PlaneShape(2),)),
        # MIPI CSI-2 packing: the high 8 bits of 4 (or 2) samples, then one byte of their low bits.
        PixelFormat("SRGGB10P", fourcc("pRAA"), bayer, 10, _RAW10, CfaOrder.RGGB),
        PixelFormat("SGRBG10P", fourcc("pgAA"), bayer, 10, _RAW10, CfaOrder.GRBG),
        PixelFormat("SGBRG10P", fourcc("pGAA"), bayer, 10, _RAW10, CfaOrder.GBRG),
        PixelFormat("SBGGR10P", fourcc("pBAA"), bayer, 10, _RAW10, CfaOrder.BGGR),
        PixelFormat("SRGGB12P", fourcc("pRCC"), bayer, 12, _RAW12, CfaOrder.RGGB),
        PixelFormat("SGRBG12P", fourcc("pgCC"), bayer, 12, _RAW12, CfaOrder.GRBG),
        PixelFormat("SGBRG12P", fourcc("pGCC"), bayer, 12, _RAW12, CfaOrder.GBRG),
        PixelFormat("SBGGR12P", fourcc("pBCC"), bayer, 12, _RAW12, CfaOrder.BGGR),
    ]
    return {row.name: row for row in rows}


PIXEL_FORMATS = _table()
_BY_FOURCC = {row.fourcc: row for row in PIXEL_FORMATS.values()}


def pixel_format(code: int) -> PixelFormat | None:
    """The format of a fourcc, or None when the ABI does not know it."""
    return _BY_FOURCC.get(code)
