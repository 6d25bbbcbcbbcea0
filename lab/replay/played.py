"""A log as a replay needs it: what it says of streams and models, where to begin, and its runs in order.

The log is read twice: once whole, to hold it against its own summary and to find the beginning (`read_plan`), and once
to play it (`runs`), so that no more pixels are in memory than belong to frames whose result has not come yet.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from abi import messages
from abi.flat import RESULT, SUBMIT, ReleaseStatus, ResultFlag, Submit
from abi.messages import OpenStream, SetAux, Subscribed
from abi.packet import Kind
from abi.receipt import Receipt
from abi.snapshot import SnapshotError, StateSnapshot, decode
from abi.tap import TAP_END
from lab.replay.log import LogInfo, LogMessage, LogReader
from lab.replay.refusal import LogRefusal, LogRefused

KEPT_FRAMES = 64
"""Of a stream, whose result may still come: more than any queue and ring hold."""
NS_PER_S = 1_000_000_000


@dataclass(frozen=True)
class Start:
    """Where to begin: `seconds` after the first frame, or at a `sequence`; neither: at the log's start."""

    seconds: float | None = None
    sequence: int | None = None

    @classmethod
    def parse(cls, text: str) -> Start:
        """`12.5s` or a sequence number. Raises ValueError."""
        if not text.endswith("s"):
            return cls(sequence=int(text))
        if not math.isfinite(seconds := float(text[:-1])):
            raise ValueError(text)
        return cls(seconds=seconds)

    def __str__(self) -> str:
        """As it is written on the command line."""
        if self.seconds is not None:
            return f"{self.seconds:g}s"
        return "the first frame" if self.sequence is None else str(self.sequence)

    def reached(self, sequence: int, since_first_ns: int) -> bool:
        """Whether a frame is at or behind the start."""
        if self.seconds is not None:
            return since_first_ns >= self.seconds * NS_PER_S
        return self.sequence is None or sequence >= self.sequence


@dataclass(frozen=True)
class LoggedFrame:
    """One frame. `pixels`: None where they were not recorded. `logged_ns`: when it was taken, CLOCK_MONOTONIC."""

    stream: str
    submit: Submit
    pixels: bytes | None
    logged_ns: int


FrameSet = Sequence[tuple[int, LoggedFrame]]
"""Frames that belong together, each with its start (ns): what counts is how far apart these are."""


@dataclass(frozen=True)
class LoggedRun:
    """One published result: the frames that went in, in the contract's order (None: not in the log), and what came out.

    `compared`: whether it lies behind the start; else it is only played, for the state. `aux`: values to be set before.
    """

    model: str
    receipt: Receipt
    layout: Subscribed
    outputs: bytes
    frames: tuple[LoggedFrame | None, ...]
    compared: bool
    aux: tuple[SetAux, ...] = ()
    snapshot: tuple[StateSnapshot, bytes] | None = None
    """The model's state right before it, where the log has a snapshot of that very moment."""

    @property
    def sequence(self) -> int:
        """Of the first frame: what a run is called in reports."""
        return self.receipt.frames[0].sequence

    @property
    def was_reset(self) -> bool:
        """Whether state was reset before it."""
        return ResultFlag.STATE_RESET in self.receipt.flags


@dataclass
class ModelPlan:
    """What a log says of one model. `start`: its first run to be compared; `first`: its first run at all."""

    layout: Subscribed
    runs: int = 0
    first: Receipt | None = None
    start: Receipt | None = None
    snapshot: StateSnapshot | None = None
    snapshot_data: bytes = b""
    """The last one at or before the start, if there is one."""
    later: tuple[StateSnapshot, bytes] | None = None
    """The first one behind the start, where the log is to be played from its beginning."""
    later_start: Receipt | None = None
    """The first run behind that."""

    def begin_later(self) -> int:
        """Move the start to the first snapshot, if there is one; returns how many fence values that leaves out."""
        if self.later is None or self.later_start is None or self.first is None:
            return 0
        self.snapshot, self.snapshot_data = self.later
        self.start = self.later_start
        return self.later_start.fence_value - self.first.fence_value


