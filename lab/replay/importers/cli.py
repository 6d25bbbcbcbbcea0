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
from lab.replay.importers.contract import COLOUR_FIELDS, Flags, spelled
from lab.replay.importers.write import Source, write_log
from lab.replay.refusal import LogRefusal, LogRefused

_EPILOG = """Range, matrix, primaries, transfer, chroma site, clock and mark are taken from the file where it states
them. What it does not state is refused by the name of its option: nothing is guessed, nothing is converted."""


def add_commands(commands: Any) -> None:
    """Add `import` with its kinds of sources to the command line's subparsers."""
    top = commands.add_parser("import", help="a video, pictures, a ROS 2 bag or an openpilot segment, as a log")
    kinds = top.add_subparsers(required=True, metavar="KIND")
    video = _kind(kinds, "video", _video, "a video file, as FFmpeg decodes it")
    video.add_argument("source", type=Path, metavar="FILE")
    images = _kind(kinds, "images", _images, "the pictures of a folder, in the order of their names")
    images.add_argument("source", type=Path, metavar="FOLDER")
    bag = _kind(kinds, "rosbag", _rosbag, "a ROS 2 bag: sensor_msgs/Image or CompressedImage")
    bag.add_argument("source", type=Path, metavar="BAG", help="its folder, or its .mcap or .db3 file")
    bag.add_argument("--topic", help="default: the only one with pictures")
    segment = _kind(kinds, "openpilot", _openpilot, "an openpilot segment: rlog and HEVC")
    segment.add_argument("source", type=Path, metavar="SEGMENT", help="the folder with rlog(.zst) and fcamera.hevc")
    segment.add_argument("--camera", choices=("road", "wide", "driver"), default="road")


def _kind(kinds: Any, name: str, open_source: Any, text: str) -> Any:
    parser = kinds.add_parser(name, help=text, epilog=_EPILOG)
    parser.add_argument(
        "-o", "--output", type=Path, required=True, metavar="LOG", help="the MCAP file, which must not exist"
    )
    parser.add_argument("--stream", help="what the log calls the camera; with --spec by default its one stream")
    parser.add_argument("--frames", type=numbers.count, help="end after so many")
    parser.add_argument("--spec", type=Path, help="a model's spec.toml: its input of that stream states the format")
    parser.add_argument("--format", choices=tuple(PIXEL_FORMATS), default="", metavar="NAME",
                        help="how pixels lie in the log (docs/pixel-formats.md); default: as they come")  # fmt: skip
    parser.add_argument("--rate-hz", type=numbers.rate_hz, help="the nominal rate of frames")
    for field, kind in COLOUR_FIELDS.items():
        choices = tuple(spelled(one) for one in kind if one)
        parser.add_argument(f"--{field.replace('_', '-')}", choices=choices, help="if the source does not say")
    parser.set_defaults(command=_import, open_source=open_source)
    return parser


def _video(arguments: argparse.Namespace) -> Source:
    from lab.replay.importers.video import video_source  # noqa: PLC0415 (each brings its own library in)

    return video_source(arguments.source)


def _images(arguments: argparse.Namespace) -> Source:
    from lab.replay.importers.video import image_source  # noqa: PLC0415 (as above)

    return image_source(arguments.source, arguments.rate_hz)


def _rosbag(arguments: argparse.Namespace) -> Source:
    from lab.replay.importers.rosbag import rosbag_source  # noqa: PLC0415 (as above)

    return rosbag_source(arguments.source, arguments.topic)


def _openpilot(arguments: argparse.Namespace) -> Source:
    from lab.replay.importers.openpilot import openpilot_source  # noqa: PLC0415 (as above)

    return openpilot_source(arguments.source, arguments.camera)


def _flags(arguments: argparse.Namespace) -> Flags:
    stream, contract = arguments.stream, None
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


def _import(arguments: argparse.Namespace) -> int:
    flags = _flags(arguments)
    source: Source = arguments.open_source(arguments)
    with Progress(console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("importing", total=source.total)
        imported = write_log(
            source, flags, arguments.output, frames=arguments.frames,
            on_frame=lambda done: progress.update(task, completed=done),
        )  # fmt: skip
    if arguments.json:
        print(json_text({"frames": imported.frames, "contract": dict(imported.contract)}))
        return 0
    print(f"{arguments.output}: {imported.frames} frames of {source.about}")
    for name, value in imported.contract.items():
        print(f"  {name.replace('_', ' '):12} {value}")
    return 0
