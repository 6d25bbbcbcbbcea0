"""Log lines for the journal: one line on stderr with a syslog level prefix (sd-daemon(3)), never waited for.

A reader that stops reading must not stall a frame: a line that would block is dropped and counted.
"""

import os
import select
from enum import IntEnum

_LINE_LIMIT_BYTES = 2048  # below PIPE_BUF: a pipe that polls writable takes such a line whole


class Level(IntEnum):
    """Syslog severities."""

    ERROR = 3
    WARNING = 4
    NOTICE = 5
    INFO = 6


class Log:
    """Writes to one descriptor; `dropped` counts the lines that found it full."""

    def __init__(self, descriptor: int = 2, *, prefix_levels: bool = True) -> None:
        self._descriptor = descriptor
        self._prefix_levels = prefix_levels
        self._poll = select.poll()
        self._poll.register(descriptor, select.POLLOUT)
        self.dropped = 0

    def write(self, level: Level, message: str) -> None:
        """One event as one line; line breaks and control characters in it are escaped."""
        text = "".join(letter if letter.isprintable() else repr(letter)[1:-1] for letter in message)
        prefix = f"<{int(level)}>" if self._prefix_levels else ""
        line = f"{prefix}fenced: {text}".encode("utf-8", "backslashreplace")[:_LINE_LIMIT_BYTES] + b"\n"
        if not any(event & select.POLLOUT for _, event in self._poll.poll(0)):
            self.dropped += 1
            return
        try:
            os.write(self._descriptor, line)
        except OSError:
            self.dropped += 1

    def info(self, message: str) -> None:
        """What happens in normal service."""
        self.write(Level.INFO, message)

    def notice(self, message: str) -> None:
        """Normal but worth keeping: activations, starts, stops."""
        self.write(Level.NOTICE, message)

    def warning(self, message: str) -> None:
        """A peer or a bundle did wrong; service goes on."""
        self.write(Level.WARNING, message)

    def error(self, message: str) -> None:
        """Service is impaired."""
        self.write(Level.ERROR, message)
