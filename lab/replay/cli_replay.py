"""`fenced-lab replay`: a log again, through one bundle or two side by side, in lock-step or by the log's clock."""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import Progress

from abi.messages import OpenStream, decode
from abi.packet import Kind
from lab import numbers
from lab.hil.daemon import DaemonProcess
from lab.replay.compare import Comparison, Tolerance, Tolerances
from lab.replay.drive import sockets_of
from lab.replay.log import LogReader
from lab.replay.played import Start, owner
from lab.replay.realtime import replay_in_real_time
from lab.replay.record import counted
from lab.replay.refusal import LogRefusal, LogRefused
from lab.replay.replay import Against, Options, ReplayReport, replay
from lab.replay.source import SOCKETS
from lab.sign.pack import open_checked

SHOWN_WORST = 5


def add_commands(commands: Any) -> None:
    """Add `replay` to the command line's subparsers."""
    play = commands.add_parser("replay", help="play a log into a daemon and compare; exit status 3 where it differs")
    play.add_argument("log", type=Path)
    play.add_argument("--sockets", type=Path, default=SOCKETS, help="of the daemon that serves the bundle")
    play.add_argument("--bundle", type=Path, help="serve this bundle for the replay, instead of --sockets")
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
    play.add_argument("--partial", action="store_true", help="take a log that was cut off")
    play.add_argument("--any-model", action="store_true", help="compare although another bundle serves")
    play.add_argument("--report", type=Path, help="write the findings here as JSON")
    play.add_argument("--html", type=Path, metavar="FILE", help="write them here as a page with plots and pictures")
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
    tolerances = Tolerances(Tolerance(arguments.absolute, arguments.relative))
    if arguments.tolerances is not None:
        tolerances = Tolerances.load(arguments.tolerances)
    if (arguments.bundle or arguments.against) and arguments.root is None:
        raise ValueError("--bundle and --against need the --root that trusts them")
    if arguments.against and arguments.real_time:
        raise ValueError("--against goes in lock-step: leave --real-time out")
    with ExitStack() as stack:
        sockets = stack.enter_context(_served(arguments.bundle, arguments)) if arguments.bundle else None
        other = stack.enter_context(_served(arguments.against, arguments)) if arguments.against else None
        rename = _rename(arguments) if arguments.against else {}
        options = Options(
            tolerances, arguments.start, arguments.warm_up, arguments.partial, arguments.any_model,
            None if other is None else Against(other, rename),
        )  # fmt: skip
        progress = stack.enter_context(Progress(console=Console(stderr=True), transient=True))
        task = progress.add_task("replaying", total=None)
        play = replay_in_real_time if arguments.real_time else replay
        report = play(
            sockets or sockets_of(arguments.sockets), arguments.log, options=options,
            on_frame=lambda done: progress.update(task, completed=done, description=f"replaying: {done} frames"),
        )  # fmt: skip
    return _tell(arguments, report)


@contextmanager
def _served(bundle: Path, arguments: argparse.Namespace) -> Iterator[Path]:
    """A daemon of our own that serves a bundle to the log's streams; its sockets."""
    streams = list(_streams(arguments.log))
    with (
        tempfile.TemporaryDirectory(prefix="fenced-replay-") as folder,
        DaemonProcess(Path(folder), [bundle], arguments.root, streams) as daemon,
    ):
        yield daemon.sockets


def _streams(log: Path) -> Iterator[str]:
    """The log's streams: their formats stand before the first frame."""
    for message in LogReader(log).messages():
        if message.kind == "format":
            assert isinstance(decode(Kind.OPEN_STREAM, message.data), OpenStream)
            yield owner(message)
        elif message.kind == "pixels":
            return


def _rename(arguments: argparse.Namespace) -> dict[str, str]:
    """The other bundle may have another name, where the log has one model."""
    with open_checked(arguments.against) as (_, _, stated):
        name = stated.model.name
    logged = {owner(message) for message in LogReader(arguments.log).messages() if message.kind == "layout"}
    return {next(iter(logged)): name} if len(logged) == 1 else {}


def _tell(arguments: argparse.Namespace, report: ReplayReport) -> int:
    text = json.dumps(report.as_dict(), indent=2, default=lambda one: one.__dict__)
    if arguments.report:
        arguments.report.write_text(text + "\n")
    if arguments.html:
        from lab.replay.page import replay_page  # noqa: PLC0415 (brings matplotlib in)

        arguments.html.write_text(replay_page(report, arguments.log), encoding="utf-8")
    found = _found(report.compared)
    if arguments.json:
        print(text)
    else:
        print(f"{arguments.log}: {report.frames} frames: {found}")
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
            f"{arguments.log.name} was not reproduced",
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
