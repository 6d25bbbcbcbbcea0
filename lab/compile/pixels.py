"""The pixel formats the compiler can unpack: which byte of which plane is which colour component of a pixel.

Names, planes and strides are the camera ABI's (`abi.format`): RGB24 has bytes R, G, B in memory. Chroma is subsampled
2x2 and odd sizes round up, so that the last column and row have their own chroma sample (cases/frames.md row 19).
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Component:
    """One colour component of a format: sample (x, y) is byte `offset + (x >> shift) * step` of row `y >> shift`."""

    plane: int
    offset: int
    step: int
    shift: int


@dataclass(frozen=True)
class Unpacking:
    """A format's three components, in the order Y, Cb, Cr or R, G, B."""

    components: tuple[Component, Component, Component]
    is_rgb: bool


_Y = Component(0, 0, 1, 0)
FORMATS: dict[str, Unpacking] = {
    "NV12": Unpacking((_Y, Component(1, 0, 2, 1), Component(1, 1, 2, 1)), False),
    "NV21": Unpacking((_Y, Component(1, 1, 2, 1), Component(1, 0, 2, 1)), False),
    "YU12": Unpacking((_Y, Component(1, 0, 1, 1), Component(2, 0, 1, 1)), False),
    "RGB24": Unpacking((Component(0, 0, 3, 0), Component(0, 1, 3, 0), Component(0, 2, 3, 0)), True),
    "BGR24": Unpacking((Component(0, 2, 3, 0), Component(0, 1, 3, 0), Component(0, 0, 3, 0)), True),
}


def coefficients(matrix: str) -> tuple[float, float]:
    """Kr and Kb of a matrix, by ITU-R BT.601-7 §2.5.1, BT.709-6 §3.2 and BT.2020-2 Table 4 (non-constant luminance)."""
    return {"bt601": (0.299, 0.114), "bt709": (0.2126, 0.0722), "bt2020nc": (0.2627, 0.0593)}[matrix]
