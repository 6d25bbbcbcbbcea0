"""`fenced-lab import`: drives that others recorded, as logs. What a file does not state has to be said."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import Progress

from abi.pixels import PIXEL_FORMATS
from lab import numbers
from lab.compile.spec_toml import load_spec
from lab.json_text import json_text
from lab.refusal import LabRefused
from lab.replay.importers.contract import COLOUR_FIELDS, Flags, spelled
from lab.replay.importers.write import Part, Source, write_log
from lab.replay.refusal import LogRefusal, LogRefused

_EPILOG = """Range, matrix, primaries, transfer, chroma site, clock and mark are taken from the file where it states
them. What it does not state is refused by the name of its option: nothing is guessed, nothing is converted."""


def add_commands(commands: Any) -> None:
    """Add `import` with its kinds of sources to the command line's subparsers."""
    top = commands.add_parser("import", help="a video, pictures, a ROS 2 bag or an openpilot segment, as a log")
    kinds = top.add_subparsers(required=True, metavar="KIND")
    video = _kind(kinds, "video", _video, "a video file, as FFmpeg decodes it")
    video.add_argument("source", type=Path, nargs="+", metavar="FILE", help="several: cameras that began together")
    images = _kind(kinds, "images", _images, "the pictures of a folder, in the order of their names")
    images.add_argument("source", type=Path, nargs="+", metavar="FOLDER", help="several: cameras that began together")
    bag = _kind(kinds, "rosbag", _rosbag, "a ROS 2 bag: sensor_msgs/Image or CompressedImage")
    bag.add_argument("source", type=Path, metavar="BAG", help="its folder, or its .mcap or .db3 file")
    topic = "default: the only one with pictures; several times: of several cameras"
    bag.add_argument("--topic", action="append", default=[], help=topic)
    segment = _kind(kinds, "openpilot", _openpilot, "an openpilot segment: rlog and HEVC")
    segment.add_argument("source", type=Path, metavar="SEGMENT", help="the folder with rlog(.zst) and fcamera.hevc")
    names, camera = ("road", "wide", "driver"), "default: road; several times: several cameras"
    segment.add_argument("--camera", action="append", choices=names, default=[], help=camera)


def _kind(kinds: Any, name: str, open_source: Any, text: str) -> Any:
    parser = kinds.add_parser(name, help=text, epilog=_EPILOG)
    parser.add_argument(
        "-o", "--output", type=Path, required=True, metavar="LOG", help="the MCAP file, which must not exist"
    )
    stream = (
        "what the log calls the camera; of several once for each, in their order; with --spec by default its one stream"
    )
    parser.add_argument("--stream", action="append", default=[], help=stream)
    parser.add_argument("--frames", type=numbers.count, help="end after so many, of each camera")
    parser.add_argument("--spec", type=Path, help="a model's spec.toml: its input of that stream states the format")
    parser.add_argument("--format", choices=tuple(PIXEL_FORMATS), default="", metavar="NAME",
                        help="how pixels lie in the log (docs/pixel-formats.md); default: as they come")  # fmt: skip
    parser.add_argument("--rate-hz", type=numbers.rate_hz, help="the nominal rate of frames")
    for field, kind in COLOUR_FIELDS.items():
        choices = tuple(spelled(one) for one in kind if one)
        parser.add_argument(f"--{field.replace('_', '-')}", choices=choices, help="if the source does not say")
    parser.set_defaults(command=_import, open_source=open_source)
    return parser


def _video(arguments: argparse.Namespace) -> list[Source]:
    from lab.replay.importers.video import video_source  # noqa: PLC0415 (each brings its own library in)

    return [video_source(one) for one in arguments.source]


def _images(arguments: argparse.Namespace) -> list[Source]:
    from lab.replay.importers.video import image_source  # noqa: PLC0415 (as above)

    return [image_source(one, arguments.rate_hz) for one in arguments.source]


def _rosbag(arguments: argparse.Namespace) -> list[Source]:
    from lab.replay.importers.rosbag import rosbag_source  # noqa: PLC0415 (as above)

    return [rosbag_source(arguments.source, one) for one in arguments.topic or [None]]


def _openpilot(arguments: argparse.Namespace) -> list[Source]:
    from lab.replay.importers.openpilot import openpilot_source  # noqa: PLC0415 (as above)

    return [openpilot_source(arguments.source, one) for one in arguments.camera or ["road"]]


def _flags(arguments: argparse.Namespace, stream: str | None) -> Flags:
    """What the person states of the camera that is to be called `stream`: all of it holds for every camera."""
    contract = None
    if arguments.spec is not None:
        inputs = {one.stream: one for one in load_spec(arguments.spec).inputs}
        stream = stream or (next(iter(inputs)) if len(inputs) == 1 else None)
        if stream not in inputs:
            raise LogRefused(
                LogRefusal.UNSTATED, "the camera's name is not known", expected=f"--stream {' or '.join(inputs)}",
                found=str(stream), todo="name the stream of the spec that these pictures stand for",
            )  # fmt: skip
        contract = inputs[stream].stream_format
    if not stream:
        raise LogRefused(
            LogRefusal.UNSTATED, "the camera's name is not known", expected="--stream NAME", found="none",
            todo="name it as the model's spec does",
        )  # fmt: skip
    given = {name: getattr(arguments, name) for name in COLOUR_FIELDS}
    fields = {
        name: next(one for one in COLOUR_FIELDS[name] if spelled(one) == text)
        for name, text in given.items() if text is not None
    }  # fmt: skip
    period_ns = round(1e9 / arguments.rate_hz) if arguments.rate_hz else 0
    return Flags(stream, fields, arguments.format, contract, period_ns)


def _parts(arguments: argparse.Namespace) -> list[Part]:
    """Every camera of the import with what is stated of it."""
    flags = [_flags(arguments, stream) for stream in arguments.stream or [None]]
    names = [one.stream for one in flags]
    sources: list[Source] = arguments.open_source(arguments)
    if len(names) != len(sources) or len(set(names)) != len(names):
        raise LabRefused.options(
            "--stream", expected=f"{len(sources)} different names, one for each camera in their order",
            found=", ".join(names),
        )  # fmt: skip
    return [Part(source, one) for source, one in zip(sources, flags, strict=True)]


def _import(arguments: argparse.Namespace) -> int:
    parts = _parts(arguments)
    totals = [part.source.total for part in parts]
    total = None if None in totals else sum(one for one in totals if one is not None)
    with Progress(console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("importing", total=total)
        imported = write_log(
            parts, arguments.output, frames=arguments.frames,
            on_frame=lambda done: progress.update(task, completed=done),
        )  # fmt: skip
    frames = sum(one.frames for one in imported.values())
    if arguments.json:
        alone = {"contract": next(iter(imported.values())).contract} if len(imported) == 1 else {}
        print(json_text({"frames": frames, **alone, "cameras": imported}))
        return 0
    print(f"{arguments.output}: {frames} frames of {', '.join(part.source.about for part in parts)}")
    for stream, one in imported.items():
        if len(imported) > 1:
            print(f"{stream}: {one.frames} frames")
        for name, value in one.contract.items():
            print(f"  {name.replace('_', ' '):12} {value}")
    return 0
