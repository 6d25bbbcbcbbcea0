"""The recording commands of `fenced-lab`: record, drive, replay, log, import. Each has a module of its own."""

from __future__ import annotations

from typing import Any

from lab.replay import cli_log, cli_record, cli_replay
from lab.replay.importers import cli as cli_import


def add_commands(commands: Any) -> None:
    """Add this room's commands to the command line's subparsers."""
    cli_record.add_commands(commands)
    cli_replay.add_commands(commands)
    cli_log.add_commands(commands)
    cli_import.add_commands(commands)