@dataclass
class Plan:
    """The head of a log, and where to begin."""

    info: LogInfo
    opened: dict[str, OpenStream] = field(default_factory=dict)
    models: dict[str, ModelPlan] = field(default_factory=dict)
    first_ns: int | None = None
    frames: int = 0
    submitted: Counter[str] = field(default_factory=Counter)
    """Frames by stream."""
    ends: defaultdict[str, Counter[int]] = field(default_factory=lambda: defaultdict(Counter))
    """What became of them (`ReleaseStatus`), by stream, where a tap told it."""


def owner(message: LogMessage) -> str:
    """The stream, the model, or the aux input that a message belongs to."""
    return message.topic.split("/")[2]


def read_plan(reader: LogReader, start: Start, *, partial: bool) -> Plan:
    """Read a log whole. Raises LogRefused where it is not what it says, or holds nothing to be played."""
    plan = Plan(LogInfo(reader.path))
    plan.info = reader.info(lambda message: _note(plan, start, message))
    if not (partial and not plan.info.finished):
        plan.info.verify(index=not partial)
    if not plan.opened or not any(model.runs for model in plan.models.values()):
        raise LogRefused(
            LogRefusal.FORMAT, f"{reader.path.name} holds nothing that could be played",
            expected="frames and their results",
            found=f"streams {sorted(plan.opened)}, models {sorted(plan.models)}, no results",
            todo="record while a camera feeds a model; pictures alone are played by fenced-lab drive --input",
        )  # fmt: skip
    if not any(model.start for model in plan.models.values()):
        raise LogRefused(
            LogRefusal.START, f"{reader.path.name} ends before the start that was asked for",
            expected="a start inside the log", found=str(start), todo="fenced-lab log info shows its length",
        )  # fmt: skip
    return plan


def _note(plan: Plan, start: Start, message: LogMessage) -> None:
    kind = message.kind
    if kind == "format":
        opened = messages.decode(Kind.OPEN_STREAM, message.data)
        known = plan.opened.setdefault(owner(message), opened)  # type: ignore[arg-type]
        if known != opened:
            raise changed(owner(message), "its format changed")
    elif kind == "layout":
        layout = messages.decode(Kind.SUBSCRIBED, message.data)
        assert isinstance(layout, Subscribed)
        known_layout = plan.models.setdefault(owner(message), ModelPlan(layout)).layout
        if known_layout.outputs != layout.outputs:
            raise changed(owner(message), "its outputs changed")
    elif kind == "submit":
        plan.frames += 1
        plan.submitted[owner(message)] += 1
        plan.first_ns = message.log_time_ns if plan.first_ns is None else plan.first_ns
    elif kind == "result":
        _note_result(plan, start, owner(message), Receipt.from_result(RESULT.unpack(message.data)))
    elif kind == "end":
        plan.ends[owner(message)][TAP_END.unpack(message.data).status] += 1
    elif kind == "state":
        _note_state(plan, start, owner(message), message.data)


def _note_result(plan: Plan, start: Start, model: str, receipt: Receipt) -> None:
    known = plan.models[model]
    known.runs += 1
    known.first = known.first or receipt
    if known.later is not None and known.later_start is None and _is_before(known.later[0], receipt):
        known.later_start = receipt
    since_first_ns = receipt.submitted_ns - (plan.first_ns or 0)
    if known.start is None and start.reached(receipt.frames[0].sequence, since_first_ns):
        known.start = receipt
        taken = known.snapshot
        if taken is not None and not _is_before(taken, receipt):
            known.snapshot, known.snapshot_data = None, b""


def _note_state(plan: Plan, start: Start, model: str, data: bytes) -> None:
    try:
        taken, _ = decode(data)
    except SnapshotError as error:
        raise LogRefused(
            LogRefusal.FORMAT, f"a snapshot of {model}", expected=error.expected, found=error.found,
            todo="do not use this log; record it again",
        ) from error  # fmt: skip
    known = plan.models.get(model)
    if known is not None and (known.start is None or _is_before(taken, known.start)):
        known.snapshot, known.snapshot_data = taken, data
    elif known is not None and start == Start() and known.later is None:
        known.later = taken, data


