"""`fenced-lab replay`: a log again, through one bundle or two side by side, in lock-step or by the log's clock."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import Progress

from lab import numbers
from lab.json_text import json_text
from lab.refusal import LabRefused
from lab.replay import cli_batch
from lab.replay.compare import Comparison, Tolerance, Tolerances
from lab.replay.played import Start
from lab.replay.record import counted
from lab.replay.refusal import LogRefusal, LogRefused
from lab.replay.replay import Options, ReplayReport
from lab.replay.source import SOCKETS
from lab.replay.unit import Unit, run_unit

SHOWN_WORST = 5


def add_commands(commands: Any) -> None:
    """Add `replay` to the command line's subparsers."""
    play = commands.add_parser("replay", help="play a log into a daemon and compare; exit status 3 where it differs")
    play.add_argument("log", type=Path, nargs="+", help="several: each through each --bundle, with one merged report")
    play.add_argument("--sockets", type=Path, default=SOCKETS, help="of the daemon that serves the bundle")
    own = "serve this bundle for the replay, instead of --sockets; may be given several times"
    play.add_argument("--bundle", type=Path, action="append", default=[], help=own)
    play.add_argument("--against", type=Path, metavar="BUNDLE", help="play into this bundle too, and compare the two")
    play.add_argument("--root", type=Path, help="with --bundle and --against: the trusted root")
    play.add_argument("--absolute", type=numbers.tolerance, default=0.0, help="tolerance; default: equal bits")
    play.add_argument("--relative", type=numbers.tolerance, default=0.0, help="tolerance, of the logged value")
    play.add_argument("--tolerances", type=Path, metavar="TOML", help="one for each output, instead of these two")
    start = "begin at SECONDS after the first frame (12.5s), or at a SEQUENCE (1041)"
    play.add_argument("--from", type=start_of, dest="start", default=Start(), metavar="WHERE", help=start)
    warm = "runs to play before the start, uncompared, where the log has no snapshot of state; default: all"
    play.add_argument("--warm-up", type=numbers.count, metavar="RUNS", help=warm)
    play.add_argument("--real-time", action="store_true", help="by the log's clock; default: in lock-step")
    play.add_argument("--partial", action="store_true", help="take a log that was cut off, or whose index is wrong")
    play.add_argument("--any-model", action="store_true", help="compare although another bundle serves")
    play.add_argument("--report", type=Path, help="write the findings here as JSON")
    play.add_argument("--html", type=Path, metavar="FILE", help="write them here as a page with plots and pictures")
    cluster = "run on a Ray cluster: its address, or none for one that runs here or this machine alone"
    play.add_argument("--ray", nargs="?", const="", metavar="ADDRESS", help=cluster)
    play.add_argument("--ray-cpus", type=numbers.rate_hz, default=1.0, metavar="N", help="CPUs that one replay takes")
    again = "of several, tries after a daemon or a machine failed; default: 2"
    play.add_argument("--retries", type=numbers.count_or_0, default=2, metavar="N", help=again)
    play.set_defaults(command=_replay)


def start_of(text: str) -> Start:
    """A place in a log, from the command line."""
    try:
        return Start.parse(text)
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"expected seconds like 12.5s or a sequence like 1041, found {text!r}"
        ) from None


def _replay(arguments: argparse.Namespace) -> int:
    for path in (arguments.report, arguments.html):
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)  # what cannot be written is told before a long replay
    tolerances = Tolerances(Tolerance(arguments.absolute, arguments.relative))
    if arguments.tolerances is not None:
        tolerances = Tolerances.load(arguments.tolerances)
    if (arguments.bundle or arguments.against) and arguments.root is None:
        raise LabRefused.options("--bundle and --against", expected="the --root that trusts them", found="no --root")
    if arguments.against and arguments.real_time:
        raise LabRefused.options("--against", expected="lock-step", found="--real-time, which leaves frames out")
    options = Options(tolerances, arguments.start, arguments.warm_up, arguments.partial, arguments.any_model)
    units = [
        Unit(log, bundle, None if bundle else arguments.sockets, arguments.against, arguments.root, options,
             arguments.real_time)
        for log in dict.fromkeys(arguments.log) for bundle in dict.fromkeys(arguments.bundle) or [None]
    ]  # fmt: skip
    if len(units) > 1 or arguments.ray is not None:
        return cli_batch.play(arguments, units)
    with Progress(console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("replaying", total=None)
        report = run_unit(
            units[0], lambda done: progress.update(task, completed=done, description=f"replaying: {done} frames")
        )
    return _tell(arguments, units[0].log, report)


def _tell(arguments: argparse.Namespace, log: Path, report: ReplayReport) -> int:
    text = json_text(report.as_dict(), indent=2)
    if arguments.report:
        arguments.report.write_text(text + "\n")
    if arguments.html:
        from lab.replay.page import replay_page  # noqa: PLC0415 (brings matplotlib in)

        arguments.html.write_text(replay_page(report, log), encoding="utf-8")
    found = _found(report.compared)
    if arguments.json:
        print(text)
    else:
        print(f"{log}: {report.frames} frames: {found}")
        _tell_outputs("against the log", report.compared)
        if report.against is not None:
            print(f"{arguments.against}: {_found(report.against)}")
            _tell_outputs(f"{arguments.against.name} against what serves", report.against)
        if report.unrecorded or report.uncertain:
            print(f"  {report.unrecorded} results without pixels, {report.uncertain} behind a hole: not compared")
        for note in report.notes:
            print(f"  note  {note}")
    if not report.passed:
        differing = report.compared if report.mismatched or report.against is None else report.against
        worst = next((f"frame {one.sequence}, {one.output} off by {one.absolute:g}" for one in differing.worst), "none")
        raise LogRefused(
            LogRefusal.MISMATCH,
            f"{log.name} was not reproduced",
            expected=f"all {report.frames} results equal or within tolerance",
            found=f"{_found(differing)}; not run: {counted(report.not_run) or 'none'}; worst: {worst}",
            todo="look at the worst frames in the report; another bundle or driver needs a tolerance",
        )
    return 0


def _found(compared: Comparison) -> str:
    return f"{compared.equal} equal, {compared.within} within tolerance, {compared.mismatched} mismatched"


def _tell_outputs(title: str, compared: Comparison) -> None:
    for name, one in compared.outputs.items():
        if one.largest:
            print(f"  {name:24} {title}: largest {one.largest:g}, mean {one.mean:g}, outside in {one.outside} frames")
    for frame in compared.worst[:SHOWN_WORST]:
        within = ", within" if frame.within else ""
        print(f"  frame {frame.sequence:<8} {frame.output} off by {frame.absolute:g}{within}")
