"""The recording commands of `fenced-lab`: record, replay, log."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from rich.progress import Progress

from lab import numbers
from lab.compile.spec_toml import load_spec
from lab.replay.drive import Drive, sockets_of
from lab.replay.log import LogReader, LogWriter
from lab.replay.record import record
from lab.replay.refusal import LogRefusal, LogRefused
from lab.replay.replay import ReplayReport, Tolerance, replay
from lab.replay.source import FrameSource, RawSource, RoadSource

SOCKETS = Path("/run/fenced")
DEFAULT_RATE_HZ = 20.0


def add_commands(commands: Any) -> None:
    """Add this room's commands to the command line's subparsers."""
    make = commands.add_parser("record", help="drive a daemon with a synthetic or a played camera and log everything")
    make.add_argument("log", type=Path, help="the MCAP file, which must not exist")
    make.add_argument("--model", help="default: the spec's, or lane")
    make.add_argument("--spec", type=Path, help="with --input: the spec.toml of the model that serves")
    make.add_argument("--input", type=Path, metavar="FRAMES", help="raw frames as the spec's one input lays them out")
    make.add_argument("--frames", type=numbers.count, default=200)
    rate = "0: as fast as frames settle"
    make.add_argument("--rate-hz", type=numbers.rate_hz_or_0, default=DEFAULT_RATE_HZ, help=rate)
    make.add_argument("--seed", type=int, default=1, help="of the synthetic road, where there is no --input")
    make.add_argument("--sockets", type=Path, default=SOCKETS, help="the daemon's socket_directory")
    make.set_defaults(command=_record)
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


def _record(arguments: argparse.Namespace) -> int:
    source, model, about = _source(arguments)
    with (
        Drive(sockets_of(arguments.sockets), source.stream, source.format, model) as drive,
        LogWriter(arguments.log, about={"source": about}) as log,
        Progress(transient=True) as progress,
    ):
        task = progress.add_task("recording", total=arguments.frames)
        counts = record(
            drive, source, log, model, arguments.frames, rate_hz=arguments.rate_hz or None,
            on_frame=lambda *_: progress.advance(task),
        )  # fmt: skip
    print(json.dumps(counts) if arguments.json else f"{arguments.log}: " + _counted(counts))
    return 0


def _source(arguments: argparse.Namespace) -> tuple[FrameSource, str, str]:
    """Where the frames come from, the model that takes them, and what the log says of it."""
    if arguments.input is None and arguments.spec is None:
        return RoadSource(arguments.seed), arguments.model or "lane", f"road seed {arguments.seed}"
    if arguments.input is None or arguments.spec is None:
        raise ValueError("--input needs the --spec that says how its frames lie, and --spec the --input to play")
    spec = load_spec(arguments.spec)
    if len(spec.inputs) != 1:
        raise LogRefused(
            LogRefusal.BAD_FRAMES, arguments.spec.name, expected="a spec with one [[input]]",
            found=f"{len(spec.inputs)}", todo="drive several cameras with client.camera.Camera; record has one",
        )  # fmt: skip
    (given,) = spec.inputs
    source = RawSource(arguments.input, given.stream, given.stream_format, arguments.rate_hz or DEFAULT_RATE_HZ)
    return source, arguments.model or spec.model.name, arguments.input.name


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
            found=f"{found}; not run: {_counted(report.not_run) or 'none'}; worst: {_worst(report)}",
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


def _counted(counts: dict[str, int]) -> str:
    return ", ".join(f"{count} {status}" for status, count in sorted(counts.items()))