def _is_before(taken: StateSnapshot, receipt: Receipt) -> bool:
    return taken.timeline == receipt.timeline and taken.fence_value < receipt.fence_value


def _is_right_before(taken: StateSnapshot, receipt: Receipt) -> bool:
    return taken.timeline == receipt.timeline and taken.fence_value == receipt.fence_value - 1


def changed(name: str, what: str) -> LogRefused:
    """The refusal of a log in which `what` of a stream or a model changed."""
    return LogRefused(
        LogRefusal.FORMAT, f"{name}: {what} in the middle of the log", expected="one format and one layout throughout",
        found=what, todo="cut the log there: fenced-lab log cut",
    )  # fmt: skip


class _Window:
    """The frames whose result may still come, by stream and SOF."""

    def __init__(self) -> None:
        self._frames: dict[str, dict[tuple[int, int], LoggedFrame]] = {}
        self.skipped = 0

    def add(self, frame: LoggedFrame) -> None:
        """A frame was submitted; also again, with its pixels."""
        frames = self._frames.setdefault(frame.stream, {})
        frames[frame.submit.sequence, frame.submit.sof_ns] = frame
        while len(frames) > KEPT_FRAMES:
            del frames[next(iter(frames))]
            self.skipped += 1

    def drop(self, stream: str, sequence: int) -> None:
        """A frame ended without a run."""
        frames = self._frames.get(stream, {})
        for key in [key for key in frames if key[0] == sequence]:
            del frames[key]
            self.skipped += 1

    def take(self, sequence: int, sof_ns: int) -> LoggedFrame | None:
        """The frame that a receipt names."""
        for frames in self._frames.values():
            if (found := frames.pop((sequence, sof_ns), None)) is not None:
                return found
        return None

    def left(self) -> int:
        """Frames that no result has named."""
        return sum(len(frames) for frames in self._frames.values())


def runs(reader: LogReader, plan: Plan) -> Iterator[LoggedRun]:
    """Every run of the log in the order of its results, with the aux values that were set before it."""
    window, started = _Window(), set[str]()
    aux: list[tuple[int, SetAux]] = []
    pending: tuple[str, Receipt] | None = None
    frame: LoggedFrame | None = None
    taken: dict[str, tuple[StateSnapshot, bytes]] = {}
    for message in reader.messages():
        kind = message.kind
        if kind == "state":
            taken[owner(message)] = decode(message.data)[0], message.data
        elif kind == "submit":
            frame = LoggedFrame(owner(message), SUBMIT.unpack(message.data), None, message.log_time_ns)
            window.add(frame)
        elif kind == "pixels" and frame is not None and frame.stream == owner(message):
            window.add(LoggedFrame(frame.stream, frame.submit, message.data, frame.logged_ns))
        elif kind == "end":
            end = TAP_END.unpack(message.data)
            if end.status != ReleaseStatus.RUN:
                window.drop(owner(message), end.sequence)
        elif kind == "aux":
            value = messages.decode(Kind.SET_AUX, message.data)
            assert isinstance(value, SetAux)
            aux.append((message.log_time_ns, value))
        elif kind == "result":
            pending = owner(message), Receipt.from_result(RESULT.unpack(message.data))
        elif kind == "outputs" and pending is not None:
            model, receipt = pending
            frames = tuple(window.take(one.sequence, one.sof_ns) for one in receipt.frames)
            before = tuple(value for at, value in aux if at <= receipt.submitted_ns)
            aux = [one for one in aux if one[0] > receipt.submitted_ns]
            started |= {model} if receipt == plan.models[model].start else set()
            layout = plan.models[model].layout
            snapshot = taken.get(model)
            if snapshot is not None and not _is_right_before(snapshot[0], receipt):
                snapshot = None
            yield LoggedRun(model, receipt, layout, message.data, frames, model in started, before, snapshot)
            pending = None
