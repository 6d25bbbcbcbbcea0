"""The definition of preprocessing, in numpy: from a frame's bytes to the tensor the model gets.

It is what the compiled graph is held against, what the onnxruntime comparison is fed with, and what a training script
should use. In order: unpack the planes' bits to integers; nearest chroma (each sample covers its luma block, odd sizes
round up); Y'CbCr to R'G'B' by the stated range and matrix, limited R'G'B' and grey to full, a mosaic to R, G and B
(`lab.compile.mosaic`) where the spec asks for it; clamp to 0..2^n - 1 without rounding to integers (the captured graph
has no reason to lose that precision, and a rounding step would make two right answers differ by a whole code value);
crop; bilinear resize with half-pixel centres, no antialiasing and clamped edges; (x - mean) / std; NCHW. Values are on
the scale of the format's own code values: 0..255 for 8 bits, 0..1023 for 10, and so on.

Every step before the resize works on single pixels, so it is done only for the pixels the resize reads. The
arithmetic is float64, the result is rounded to float32 once.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from lab.compile.mosaic import Axis, Mosaic
from lab.compile.pixels import FORMATS, Bits, Component, coefficients, levels
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
        black, scale = levels(range_, 8)
        y, cb, cr = (y - black) * scale, (cb - 128.0) * (255.0 / 224.0), (cr - 128.0) * (255.0 / 224.0)
    else:
        cb, cr = cb - 128.0, cr - 128.0
    red = y + 2.0 * (1.0 - kr) * cr
    blue = y + 2.0 * (1.0 - kb) * cb
    green = (y - kr * red - kb * blue) / (1.0 - kr - kb)
    return np.clip(red, 0.0, 255.0), np.clip(green, 0.0, 255.0), np.clip(blue, 0.0, 255.0)


def samples(frame: NDArray[np.uint8], spec: InputSpec, part: Component, rows: Indices, columns: Indices) -> Indices:
    """The integer samples of one component at the grid of luma `rows` x `columns`: int64 [rows, columns]."""
    plane = spec.planes[part.plane]
    row_starts = plane.offset + rows // part.rows * plane.stride
    total: Indices = np.sum([_bits(frame, one, row_starts, columns) for one in part.bits], axis=0)
    return total


def _bits(frame: NDArray[np.uint8], bits: Bits, row_starts: Indices, columns: Indices) -> Indices:
    block, place = columns // bits.pixels, columns % bits.pixels
    turns = np.array(bits.turns)[place % len(bits.turns)]
    at = row_starts[:, None] + (bits.offset + block * bits.step + place * bits.spread)[None, :]
    value: Indices = ((frame[at].astype(np.int64) >> turns[None, :]) & bits.mask) << bits.rise
    return value


def _demosaic(frame: NDArray[np.uint8], spec: InputSpec, rows: Indices, columns: Indices) -> Floats:
    """R, G, B of a mosaic by `lab.compile.mosaic`, float64 [3, rows, columns]."""
    (part,), valid = FORMATS[spec.format].components, spec.stream_format.crop
    mosaic = Mosaic(Axis.of(rows, valid.y, valid.y + valid.height - 1),
                    Axis.of(columns, valid.x, valid.x + valid.width - 1), spec.stream_format.cfa)  # fmt: skip

    def mean(places: list[tuple[Indices, Indices]]) -> Floats:
        total: Floats = np.sum([samples(frame, spec, part, *one) for one in places], axis=0) / len(places)
        return total

    corners = {}
    for colour in ("red", "blue"):
        high, wide = mosaic.corners(colour)
        corners[colour] = mean([(row, column) for row in high for column in wide])
    row_flags, column_flags = mosaic.is_green()
    is_green = row_flags[:, None] != column_flags[None, :]
    green = np.where(is_green, samples(frame, spec, part, rows, columns), mean(list(mosaic.cross())))
    return np.stack((corners["red"], green, corners["blue"]))


def pixels_at(frame: NDArray[np.uint8], spec: InputSpec, rows: Indices, columns: Indices) -> Floats:
    """Values at the grid of luma `rows` x `columns` of the whole picture: float64 [channels, rows, columns].

    Channels are R', G', B', or the only one of a grey picture or of a mosaic that is left as it is; values lie in
    0..2^n - 1 for a format of n bits.
    """
    fmt = FORMATS[spec.format]
    if spec.demosaic == "bilinear":
        return _demosaic(frame, spec, rows, columns)
    codes = [samples(frame, spec, part, rows, columns).astype(np.float64) for part in fmt.components]
    if fmt.is_yuv:
        return np.stack(to_rgb(*codes, range_=spec.range, matrix=spec.matrix))
    black, scale = levels(spec.range, fmt.depth)
    return np.clip((np.stack(codes) - black) * scale, 0.0, float(fmt.white))


def preprocess(frame: NDArray[np.uint8], spec: InputSpec) -> NDArray[np.float32]:
    """The model's input for one frame.

    `frame` is the whole buffer as uint8 [spec.buffer_bytes]; the result is float32 `spec.shape`:
    [1, channels, height, width]. Raises ValueError if the buffer's size or dtype is not the spec's.
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
