"""A run that was handed to the device, and what is made of it once its fence has signalled.

A signalled fence says that the run is over, not that its result is good: the frames must be as they were submitted,
every output byte written (canary), and NaN or infinity is dealt with as the contract says. What fails discards the
result.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from abi.flat import RESULT_FLAGS, ResultFlag
from abi.graph import Entrypoint, Graph, NanPolicy
from abi.receipt import MAX_AUX_AGES, Receipt
from daemon.entry import Entry, OutputSet, Taken
from daemon.outputs import FiniteCheck
from daemon.scheduler import DropReason, Waiting
from hal.fence import Fence

_DEVICE_INDEX = 0  # one device is open
_NOTHING, _NAN = ResultFlag(0), ResultFlag.NAN  # an enum's member costs a call; these come with every frame
_DEADLINE_MET, _STATE_RESET = int(ResultFlag.DEADLINE_MET), int(ResultFlag.STATE_RESET)


class Verdict(Enum):
    """What a completed run is worth."""

    GOOD = "good"
    TORN = "torn"  # a frame was overwritten while it was read
    CANARY = "canary"  # output bytes were not written
    NOT_FINITE = "not_finite"  # NaN or infinity where the contract refuses it

    __hash__ = object.__hash__


_GOOD = Verdict.GOOD


@dataclass(slots=True)
class Run:
    """What is on the device. reset_before: state was reset since the run before.

    reasons: by frame why it was dropped, where the run only keeps state in step; empty for a run that publishes.
    sof_ns: SOF of its oldest frame, CLOCK_MONOTONIC.
    """

    frames: tuple[Taken, ...]
    entry: Entry
    fence: Fence
    outputs: OutputSet
    aux_ages_ns: tuple[int, ...]
    reset_before: bool
    reasons: tuple[DropReason, ...] = ()
    sof_ns: int = field(init=False)

    def __post_init__(self) -> None:
        self.sof_ns = min([frame.sof_ns for _, frame in self.frames])

    def torn(self) -> set[Waiting]:
        """The frames that are not what was submitted; asked once the fence has signalled."""
        torn = set()
        for source, frame in self.frames:
            if not source.is_intact(frame):
                torn.add(frame)
        return torn


class Inspection:
    """Looks at the outputs of runs of one model."""

    def __init__(self, graph: Graph, entry: Entrypoint) -> None:
        self._refuses = tuple(graph.outputs[index].view.nan is NanPolicy.REFUSE for index in entry.outputs)

    def look(self, outputs: OutputSet) -> tuple[Verdict, ResultFlag]:
        """What the outputs are worth, and the flag that goes with them."""
        finite = list(map(FiniteCheck.__call__, outputs.finite))
        if not (outputs.finite_is_written and False not in finite) and not outputs.written():
            return Verdict.CANARY, _NOTHING
        if False not in finite:
            return _GOOD, _NOTHING
        if any(refuses and not fine for refuses, fine in zip(self._refuses, finite, strict=False)):
            return Verdict.NOT_FINITE, _NOTHING
        return _GOOD, _NAN


def make_receipt(run: Run, model_digest: bytes, state_epoch: int, flags: ResultFlag, published_ns: int) -> Receipt:
    """The receipt of a result that stands in the ring since `published_ns`. Flags of deadline and reset are added."""
    fence, timeline, bits = run.fence, run.fence.timeline, int(flags)
    deadline_ns = run.entry.contract.deadline_ns and run.sof_ns + run.entry.contract.deadline_ns
    if not deadline_ns or published_ns <= deadline_ns:
        bits |= _DEADLINE_MET
    if run.reset_before:
        bits |= _STATE_RESET
    frames, clock_error_ns = [], 0
    for source, frame in run.frames:
        frames.append(source.receipt(frame))
        clock_error_ns = max(clock_error_ns, source.clock.error_ns)
    return Receipt(
        model_digest=model_digest,
        entrypoint=run.entry.index,
        device=_DEVICE_INDEX,
        timeline=timeline.identity,
        fence_value=fence.value,
        fence_status=int(fence.status),
        flags=RESULT_FLAGS[bits],
        state_epoch=state_epoch,
        deadline_ns=deadline_ns,
        submitted_ns=fence.submitted_ns,
        started_ns=fence.started_ns + timeline.clock_offset_ns,
        completed_ns=fence.completed_ns + timeline.clock_offset_ns,
        device_started_ns=fence.started_ns,
        device_completed_ns=fence.completed_ns,
        published_ns=published_ns,
        clock_error_ns=timeline.clock_error_ns + clock_error_ns,
        aux_ages_ns=run.aux_ages_ns[:MAX_AUX_AGES],
        frames=tuple(frames),
    )
