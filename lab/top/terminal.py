"""The terminal's side: single keys without echo, one picture an interval, and the terminal as it was at the end.

The daemon is asked over its control socket and may come and go; without a terminal the view is printed once.
"""

from __future__ import annotations

import contextlib
import os
import select
import sys
import termios
import time
import tty
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.live import Live

from client.control import Control
from client.errors import ConnectionLost, Refused
from lab.top.board import Board
from lab.top.view import render

__all__ = ["run", "show_once"]

QUIT: Final = frozenset("qQ\x04")
PAUSE: Final = frozenset("pP ")


class Source:
    """Asks one daemon for its state, through a session that is opened again when it is lost."""

    def __init__(self, sockets: Path) -> None:
        self._path = sockets / "control.sock"
        self._control: Control | None = None
        self.error: Exception | None = None
        """Why the last reading gave nothing."""

    def read(self, board: Board) -> None:
        """Puts the newest state on the board, or why there is none."""
        try:
            if self._control is None:
                self._control = Control(self._path, name="top")
            board.take(self._control.status(), time.monotonic())
            self.error = None
        except (ConnectionLost, Refused, TimeoutError, OSError) as error:
            self.error = error
            board.lose(f"no daemon answers at {self._path}: {error}; asking again")
            self.close()

    def close(self) -> None:
        """Ends the session."""
        if self._control is not None:
            self._control.close()
            self._control = None


def show_once(sockets: Path, console: Console) -> int:
    """Prints the view once; returns the exit status. Raises what the session raised where no daemon answers."""
    source, board = Source(sockets), Board()
    source.read(board)
    source.close()
    console.print(render(board))
    if source.error is not None:
        raise source.error
    return 0


def run(sockets: Path, interval_s: float, console: Console) -> int:
    """Shows the view until `q` or Ctrl-C; returns the exit status."""
    if not (console.is_terminal and sys.stdin.isatty()):
        return show_once(sockets, console)
    source, board, paused = Source(sockets), Board(), False
    source.read(board)
    with (
        contextlib.suppress(KeyboardInterrupt),
        contextlib.closing(source),
        _single_keys(sys.stdin.fileno()),
        Live(render(board), console=console, screen=True, auto_refresh=False) as live,
    ):
        while True:
            key = _key(sys.stdin.fileno(), interval_s)
            if key in QUIT:
                return 0
            paused ^= key in PAUSE
            if not paused and not key:
                source.read(board)
            live.update(render(board, paused=paused), refresh=True)
    return 0


@contextlib.contextmanager
def _single_keys(descriptor: int) -> Iterator[None]:
    """Keys come one by one and unseen; the terminal is as it was afterwards."""
    before = termios.tcgetattr(descriptor)
    tty.setcbreak(descriptor)
    try:
        yield
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)


def _key(descriptor: int, wait_s: float) -> str:
    """The key that is pressed within `wait_s`, "" for none; at the terminal's end as Ctrl-D."""
    readable, _, _ = select.select([descriptor], [], [], wait_s)
    if not readable:
        return ""
    pressed = os.read(descriptor, 1)
    return pressed.decode("latin-1") if pressed else "\x04"
