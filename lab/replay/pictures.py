"""The frames of a log in order, for whoever plays its pictures and needs nothing else of it."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from operator import itemgetter

from abi import messages
from abi.flat import SUBMIT, Submit
from abi.messages import OpenStream
from abi.packet import Kind
from lab.replay.log import LogMessage, LogReader
from lab.replay.played import FrameSet, LoggedFrame, changed, owner
from lab.replay.refusal import LogRefusal, LogRefused

__all__ = ["LoggedPicture", "cameras_of", "pictures", "sets_of"]


@dataclass(frozen=True)
class LoggedPicture:
    """One frame with its pixels, the whole buffer."""

    sequence: int
    pixels: bytes


def cameras_of(reader: LogReader, streams: Collection[str] = ()) -> tuple[dict[str, OpenStream], dict[str, int]]:
    """The log's cameras by stream, or those that are named, and how many frames of each have their pixels.

    Reads the whole log. Raises LogRefused where it is not what it says, lacks a camera, or has no pixels of one.
    """
    opened: dict[str, OpenStream] = {}

    def visit(message: LogMessage) -> None:
        if message.kind == "format":
            one = messages.decode(Kind.OPEN_STREAM, message.data)
            assert isinstance(one, OpenStream)
            if opened.setdefault(owner(message), one) != one:
                raise changed(owner(message), "its format changed")

    info = reader.info(visit)
    info.verify()
    if not set(streams) <= set(opened):
        raise LogRefused(
            LogRefusal.FORMAT, f"{reader.path.name} does not hold these cameras", expected=", ".join(streams),
            found=", ".join(sorted(opened)) or "none", todo="name streams of the log: fenced-lab log info shows them",
        )  # fmt: skip
    chosen = {stream: one for stream, one in opened.items() if not streams or stream in streams}
    counts = {stream: info.counts.get(f"/camera/{stream}/pixels", 0) for stream in chosen}
    if not chosen or not all(counts.values()):
        raise LogRefused(
            LogRefusal.BAD_FRAMES, reader.path.name, expected="a log with pixels of each camera",
            found=", ".join(f"{count} of {stream}" for stream, count in counts.items()) or "none",
            todo="record with pixels, or import a drive; --stream chooses cameras",
        )  # fmt: skip
    return chosen, counts


def pictures(reader: LogReader, stream: str) -> Iterator[LoggedPicture]:
    """The frames of a camera whose pixels are in the log."""
    for frame in _frames(reader, (stream,)):
        assert frame.pixels is not None
        yield LoggedPicture(frame.submit.sequence, frame.pixels)


def _frames(reader: LogReader, streams: Collection[str]) -> Iterator[LoggedFrame]:
    submits: dict[str, tuple[Submit, int]] = {}
    for message in reader.messages():
        if message.kind in ("submit", "pixels") and (stream := owner(message)) in streams:
            if message.kind == "submit":
                submits[stream] = SUBMIT.unpack(message.data), message.log_time_ns
            elif stream in submits:
                submit, logged_ns = submits.pop(stream)
                yield LoggedFrame(stream, submit, message.data, logged_ns)


def sets_of(reader: LogReader, opened: Mapping[str, OpenStream]) -> Iterator[FrameSet]:
    """Frames with pixels, set by set: of each of these cameras one at most.

    They are no further apart than half of the shortest period: by the cameras' clock if it is one, or by when they
    were logged.
    """
    one_clock = len({one.format.clock for one in opened.values()}) == 1
    reach_ns = min(one.format.period_ns for one in opened.values()) // 2
    held: list[tuple[int, LoggedFrame]] = []
    for frame in _frames(reader, opened):
        at_ns = frame.submit.sof_ns if one_clock else frame.logged_ns
        if held and (at_ns - held[0][0] > reach_ns or any(frame.stream == one.stream for _, one in held)):
            yield sorted(held, key=itemgetter(0))
            held = []
        held.append((at_ns, frame))
    if held:
        yield sorted(held, key=itemgetter(0))
