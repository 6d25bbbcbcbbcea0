"""The zeros around a picture that a convolution pads: they stand in memory, so that its taps test no border.

A value that such a convolution reads is written into the middle of a buffer, by the kernel that computes it, and the
edges are filled after it; the convolution reads the whole buffer and everything else the middle. In that order,
because tinygrad's capture drops launches that depend on no input, unless what they write has been written before.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, dataclass
from typing import Any

from tinygrad import Tensor


@dataclass(frozen=True)
class Border:
    """Rows and columns of zeros on each side."""

    top: int
    left: int
    bottom: int
    right: int


def border_of(node: Any) -> Border | None:
    """What a convolution pads its input with; None for no padding, and for other operators."""
    pads = node.opts.get("pads") or ()
    if node.op != "Conv" or len(pads) != 4 or not any(pads) or node.opts.get("auto_pad", "NOTSET") != "NOTSET":
        return None
    return Border(*pads)


def widest(borders: Sequence[Border]) -> Border | None:
    """What holds each of them; None for none."""
    return Border(*map(max, zip(*map(astuple, borders), strict=True))) if borders else None


def write_bordered(value: Any, border: Border) -> Any:
    """`value`, a picture [1, C, H, W], channels last in memory with its border."""
    _, channels, high, wide = value.shape
    rows, columns = border.top + high + border.bottom, border.left + wide + border.right
    memory: Any = Tensor.empty(1, rows, columns, channels, dtype=value.dtype)
    picture = memory.shrink((None, (border.top, border.top + high), (border.left, border.left + wide), None))
    picture.assign(value.permute(0, 2, 3, 1))  # loops over rows outside, which threads share
    flat = memory.reshape(rows * columns, channels)
    beside = border.left + border.right  # of neighbouring rows, side by side in memory
    first, last = border.top * columns + border.left, border.right + border.bottom * columns
    between = flat.shrink(((first + wide, first + wide + (high - 1) * columns), None))
    strips = (
        flat.shrink(((0, first), None)),
        flat.shrink(((rows * columns - last, rows * columns), None)),
        between.reshape(high - 1, columns, channels).shrink((None, (0, beside), None)),
    )
    for strip in strips:
        if strip.numel():
            strip.assign(0.0)
    return memory.permute(0, 3, 1, 2)


def middle(picture: Any, border: Border, wanted: Border = Border(0, 0, 0, 0)) -> Any:
    """The picture without its border, or with as much of it as is wanted."""
    high, wide = picture.shape[2:]
    rows = (border.top - wanted.top, high - border.bottom + wanted.bottom)
    return picture.shrink((None, None, rows, (border.left - wanted.left, wide - border.right + wanted.right)))
