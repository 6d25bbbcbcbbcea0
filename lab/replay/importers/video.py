"""Videos and folders of pictures, decoded by PyAV.

A picture out of a file has no exposure: the time at which it is shown counts as its start, on a clock that begins with
the file. Pictures of a folder come in the order of their names, numbers by value, at the rate that is given.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from fractions import Fraction
from pathlib import Path
from typing import Any, Final

import av
from av.error import FFmpegError

from abi.colour import ClockId, TimeMark
from lab.replay.importers.contract import Stated
from lab.replay.importers.decoded import JPEG, samples_of, stated_by
from lab.replay.importers.samples import Family, Samples
from lab.replay.importers.write import Picture, Source
from lab.replay.refusal import LogRefusal, LogRefused

__all__ = ["decode_still", "image_source", "readable", "video_source"]

NS_PER_S: Final = 1_000_000_000
FIRST_NS: Final = NS_PER_S
"""The time of a file's first picture: the clock of a log is above zero."""
SUFFIXES: Final = (".png", ".jpg", ".jpeg", ".bmp", ".tif", ".tiff", ".pgm", ".ppm", ".webp")
_PLAYED: Final = {
    "clock": Stated(ClockId.MONOTONIC, "the importer: a file has no clock but its own"),
    "mark": Stated(TimeMark.EXPOSURE_START, "the importer: a picture is shown from its time on"),
}


@contextmanager
def readable(path: object) -> Iterator[None]:
    """FFmpeg's errors as a refusal that names the file."""
    try:
        yield
    except FFmpegError as error:
        raise LogRefused(
            LogRefusal.SOURCE, f"{path} could not be decoded", expected="a file that FFmpeg decodes",
            found=f"{type(error).__name__}: {error.strerror}", todo="check the path, or convert the file",
        ) from error  # fmt: skip


def video_source(path: Path) -> Source:
    """The first video stream of a file. Raises LogRefused."""
    if not path.is_file():
        raise _absent(path, "a file")
    with readable(path), av.open(str(path)) as container:
        if not container.streams.video:
            raise LogRefused(
                LogRefusal.SOURCE, f"{path.name} holds no video", expected="a video stream",
                found=f"{len(container.streams)} streams of other kinds", todo="name another file",
            )  # fmt: skip
        stream = container.streams.video[0]
        rate, total = stream.average_rate, stream.frames or None
    frames: list[Any] = []
    period_ns = round(NS_PER_S / rate) if rate else 0
    return Source(path.name, _video(path, frames), lambda first: _stated(frames[0], first), period_ns, total)


def _absent(path: Path, what: str) -> LogRefused:
    found = "a folder" if path.is_dir() else "a file" if path.is_file() else "none"
    return LogRefused(LogRefusal.SOURCE, str(path), expected=what, found=found, todo="check the path")


def _video(path: Path, first: list[Any]) -> Iterator[Picture]:
    """The pictures; the first decoded frame is put into `first`, for what it states."""
    with readable(path), av.open(str(path)) as container:
        stream = container.streams.video[0]
        stream.thread_type = "AUTO"
        begin: Fraction | None = None
        for index, frame in enumerate(container.decode(stream)):
            if not first:
                first.append(frame)
            if frame.pts is None:
                raise LogRefused(
                    LogRefusal.SOURCE, f"frame {index} of {path.name} has no time", expected="a presentation time",
                    found="none", todo="put it into a container that has times (ffmpeg -r RATE -i IN -c copy OUT)",
                )  # fmt: skip
            shown = Fraction(frame.pts) * (frame.time_base or stream.time_base or Fraction(1))
            begin = shown if begin is None else begin
            at_ns = FIRST_NS + round((shown - begin) * NS_PER_S)
            what = f"frame {index} of {path.name}"
            yield Picture(samples_of(frame, what), index + 1, at_ns, at_ns, at_ns, what)


def _stated(frame: Any, first: Picture) -> Mapping[str, Stated]:
    return {**stated_by(frame, first.samples.family), **_PLAYED}


def image_source(folder: Path, rate_hz: float | None) -> Source:
    """The pictures of a folder. `rate_hz` None: a flag must say it. Raises LogRefused."""
    if not folder.is_dir():
        raise _absent(folder, "a folder of pictures")
    paths = sorted((one for one in folder.iterdir() if one.suffix.lower() in SUFFIXES), key=_natural)
    if not paths:
        raise LogRefused(
            LogRefusal.SOURCE, f"{folder} holds no picture", expected=f"files named {', '.join(SUFFIXES)}",
            found="none", todo="name the folder with the pictures",
        )  # fmt: skip
    period_ns = round(NS_PER_S / rate_hz) if rate_hz else 0
    stated: dict[str, Stated] = {}

    def pictures() -> Iterator[Picture]:
        for index, path in enumerate(paths):
            samples, told = decode_still(path.read_bytes(), path.name)
            if not index:
                stated.update(told)
            at_ns = FIRST_NS + index * period_ns if period_ns else index
            yield Picture(samples, index + 1, at_ns, at_ns, at_ns, path.name)

    return Source(folder.name, pictures(), lambda first: {**stated, **_PLAYED}, period_ns, len(paths))


def decode_still(data: bytes, what: str) -> tuple[Samples, Mapping[str, Stated]]:
    """One coded picture (PNG, JPEG, …), and what its coding states of colour. Raises LogRefused."""
    with readable(what), av.open(io.BytesIO(data)) as container:
        stream = container.streams.video[0] if container.streams.video else None
        frame = None if stream is None else next(container.decode(stream), None)
        if stream is None or frame is None:
            raise LogRefused(
                LogRefusal.SOURCE, f"{what} holds no picture", expected="a coded picture", found="none",
                todo="leave the file out",
            )  # fmt: skip
        samples = samples_of(frame, what)
        told = dict(stated_by(frame, samples.family))
        if stream.codec_context.name == "mjpeg":
            fixed = JPEG if samples.family in (Family.YUV420, Family.YUV422) else {"range": JPEG["range"]}
            told |= fixed
        return samples, told


def _natural(path: Path) -> list[tuple[int, str]]:
    """`2.png` before `10.png`."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", path.name)]
