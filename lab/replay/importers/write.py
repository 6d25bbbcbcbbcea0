"""An imported drive into a log: formats, then for every frame a Submit and its pixels, and who stated the formats.

There are no results in such a log. `fenced-lab drive --input LOG` plays it into a bundle and records what comes of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from heapq import merge
from itertools import chain, islice
from pathlib import Path

from abi import messages
from abi.flat import SUBMIT, Submit
from abi.messages import OpenStream
from abi.packet import HEADER_BYTES
from lab.json_text import json_text
from lab.replay.importers.contract import Flags, Stated, settle, spelled
from lab.replay.importers.samples import LAYOUTS, Samples, pack
from lab.replay.log import LogWriter
from lab.replay.refusal import LogRefusal, LogRefused

__all__ = ["Imported", "Part", "Picture", "Source", "write_log"]


@dataclass(frozen=True)
class Picture:
    """One frame of a source. Times in ns of the source's clock; `logged_ns`: when it was recorded."""

    samples: Samples
    sequence: int
    sof_ns: int
    eof_ns: int
    logged_ns: int
    what: str
    """What it is called in a refusal."""


@dataclass(frozen=True)
class Source:
    """Pictures in order, and what their file states of them all. `period_ns`: 0 where nobody knows."""

    about: str
    pictures: Iterator[Picture]
    stated: Callable[[Picture], Mapping[str, Stated]]
    """Asked once, of the first picture."""
    period_ns: int = 0
    total: int | None = None
    """How many are expected, for a progress bar."""


@dataclass(frozen=True)
class Part:
    """One camera of a log: where its pictures come from, and what the person states of it, its stream's name too."""

    source: Source
    flags: Flags


@dataclass(frozen=True)
class Imported:
    """What was written of one camera: frames, the format's name, and for each field of the contract who stated it."""

    frames: int
    contract: Mapping[str, str]


class _Camera:
    """A camera whose first picture is known: its format, and what of it is to be written."""

    def __init__(self, part: Part) -> None:
        """Raises LogRefused where there is no picture, or something is not stated."""
        source, self.stream = part.source, part.flags.stream
        first = next(source.pictures, None)
        if first is None:
            raise LogRefused(
                LogRefusal.SOURCE, f"{source.about} holds no picture", expected="at least one", found="none",
                todo="name a file with pictures",
            )  # fmt: skip
        layouts, stated = LAYOUTS[first.samples.family], source.stated(first)
        self.format, self.contract = settle(part.flags, layouts, first.samples.size, stated, source.period_ns)
        self.first, self._others, self.done = first, source.pictures, 0

    def pictures(self, frames: int | None) -> Iterator[tuple[_Camera, Picture]]:
        """At most so many, in order, each of them as the first and behind the one before. Raises LogRefused."""
        last_ns, last_sequence = -1, 0
        for picture in islice(chain([self.first], self._others), frames):
            _require_like(picture, self.first)
            if picture.sof_ns <= last_ns or picture.sequence <= last_sequence:
                raise _going_back(picture, last_ns, last_sequence)
            last_ns, last_sequence = picture.sof_ns, picture.sequence
            yield self, picture

    def begin(self, log: LogWriter, *, named: bool) -> None:
        """Writes its format, and who stated it; `named`: for which camera."""
        opened = messages.encode(OpenStream(self.stream, self.format))[HEADER_BYTES:]
        log.write(f"/camera/{self.stream}/format", opened, self.first.logged_ns)
        note = f"/note/contract/{self.stream}" if named else "/note/contract"
        log.write(note, json_text(self.contract).encode(), self.first.logged_ns)

    def write(self, log: LogWriter, picture: Picture) -> None:
        """Writes one frame."""
        submit = Submit(0, 0, 0, picture.sequence, picture.sof_ns, picture.eof_ns, 0, 0, 0)
        log.write(f"/camera/{self.stream}/submit", SUBMIT.pack(submit), picture.logged_ns)
        log.write_owned(f"/camera/{self.stream}/pixels", pack(picture.samples, self.format).data, picture.logged_ns)
        self.done += 1


def write_log(parts: Sequence[Part], path: Path, *, frames: int | None = None,
              on_frame: Callable[[int], None] = lambda done: None) -> dict[str, Imported]:  # fmt: skip
    """Write `path`, which must not exist, whole or not at all; at most `frames` of each camera.

    Frames of several cameras stand in the order of their starts. Returns what was written, by stream. Raises
    LogRefused, OSError.
    """
    cameras = [_Camera(part) for part in parts]
    _require_one_clock(cameras)
    about = {"source": ", ".join(part.source.about for part in parts), "imported": "pictures alone, no results"}
    try:
        with LogWriter(path, about=about) as log:
            for camera in cameras:
                camera.begin(log, named=len(cameras) > 1)
            together = merge(*(camera.pictures(frames) for camera in cameras), key=lambda one: one[1].sof_ns)
            for done, (camera, picture) in enumerate(together, start=1):
                camera.write(log, picture)
                on_frame(done)
    except FileExistsError:
        raise
    except BaseException:
        path.unlink(missing_ok=True)
        raise
    return {camera.stream: Imported(camera.done, camera.contract) for camera in cameras}


def _require_one_clock(cameras: Sequence[_Camera]) -> None:
    clocks = {camera.stream: spelled(camera.format.clock) for camera in cameras}
    if len(set(clocks.values())) > 1:
        raise LogRefused(
            LogRefusal.CONTRADICTION, "cameras on several clocks", expected="one, in which their frames have an order",
            found=", ".join(f"{stream} on {clock}" for stream, clock in clocks.items()), todo="import them apart",
        )  # fmt: skip


def _require_like(picture: Picture, first: Picture) -> None:
    found, wanted = picture.samples, first.samples
    if (found.family, found.size) != (wanted.family, wanted.size):
        texts = [f"{one.size[0]}x{one.size[1]}, {one.family.value}" for one in (wanted, found)]
        raise LogRefused(
            LogRefusal.PICTURES, f"{picture.what} is not as the pictures before it", expected=texts[0], found=texts[1],
            todo="import pictures of one camera; an import converts and resizes nothing",
        )  # fmt: skip


def _going_back(picture: Picture, last_ns: int, last_sequence: int) -> LogRefused:
    return LogRefused(
        LogRefusal.SOURCE, f"{picture.what} does not come after the picture before it",
        expected=f"a time above {last_ns} ns and a number above {last_sequence}",
        found=f"{picture.sof_ns} ns and {picture.sequence}", todo="mend the recording's times, or cut it there",
    )  # fmt: skip
