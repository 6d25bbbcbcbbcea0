"""`fenced-lab record`: look at a daemon that runs; and `fenced-lab drive`: be its camera as well, in lock-step."""

from __future__ import annotations

import argparse
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from itertools import islice
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from client.tap import Tap
from lab import numbers
from lab.compile.spec_toml import load_spec
from lab.json_text import json_text
from lab.refusal import LabRefused
from lab.replay.cameras import record_sets
from lab.replay.drive import Drive, sockets_of
from lab.replay.log import LogReader, LogWriter
from lab.replay.pictures import cameras_of, sets_of
from lab.replay.record import counted, record
from lab.replay.refusal import LogRefusal, LogRefused
from lab.replay.rig import Rig
from lab.replay.served import served
from lab.replay.snapshots import Snapshots
from lab.replay.source import SOCKETS, FrameSource, LogSource, RawSource, RoadSource
from lab.replay.tap_record import Recorded, Recorder
from lab.sign.pack import open_checked

DEFAULT_RATE_HZ = 20.0
DEFAULT_FRAMES = 200
SNAPSHOT_S = 10.0


def add_commands(commands: Any) -> None:
    """Add `record` and `drive` to the command line's subparsers."""
    look = commands.add_parser("record", help="record what a running daemon sees and says, without disturbing it")
    look.add_argument("sockets", type=Path, nargs="?", default=SOCKETS, help="the daemon's socket_directory")
    look.add_argument(
        "-o", "--output", type=Path, required=True, metavar="LOG", help="the MCAP file, which must not exist"
    )
    look.add_argument(
        "--seconds", type=numbers.seconds, help="end after so long; default: at Ctrl-C, or with the daemon"
    )
    look.add_argument("--frames", type=numbers.count, help="end after so many frames, of all streams together")
    look.add_argument(
        "--no-pixels", action="store_true", help="only what is said of frames: small, and not to be replayed"
    )
    states = "seconds between snapshots of recurrent state, where this user may control the daemon; 0: none"
    look.add_argument("--snapshot-every", type=numbers.seconds, default=SNAPSHOT_S, metavar="S", help=states)
    look.set_defaults(command=_record)
    make = commands.add_parser("drive", help="be the camera of a daemon, synthetic or played, and log everything")
    make.add_argument("log", type=Path, help="the MCAP file, which must not exist")
    make.add_argument("--model", help="default: the spec's, or lane")
    make.add_argument("--spec", type=Path, help="with --input of raw frames: the spec.toml of the model that serves")
    frames = "raw frames as the spec's one input lays them out, or a log (.mcap), recorded or imported"
    make.add_argument("--input", type=Path, metavar="FRAMES", help=frames)
    stream = "with --input of a log: which of its cameras; may be given several times; default: all, together"
    make.add_argument("--stream", action="append", default=[], help=stream)
    frames = "of several cameras sets of frames; default: all of a log's, otherwise 200"
    make.add_argument("--frames", type=numbers.count, help=frames)
    rate = "of frames, or of sets; 0: as fast as they settle"
    make.add_argument("--rate-hz", type=numbers.rate_hz_or_0, default=DEFAULT_RATE_HZ, help=rate)
    make.add_argument("--seed", type=int, default=1, help="of the synthetic road, where there is no --input")
    make.add_argument("--sockets", type=Path, default=SOCKETS, help="the daemon's socket_directory")
    make.add_argument("--bundle", type=Path, help="serve this bundle for the drive, instead of --sockets")
    make.add_argument("--root", type=Path, help="with --bundle: the trusted root")
    make.set_defaults(command=_drive)


def _record(arguments: argparse.Namespace) -> int:
    sockets = sockets_of(arguments.sockets)
    about = {"source": f"tap of {sockets}", "recorded_unix_s": str(int(time.time()))}
    columns = SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn()
    with (
        Tap.open(sockets / "consumer.sock", pixels=not arguments.no_pixels) as tap,
        LogWriter(arguments.output, about=about) as log,
        Snapshots(sockets, log, arguments.snapshot_every) as snapshots,
        Progress(*columns, console=Console(stderr=True), transient=True) as progress,
        _Ending(arguments.seconds, arguments.frames) as ended,
    ):
        recorder = Recorder(sockets, log, tap, pixels=not arguments.no_pixels)
        task = progress.add_task("recording")
        begun = iter([False])  # however short it is and however slow the machine: what there is now is taken first

        def until(recorded: Recorded) -> bool:
            progress.update(task, description=f"recording: {recorded.text().partition(';')[0]}")
            if recorded.notes["model"]:  # what follows a snapshot must be in the log
                snapshots.begin()
            return next(begun, True) and ended(recorded)

        recorded = recorder.run(until)
    if arguments.json:
        print(json_text({**recorded.as_dict(), "snapshots": snapshots.taken, "no_snapshots": snapshots.why_not}))
    else:
        states = f"; no snapshots of state: {snapshots.why_not}" if snapshots.why_not else ""
        print(f"{arguments.output}: {recorded.text()}{states}")
    return 0


