"""Preprocessing on the device: the tinygrad form of `lab.compile.reference`, captured with the model.

Only the pixels that the bilinear resize reads are unpacked and converted. They are gathered from the frame's bytes by
index tables (row starts and column offsets) that become weights of the bundle; tinygrad turns the indexing into plain
loads, each gated by the buffer's bounds, so no kernel walks the whole picture. Colour is one 3-vector expression with
the channel as an axis, which lets the scheduler share the gathered samples between the three channels.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from tinygrad import Tensor, dtypes

from lab.compile.pixels import FORMATS, Component, coefficients
from lab.compile.reference import bilinear_taps
from lab.compile.spec import InputSpec


class Preprocessor:
    """One input's preprocessing, with its index and colour tables on the device.

    Call it with the frame's bytes (uint8 [buffer_bytes]) for the model's input tensor (float32 [1, 3, H, W], lazy).
    """

    def __init__(self, spec: InputSpec) -> None:
        x, y, width, height = spec.crop
        left, right, right_weight = bilinear_taps(width, spec.resize[0])
        top, bottom, bottom_weight = bilinear_taps(height, spec.resize[1])
        rows, columns = y + np.concatenate((top, bottom)), x + np.concatenate((left, right))
        self.spec, self.unpacking = spec, FORMATS[spec.format]
        if self.unpacking.is_rgb:
            self._rgb_index = _rgb_index(spec, rows, columns)
        else:
            self._indices = [_component_index(spec, part, rows, columns) for part in self.unpacking.components]
            self._offsets, self._luma_scale, self._cb, self._cr = _colour_tables(spec)
        self._right = _table(right_weight.astype(np.float32)[None, None, :])
        self._bottom = _table(bottom_weight.astype(np.float32)[None, :, None])
        self._mean = _table(np.array(spec.mean, np.float32)[:, None, None])
        self._inverse_std = _table((1.0 / np.array(spec.std))[:, None, None].astype(np.float32))

    def __call__(self, frame: Any) -> Any:
        """The model's input tensor for `frame`, a uint8 Tensor [buffer_bytes]."""
        width, height = self.spec.resize
        taps = self._taps(frame)
        upper, lower = taps[:, :height], taps[:, height:]
        near_upper, far_upper = upper[:, :, :width], upper[:, :, width:]
        near_lower, far_lower = lower[:, :, :width], lower[:, :, width:]
        near = near_upper + (near_lower - near_upper) * self._bottom
        far = far_upper + (far_lower - far_upper) * self._bottom
        picture = near + (far - near) * self._right
        return ((picture - self._mean) * self._inverse_std).unsqueeze(0)

    def _taps(self, frame: Any) -> Any:
        """Colour in 0..255 at every tap: float32 [3, 2 * height, 2 * width], channels in the tensor's order."""
        if self.unpacking.is_rgb:
            return _gather(frame, self._rgb_index)
        luma, cb, cr = (_gather(frame, index).unsqueeze(0) for index in self._indices)
        luma_offset, chroma_offset = self._offsets
        grey = (luma - luma_offset) * self._luma_scale
        colour = grey + (cb - chroma_offset) * self._cb + (cr - chroma_offset) * self._cr
        return _clamped(colour)


def _gather(frame: Any, index: _SeparableIndex) -> Any:
    """Float code values at `index`: gathered as bytes, a quarter of the memory to write and to read again."""
    return frame[index.expand()].contiguous().cast(dtypes.float)


def _clamped(colour: Any) -> Any:
    """0..255, as two selections: tinygrad's minimum is a maximum between two negations."""
    not_negative = (colour < 0.0).where(0.0, colour)
    return (not_negative > 255.0).where(255.0, not_negative)


class _SeparableIndex:
    """Byte indices that are a sum of one table per axis, kept as the tables: their sum is never stored."""

    def __init__(self, *tables: NDArray[np.int64]) -> None:
        self._tables = [_table(one.astype(np.int32)) for one in tables]

    def expand(self) -> Any:
        """int32 indices over the tables' broadcast shape."""
        total = self._tables[0]
        for one in self._tables[1:]:
            total = total + one
        return total


def _table(values: NDArray[Any]) -> Any:
    return Tensor(values).realize()


def _component_index(
    spec: InputSpec, part: Component, rows: NDArray[np.int64], columns: NDArray[np.int64]
) -> _SeparableIndex:
    plane = spec.planes[part.plane]
    row_starts = plane.offset + (rows >> part.shift) * plane.stride
    return _SeparableIndex(row_starts[:, None], (part.offset + (columns >> part.shift) * part.step)[None, :])


def _channel_order(spec: InputSpec) -> tuple[int, int, int]:
    """For each channel of the tensor: 0 red, 1 green, 2 blue."""
    return (0, 1, 2) if spec.channels == "RGB" else (2, 1, 0)


def _rgb_index(spec: InputSpec, rows: NDArray[np.int64], columns: NDArray[np.int64]) -> _SeparableIndex:
    plane, parts = spec.planes[0], FORMATS[spec.format].components
    channels = np.array([parts[channel].offset for channel in _channel_order(spec)])
    row_starts, column_bytes = plane.offset + rows * plane.stride, columns * parts[0].step
    return _SeparableIndex(channels[:, None, None], row_starts[None, :, None], column_bytes[None, None, :])


def _colour_tables(spec: InputSpec) -> tuple[tuple[float, float], float, Any, Any]:
    """(black level, chroma zero), luma scale, and the weights of Cb and Cr in each channel, [3, 1, 1].

    The formulas are those of `lab.compile.reference.to_rgb`, with green's written out.
    """
    kr, kb = coefficients(spec.matrix)
    kg = 1.0 - kr - kb
    red_cr, blue_cb = 2.0 * (1.0 - kr), 2.0 * (1.0 - kb)
    cb = np.array([0.0, -kb * blue_cb / kg, blue_cb])
    cr = np.array([red_cr, -kr * red_cr / kg, 0.0])
    limited = spec.range == "limited"
    black, luma_scale, chroma_scale = (16.0, 255.0 / 219.0, 255.0 / 224.0) if limited else (0.0, 1.0, 1.0)
    order = list(_channel_order(spec))
    tables = [_table((values[order] * chroma_scale).astype(np.float32)[:, None, None]) for values in (cb, cr)]
    return (black, 128.0), luma_scale, tables[0], tables[1]
