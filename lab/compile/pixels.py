"""The pixel formats the compiler can unpack, and where their samples lie in a buffer.

Names and byte orders are the camera ABI's (`abi.format`): RGB24 has bytes R, G, B in memory. Chroma is subsampled
2x2 and odd sizes round up, so that the last column and row have their own chroma sample (cases/frames.md row 19).
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class PlaneLayout:
    """Where one plane lies in the frame's buffer, in bytes."""

    offset: int
    stride: int
    """Bytes from one row to the next."""
    rows: int
    """Rows of valid samples."""
    size_bytes: int
    """With the padding rows below the valid ones."""


@dataclass(frozen=True)
class Component:
    """One colour component of a format: sample (x, y) is byte `offset + (x >> shift) * step` of row `y >> shift`."""

    plane: int
    offset: int
    step: int
    shift: int


@dataclass(frozen=True)
class PixelFormat:
    """A format's three components in the order Y, Cb, Cr or R, G, B, and the row width of each plane."""

    components: tuple[Component, Component, Component]
    is_rgb: bool
    plane_shift: tuple[int, ...]
    """Per plane: 1 where it is subsampled 2x2."""
    bytes_per_column: tuple[int, ...]
    """Per plane: bytes of one (subsampled) column."""


_Y = Component(0, 0, 1, 0)
FORMATS: dict[str, PixelFormat] = {
    "NV12": PixelFormat((_Y, Component(1, 0, 2, 1), Component(1, 1, 2, 1)), False, (0, 1), (1, 2)),
    "NV21": PixelFormat((_Y, Component(1, 1, 2, 1), Component(1, 0, 2, 1)), False, (0, 1), (1, 2)),
    "YU12": PixelFormat((_Y, Component(1, 0, 1, 1), Component(2, 0, 1, 1)), False, (0, 1, 1), (1, 1, 1)),
    "RGB24": PixelFormat((Component(0, 0, 3, 0), Component(0, 1, 3, 0), Component(0, 2, 3, 0)), True, (0,), (3,)),
    "BGR24": PixelFormat((Component(0, 2, 3, 0), Component(0, 1, 3, 0), Component(0, 0, 3, 0)), True, (0,), (3,)),
}


def row_bytes(fmt: PixelFormat, plane: int, width: int) -> int:
    """Bytes of one row of `plane` for a picture `width` luma pixels wide, without padding."""
    shift = fmt.plane_shift[plane]
    return ((width + shift) >> shift) * fmt.bytes_per_column[plane]


def plane_layout(fmt: PixelFormat, width: int, height: int, stride: int, rows: int) -> tuple[PlaneLayout, ...]:
    """The planes one after another: `stride` bytes and `rows` allocated rows in plane 0, the others in proportion.

    A subsampled plane has half the allocated rows (rounded up), and half the stride (rounded up) if its columns are
    half as many bytes as plane 0's (YU12); interleaved chroma has plane 0's stride.
    """
    planes: list[PlaneLayout] = []
    offset = 0
    for index, shift in enumerate(fmt.plane_shift):
        same = row_bytes(fmt, index, 2) == row_bytes(fmt, 0, 2)
        plane_stride = stride if same else (stride + 1) >> 1
        # an odd width rounds interleaved chroma up to one byte more than the luma row
        plane_stride = max(plane_stride, row_bytes(fmt, index, width))
        size = plane_stride * ((rows + shift) >> shift)
        planes.append(PlaneLayout(offset, plane_stride, (height + shift) >> shift, size))
        offset += size
    return tuple(planes)


def coefficients(matrix: str) -> tuple[float, float]:
    """Kr and Kb of a matrix, by ITU-R BT.601-7 §2.5.1, BT.709-6 §3.2 and BT.2020-2 Table 4 (non-constant luminance)."""
    return {"bt601": (0.299, 0.114), "bt709": (0.2126, 0.0722), "bt2020nc": (0.2627, 0.0593)}[matrix]
