"""Recurrent state by command: reset, taken as a snapshot, and restored from one, always between two runs.

A snapshot is a sealed memfd (`abi.snapshot`). It is restored whole or not at all: into the very bundle that it was
taken of, or into another one of the same model if that one's contract has every state handed over at a switch.
Restored or reset, the state's epoch rises, and the receipt of the next result says so.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from abi.packet import RefusalCode
from abi.snapshot import MAX_SNAPSHOT_BYTES, SavedState, SnapshotError, StateSnapshot, decode, encode
from daemon.audit import AuditLog
from daemon.command import Attached, CommandRefused, Done
from daemon.models import LoadedModel
from daemon.pipeline import Pipeline
from daemon.roster import Roster
from hal.error import HalError
from hal.memory import CONSTANT, Mapping, file_bytes, seal_copy, seals

_ACTION = "restore a snapshot that this model's `fenced snapshot-state` made"


class StateKeeper:
    """Carries out the state commands on the models of a roster. `model`: a name, empty where there is only one."""

    def __init__(self, roster: Roster, audit: AuditLog) -> None:
        self._roster = roster
        self._audit = audit

    def reset(self, model: str, done: Done) -> None:
        """Recurrent state to its initial value."""

        def between(pipeline: Pipeline) -> None:
            pipeline.reset_state()
            done(_epoch(pipeline))

        self._between_runs(model, between, done)

    def snapshot(self, model: str, done: Done) -> None:
        """Copies the state as it is between two runs."""
        self._between_runs(model, lambda pipeline: done(_take(pipeline)), done)

    def restore(self, model: str, descriptor: int, done: Done) -> None:
        """Replaces the state by that of a snapshot. The descriptor stays the caller's, and is used only now."""
        try:
            mapping = _map(descriptor)
        except CommandRefused as refusal:
            done(refusal)
            return

        def between(pipeline: Pipeline) -> None:
            try:
                taken = _restore(pipeline, mapping.view)
            except CommandRefused as refusal:
                done(refusal)
                return
            fields = {"model": pipeline.model.name, "digest": pipeline.model.bundle.digest}
            self._audit.note("state.restored", {**fields, "of": taken.model_digest.hex()}, durable=False)
            done(_epoch(pipeline))

        self._between_runs(model, between, done)

    def _between_runs(self, model: str, call: Callable[[Pipeline], None], done: Done) -> None:
        """Calls `call` with the pipeline that serves then, though it may not be the one that serves now."""
        names = [model] if model else list(self._roster.pipelines)
        pipeline = self._roster.pipelines.get(names[0]) if len(names) == 1 else None
        if pipeline is None:
            expected = f"one of {', '.join(self._roster.pipelines)}"
            found = model or "none named"
            done(CommandRefused(RefusalCode.NOT_READY, "model", expected, found, "name one of them"))
            return

        def idle() -> None:
            if self._roster.pipelines.get(names[0]) is pipeline:
                call(pipeline)
            else:  # another began to serve in the same pause
                self._between_runs(names[0], call, done)

        pipeline.between_runs(idle)


def _epoch(pipeline: Pipeline) -> dict[str, object]:
    return {"model": pipeline.model.name, "state_epoch": pipeline.state_epoch}


def _states(model: LoadedModel) -> tuple[SavedState, ...]:
    buffers = model.graph.buffers
    return tuple(
        SavedState(one.name, one.dtype, one.shape, buffers[one.buffer].size_bytes) for one in model.graph.states
    )


def _take(pipeline: Pipeline) -> Attached | CommandRefused:
    model, timeline = pipeline.model, pipeline.model.executable.timeline
    saved = StateSnapshot(
        model.name, model.digest, pipeline.state_epoch, timeline.identity, timeline.issued, time.monotonic_ns(),
        _states(model),
    )  # fmt: skip
    try:
        data = encode(saved, [model.executable.state(one.name) for one in saved.states])
        descriptor = seal_copy("fenced-state", data)
    except (SnapshotError, HalError, OSError) as error:
        action = "free memory and descriptors, then try again"
        return CommandRefused(RefusalCode.LIMIT, "snapshot", "room for the state", str(error)[:512], action)
    body = {**_epoch(pipeline), "digest": model.bundle.digest, "bytes": len(data), "fence_value": saved.fence_value,
            "states": [one.name for one in saved.states]}  # fmt: skip
    return Attached(body, descriptor)


def _map(descriptor: int) -> Mapping:
    """The snapshot's memory, proved unchanging. Raises CommandRefused."""
    try:
        size, found = file_bytes(descriptor), seals(descriptor)
        if found & CONSTANT != CONSTANT:
            action = "add F_SEAL_WRITE, SHRINK, GROW and SEAL before passing it"
            raise CommandRefused(RefusalCode.BAD_BUFFER, "seals of the snapshot", repr(CONSTANT), repr(found), action)
        if not 1 <= size <= MAX_SNAPSHOT_BYTES:
            expected = f"1 to {MAX_SNAPSHOT_BYTES} bytes"
            raise CommandRefused(RefusalCode.BAD_BUFFER, "snapshot", expected, f"{size} bytes", _ACTION)
        return Mapping.of(descriptor, size)
    except HalError as error:
        expected, action = error.expected or "a sealed memfd", error.todo or _ACTION
        raise CommandRefused(RefusalCode.BAD_BUFFER, error.what, expected, error.found, action) from error


def _restore(pipeline: Pipeline, view: memoryview) -> StateSnapshot:
    """Copies every state, once all of them were found to fit. Raises CommandRefused."""
    try:
        saved, values = decode(view)
    except SnapshotError as error:
        raise CommandRefused(RefusalCode.BAD_BUFFER, error.what, error.expected, error.found, _ACTION) from error
    _require_fit(pipeline.model, saved)
    for state, value in zip(saved.states, values, strict=True):
        pipeline.model.executable.state(state.name)[:] = value
    pipeline.continue_epoch(pipeline.state_epoch, was_reset=True)
    return saved


def _require_fit(model: LoadedModel, saved: StateSnapshot) -> None:
    def refuse(what: str, expected: str, found: str) -> CommandRefused:
        return CommandRefused(RefusalCode.MODEL_REFUSED, what, expected, found, _ACTION)

    if saved.model != model.name:
        raise refuse("model of the snapshot", model.name, saved.model)
    if not model.graph.states:
        raise refuse("state", "a model with recurrent state", f"{model.label}, which has none")
    if saved.model_digest != model.digest:
        kept = [state.name for state in model.graph.states if not state.hand_over]
        if kept:
            what, expected = "digest of the snapshot", f"{model.bundle.digest}: state {kept[0]} is not handed over"
            raise refuse(what, expected, saved.model_digest.hex())
    wanted = {state.name: state for state in _states(model)}
    found = {state.name: state for state in saved.states}
    if wanted.keys() != found.keys():
        raise refuse("names of the states", ", ".join(sorted(wanted)), ", ".join(sorted(found)) or "none")
    for name, state in wanted.items():
        if found[name] != state:
            raise refuse(f"state {name}", _shown(state), _shown(found[name]))


def _shown(state: SavedState) -> str:
    return f"{state.dtype.name.lower()} {list(state.shape)} in {state.size_bytes} bytes"
