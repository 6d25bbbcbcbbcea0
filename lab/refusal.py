"""What a person got wrong that belongs to no one room: options that do not go together, files, a daemon that is absent.

Rooms have enums of their own for what they alone refuse (`LogRefusal`, `CompileRefusal` …). What the system says of
files and sockets, wherever a command meets it, becomes one of these at the command line's edge (`refusal_of`).
"""

from __future__ import annotations

import errno
import os
from enum import Enum
from typing import Final

from abi.packet import LocalProtocolError, ProtocolError
from client.errors import ConnectionLost
from lab.hil.daemon import DaemonFailed, VehicleMissing

__all__ = ["LabRefusal", "LabRefused", "refusal_of"]

_FAULT, _USAGE, _REFUSED = 1, 2, 3


class LabRefusal(Enum):
    """The code, stable across versions."""

    OPTIONS = "options"
    NO_SUCH_FILE = "no-such-file"
    FILE_EXISTS = "file-exists"
    FILE_KIND = "file-kind"
    FILE_DENIED = "file-denied"
    FILE_UNUSABLE = "file-unusable"
    NO_ROOM = "no-room"
    TOOL_MISSING = "tool-missing"
    PASSPHRASE = "passphrase-file"
    SIGNED = "already-signed"
    NO_DAEMON = "no-daemon"
    DAEMON_REFUSED = "daemon-refused"
    DAEMON_FAILED = "daemon-failed"
    CONNECTION_LOST = "connection-lost"
    TIMED_OUT = "timed-out"

    @property
    def status(self) -> int:
        """The exit status: usage for options, our fault where a daemon failed, else refused."""
        if self is LabRefusal.OPTIONS:
            return _USAGE
        failed = (LabRefusal.DAEMON_FAILED, LabRefusal.CONNECTION_LOST, LabRefusal.TIMED_OUT)
        return _FAULT if self in failed else _REFUSED


class LabRefused(Exception):
    """A command was not carried out: `what` was wrong, what was `expected`, what was `found`, what `todo`."""

    def __init__(self, code: LabRefusal, what: str, *, expected: str, found: str, todo: str) -> None:
        self.code, self.what, self.expected, self.found, self.todo = code, what, expected, found, todo
        super().__init__(f"{code.value}: {what}: expected {expected}, found {found}; {todo}")

    @classmethod
    def options(cls, what: str, *, expected: str, found: str) -> LabRefused:
        """For options that do not go together, or a value that means nothing."""
        return cls(LabRefusal.OPTIONS, what, expected=expected, found=found, todo="see --help of the command")


_WORDS: Final = {
    LabRefusal.NO_SUCH_FILE: ("a file or folder that is there", "check the path; a new file's folder must exist"),
    LabRefusal.FILE_EXISTS: ("a path that is free", "name another one, or remove what is there yourself"),
    LabRefusal.FILE_KIND: ("a file where a file is due, a folder where a folder is", "check the path"),
    LabRefusal.FILE_DENIED: ("a path that this user may use so", "change its permissions, or name another one"),
    LabRefusal.FILE_UNUSABLE: ("a path that can be read or written", "name another one"),
    LabRefusal.NO_ROOM: ("a disk with room", "free space, or choose another path"),
    LabRefusal.NO_DAEMON: ("a daemon that serves", "name its socket_directory, and start it first"),
    LabRefusal.CONNECTION_LOST: ("a daemon that serves on", "see its log and `fenced status`, then try again"),
    LabRefusal.TIMED_OUT: ("an answer in time", "see that it is not overloaded: `fenced status`; then try again"),
}
"""What is expected, and what to do, by code."""
_CODES: Final = {
    errno.ENOENT: LabRefusal.NO_SUCH_FILE, errno.EEXIST: LabRefusal.FILE_EXISTS,
    errno.ENOTEMPTY: LabRefusal.FILE_EXISTS, errno.EISDIR: LabRefusal.FILE_KIND, errno.ENOTDIR: LabRefusal.FILE_KIND,
    errno.EACCES: LabRefusal.FILE_DENIED, errno.EPERM: LabRefusal.FILE_DENIED, errno.EROFS: LabRefusal.FILE_DENIED,
    errno.ENOSPC: LabRefusal.NO_ROOM, errno.EDQUOT: LabRefusal.NO_ROOM, errno.EFBIG: LabRefusal.NO_ROOM,
}  # fmt: skip
_REFUSED_STATUS = 3
"""With which `fenced serve` ends where it refuses what it was given."""


def refusal_of(error: Exception) -> LabRefused | None:
    """What a person can do something about in an error of the system, of a daemon or of a session; None for others."""
    if isinstance(error, VehicleMissing):
        return LabRefused(
            LabRefusal.TOOL_MISSING, "a daemon of its own", expected="a vehicle environment to start it from",
            found=str(error), todo="run `make vehicle`, or name the environment",
        )  # fmt: skip
    if isinstance(error, DaemonFailed):
        return _of_daemon(error)
    if isinstance(error, LocalProtocolError):  # a name, mostly, that no session may hold
        return LabRefused.options(error.what, expected=error.expected, found=error.found)
    if isinstance(error, ProtocolError):
        return LabRefused(
            LabRefusal.CONNECTION_LOST, f"the daemon did not keep to the protocol: {error.what}",
            expected=error.expected, found=error.found, todo="see that daemon and lab are of one version",
        )  # fmt: skip
    if isinstance(error, ConnectionLost):
        return _made(LabRefusal.CONNECTION_LOST, "the session with the daemon", str(error))
    if not isinstance(error, OSError):
        return None
    found = error.strerror or str(error)
    code, path = _CODES.get(error.errno or 0), _path_of(error)
    absent = code is LabRefusal.NO_SUCH_FILE and path.endswith(".sock")
    if absent or isinstance(error, ConnectionRefusedError):
        return _made(LabRefusal.NO_DAEMON, path or "the daemon's socket", found)
    if isinstance(error, TimeoutError):
        return _made(LabRefusal.TIMED_OUT, "the daemon", found)
    if code is LabRefusal.NO_ROOM:
        return _made(code, path or "what was to be written", found)
    return _made(code or LabRefusal.FILE_UNUSABLE, path, found) if path and error.errno else None


def _made(code: LabRefusal, what: str, found: str) -> LabRefused:
    expected, todo = _WORDS[code]
    return LabRefused(code, what, expected=expected, found=found, todo=todo)


def _path_of(error: OSError) -> str:
    """The path that a person named: of a rename, where it leads."""
    path = error.filename if error.filename2 is None else error.filename2
    return os.fsdecode(path) if isinstance(path, str | bytes | os.PathLike) else ""


def _of_daemon(error: DaemonFailed) -> LabRefused:
    what, _, log = str(error).partition("\n")
    said = [line.removeprefix("fenced: ") for line in log.splitlines() if line.startswith("fenced: ")]
    refused = error.status == _REFUSED_STATUS
    return LabRefused(
        LabRefusal.DAEMON_REFUSED if refused else LabRefusal.DAEMON_FAILED,
        "the daemon that was started did not take what it was given" if refused else what,
        expected="bundle, root and configuration that a vehicle takes" if refused else "a daemon that serves",
        found=said[0] if refused and said else log.strip() or what,
        todo="mend what it names" if refused else "see its log",
    )  # fmt: skip
