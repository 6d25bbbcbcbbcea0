"""What can be done with a log besides playing it: a part of it as a log of its own, pictures, a table, a video."""

from __future__ import annotations

import csv
import errno
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from av.error import FFmpegError

from abi import messages
from abi.flat import RESULT, SUBMIT
from abi.messages import OpenStream, Subscribed
from abi.packet import Kind
from abi.receipt import Receipt
from abi.stream_format import StreamFormat
from lab.replay.compare import arrays_of
from lab.replay.log import LogMessage, LogReader, LogWriter
from lab.replay.picture import VideoWriter, rgb_of, write_png
from lab.replay.played import Start, owner
from lab.replay.refusal import LogRefusal, LogRefused

_HEAD = ("format", "layout")


@dataclass(frozen=True)
class Extent:
    """The part that a cut keeps: log times, the first frame's among them, and one past the last (CLOCK_MONOTONIC)."""

    begin_ns: int
    end_ns: int


def extent(reader: LogReader, begin: Start, end: Start | None) -> Extent:
    """Where the part from `begin` up to `end` lies. It begins at a snapshot of state, where there is one before it.

    Raises LogRefused where nothing lies there.
    """
    first_ns = begin_ns = end_ns = snapshot_ns = None
    for message in reader.messages():
        if message.kind == "state" and begin_ns is None:
            snapshot_ns = message.log_time_ns
        if message.kind != "submit":
            continue
        sequence = SUBMIT.unpack(message.data).sequence
        first_ns = message.log_time_ns if first_ns is None else first_ns
        since_ns = message.log_time_ns - first_ns
        if begin_ns is None and begin.reached(sequence, since_ns):
            begin_ns = message.log_time_ns
        if end_ns is None and end is not None and end.reached(sequence, since_ns):
            end_ns = message.log_time_ns
    if begin_ns is None or (end_ns is not None and end_ns <= begin_ns):
        raise LogRefused(
            LogRefusal.START, f"no frame of {reader.path.name} lies there",
            expected=f"frames from {begin} to {end or 'the last'}",
            found="none", todo="fenced-lab log info shows its length",
        )  # fmt: skip
    begins = [one for one in (begin_ns, snapshot_ns) if one is not None]
    return Extent(min(begins), end_ns if end_ns is not None else 1 << 63)


def cut(source: LogReader, target: Path, part: Extent) -> int:
    """Write a part of a log as a log; returns its frames. A result is kept with its frames, whenever it came."""
    info = source.info()
    frames, kept = 0, set[tuple[int, int]]()
    result: LogMessage | None = None
    with LogWriter(target, about={**info.about, "cut_of_sha256": info.sha256}) as log:
        for message in source.messages():
            inside = part.begin_ns <= message.log_time_ns < part.end_ns
            keep = inside or message.kind in _HEAD or (message.kind == "aux" and message.log_time_ns < part.end_ns)
            if message.kind == "submit" and inside:
                submit = SUBMIT.unpack(message.data)
                kept.add((submit.sequence, submit.sof_ns))
                frames += 1
            elif message.kind == "result":
                receipt = Receipt.from_result(RESULT.unpack(message.data))
                keep = all((one.sequence, one.sof_ns) in kept for one in receipt.frames)
                result = message if keep else None
            elif message.kind == "outputs":
                keep = result is not None
            elif message.kind == "note":
                keep = inside or message.topic == "/note/model"
            if keep:
                log.write(message.topic, message.data, message.log_time_ns)
    return frames


def _frames(reader: LogReader, stream: str | None) -> Iterator[tuple[str, StreamFormat, LogMessage, int]]:
    """Every frame with pixels: its stream, format, pixels and sequence. Raises LogRefused where there is none."""
    formats: dict[str, StreamFormat] = {}
    sequence, count = 0, 0
    for message in reader.messages():
        kind = message.kind
        if kind == "format":
            opened = messages.decode(Kind.OPEN_STREAM, message.data)
            assert isinstance(opened, OpenStream)
            formats[owner(message)] = opened.format
        elif kind == "submit":
            sequence = SUBMIT.unpack(message.data).sequence
        elif kind == "pixels" and stream in (None, owner(message)):
            count += 1
            yield owner(message), formats[owner(message)], message, sequence
    if not count:
        raise LogRefused(
            LogRefusal.FORMAT, f"{reader.path.name} has no pixels", expected=f"frames of {stream or 'a stream'}",
            found=f"streams {sorted(formats)}", todo="name a stream of the log, or record with pixels",
        )  # fmt: skip


