"""A daemon of our own that serves bundles to the streams of a log, for as long as a replay or a drive needs it."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from abi.messages import OpenStream, decode
from abi.packet import Kind
from lab.hil.daemon import PATIENT, DaemonProcess
from lab.replay.log import LogReader
from lab.replay.played import owner

__all__ = ["served", "streams_of"]


@contextmanager
def served(bundle: Path, root: Path, streams: Sequence[str]) -> Iterator[Path]:
    """The sockets of a daemon that serves `bundle`, trusted by `root`. Raises DaemonFailed."""
    with (
        tempfile.TemporaryDirectory(prefix="fenced-replay-") as folder,
        DaemonProcess(Path(folder), [bundle], root, streams, limits=PATIENT) as daemon,
    ):
        yield daemon.sockets


def streams_of(log: Path) -> list[str]:
    """The log's streams: their formats stand before the first frame."""
    found: list[str] = []
    for message in LogReader(log).messages():
        if message.kind == "format":
            assert isinstance(decode(Kind.OPEN_STREAM, message.data), OpenStream)
            found.append(owner(message))
        elif message.kind == "pixels":
            break
    return list(dict.fromkeys(found))
