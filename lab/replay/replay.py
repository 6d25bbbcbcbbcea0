"""Lock-step replay: give a daemon the logged frames one by one and hold its outputs against the logged ones.

A log is read whole and checked against its own summary before the first frame is played. Times are not replayed: each
frame starts when it is submitted, so a replay runs as fast as the daemon does, and the same log through the same bundle
gives the same bytes. Outputs that differ are held against a tolerance: |a - b| <= max(absolute, relative * |b|), with b
the logged value; the default asks for equal bits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from abi import messages
from abi.flat import SUBMIT
from abi.messages import OpenStream, Subscribed
from abi.packet import Kind
from client.consumer import Delivery
from lab.replay.drive import Drive, outputs_bytes
from lab.replay.log import LogMessage, LogReader
from lab.replay.refusal import LogRefusal, LogRefused

KEPT_WORST = 10


@dataclass(frozen=True)
class Tolerance:
    """How far an output may be from the logged one: |a - b| <= max(absolute, relative * |b|)."""

    absolute: float = 0.0
    relative: float = 0.0

    def allows(self, distance: NDArray[np.float64], logged: NDArray[np.float64]) -> bool:
        """Whether every element is near enough; `distance` is |a - b|."""
        return bool(np.all(distance <= np.maximum(self.absolute, self.relative * np.abs(logged))))


EXACT = Tolerance()


@dataclass(frozen=True)
class LoggedFrame:
    """One frame of a log, and the outputs that were published for it: None where it did not run."""

    sequence: int
    pixels: bytes
    outputs: bytes | None


@dataclass(frozen=True)
class Difference:
    """One frame whose outputs differ: the output that is furthest off, and by how much."""

    sequence: int
    output: str
    absolute: float
    within: bool


@dataclass
class ReplayReport:
    """What a replay found. `equal`, `within` and `mismatched` count frames that were compared."""

    log: str
    log_sha256: str
    model: str
    logged_digest: str
    served_digest: str
    frames: int = 0
    equal: int = 0
    within: int = 0
    mismatched: int = 0
    not_logged: int = 0
    """Frames that ran now, but for which the log holds no result."""
    not_run: dict[str, int] = field(default_factory=dict)
    """Frames that did not run now, by status."""
    worst: list[Difference] = field(default_factory=list)

    @property
    def passed(self) -> bool:
        """Whether every logged result was produced again."""
        return self.mismatched == 0 and not self.not_run and self.equal + self.within > 0

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {"passed": self.passed, **asdict(self)}


@dataclass(frozen=True)
class Contract:
    """What a log says of its frames and of the model that ran: the head of the log."""

    stream: str
    opened: OpenStream
    model: str
    layout: Subscribed


def read_contract(reader: LogReader) -> Contract:
    """The pixel contract and the output layout of a log of one stream. Raises LogRefused (FORMAT)."""
    opened: dict[str, OpenStream] = {}
    layouts: dict[str, Subscribed] = {}
    for message in reader.messages():
        if message.kind == "format":
            opened[_owner(message)] = messages.decode(Kind.OPEN_STREAM, message.data)  # type: ignore[assignment]
        elif message.kind == "layout":
            layouts[_owner(message)] = messages.decode(Kind.SUBSCRIBED, message.data)  # type: ignore[assignment]
        elif message.kind == "submit":
            break
    if len(opened) != 1 or len(layouts) != 1:
        raise LogRefused(
            LogRefusal.FORMAT,
            f"{reader.path.name} does not hold one camera and one model",
            expected="one /camera/*/format and one /model/*/layout before the first frame",
            found=f"{sorted(opened)} and {sorted(layouts)}",
            todo="record one stream with one model",
        )
    (stream, open_stream), (model, layout) = opened.popitem(), layouts.popitem()
    return Contract(stream, open_stream, model, layout)


def logged_frames(reader: LogReader) -> Iterator[LoggedFrame]:
    """The frames of a log in order, each with the outputs that followed it."""
    sequence, pixels, outputs = 0, b"", None
    for message in reader.messages():
        if message.kind == "submit":
            if pixels:
                yield LoggedFrame(sequence, pixels, outputs)
            sequence, pixels, outputs = SUBMIT.unpack(message.data).sequence, b"", None
        elif message.kind == "pixels":
            pixels = message.data
        elif message.kind == "outputs":
            outputs = message.data
    if pixels:
        yield LoggedFrame(sequence, pixels, outputs)


def replay(
    sockets: Path,
    log: Path,
    *,
    tolerance: Tolerance = EXACT,
    partial: bool = False,
    any_model: bool = False,
    on_frame: Callable[[int], None] | None = None,
) -> ReplayReport:
    """Play `log` into the daemon behind `sockets` and compare.

    `partial` takes a log that was cut off; `any_model` compares although another bundle serves than was recorded.
    Raises LogRefused where the log is not what it says, or (MODEL) another bundle serves.
    """
    reader = LogReader(log)
    info = reader.info()
    if not (partial and not info.finished):
        info.verify()
    contract = read_contract(reader)
    with Drive(sockets, contract.stream, contract.opened.format, contract.model) as drive:
        logged, served = contract.layout.model_digest.hex(), drive.consumer.model_digest.hex()
        if logged != served and not any_model:
            raise LogRefused(
                LogRefusal.MODEL,
                f"{log.name} was recorded with another bundle of {contract.model!r}",
                expected=logged,
                found=served,
                todo="serve the bundle of the log, or compare across bundles with --any-model",
            )
        report = ReplayReport(log.name, info.sha256, contract.model, logged, served)
        for frame in logged_frames(reader):
            _replay_frame(drive, frame, report, tolerance)
            if on_frame is not None:
                on_frame(report.frames)
    return report


def _replay_frame(drive: Drive, frame: LoggedFrame, report: ReplayReport, tolerance: Tolerance) -> None:
    expected_bytes = drive.camera.stream_format.buffer_bytes
    if len(frame.pixels) != expected_bytes:
        raise LogRefused(
            LogRefusal.FORMAT,
            f"frame {frame.sequence} of {report.log} is not of the stream's format",
            expected=f"{expected_bytes} bytes",
            found=f"{len(frame.pixels)} bytes",
            todo="do not use this log; record it again",
        )

    def fill(pixels: NDArray[np.uint8]) -> None:
        pixels[:] = np.frombuffer(frame.pixels, np.uint8)

    outcome = drive.step(fill, frame.sequence)
    report.frames += 1
    if outcome.delivery is None:
        report.not_run[outcome.status] = report.not_run.get(outcome.status, 0) + 1
    elif frame.outputs is None:
        report.not_logged += 1
    elif outputs_bytes(outcome.delivery) == frame.outputs:
        report.equal += 1
    else:
        difference = _difference(frame, outcome.delivery, tolerance)
        report.within += difference.within
        report.mismatched += not difference.within
        report.worst = sorted([*report.worst, difference], key=lambda one: -one.absolute)[:KEPT_WORST]


def _difference(frame: LoggedFrame, delivery: Delivery, tolerance: Tolerance) -> Difference:
    """The output that is furthest off; within only if every output is. Layouts that differ are infinitely far apart."""
    if frame.outputs is None or len(outputs_bytes(delivery)) != len(frame.outputs):
        return Difference(frame.sequence, "layout", float("inf"), within=False)
    name, furthest, within, offset = "", -1.0, True, 0
    for output, array in delivery.outputs.items():
        logged = np.frombuffer(frame.outputs, array.dtype, array.size, offset).reshape(array.shape)
        offset += array.nbytes
        found, wanted = array.astype(np.float64), logged.astype(np.float64)
        same = (found == wanted) | (np.isnan(found) & np.isnan(wanted))
        with np.errstate(invalid="ignore"):
            distance = np.where(same, 0.0, np.nan_to_num(np.abs(found - wanted), nan=np.inf))
        within &= tolerance.allows(distance, wanted)
        if (far := float(distance.max(initial=0.0))) > furthest:
            name, furthest = output, far
    return Difference(frame.sequence, name, furthest, within)


def _owner(message: LogMessage) -> str:
    return message.topic.split("/")[2]
