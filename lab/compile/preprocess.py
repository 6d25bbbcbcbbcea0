"""Preprocessing on the device: the tinygrad form of `lab.compile.reference`, captured with the model.

Only the pixels that the bilinear resize reads are unpacked and converted. Where their places follow a rule they are a
view of the frame (`lab.compile.strided`); else they are gathered from its bytes by index tables (row starts and column
offsets) that become weights of the bundle. tinygrad turns that indexing into plain loads, each clamped to what its
table holds, so no kernel walks the whole picture. An axis where every sample falls on a pixel has no second tap. Colour
is one 3-vector expression with the channel as an axis, which lets the scheduler share the samples between the three
channels.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from tinygrad import Tensor, dtypes

from lab.compile.gather import Gather, SeparableIndex, device_table
from lab.compile.mosaic import Axis, Mosaic
from lab.compile.pixels import FORMATS, coefficients, levels
from lab.compile.reference import Indices, bilinear_taps
from lab.compile.spec import InputSpec


class Preprocessor:
    """One input's preprocessing, with its index and colour tables on the device.

    Call it with the frame's bytes (uint8 [buffer_bytes]) for the model's input tensor (float32 `spec.shape`, lazy).
    """

    def __init__(self, spec: InputSpec) -> None:
        x, y, width, height = spec.crop
        left, right, right_weight = bilinear_taps(width, spec.resize[0])
        top, bottom, bottom_weight = bilinear_taps(height, spec.resize[1])
        self._lerps_rows, self._lerps_columns = bool(bottom_weight.any()), bool(right_weight.any())
        rows = y + (np.concatenate((top, bottom)) if self._lerps_rows else top)
        columns = x + (np.concatenate((left, right)) if self._lerps_columns else left)
        self.spec = spec
        self._taps = _unpacker(spec)(spec, rows, columns)
        self._right = device_table(right_weight.astype(np.float32)[None, None, :])
        self._bottom = device_table(bottom_weight.astype(np.float32)[None, :, None])
        self._mean = device_table(np.array(spec.mean, np.float32)[:, None, None])
        self._inverse_std = device_table((1.0 / np.array(spec.std))[:, None, None].astype(np.float32))

    def __call__(self, frame: Any) -> Any:
        """The model's input tensor for `frame`, a uint8 Tensor [buffer_bytes]."""
        parts = self._taps.gathered(frame)
        picture = self._columns(parts, slice(self.spec.resize[0]))
        if self._lerps_columns:
            picture = picture + (self._columns(parts, slice(self.spec.resize[0], None)) - picture) * self._right
        return ((picture - self._mean) * self._inverse_std).unsqueeze(0)

    @property
    def is_interleaved(self) -> bool:
        """Whether the picture lies in the frame as channels last does, so that each value comes from the byte there.

        Then it is best computed where it is first copied. Colour that is mixed, or blended from several taps, is best
        computed by rows: its vectors lie along them.
        """
        return not (self._lerps_rows or self._lerps_columns) and self._taps.is_interleaved

    def _columns(self, parts: list[Any], columns: slice) -> Any:
        """Colour at these columns of taps, between the two rows of each. float32 [channels, height, width].

        Colour is computed where it is used, each tap once: one kernel from bytes to picture, nothing in between.
        """
        height = self.spec.resize[1]
        upper = self._taps.colour([part[..., :height, columns] for part in parts])
        if not self._lerps_rows:
            return upper
        return upper + (self._taps.colour([part[..., height:, columns] for part in parts]) - upper) * self._bottom


def _unpacker(spec: InputSpec) -> type[_Yuv] | type[_Rgb] | type[_Grey] | type[_Bayer]:
    """What gives the values at the grid of taps: float32 [channels, rows, columns], channels in the tensor's order.

    `gathered(frame)` are tensors over the whole grid, in memory or cheap; `colour(parts)` works on any part of them.
    `is_interleaved`: see `Preprocessor.is_interleaved`.
    """
    fmt = FORMATS[spec.format]
    if spec.demosaic == "bilinear":
        return _Bayer
    if fmt.is_yuv:
        return _Yuv
    return _Rgb if fmt.is_rgb else _Grey


class _Yuv:
    """Luma and nearest chroma, to R'G'B' by range and matrix."""

    is_interleaved = False

    def __init__(self, spec: InputSpec, rows: Indices, columns: Indices) -> None:
        self._parts = [Gather(spec, part, rows, columns) for part in FORMATS[spec.format].components]
        self._offsets, self._luma_scale, self._cb, self._cr = _colour_tables(spec)

    def gathered(self, frame: Any) -> list[Any]:
        return [part.whole_bytes(frame).unsqueeze(0) for part in self._parts]

    def colour(self, parts: list[Any]) -> Any:
        luma, cb, cr = (part.cast(dtypes.float) for part in parts)
        luma_offset, chroma_offset = self._offsets
        grey = (luma - luma_offset) * self._luma_scale
        colour = grey + (cb - chroma_offset) * self._cb + (cr - chroma_offset) * self._cr
        return _clamped(colour, 255.0)


