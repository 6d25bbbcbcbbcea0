"""The definition of preprocessing, in numpy: from a frame's bytes to the tensor the model gets.

It is what the compiled graph is held against, what the onnxruntime comparison is fed with, and what a training script
should use. In order: unpack the planes; nearest chroma (each sample covers its 2x2 luma block, odd sizes round up);
Y'CbCr to R'G'B' by the stated range and matrix; clamp to 0..255 without rounding to integers (the captured graph has
no reason to lose that precision, and a rounding step would make two right answers differ by a whole code value);
crop; bilinear resize with half-pixel centres, no antialiasing and clamped edges; (x - mean) / std; NCHW.

Every step before the resize works on single pixels, so it is done only for the pixels the resize reads. The
arithmetic is float64, the result is rounded to float32 once.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from lab.compile.pixels import FORMATS, Component, coefficients
from lab.compile.spec import InputSpec

Floats = NDArray[np.float64]
Indices = NDArray[np.int64]


def bilinear_taps(source: int, target: int) -> tuple[Indices, Indices, Floats]:
    """For each of `target` samples: the two source indices it lies between, and the weight of the second.

    Half-pixel centres: src = (dst + 0.5) * source / target - 0.5, clamped to [0, source - 1] (the `half_pixel`
    coordinate mode of ONNX Resize, and OpenCV's INTER_LINEAR).
    """
    position = (np.arange(target, dtype=np.float64) + 0.5) * source / target - 0.5
    position = np.clip(position, 0.0, source - 1)
    low = np.floor(position).astype(np.int64)
    return low, np.minimum(low + 1, source - 1), position - low


def to_rgb(y: Floats, cb: Floats, cr: Floats, *, range_: str, matrix: str) -> tuple[Floats, Floats, Floats]:
    """8-bit code values to R'G'B' on the scale 0..255, clamped.

    Limited range by ITU-R BT.601-7 §2.5.3 and BT.709-6 §4.6: luma 16..235, colour difference 128 ± 112; full range by
    ITU-T H.273 §8.3 (VideoFullRangeFlag): 0..255 and 128 ± 127.5. E'Cb = (B' - Y') / (2 (1 - Kb)), E'Cr likewise.
    """
    kr, kb = coefficients(matrix)
    if range_ == "limited":
        y, cb, cr = (y - 16.0) * (255.0 / 219.0), (cb - 128.0) * (255.0 / 224.0), (cr - 128.0) * (255.0 / 224.0)
    else:
        cb, cr = cb - 128.0, cr - 128.0
    red = y + 2.0 * (1.0 - kr) * cr
    blue = y + 2.0 * (1.0 - kb) * cb
    green = (y - kr * red - kb * blue) / (1.0 - kr - kb)
    return np.clip(red, 0.0, 255.0), np.clip(green, 0.0, 255.0), np.clip(blue, 0.0, 255.0)


def _samples(frame: NDArray[np.uint8], spec: InputSpec, part: Component, rows: Indices, columns: Indices) -> Floats:
    """Samples of one component at every (row, column) of the grid, in luma pixels: float64 [rows, columns]."""
    plane = spec.planes[part.plane]
    row_starts = plane.offset + (rows >> part.shift) * plane.stride
    column_bytes = part.offset + (columns >> part.shift) * part.step
    return frame[row_starts[:, None] + column_bytes[None, :]].astype(np.float64)


def pixels_at(frame: NDArray[np.uint8], spec: InputSpec, rows: Indices, columns: Indices) -> Floats:
    """R'G'B' in 0..255 at the grid of luma `rows` x `columns` of the whole picture: float64 [3, rows, columns]."""
    fmt = FORMATS[spec.format]
    first, second, third = (_samples(frame, spec, part, rows, columns) for part in fmt.components)
    if fmt.is_rgb:
        return np.stack((first, second, third))
    return np.stack(to_rgb(first, second, third, range_=spec.range, matrix=spec.matrix))


def preprocess(frame: NDArray[np.uint8], spec: InputSpec) -> NDArray[np.float32]:
    """The model's input for one frame.

    `frame` is the whole buffer as uint8 [spec.buffer_bytes]; the result is float32 [1, 3, height, width] of
    `spec.resize`. Raises ValueError if the buffer's size or dtype is not the spec's.
    """
    if frame.dtype != np.uint8 or frame.shape != (spec.buffer_bytes,):
        raise ValueError(
            f"frame for input {spec.name!r}: expected uint8 [{spec.buffer_bytes}], found {frame.dtype} "
            f"{list(frame.shape)}; pass the whole buffer, padding included, as one flat array"
        )
    x, y, width, height = spec.crop
    left, right, right_weight = bilinear_taps(width, spec.resize[0])
    top, bottom, bottom_weight = bilinear_taps(height, spec.resize[1])
    taps = pixels_at(frame, spec, y + np.concatenate((top, bottom)), x + np.concatenate((left, right)))
    upper, lower = np.split(taps, 2, axis=1)
    columns = upper + (lower - upper) * bottom_weight[None, :, None]
    near, far = np.split(columns, 2, axis=2)
    picture = near + (far - near) * right_weight[None, None, :]
    if spec.channels == "BGR":
        picture = picture[::-1]
    mean, std = np.array(spec.mean)[:, None, None], np.array(spec.std)[:, None, None]
    tensor: NDArray[np.float32] = ((picture - mean) / std).astype(np.float32)
    return tensor[None]
