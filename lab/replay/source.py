"""Where frames come from: the synthetic road camera, a file of raw frames, or a log.

A source states its stream and its complete StreamFormat; `fill` writes frame `index` into a slot and returns what is
known of it (its truth), which a recorder keeps beside it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from abi.colour import ChromaSite, ClockId, Matrix, Primaries, Range, TimeMark, Transfer
from abi.format import make_format
from abi.messages import OpenStream
from abi.stream_format import StreamFormat
from lab.hil.nv12 import Nv12Layout
from lab.hil.road import Camera, RoadCamera
from lab.replay.log import LogReader
from lab.replay.pictures import LoggedPicture, pictures
from lab.replay.refusal import LogRefusal, LogRefused

SOCKETS = Path("/run/fenced")
"""Where a daemon of systemd's has its sockets."""


class FrameSource(Protocol):
    """Frames, in order, of one stream."""

    stream: str
    format: StreamFormat

    def fill(self, pixels: NDArray[np.uint8], index: int) -> Mapping[str, float]:
        """Write frame `index` (from 0) into `pixels` (uint8 [bufferBytes]); returns its truth, by name and unit."""
        ...


class RoadSource:
    """The synthetic road camera of `lab.hil.road`: NV12, limited range, BT.709, chroma sited left."""

    stream = "road"

    def __init__(self, seed: int, width: int = 1928, height: int = 1208, rate_hz: float = 20.0) -> None:
        self.format = make_format(
            "NV12", width, height, range=Range.LIMITED, matrix=Matrix.BT709, primaries=Primaries.BT709,
            transfer=Transfer.BT709, chroma_site=ChromaSite.LEFT, clock=ClockId.MONOTONIC,
            mark=TimeMark.EXPOSURE_START, period_ns=round(1e9 / rate_hz), camera_name="synthetic-road",
        )  # fmt: skip
        luma, chroma = self.format.planes
        layout = Nv12Layout(width, height, luma.stride, chroma.offset, chroma.stride, luma.offset)
        self._road = RoadCamera(seed, Camera.of_size(width, height), layout)

    def fill(self, pixels: NDArray[np.uint8], index: int) -> Mapping[str, float]:
        """Render frame `index`; truth: lane_offset_m, heading_rad, curvature_per_m."""
        return asdict(self._road.render_into(pixels, index))


class RawSource:
    """Frames from a file that holds one buffer after another, as a spec's input lays them out; played round and round.

    It is opened as the spec's stream says, with a clock of its own: played frames begin when they are submitted.
    """

    def __init__(self, path: Path, stream: str, contract: StreamFormat, rate_hz: float = 20.0) -> None:
        """`contract`: the spec's format of this stream. Raises LogRefused where the file is not made of such frames."""
        self.stream = stream
        self.format = replace(
            contract, clock=ClockId.MONOTONIC, mark=TimeMark.EXPOSURE_START, period_ns=round(1e9 / rate_hz),
            camera_name=stream,
        )  # fmt: skip
        size_bytes, frame_bytes = path.stat().st_size, contract.buffer_bytes
        if size_bytes == 0 or size_bytes % frame_bytes:
            raise LogRefused(
                LogRefusal.BAD_FRAMES, path.name, expected=f"whole frames of {frame_bytes} bytes, at least one",
                found=f"{size_bytes} bytes", todo="write frames as the spec lays them out, padding included",
            )  # fmt: skip
        self._frames = np.memmap(path, np.uint8, "r", shape=(size_bytes // frame_bytes, frame_bytes))

    def fill(self, pixels: NDArray[np.uint8], index: int) -> Mapping[str, float]:
        """Copy frame `index`; nothing is known of what it shows."""
        pixels[:] = self._frames[index % len(self._frames)]
        return {}


class LogSource:
    """The pictures of one camera of a log, recorded or imported, in its format; played round and round.

    They begin when they are submitted; the log's times are for `replay --real-time`.
    """

    def __init__(self, reader: LogReader, opened: OpenStream, frames: int) -> None:
        """`opened`: which camera, and `frames` how many there are of it, both as `cameras_of` found them."""
        self._reader, self.stream, self.frames = reader, opened.stream, frames
        self.format = replace(opened.format, clock=ClockId.MONOTONIC)
        self._pictures: Iterator[LoggedPicture] = iter(())

    def fill(self, pixels: NDArray[np.uint8], index: int) -> Mapping[str, float]:
        """Copy the next picture; what is known: its sequence in the log."""
        picture = next(self._pictures, None)
        if picture is None:
            self._pictures = pictures(self._reader, self.stream)
            picture = next(self._pictures)
        pixels[:] = np.frombuffer(picture.pixels, np.uint8)
        return {"logged_sequence": picture.sequence}
