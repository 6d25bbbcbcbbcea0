"""The frames of a log of one camera, in order, for whoever plays its pictures and needs nothing else of it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from abi import messages
from abi.flat import SUBMIT
from abi.messages import OpenStream
from abi.packet import Kind
from lab.replay.log import LogReader
from lab.replay.played import owner
from lab.replay.refusal import LogRefusal, LogRefused


@dataclass(frozen=True)
class LoggedPicture:
    """One frame with its pixels, the whole buffer."""

    sequence: int
    pixels: bytes


def camera_of(reader: LogReader) -> OpenStream:
    """The stream of a log of one camera. Raises LogRefused (FORMAT) for any other."""
    opened: dict[str, OpenStream] = {}
    for message in reader.messages():
        if message.kind == "format":
            opened[owner(message)] = messages.decode(Kind.OPEN_STREAM, message.data)  # type: ignore[assignment]
        elif message.kind == "pixels":
            break
    if len(opened) != 1:
        raise LogRefused(
            LogRefusal.FORMAT, f"{reader.path.name} does not hold one camera",
            expected="one /camera/*/format before the first frame", found=str(sorted(opened)),
            todo="record one stream, or cut the log",
        )  # fmt: skip
    return next(iter(opened.values()))


def pictures(reader: LogReader) -> Iterator[LoggedPicture]:
    """The frames whose pixels are in the log."""
    sequence = 0
    for message in reader.messages():
        if message.kind == "submit":
            sequence = SUBMIT.unpack(message.data).sequence
        elif message.kind == "pixels":
            yield LoggedPicture(sequence, message.data)
