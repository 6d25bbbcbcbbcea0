"""`fenced-lab log`: what a log holds, whether it is what it says, a part of it, and its pictures and numbers."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from lab.json_text import json_text
from lab.replay import tools
from lab.replay.cli_replay import start_of
from lab.replay.log import LogMessage, LogReader
from lab.replay.played import Start


def add_commands(commands: Any) -> None:
    """Add `log` with its own commands to the command line's subparsers."""
    log = commands.add_parser("log", help="look at a log, check it, cut it, export it")
    actions = log.add_subparsers(required=True, metavar="ACTION")
    for name, run, text in (
        ("info", _info, "what it holds; also of one that was cut off"),
        ("verify", _verify, "whether it is whole, and is what its summary says; exit status 3 where not"),
    ):
        action = actions.add_parser(name, help=text)
        action.add_argument("log", type=Path)
        action.set_defaults(command=run)
    cut = actions.add_parser("cut", help="write a part of it as a log of its own, from a snapshot of state on")
    cut.add_argument("log", type=Path)
    cut.add_argument("-o", "--output", type=Path, required=True, help="the new log, which must not exist")
    where = "SECONDS after the first frame (12.5s), or a SEQUENCE (1041)"
    cut.add_argument("--from", type=start_of, dest="begin", default=Start(), metavar="WHERE", help=where)
    cut.add_argument("--to", type=start_of, dest="end", metavar="WHERE", help="the first frame that is left out")
    cut.set_defaults(command=_cut)
    export = actions.add_parser("export", help="pictures, a table of results, a video")
    export.add_argument("log", type=Path)
    to = export.add_mutually_exclusive_group(required=True)
    to.add_argument("--png", type=Path, metavar="FOLDER", help="every frame, STREAM-SEQUENCE.png")
    to.add_argument("--csv", type=Path, metavar="FILE", help="every result: times, receipt, outputs")
    to.add_argument("--video", type=Path, metavar="FILE", help=".mkv: lossless; .mp4: H.264")
    export.add_argument("--stream", help="default: all; of a video, the first")
    export.set_defaults(command=_export)


def _info(arguments: argparse.Namespace) -> int:
    times: list[int] = []

    def visit(message: LogMessage) -> None:
        if message.kind == "submit":
            times[1:] = [message.log_time_ns]
            times[:1] = times[:1] or [message.log_time_ns]

    info = LogReader(arguments.log).info(visit)
    seconds = (times[-1] - times[0]) / 1e9 if times else 0.0
    size_bytes = arguments.log.stat().st_size
    if arguments.json:
        print(json_text({"about": info.about, "counts": info.counts, "sha256": info.sha256, "seconds": seconds,
                         "bytes": size_bytes, "finished": info.finished, "index": info.index}))  # fmt: skip
        return 0
    state = "finished" if info.finished else "cut off"
    print(f"{arguments.log}: {state}, {seconds:.2f} s, {size_bytes} bytes, sha256 {info.sha256}")
    if info.finished and info.index is not None:
        print(f"  {'index':28} wrong: {info.index.what}: expected {info.index.expected}, found {info.index.found}")
    for name, value in sorted(info.about.items()):
        print(f"  {name:28} {value}")
    for topic, count in sorted(info.counts.items()):
        print(f"  {topic:28} {count}")
    return 0


def _verify(arguments: argparse.Namespace) -> int:
    info = LogReader(arguments.log).info()
    info.verify()
    count = sum(info.counts.values())
    print(json_text({"verified": True, "sha256": info.sha256, "messages": count}) if arguments.json else
          f"{arguments.log}: whole, {count} messages, sha256 {info.sha256}")  # fmt: skip
    return 0


def _cut(arguments: argparse.Namespace) -> int:
    reader = LogReader(arguments.log)
    frames = tools.cut(reader, arguments.output, tools.extent(reader, arguments.begin, arguments.end))
    print(json_text({"frames": frames}) if arguments.json else f"{arguments.output}: {frames} frames")
    return 0


def _export(arguments: argparse.Namespace) -> int:
    reader = LogReader(arguments.log)
    target: Path = arguments.png or arguments.csv or arguments.video
    if arguments.png:
        count = tools.export_png(reader, target, arguments.stream)
    elif arguments.video:
        count = tools.export_video(reader, target, arguments.stream)
    else:
        count = tools.export_csv(reader, target)
    what = "results" if arguments.csv else "frames"
    print(json_text({what: count}) if arguments.json else f"{target}: {count} {what}")
    return 0