class _Rgb:
    """Three bytes of one pixel, gathered as one tensor."""

    def __init__(self, spec: InputSpec, rows: Indices, columns: Indices) -> None:
        plane, parts = spec.planes[0], FORMATS[spec.format].components
        bits = [parts[channel].bits[0] for channel in _channel_order(spec)]
        channels = np.array([one.offset for one in bits])
        row_starts, column_bytes = plane.offset + rows * plane.stride, columns * bits[0].step
        self._index = SeparableIndex(spec.buffer_bytes, row_starts, column_bytes, channels)
        self.is_interleaved = self._index.is_plain
        self._range = _Levels(spec)

    def gathered(self, frame: Any) -> list[Any]:
        return [self._index.bytes_of(frame).permute(2, 0, 1)]

    def colour(self, parts: list[Any]) -> Any:
        return self._range(parts[0].cast(dtypes.float))


class _Grey:
    """One sample a pixel: grey, or a mosaic that is left as it is."""

    def __init__(self, spec: InputSpec, rows: Indices, columns: Indices) -> None:
        (part,) = FORMATS[spec.format].components
        self._samples, self._range = Gather(spec, part, rows, columns), _Levels(spec)
        self.is_interleaved = self._samples.is_plain

    def gathered(self, frame: Any) -> list[Any]:
        return [self._range(self._samples(frame).unsqueeze(0))]

    def colour(self, parts: list[Any]) -> Any:
        return parts[0]


class _Bayer:
    """A mosaic made R, G and B by `lab.compile.mosaic`."""

    is_interleaved = False

    def __init__(self, spec: InputSpec, rows: Indices, columns: Indices) -> None:
        (part,), valid = FORMATS[spec.format].components, spec.stream_format.crop
        mosaic = Mosaic(Axis.of(rows, valid.y, valid.y + valid.height - 1),
                        Axis.of(columns, valid.x, valid.x + valid.width - 1), spec.stream_format.cfa)  # fmt: skip
        self._order = _channel_order(spec)
        self._corners = []
        for colour in ("red", "blue"):
            high, wide = mosaic.corners(colour)
            self._corners.append([Gather(spec, part, row, column) for row in high for column in wide])
        self._own = Gather(spec, part, rows, columns)
        self._cross = [Gather(spec, part, *place) for place in mosaic.cross()]
        flags = mosaic.is_green()
        self._row_flags = device_table(flags[0].astype(np.float32)[:, None])
        self._column_flags = device_table(flags[1].astype(np.float32)[None, :])

    def gathered(self, frame: Any) -> list[Any]:
        red, blue = (_mean(frame, four) for four in self._corners)
        is_green = self._row_flags + self._column_flags == 1.0
        green = is_green.where(self._own(frame), _mean(frame, self._cross))
        planes = (red, green, blue)
        return [Tensor.stack(*(planes[channel] for channel in self._order))]

    def colour(self, parts: list[Any]) -> Any:
        return parts[0]


def _mean(frame: Any, parts: list[Gather]) -> Any:
    """The mean of four samples: exact, for their sum has at most 18 bits."""
    one, two, three, four = (part(frame) for part in parts)
    return (one + two + three + four) * 0.25


class _Levels:
    """Limited range to full, clamped; nothing at all for full range."""

    def __init__(self, spec: InputSpec) -> None:
        fmt = FORMATS[spec.format]
        self._is_full, self._white = spec.range == "full", float(fmt.white)
        self._black, self._scale = levels(spec.range, fmt.depth)

    def __call__(self, codes: Any) -> Any:
        return codes if self._is_full else _clamped((codes - self._black) * self._scale, self._white)


def _clamped(values: Any, white: float) -> Any:
    """0..white, as two selections: tinygrad's minimum is a maximum between two negations."""
    not_negative = (values < 0.0).where(0.0, values)
    return (not_negative > white).where(white, not_negative)


def _channel_order(spec: InputSpec) -> tuple[int, int, int]:
    """For each channel of the tensor: 0 red, 1 green, 2 blue."""
    return (0, 1, 2) if spec.channels == "RGB" else (2, 1, 0)


def _colour_tables(spec: InputSpec) -> tuple[tuple[float, float], float, Any, Any]:
    """(black level, chroma zero), luma scale, and the weights of Cb and Cr in each channel, [3, 1, 1].

    The formulas are those of `lab.compile.reference.to_rgb`, with green's written out.
    """
    kr, kb = coefficients(spec.matrix)
    kg = 1.0 - kr - kb
    red_cr, blue_cb = 2.0 * (1.0 - kr), 2.0 * (1.0 - kb)
    cb = np.array([0.0, -kb * blue_cb / kg, blue_cb])
    cr = np.array([red_cr, -kr * red_cr / kg, 0.0])
    black, luma_scale = levels(spec.range, 8)
    chroma_scale = 255.0 / 224.0 if spec.range == "limited" else 1.0
    order = list(_channel_order(spec))
    tables: list[NDArray[np.float32]] = [
        (values[order] * chroma_scale).astype(np.float32)[:, None, None] for values in (cb, cr)
    ]
    return (black, 128.0), luma_scale, device_table(tables[0]), device_table(tables[1])
