"""A frame's buffer as a picture for people: uint8 RGB, by the very arithmetic that compile's reference states.

Mosaics are shown demosaiced; deeper formats are scaled to 8 bits. The stream's crop is applied.
"""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
from numpy.typing import NDArray

from abi.colour import CfaOrder, Matrix, Range
from abi.stream_format import StreamFormat
from lab.compile.pixels import FORMATS
from lab.compile.reference import pixels_at
from lab.compile.spec import InputSpec
from lab.replay.refusal import LogRefusal, LogRefused

_RANGES = {Range.LIMITED: "limited", Range.FULL: "full"}
_MATRICES = {
    Matrix.IDENTITY: "identity", Matrix.BT601: "bt601", Matrix.BT709: "bt709", Matrix.BT2020NC: "bt2020nc",
}  # fmt: skip

VIDEO_SUFFIXES = (".mkv", ".mp4")
_SPACES = {Matrix.IDENTITY: 0, Matrix.BT601: 6, Matrix.BT709: 1, Matrix.BT2020NC: 9}  # AVColorSpace, as ITU-T H.273


def rgb_of(pixels: bytes | NDArray[np.uint8], format: StreamFormat) -> NDArray[np.uint8]:
    """uint8 [rows, columns, 3] of the cropped picture. `pixels`: the whole buffer, padding included."""
    frame = np.frombuffer(pixels, np.uint8) if isinstance(pixels, bytes) else pixels
    crop = format.crop
    spec = InputSpec(
        name="picture", stream="picture", format=format.pixel.name, stream_format=format, range=_RANGES[format.range],
        matrix=_MATRICES[format.matrix], crop=(crop.x, crop.y, crop.width, crop.height),
        resize=(crop.width, crop.height), mean=(0.0,), std=(1.0,), layout="NCHW", channels="RGB",
        demosaic="" if format.cfa is CfaOrder.NONE else "bilinear",
    )  # fmt: skip
    rows, columns = np.arange(crop.y, crop.y + crop.height), np.arange(crop.x, crop.x + crop.width)
    values = pixels_at(frame, spec, rows, columns) * (255.0 / FORMATS[format.pixel.name].white)
    picture = np.clip(np.rint(values), 0, 255).astype(np.uint8)
    return np.ascontiguousarray(np.moveaxis(np.broadcast_to(picture, (3, *picture.shape[1:])), 0, 2))


def write_png(path: Path, picture: NDArray[np.uint8]) -> None:
    """A PNG file of an RGB picture."""
    codec: Any = av.CodecContext.create("png", "w")
    codec.width, codec.height, codec.pix_fmt = picture.shape[1], picture.shape[0], "rgb24"
    codec.time_base = Fraction(1, 1)
    packets = [*codec.encode(av.VideoFrame.from_ndarray(picture, "rgb24")), *codec.encode(None)]
    path.write_bytes(b"".join(bytes(packet) for packet in packets))


def planes_420(pixels: bytes, format: StreamFormat) -> list[NDArray[np.uint8]] | None:
    """Y, Cb and Cr of the cropped picture as they are, of 8-bit 4:2:0 at even places; None for every other frame."""
    crop, name = format.crop, format.pixel.name
    if name not in ("NV12", "YU12") or any(value & 1 for value in (crop.x, crop.y, crop.width, crop.height)):
        return None
    frame = np.frombuffer(pixels, np.uint8)
    step = 2 if name == "NV12" else 1
    shape = crop.height // 2, crop.width // 2
    rows, first = slice(crop.y // 2, crop.y // 2 + shape[0]), step * (crop.x // 2)
    planes = [frame[one.offset :][: one.rows * one.stride].reshape(one.rows, one.stride) for one in format.planes]
    luma = planes[0][crop.y : crop.y + crop.height, crop.x : crop.x + crop.width]
    if name == "NV12":
        pairs = planes[1][rows, first : first + 2 * shape[1]]
        return [luma, pairs[:, 0::2], pairs[:, 1::2]]
    return [luma, *(plane[rows, first : first + shape[1]] for plane in planes[1:])]


class VideoWriter:
    """Pictures into a video file, each shown from its own time. Use as a context manager.

    Lossless RGB (FFV1) where the file is .mkv, else H.264 at a quality that looks alike, of 8-bit 4:2:0 frames without
    a way over RGB; odd sizes lose their last row or column there.
    """

    def __init__(self, path: Path) -> None:
        """Raises LogRefused (EXPORT) where it is neither, FFmpegError where it cannot be written."""
        if path.suffix not in VIDEO_SUFFIXES:
            raise LogRefused(
                LogRefusal.EXPORT, path.name, expected=f"a video named {' or '.join(VIDEO_SUFFIXES)}",
                found=path.suffix or "no suffix", todo="name it .mkv, lossless, or .mp4, H.264",
            )  # fmt: skip
        self._container: Any = av.open(str(path), "w")
        self._lossless = path.suffix == ".mkv"
        self._stream: Any = None
        self._last = -1

    def __enter__(self) -> VideoWriter:
        return self

    def __exit__(self, *_: object) -> None:
        if self._stream is not None:
            self._container.mux(self._stream.encode(None))
        self._container.close()

    def add(self, pixels: bytes, format: StreamFormat, time_ms: int) -> None:
        """One more frame's buffer, `time_ms` after the first; all of one format."""
        planes = None if self._lossless else planes_420(pixels, format)
        if planes is None:
            picture = rgb_of(pixels, format)
            self._open(*picture.shape[:2])
            shown = np.ascontiguousarray(picture[: self._stream.height, : self._stream.width])
            self._encode(av.VideoFrame.from_ndarray(shown, "rgb24"), time_ms)
            return
        height, width = planes[0].shape
        self._open(height, width, format)
        packed = np.concatenate([np.ascontiguousarray(plane).reshape(-1) for plane in planes])
        self._encode(av.VideoFrame.from_ndarray(packed.reshape(height * 3 // 2, width), "yuv420p"), time_ms)

    def _open(self, height: int, width: int, native: StreamFormat | None = None) -> None:
        """`native`: what the file has to say of colours that are not from RGB."""
        if self._stream is None:
            codec, pixels = ("ffv1", "bgr0") if self._lossless else ("libx264", "yuv420p")
            self._stream = self._container.add_stream(codec, rate=1000)
            self._stream.width, self._stream.height = (width, height) if self._lossless else (width & ~1, height & ~1)
            self._stream.pix_fmt = pixels
            self._stream.codec_context.time_base = Fraction(1, 1000)
            if not self._lossless:
                self._stream.options = {"crf": "18", "preset": "veryfast"}
            if native is not None:
                self._stream.codec_context.color_range = 1 if native.range is Range.LIMITED else 2  # AVColorRange
                self._stream.codec_context.colorspace = _SPACES[native.matrix]

    def _encode(self, frame: Any, time_ms: int) -> None:
        self._last = max(self._last + 1, time_ms)
        frame.pts, frame.time_base = self._last, Fraction(1, 1000)
        self._container.mux(self._stream.encode(frame))
