"""openpilot segments: an rlog (plain, bz2 or zstd) and a camera's HEVC file beside it.

Which frame was exposed when stands in the rlog, one `EncodeIndex` for each frame of the file; of cereal's schema only
that part is described (`openpilot.capnp`). Sequences are the camera's own count, so dropped frames are gaps.
"""

from __future__ import annotations

import bz2
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

import av
import capnp
import numpy as np
import zstandard

from abi.colour import ClockId, TimeMark
from lab.replay.importers.contract import Stated
from lab.replay.importers.decoded import samples_of, stated_by
from lab.replay.importers.video import readable
from lab.replay.importers.write import Picture, Source
from lab.replay.refusal import LogRefusal, LogRefused

__all__ = ["CAMERAS", "encode_indices", "openpilot_source"]

CAMERAS: Final = {
    "road": ("fcamera.hevc", "roadEncodeIdx"), "wide": ("ecamera.hevc", "wideRoadEncodeIdx"),
    "driver": ("dcamera.hevc", "driverEncodeIdx"),
}  # fmt: skip
"""A camera's file, and the event that tells of its frames."""
_RLOGS = ("rlog.zst", "rlog.bz2", "rlog")
_FULL_HEVC = 1
_LIMIT_WORDS: Final = 1 << 34
_BY = "openpilot: its times are CLOCK_BOOTTIME at the start of readout"
_STATED: Final = {"clock": Stated(ClockId.BOOTTIME, _BY), "mark": Stated(TimeMark.READOUT_START, _BY)}


@dataclass(frozen=True)
class Encoded:
    """What an rlog says of one frame of a camera's file. `place`: in the order shown, from 0; times in ns."""

    place: int
    frame_id: int
    sof_ns: int
    eof_ns: int
    logged_ns: int


@cache
def _schema() -> Any:
    return capnp.load(str(Path(__file__).with_name("openpilot.capnp")))


def encode_indices(rlog: Path, event_name: str) -> list[Encoded]:
    """What the rlog says of a camera's frames, in their order in the file. Raises LogRefused."""
    found: dict[int, Encoded] = {}
    data, read = _plain(rlog), 0
    try:
        for event in _schema().Event.read_multiple_bytes(data, traversal_limit_in_words=_LIMIT_WORDS):
            read += 1
            if event.which() != event_name:
                continue
            one = getattr(event, event_name)
            if one.type == _FULL_HEVC:
                found[one.segmentId] = Encoded(
                    one.segmentId, one.frameId, one.timestampSof, one.timestampEof, event.logMonoTime
                )
    except (capnp.KjException, ValueError) as error:
        if not read:
            raise _unreadable(rlog, str(error).splitlines()[0]) from error
        # The last event of a segment may be cut off where the device lost its power: what came before it is whole.
    return [found[place] for place in sorted(found)]


def _plain(rlog: Path) -> bytes:
    data = rlog.read_bytes()
    try:
        if rlog.suffix == ".bz2":
            return bz2.decompress(data)
        if rlog.suffix == ".zst":
            with zstandard.ZstdDecompressor().stream_reader(data) as stream:
                return stream.read()
    except (OSError, ValueError, zstandard.ZstdError) as error:
        raise _unreadable(rlog, str(error)) from error
    return data


def openpilot_source(segment: Path, camera: str) -> Source:
    """A camera of a segment's folder. Raises LogRefused."""
    file, event_name = CAMERAS[camera]
    video = segment / file
    rlog = next((segment / name for name in _RLOGS if (segment / name).is_file()), None)
    if rlog is None or not video.is_file():
        lacking = " and ".join(["an rlog"] * (rlog is None) + [file] * (not video.is_file()))
        raise LogRefused(
            LogRefusal.SOURCE, f"{segment} is not a segment",
            expected=f"a folder with {file} and one of {', '.join(_RLOGS)}",
            found=f"none with {lacking}" if segment.is_dir() else "no folder",
            todo="name the segment's own folder, or another --camera",
        )  # fmt: skip
    indices = encode_indices(rlog, event_name)
    if not indices:
        raise LogRefused(
            LogRefusal.SOURCE, f"{rlog.name} knows nothing of {file}", expected=f"{event_name} events", found="none",
            todo="take the rlog of the same segment (a qlog has too few), or another --camera",
        )  # fmt: skip
    steps = np.diff([one.sof_ns for one in indices])
    period_ns = round(float(np.median(steps))) if steps.size else 0
    first: list[Any] = []
    return Source(
        f"{segment.name}/{file}", _pictures(video, {one.place: one for one in indices}, first),
        lambda picture: _stated(first[0], picture), max(0, period_ns), len(indices),
    )  # fmt: skip


def _pictures(video: Path, indices: Mapping[int, Encoded], first: list[Any]) -> Iterator[Picture]:
    """Frames that the rlog knows; others have no time, and are left out."""
    with readable(video), av.open(str(video), format="hevc") as container:
        stream = container.streams.video[0]
        stream.thread_type = "AUTO"
        for place, frame in enumerate(container.decode(stream)):
            one = indices.get(place)
            if one is None:
                continue
            if not first:
                first.append(frame)
            what = f"frame {place} of {video.name}"
            yield Picture(samples_of(frame, what), one.frame_id + 1, one.sof_ns, one.eof_ns, one.logged_ns, what)


def _stated(frame: Any, picture: Picture) -> Mapping[str, Stated]:
    return {**stated_by(frame, picture.samples.family), **_STATED}


def _unreadable(rlog: Path, found: str) -> LogRefused:
    return LogRefused(
        LogRefusal.SOURCE, f"{rlog.name} could not be read", expected="an rlog: Cap'n Proto events one after another",
        found=found, todo="fetch the segment again",
    )  # fmt: skip