def export_png(reader: LogReader, folder: Path, stream: str | None) -> int:
    """A picture a frame, `STREAM-SEQUENCE.png`; returns how many."""
    folder.mkdir(parents=True, exist_ok=True)
    count = 0
    for name, format, message, sequence in _frames(reader, stream):
        write_png(folder / f"{name}-{sequence:08}.png", rgb_of(message.data, format))
        count += 1
    return count


def export_video(reader: LogReader, path: Path, stream: str | None) -> int:
    """One stream as a video, at the times of its frames; returns how many. Raises LogRefused; then none is left."""
    count, first_ns, chosen = 0, 0, stream
    with _whole(path) as part, VideoWriter(part) as video:
        for name, format, message, _ in _frames(reader, stream):
            chosen = chosen or name
            if name == chosen:
                first_ns = first_ns or message.log_time_ns
                video.add(message.data, format, (message.log_time_ns - first_ns) // 1_000_000)
                count += 1
    return count


@contextmanager
def _whole(path: Path) -> Iterator[Path]:
    """Where to write what shall stand at `path`, whole or not at all; FFmpeg's words become a refusal."""
    if path.is_dir():
        raise IsADirectoryError(errno.EISDIR, "Is a directory", str(path))
    part = path.with_name(f".{path.stem}.part{path.suffix}")
    try:
        yield part
        part.replace(path)
    except FFmpegError as error:
        raise LogRefused(
            LogRefusal.EXPORT, f"{path} could not be written", expected="a path that can be written, and room",
            found=str(error.strerror), todo="check the path",
        ) from error  # fmt: skip
    finally:
        part.unlink(missing_ok=True)


def export_csv(reader: LogReader, path: Path) -> int:
    """A line a result: its frames, times, receipt, and every element of every output; returns how many."""
    layouts: dict[str, Subscribed] = {}
    result: tuple[str, Receipt] | None = None
    count = 0
    with _whole(path) as part, part.open("w", newline="", encoding="utf-8") as file:
        writer: csv.DictWriter[str] | None = None
        for message in reader.messages():
            if message.kind == "layout":
                layout = messages.decode(Kind.SUBSCRIBED, message.data)
                assert isinstance(layout, Subscribed)
                layouts[owner(message)] = layout
            elif message.kind == "result":
                result = owner(message), Receipt.from_result(RESULT.unpack(message.data))
            elif message.kind == "outputs" and result is not None:
                row = _row(*result, layouts[result[0]], message.data)
                if writer is None:
                    writer = csv.DictWriter(file, list(row), restval="", extrasaction="ignore")
                    writer.writeheader()
                writer.writerow(row)
                count += 1
    return count


def _row(model: str, receipt: Receipt, layout: Subscribed, outputs: bytes) -> dict[str, object]:
    frame = receipt.frames[0]
    row: dict[str, object] = {
        "model": model, "sequence": frame.sequence, "sof_monotonic_ns": frame.sof_monotonic_ns,
        "published_ns": receipt.published_ns, "latency_ms": (receipt.published_ns - frame.sof_monotonic_ns) / 1e6,
        "device_ms": (receipt.completed_ns - receipt.started_ns) / 1e6, "deadline_met": int(receipt.deadline_met),
        "entrypoint": receipt.entrypoint, "state_epoch": receipt.state_epoch, "fence_value": receipt.fence_value,
        "digest": receipt.model_digest.hex(),
    }  # fmt: skip
    for name, array in arrays_of(layout.outputs, outputs).items():
        flat = np.asarray(array).reshape(-1)
        row |= {name if flat.size == 1 else f"{name}[{at}]": value for at, value in enumerate(flat.tolist())}
    return row
