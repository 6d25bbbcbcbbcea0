"""Log lines: fields for the journal where there is one, else one line on stderr with a syslog level; never waited for.

A reader that stops reading must not stall a frame: a line that would block is dropped and counted. Any thread may
write.
"""

import os
import select
import threading
from collections.abc import Mapping
from enum import IntEnum

from daemon.journal import Journal, MessageId

_LINE_LIMIT_BYTES = 2048  # below PIPE_BUF: a pipe that polls writable takes such a line whole
_VALUE_LIMIT = 1024


class Level(IntEnum):
    """Syslog severities."""

    ERROR = 3
    WARNING = 4
    NOTICE = 5
    INFO = 6


class Log:
    """Writes to the journal, or without one to a descriptor; `dropped` counts the lines that found it full.

    Fields (MODEL, STREAM, REFUSAL …) go to the journal only: the text says the same.
    """

    def __init__(self, descriptor: int = 2, *, prefix_levels: bool = True, journal: Journal | None = None) -> None:
        self._descriptor = descriptor
        self._prefix_levels = prefix_levels
        self._journal = journal
        self._lock = threading.RLock()  # a poll object refuses a second thread; who waits for it waits for no reader
        self._poll = select.poll()
        self._poll.register(descriptor, select.POLLOUT)
        self.dropped = 0

    def write(self, level: Level, message: str, kind: MessageId | None, fields: Mapping[str, str]) -> None:
        """One event as one line; line breaks and control characters in it are escaped."""
        text = _plain(message)
        if self._journal is not None:
            named = {"MESSAGE_ID": kind.value} if kind is not None else {}
            more = {name: _plain(value)[:_VALUE_LIMIT] for name, value in fields.items() if value}
            known = {"PRIORITY": str(int(level)), "SYSLOG_IDENTIFIER": "fenced", "MESSAGE": text[:_LINE_LIMIT_BYTES]}
            if not self._journal.send({**known, **named, **more}):
                self.dropped += 1
            return
        prefix = f"<{int(level)}>" if self._prefix_levels else ""
        line = f"{prefix}fenced: {text}".encode("utf-8", "backslashreplace")[:_LINE_LIMIT_BYTES] + b"\n"
        with self._lock:
            self._write_line(line)

    def _write_line(self, line: bytes) -> None:
        if not any(event & select.POLLOUT for _, event in self._poll.poll(0)):
            self.dropped += 1
            return
        try:
            os.write(self._descriptor, line)
        except OSError:
            self.dropped += 1

    def info(self, message: str, kind: MessageId | None = None, **fields: str) -> None:
        """What happens in normal service."""
        self.write(Level.INFO, message, kind, fields)

    def notice(self, message: str, kind: MessageId | None = None, **fields: str) -> None:
        """Normal but worth keeping: activations, starts, stops."""
        self.write(Level.NOTICE, message, kind, fields)

    def warning(self, message: str, kind: MessageId | None = None, *, todo: str, **fields: str) -> None:
        """A peer or a bundle did wrong; service goes on. `todo`: what an operator does about it, or may leave."""
        self.write(Level.WARNING, _advising(message, todo), kind, fields)

    def error(self, message: str, kind: MessageId | None = None, *, todo: str, **fields: str) -> None:
        """Service is impaired. `todo`: what an operator does about it."""
        self.write(Level.ERROR, _advising(message, todo), kind, fields)


def _advising(message: str, todo: str) -> str:
    """A refusal's own words end with what to do already."""
    return message if todo in message else f"{message}; {todo}"


def _plain(text: str) -> str:
    return "".join(letter if letter.isprintable() else repr(letter)[1:-1] for letter in text)
