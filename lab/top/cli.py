"""`fenced-lab top`."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from rich.console import Console

from lab import numbers

__all__ = ["add_command"]

SOCKETS = Path("/run/fenced")


def add_command(commands: Any) -> None:
    """Add `top` to the command line's subparsers."""
    top = commands.add_parser("top", help="a live view of a daemon: streams, ledger, latency, fences, models")
    top.add_argument("--sockets", type=Path, default=SOCKETS, help="the daemon's socket_directory")
    top.add_argument("--rate-hz", type=numbers.rate_hz, default=2.0, help="pictures a second")
    top.add_argument("--once", action="store_true", help="print it once; so it does where there is no terminal")
    top.set_defaults(command=_top)


def _top(arguments: argparse.Namespace) -> int:
    from lab.top import terminal  # noqa: PLC0415 (only a terminal needs it)

    console = Console(highlight=False)
    if arguments.once:
        return terminal.show_once(arguments.sockets, console)
    return terminal.run(arguments.sockets, 1.0 / arguments.rate_hz, console)