class _Ending:
    """When a recording ends: after a time, after frames, or when SIGINT or SIGTERM comes, while the context lasts."""

    def __init__(self, seconds: float | None, frames: int | None) -> None:
        self._end_s = float("inf") if seconds is None else time.monotonic() + seconds
        self._frames = float("inf") if frames is None else frames
        self._asked = threading.Event()
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> _Ending:
        if threading.current_thread() is threading.main_thread():
            for one in (signal.SIGINT, signal.SIGTERM):
                self._before[one] = signal.signal(one, lambda *_: self._asked.set())
        return self

    def __exit__(self, *_: object) -> None:
        for one, handler in self._before.items():
            signal.signal(one, handler)

    def __call__(self, recorded: Recorded) -> bool:
        enough = sum(recorded.frames.values()) >= self._frames
        return enough or self._asked.is_set() or time.monotonic() >= self._end_s


def _drive(arguments: argparse.Namespace) -> int:
    if (arguments.bundle is None) != (arguments.root is None):
        raise LabRefused.options(
            "--bundle and --root", expected="a bundle with the root that trusts it", found="one of both"
        )
    if arguments.stream and not _is_log(arguments.input):
        raise LabRefused.options("--stream", expected="a log (.mcap) as --input, of which it is a camera", found="none")
    counts = _drive_log(arguments) if _is_log(arguments.input) else _drive_source(arguments, *_source(arguments))
    print(json_text(counts) if arguments.json else f"{arguments.log}: " + counted(counts))
    return 0


def _is_log(path: Path | None) -> bool:
    return path is not None and path.suffix == ".mcap"


def _drive_source(arguments: argparse.Namespace, source: FrameSource, model: str, about: str) -> Counter[str]:
    """Be one camera."""
    total = arguments.frames or (source.frames if isinstance(source, LogSource) else DEFAULT_FRAMES)
    with (
        _sockets(arguments, [source.stream]) as sockets,
        Drive(sockets, source.stream, source.format, model) as drive,
        LogWriter(arguments.log, about={"source": about}) as log,
        Progress(transient=True) as progress,
    ):
        task = progress.add_task("recording", total=total)
        return record(
            drive, source, log, model, total, rate_hz=arguments.rate_hz or None,
            on_frame=lambda *_: progress.advance(task),
        )  # fmt: skip


def _drive_log(arguments: argparse.Namespace) -> Counter[str]:
    """Be the cameras of a log: alone as any, several together."""
    if (model := _model(arguments)) is None:
        raise LabRefused.options(
            "--input of a log", expected="the --model that it is played into, or its --bundle", found="neither"
        )
    reader, about = LogReader(arguments.input), f"frames of {arguments.input.name}"
    opened, counts = cameras_of(reader, arguments.stream)
    if len(opened) == 1:
        ((stream, one),) = opened.items()
        return _drive_source(arguments, LogSource(reader, one, counts[stream]), model, about)
    with (
        _sockets(arguments, list(opened)) as sockets,
        Rig(sockets, opened, [model]) as rig,
        LogWriter(arguments.log, about={"source": about}) as log,
        Progress(transient=True) as progress,
    ):
        task = progress.add_task("recording", total=arguments.frames or max(counts.values()))
        return record_sets(
            rig, islice(sets_of(reader, opened), arguments.frames), log, model, rate_hz=arguments.rate_hz or None,
            on_set=lambda done: progress.update(task, completed=done),
        )  # fmt: skip


@contextmanager
def _sockets(arguments: argparse.Namespace, streams: list[str]) -> Iterator[Path]:
    """Those of the daemon that serves, or of one that serves the bundle meanwhile."""
    own = nullcontext(arguments.sockets)
    with served(arguments.bundle, arguments.root, streams) if arguments.bundle else own as sockets:
        yield sockets_of(sockets)


def _source(arguments: argparse.Namespace) -> tuple[FrameSource, str, str]:
    """Where the frames come from, the model that takes them, and what the log says of it."""
    if arguments.input is None and arguments.spec is None:
        return RoadSource(arguments.seed), _model(arguments) or "lane", f"road seed {arguments.seed}"
    if arguments.input is None or arguments.spec is None:
        raise LabRefused.options(
            "--input and --spec", expected="raw frames with the spec that says how they lie, or a log (.mcap)",
            found="one of both" if arguments.input is None else f"{arguments.input.name} without --spec",
        )  # fmt: skip
    spec = load_spec(arguments.spec)
    if len(spec.inputs) != 1:
        raise LogRefused(
            LogRefusal.BAD_FRAMES, arguments.spec.name, expected="a spec with one [[input]]",
            found=f"{len(spec.inputs)}", todo="play several cameras from a log: fenced-lab import makes one",
        )  # fmt: skip
    (given,) = spec.inputs
    source = RawSource(arguments.input, given.stream, given.stream_format, arguments.rate_hz or DEFAULT_RATE_HZ)
    return source, arguments.model or spec.model.name, arguments.input.name


def _model(arguments: argparse.Namespace) -> str | None:
    """The model that was named, or that of the bundle."""
    if arguments.model is not None or arguments.bundle is None:
        return None if arguments.model is None else str(arguments.model)
    with open_checked(arguments.bundle) as (_, _, stated):
        return stated.model.name
