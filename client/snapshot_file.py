"""A snapshot of recurrent state as a file: read whole or refused by name, written whole or not at all.

What is not a regular file of a snapshot's size is refused before a byte of it is read: a device never ends.
"""

from __future__ import annotations

import contextlib
import os
import stat

from abi.packet import RefusalCode
from abi.snapshot import MAX_SNAPSHOT_BYTES, SnapshotError, decode
from client.errors import Refused

__all__ = ["read_snapshot", "write_snapshot"]

_ACTION = "name a file that `fenced snapshot-state` wrote"


def read_snapshot(path: str | os.PathLike[str]) -> bytes:
    """The bytes of the snapshot at `path`. Raises Refused for anything else, with nothing sent to the daemon."""
    where = f"snapshot file {os.fspath(path)}"
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except (OSError, ValueError) as error:
        raise _refused(where, "a readable file", str(error)) from error
    try:
        data = _read(descriptor, where)
    finally:
        os.close(descriptor)
    try:
        decode(data)
    except SnapshotError as error:
        raise _refused(f"{where}, {error.what}", error.expected, error.found) from error
    return data


def write_snapshot(path: str | os.PathLike[str], data: bytes) -> None:
    """Writes a new file at `path`. Raises Refused where there is one, or the disk refuses; it leaves none then."""
    where = f"snapshot file {os.fspath(path)}"
    try:
        file = open(path, "xb")  # noqa: SIM115 (closed below, before the file is removed)
    except (OSError, ValueError) as error:
        raise _refused(where, "a new file", str(error), "name another file") from error
    try:
        with file:
            file.write(data)
    except OSError as error:
        with contextlib.suppress(OSError):
            os.unlink(path)
        raise _refused(where, f"room for {len(data)} bytes", str(error), "free the disk, or name another") from error


def _read(descriptor: int, where: str) -> bytes:
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode):
        raise _refused(where, "a regular file", stat.filemode(status.st_mode))
    if status.st_size > MAX_SNAPSHOT_BYTES:
        raise _refused(where, f"at most {MAX_SNAPSHOT_BYTES} bytes", f"{status.st_size} bytes")
    with open(descriptor, "rb", closefd=False) as file:
        return file.read(status.st_size)


def _refused(what: str, expected: str, found: str, action: str = _ACTION) -> Refused:
    return Refused(RefusalCode.BAD_BUFFER, what, expected, found, action)
