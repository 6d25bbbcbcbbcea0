"""The recording commands of `fenced-lab`: record, drive, replay, log."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from rich.progress import Progress

from lab import numbers
from lab.replay import cli_record
from lab.replay.drive import sockets_of
from lab.replay.log import LogReader
from lab.replay.record import counted
from lab.replay.refusal import LogRefusal, LogRefused
from lab.replay.replay import ReplayReport, Tolerance, replay
from lab.replay.source import SOCKETS


def add_commands(commands: Any) -> None:
    """Add this room's commands to the command line's subparsers."""
    cli_record.add_commands(commands)
    play = commands.add_parser("replay", help="play a log into a daemon, in lock-step, and compare")
    play.add_argument("log", type=Path)
    play.add_argument("--sockets", type=Path, default=SOCKETS)
    play.add_argument("--absolute", type=numbers.tolerance, default=0.0, help="tolerance; default: equal bits")
    play.add_argument("--relative", type=numbers.tolerance, default=0.0, help="tolerance, of the logged value")
    play.add_argument("--partial", action="store_true", help="take a log that was cut off")
    play.add_argument("--any-model", action="store_true", help="compare although another bundle serves")
    play.add_argument("--report", type=Path, help="write the findings here as JSON")
    play.set_defaults(command=_replay)
    log = commands.add_parser("log", help="say what a log holds, and whether it is what it says")
    log.add_argument("log", type=Path)
    log.set_defaults(command=_log)


def _replay(arguments: argparse.Namespace) -> int:
    frames = sum(count for topic, count in LogReader(arguments.log).info().counts.items() if topic.endswith("/pixels"))
    with Progress(transient=True) as progress:
        task = progress.add_task("replaying", total=frames)
        report = replay(
            sockets_of(arguments.sockets), arguments.log, partial=arguments.partial, any_model=arguments.any_model,
            tolerance=Tolerance(arguments.absolute, arguments.relative),
            on_frame=lambda done: progress.update(task, completed=done),
        )  # fmt: skip
    text = json.dumps(report.as_dict(), indent=2)
    if arguments.report:
        arguments.report.write_text(text + "\n")
    found = f"{report.equal} equal, {report.within} within tolerance, {report.mismatched} mismatched"
    print(text if arguments.json else f"{arguments.log}: {report.frames} frames: {found}")
    if not report.passed:
        raise LogRefused(
            LogRefusal.MISMATCH,
            f"{arguments.log.name} was not reproduced",
            expected=f"all {report.frames} results equal or within tolerance",
            found=f"{found}; not run: {counted(report.not_run) or 'none'}; worst: {_worst(report)}",
            todo="look at the worst frames in the report; another bundle or driver needs a tolerance",
        )
    return 0


def _log(arguments: argparse.Namespace) -> int:
    info = LogReader(arguments.log).info()
    if arguments.json:
        print(json.dumps({"about": info.about, "counts": info.counts, "sha256": info.sha256,
                          "finished": info.finished}))  # fmt: skip
    else:
        print(f"{arguments.log}: {'finished' if info.finished else 'cut off'}, sha256 {info.sha256}")
        for topic, count in sorted(info.counts.items()):
            print(f"  {topic:28} {count}")
    info.verify()
    return 0


def _worst(report: ReplayReport) -> str:
    return next((f"frame {one.sequence}, {one.output} off by {one.absolute:g}" for one in report.worst), "none")
