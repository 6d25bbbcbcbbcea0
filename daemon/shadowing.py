"""The shadow of the daemon: begun by command beside the model that serves under its name, at most one at a time.

It is loaded as any bundle is, and is on trial like one (`daemon.trials`): its code runs in this process. What it came
to stays in the status until the next one begins, and goes to the audit log when it ends: by command, when it has
compared what was asked for, or because something else begins to serve.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from abi.format import mismatches
from abi.packet import RefusalCode
from daemon.activation import Activator
from daemon.audit import AuditLog
from daemon.command import CommandRefused, Done
from daemon.log import Log
from daemon.models import LoadedModel
from daemon.pipeline import Pipeline
from daemon.refusal import ModelCode, ModelRefused, Step, refused
from daemon.roster import Roster
from daemon.shadow import Shadow
from hal.accelerator import Accelerator
from hal.error import HalError


class Shadowing:
    """See the module. `on_device_error` as in a pipeline."""

    def __init__(
        self,
        roster: Roster,
        activator: Activator,
        accelerator: Accelerator,
        *,
        log: Log,
        audit: AuditLog,
        end_trial: Callable[[LoadedModel], None],
    ) -> None:
        self.on_device_error: Callable[[], None] = lambda: None
        self._roster, self._activator, self._accelerator = roster, activator, accelerator
        self._log, self._audit, self._end_trial = log, audit, end_trial
        self._shadow: Shadow | None = None
        self._last: tuple[str, dict[str, object]] | None = None
        self._after_end: list[Callable[[], None]] = []

    @property
    def is_on(self) -> bool:
        """Whether a shadow runs."""
        return self._shadow is not None

    @property
    def is_ending(self) -> bool:
        """Whether somebody waits for the end of one."""
        return bool(self._after_end)

    def report(self, model: str) -> dict[str, object] | None:
        """What the shadow of this model comes to, or came to last."""
        if self._shadow is not None and self._shadow.model.name == model:
            return self._shadow.report()
        return dict(self._last[1]) if self._last is not None and self._last[0] == model else None

    def begin(self, path: str, frames: int, done: Done) -> None:
        """Loads a bundle and lets it follow; the caller has seen to it that it may be loaded now."""

        def load() -> None:
            self._activator.load(path, lambda outcome: self._loaded(outcome, frames, done))

        self.end("another shadow begins", load)

    def end_by_command(self, done: Done) -> None:
        """Ends it; the answer says what it came to."""
        shadow = self._shadow
        if shadow is None:
            action = "begin one: `fenced activate BUNDLE --shadow`"
            done(CommandRefused(RefusalCode.NOT_READY, "shadow", "one that runs", "none", action))
            return
        self.end("by command", lambda: done(shadow.report()))

    def end(self, reason: str, then: Callable[[], None] = lambda: None) -> None:
        """Ends the shadow, if there is one, and calls `then` once it is unloaded; at once where there is none."""
        if self._shadow is None:
            then()
        else:
            self._after_end.append(then)
            self._shadow.end(reason)

    def between_runs(self, call: Callable[[], None]) -> None:
        """Calls `call` once no shadow holds a frame. To be used while every model is paused."""
        if self._shadow is None:
            call()
        else:
            self._shadow.between_runs(call)

    def serving_changed(self, model: str) -> None:
        """Another release serves under this name now: there is nothing left to compare with."""
        if self._shadow is not None and self._shadow.model.name == model:
            self.end("another release serves")

    def after_device_reset(self) -> None:
        """The device was reset."""
        if self._shadow is not None:
            self._shadow.after_device_reset()

    def _loaded(self, outcome: LoadedModel | ModelRefused, frames: int, done: Done) -> None:
        if isinstance(outcome, ModelRefused):
            done(_answer(outcome))
            return
        try:
            shadow = self._make(outcome, frames)
        except ModelRefused as refusal:
            self._unload(outcome)
            self._audit.note("model.refused", refusal.as_dict())
            done(_answer(refusal))
            return
        self._shadow = shadow

        def idle() -> None:
            if self._shadow is not shadow:  # it has ended meanwhile
                done(shadow.report())
                return
            shadow.begin()
            self._audit.note("shadow.began", outcome.identity(), durable=False)
            self._log.notice(f"{outcome.label} runs as a shadow of {shadow.pipeline.model.label}")
            done({**outcome.identity(), "shadow": True, "load_ms": outcome.load_ns // 1_000_000})

        shadow.pipeline.between_runs(idle)

    def _make(self, model: LoadedModel, frames: int) -> Shadow:
        pipeline = self._roster.pipelines.get(model.name)
        if pipeline is None:
            served = ", ".join(self._roster.pipelines)
            raise _refusal(
                ModelCode.SHADOW_MODEL, f"shadow {model.label}", f"a model that serves: {served}", model.name
            )
        _require_same_frames(model, pipeline)
        try:
            shadow = Shadow(
                model, pipeline, self._accelerator, self._roster.dispatcher, frames=frames, on_ended=self._ended
            )
        except HalError as error:
            raise refused(error) from error
        lacking = shadow.aux.lacking(pipeline.aux)
        if lacking is not None:
            expected = "one that the model which serves has in the same size, or that has a default"
            raise _refusal(ModelCode.SHADOW_AUX, f"aux input {lacking} of {model.label}", expected, "neither")
        if not shadow.comparison.outputs:
            found = ", ".join(shadow.comparison.left_out)
            raise _refusal(
                ModelCode.SHADOW_OUTPUTS, f"outputs of {model.label}", "one that both have, in one shape", found
            )
        shadow.on_device_error = self.on_device_error
        return shadow

    def _ended(self, shadow: Shadow, reason: str) -> None:
        report = shadow.report()
        self._last, self._shadow = (shadow.model.name, report), None
        self._activator.when_idle(lambda: self._unload(shadow.model))
        numbers = {"compared": shadow.comparison.compared, "within": shadow.comparison.within}
        skipped = sum(vars(shadow.skips).values())
        fields = {**shadow.model.identity(), **numbers, "skipped": skipped, "late": shadow.late, "reason": reason}
        worst = {f"worst_{tally.name}"[:64]: _shown(tally.worst) for tally in shadow.comparison.outputs[:16]}
        self._audit.note("shadow.ended", {**worst, **fields}, durable=False)
        came_to = f"{shadow.comparison.compared} sets compared, {shadow.comparison.within} within, {skipped} skipped"
        self._log.notice(f"the shadow {shadow.model.label} ends ({reason}): {came_to}")
        waiting, self._after_end = self._after_end, []
        for call in waiting:
            call()

    def _unload(self, model: LoadedModel) -> None:
        model.unload(self._accelerator)
        self._end_trial(model)


def _require_same_frames(model: LoadedModel, pipeline: Pipeline) -> None:
    """Raises ModelRefused unless the candidate takes frames that the pipeline has, and in the same format."""
    served = {one.stream: one for one in pipeline.inputs}
    for index in model.graph.entrypoints[0].frames:
        frame = model.graph.frames[index]
        other = served.get(frame.stream)
        if other is None:
            expected = f"one of {', '.join(served)}"
            raise _refusal(ModelCode.SHADOW_STREAM, f"stream of {model.label}", expected, frame.stream)
        differing = mismatches(frame.format, other.format)
        if differing:
            expected = f"the format of {pipeline.model.label}"
            raise _refusal(
                ModelCode.SHADOW_FORMAT, f"format of stream {frame.stream}", expected, str(differing[0])[:256]
            )


def _refusal(code: ModelCode, what: str, expected: str, found: str) -> ModelRefused:
    todo = "compare a release of the model that serves, on the same streams"
    return ModelRefused(Step.CONTRACT, code, what, expected=expected, found=found, todo=todo)


def _answer(refusal: ModelRefused) -> CommandRefused:
    what = f"{refusal.code}: {refusal.what}"
    return CommandRefused(RefusalCode.MODEL_REFUSED, what, refusal.expected, refusal.found, refusal.todo)


def _shown(value: float) -> str:
    return f"{value:.6g}" if math.isfinite(value) else "not a number on one side"
