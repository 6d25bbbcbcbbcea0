"""Pictures of known samples in every pixel format, packed sample by sample from the formats' own descriptions.

Written apart from the compiler's tables, so that a mistake in one shows against the other: planar and interleaved
layouts from the comments of drm_fourcc.h, packed Bayer from MIPI CSI-2's RAW10 and RAW12 (as V4L2's SRGGB10P and
SRGGB12P pages draw them). Bytes that are not samples are random: padding, alpha, and the unused bits of R10 and R12.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from abi.colour import CfaOrder
from abi.pixels import PIXEL_FORMATS, ColourModel
from lab.compile.spec import InputSpec
from lab.compile.spec_toml import load_spec
from tests.lab.compile.tiny_models import SPEC, edited

Samples = NDArray[np.int64]
WIDTH, HEIGHT = 23, 13  # odd: the last chroma sample and the last block are cut
VALID, CROP = (1, 2, 21, 10), (4, 2, 17, 9)
BAYER = tuple(name for name, pixel in PIXEL_FORMATS.items() if pixel.model is ColourModel.BAYER)
GREY = ("R8", "R10", "R12", "R16")
YUV = tuple(name for name, pixel in PIXEL_FORMATS.items() if pixel.model is ColourModel.YUV)
RGB = tuple(name for name, pixel in PIXEL_FORMATS.items() if pixel.model is ColourModel.RGB)
PADDED = 160  # bytes between rows: more than any format's row, and no multiple of one


def input_spec(folder: Path, format_: str, **changes: str) -> InputSpec:
    """A padded picture of `format_` with a valid part and a crop; plain mean and std. `changes` are TOML values."""
    model = PIXEL_FORMATS[format_].model
    values = {"format": f'"{format_}"', "width": str(WIDTH), "height": str(HEIGHT), "crop": str(list(CROP)),
              "resize": str(list(CROP[2:])), "stride": str(PADDED), "rows": str(HEIGHT + 3),
              "valid": str(list(VALID))}  # fmt: skip
    channels = 3
    if model is not ColourModel.YUV:
        values |= {"range": '"full"', "matrix": '"identity"', "chroma_site": '"notSubsampled"'}
    if model is ColourModel.MONO:
        values["cfa"] = '"none"'
    if model is ColourModel.BAYER:
        values["demosaic"] = '"none"'
    values |= changes
    if model in (ColourModel.MONO, ColourModel.BAYER) and values.get("demosaic") != '"bilinear"':
        channels = 1
    values |= {"mean": str([0] * channels), "std": str([1] * channels)}
    lines = [line for line in SPEC.splitlines() if line.split(" = ")[0] not in values or line.startswith("name")]
    text = edited(
        "\n".join(lines), {'stream = "road"': "\n".join(['stream = "road"', *map(" = ".join, values.items())])}
    )
    path = folder / "spec.toml"
    path.write_text(text)
    return load_spec(path).inputs[0]


def draw(spec: InputSpec, seed: int, low: int = 0, high: int | None = None) -> list[Samples]:
    """Random samples of every component, at its own resolution: [rows, columns]."""
    random, pixel = np.random.default_rng(seed), spec.stream_format.pixel
    top = (1 << pixel.bits) if high is None else high + 1
    count = {ColourModel.YUV: 3, ColourModel.RGB: 3}.get(pixel.model, 1)
    found = []
    for index in range(count):
        halved = pixel.model is ColourModel.YUV and index > 0
        wide = -(-spec.stream_format.width // 2) if halved else spec.stream_format.width
        is_420 = halved and pixel.name in ("NV12", "NV21", "YU12")
        high_rows = -(-spec.stream_format.height // 2) if is_420 else spec.stream_format.height
        found.append(random.integers(low, top, (high_rows, wide)))
    return found


def pack(spec: InputSpec, parts: Sequence[Samples], seed: int = 9) -> NDArray[np.uint8]:
    """The buffer with these samples; everything else in it is random."""
    buffer = np.random.default_rng(seed).integers(0, 256, spec.buffer_bytes, dtype=np.uint8)
    for index, samples in enumerate(parts):
        for y, row in enumerate(samples):
            for x, value in enumerate(row):
                if spec.format in (*GREY, *BAYER):
                    _put_mono(buffer, spec, spec.planes[0].offset + y * spec.planes[0].stride, x, int(value))
                else:
                    plane, at = _place(spec.format, index, x)
                    buffer[spec.planes[plane].offset + y * spec.planes[plane].stride + at] = value
    return buffer


def _place(name: str, index: int, x: int) -> tuple[int, int]:
    """Plane and byte in the row of sample `x` of component `index`."""
    if name in RGB:
        memory = {"RGB24": "RGB", "BGR24": "BGR", "ABGR8888": "RGBA", "XRGB8888": "BGRX"}[name]
        return 0, len(memory) * x + memory.index("RGB"[index])
    if name == "YUYV":
        return 0, (2 * x, 4 * x + 1, 4 * x + 3)[index]
    if name == "UYVY":
        return 0, (2 * x + 1, 4 * x, 4 * x + 2)[index]
    if name == "YU12":
        return index, x
    is_second = (index == 2) != (name == "NV21")
    return (1, 2 * x + is_second) if index else (0, x)


def _put_mono(buffer: NDArray[np.uint8], spec: InputSpec, row: int, x: int, value: int) -> None:
    """Sample `x` of the row that begins at byte `row`."""
    depth = spec.stream_format.pixel.bits
    if spec.format.endswith("10P"):
        buffer[row + x // 4 * 5 + x % 4] = value >> 2
        shift, low = 2 * (x % 4), row + x // 4 * 5 + 4
        buffer[low] = int(buffer[low]) & ~(3 << shift) | (value & 3) << shift
    elif spec.format.endswith("12P"):
        buffer[row + x // 2 * 3 + x % 2] = value >> 4
        shift, low = 4 * (x % 2), row + x // 2 * 3 + 2
        buffer[low] = int(buffer[low]) & ~(15 << shift) | (value & 15) << shift
    elif depth > 8:
        noise = int(buffer[row + 2 * x + 1]) >> (depth - 8) << (depth - 8)
        buffer[row + 2 * x], buffer[row + 2 * x + 1] = value & 0xFF, noise | value >> 8
    else:
        buffer[row + x] = value


def cropped(plane: Samples, spec: InputSpec, rows: int = 1, columns: int = 1) -> Samples:
    """The samples of the crop's pixels, each repeated over the `rows` x `columns` pixels that it covers."""
    x, y, width, height = spec.crop
    return plane[(y + np.arange(height))[:, None] // rows, (x + np.arange(width))[None, :] // columns]


def demosaiced(mosaic: Samples, spec: InputSpec) -> NDArray[np.float64]:
    """R, G, B of the crop, pixel by pixel: the mean of the nearest samples of each colour, mirrored at the edges."""
    order = {CfaOrder.RGGB: "RGGB", CfaOrder.GRBG: "GRBG", CfaOrder.GBRG: "GBRG", CfaOrder.BGGR: "BGGR"}
    letters, valid = order[spec.stream_format.cfa], spec.stream_format.crop
    colour_at = lambda row, column: letters[row % 2 * 2 + column % 2]  # noqa: E731
    x, y, width, height = spec.crop
    result = np.zeros((3, height, width))
    for row in range(y, y + height):
        for column in range(x, x + width):
            for channel, letter in enumerate("RGB"):
                near = [[(0, 0)], [(0, -1), (0, 1), (-1, 0), (1, 0)], [(-1, -1), (-1, 1), (1, -1), (1, 1)]]
                for ring in near:
                    seen = [(row + dy, column + dx) for dy, dx in ring if colour_at(row + dy, column + dx) == letter]
                    if seen:
                        break
                values = [mosaic[_mirror(r, valid.y, valid.height), _mirror(c, valid.x, valid.width)] for r, c in seen]
                result[channel, row - y, column - x] = np.mean(values)
    return result


def _mirror(position: int, first: int, length: int) -> int:
    last = first + length - 1
    return 2 * first - position if position < first else 2 * last - position if position > last else position
