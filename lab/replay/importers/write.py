"""An imported drive into a log: the format, then for every frame a Submit and its pixels, and who stated the format.

There are no results in such a log. `fenced-lab drive --input LOG` plays it into a bundle and records what comes of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from abi import messages
from abi.flat import SUBMIT, Submit
from abi.messages import OpenStream
from abi.packet import HEADER_BYTES
from lab.json_text import json_text
from lab.replay.importers.contract import Flags, Stated, settle
from lab.replay.importers.samples import LAYOUTS, Samples, pack
from lab.replay.log import LogWriter
from lab.replay.refusal import LogRefusal, LogRefused

__all__ = ["Imported", "Picture", "Source", "write_log"]


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
class Imported:
    """What was written: frames, the format's name, and for each field of the contract who stated it."""

    frames: int
    contract: Mapping[str, str]


def write_log(source: Source, flags: Flags, path: Path, *, frames: int | None = None,
              on_frame: Callable[[int], None] = lambda done: None) -> Imported:  # fmt: skip
    """Write `path`, which must not exist, whole or not at all; at most `frames` of it. Raises LogRefused, OSError."""
    first = next(source.pictures, None)
    if first is None:
        raise LogRefused(
            LogRefusal.SOURCE, f"{source.about} holds no picture", expected="at least one", found="none",
            todo="name a file with pictures",
        )  # fmt: skip
    layouts = LAYOUTS[first.samples.family]
    format, contract = settle(flags, layouts, first.samples.size, source.stated(first), source.period_ns)
    camera, done, last_ns, last_sequence = f"/camera/{flags.stream}", 0, -1, 0
    about = {"source": source.about, "imported": "pictures alone, no results"}
    try:
        with LogWriter(path, about=about) as log:
            opened = messages.encode(OpenStream(flags.stream, format))[HEADER_BYTES:]
            log.write(f"{camera}/format", opened, first.logged_ns)
            log.write("/note/contract", json_text(contract).encode(), first.logged_ns)
            for picture in _and_then(first, source.pictures):
                if done == frames:
                    break
                _require_like(picture, first)
                if picture.sof_ns <= last_ns or picture.sequence <= last_sequence:
                    raise _going_back(picture, last_ns, last_sequence)
                last_ns, last_sequence = picture.sof_ns, picture.sequence
                submit = Submit(0, 0, 0, picture.sequence, picture.sof_ns, picture.eof_ns, 0, 0, 0)
                log.write(f"{camera}/submit", SUBMIT.pack(submit), picture.logged_ns)
                log.write_owned(f"{camera}/pixels", pack(picture.samples, format).data, picture.logged_ns)
                done += 1
                on_frame(done)
    except FileExistsError:
        raise
    except BaseException:
        path.unlink(missing_ok=True)
        raise
    return Imported(done, contract)


def _and_then(first: Picture, others: Iterator[Picture]) -> Iterator[Picture]:
    yield first
    yield from others


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
