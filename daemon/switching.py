"""Every change of what serves: the bundles of the start, activation, rollback by hand or for ill health, confirmation.

One change at a time. A release serves only after everything held, its code runs only once `daemon.trials` has it on the
disk, and what served before stays loaded until it has been confirmed. A failure at any step leaves the old one serving.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import asdict

from abi.packet import RefusalCode
from daemon.activation import Activator
from daemon.audit import AuditLog
from daemon.command import CommandRefused, Done, Outcome
from daemon.config import Config
from daemon.disk_chores import DiskChores
from daemon.journal import MessageId
from daemon.log import Log
from daemon.loop import Loop
from daemon.memory_room import MemoryRoom
from daemon.models import LoadedModel, ModelLoader, describe_machine
from daemon.pipeline import Pipeline
from daemon.probation import Faults, Probation
from daemon.refusal import ModelCode, ModelRefused, Step, refused
from daemon.roster import Roster
from daemon.shadowing import Shadowing
from daemon.trials import Trials, Verdict
from daemon.trust_store import VehicleTrust
from hal.accelerator import Accelerator
from signing.refusal import Refused

_RETRY_EVERY_NS = 50_000_000
_TRIALS = "the trials"  # no name that a model may have


class Switching:
    """See the module. `on_serving` is called when a model begins to serve."""

    def __init__(
        self,
        config: Config,
        loop: Loop,
        roster: Roster,
        accelerator: Accelerator,
        *,
        log: Log,
        audit: AuditLog,
        trust: VehicleTrust,
    ) -> None:
        self.on_serving: Callable[[LoadedModel], None] = lambda model: None
        self._config, self._roster, self._accelerator = config, roster, accelerator
        self._log, self._audit, self._trust = log, audit, trust
        limits = config.activation
        self.trials = Trials(
            config.state_directory, audit, crash_limit=limits.crash_limit, crash_window_s=limits.crash_window_s
        )
        frames = config.limits.probation_frames
        self.probation = Probation(frames, limits.fault_limit, loop, self._confirm, self._fail)
        machine = describe_machine(accelerator, config.limits.model_memory_bytes)
        self._room = room = MemoryRoom(config.limits.loaded_bytes, lambda: _held_bytes(accelerator))
        loader = ModelLoader(accelerator, trust, machine, audit, limits=config.limits, trials=self.trials, room=room)
        loader.serving_beside = self._serving_beside
        self.activator = Activator(loader, loop)
        roster.is_loading = lambda: self.activator.busy
        self.shadowing = Shadowing(roster, self.activator, accelerator, log=log, audit=audit, end_trial=self._end_trial)
        self._is_stopping = False
        self.chores = DiskChores(loop)
        self._retreating: dict[str, LoadedModel] = {}
        self._failures: dict[str, int] = {}  # probations of what serves that failed and changed nothing
        self._retry_at_ns = 0
        loop.add_timer(lambda: self._retry_at_ns if self._retreating else None, self._retry)

    @property
    def is_changing(self) -> bool:
        """Whether a bundle is being loaded, or one that is waits for the run before it to end."""
        return self.activator.busy or self._roster.switching or self.shadowing.is_ending

    # by the configuration

    def load_all(self, paths: list[str], on_end: Callable[[str | None], None]) -> None:
        """Loads the bundles one after the other, to serve; `on_end` is given the path that cannot, or None."""
        if not paths:
            on_end(None)
            return
        path, rest = paths[0], paths[1:]

        def done(outcome: Outcome) -> None:
            if isinstance(outcome, CommandRefused):
                on_end(path)
            else:
                self.load_all(rest, on_end)

        self.activator.load_at_start(path, lambda outcome: self._loaded(self._require_one(outcome), done))

    def _require_one(self, outcome: LoadedModel | ModelRefused) -> LoadedModel | ModelRefused:
        """At a start each model has one bundle: of two, which serves would change with every reload."""
        serving = None if isinstance(outcome, ModelRefused) else self._roster.pipelines.get(outcome.name)
        if serving is None or isinstance(outcome, ModelRefused):
            return outcome
        outcome.unload(self._accelerator)
        self._end_trial(outcome)
        refusal = ModelRefused(
            Step.CONTRACT,
            ModelCode.MODEL_TWICE,
            f"model {outcome.name} in bundle_paths",
            expected="one bundle of each model",
            found=f"{serving.model.label} and {outcome.label}",
            todo="name one of them in bundle_paths; `fenced activate` takes the other",
        )
        self._audit.note("model.refused", refusal.as_dict())
        return refusal

    def take_up(self, path: str, done: Done) -> None:
        """As `activate`, for a bundle that the configuration names while others serve: the verdicts of trials hold.

        Where what may serve in its place serves already, nothing changes.
        """
        refusal = self._why_not(path)
        if refusal is None:
            self.activator.load_at_start(path, lambda outcome: self._taken_up(outcome, done))
        else:
            done(refusal)

    def _taken_up(self, outcome: LoadedModel | ModelRefused, done: Done) -> None:
        serving = self._roster.pipelines.get(outcome.name) if isinstance(outcome, LoadedModel) else None
        if isinstance(outcome, LoadedModel) and serving is not None and serving.model.digest == outcome.digest:
            outcome.unload(self._accelerator)
            self._end_trial(outcome)
            done(outcome.identity())
        else:
            self._loaded(outcome, done)

    # by command

    def activate(self, path: str, done: Done) -> None:
        """Loads a bundle and lets it serve; a shadow ends first. Refused: what served before goes on."""
        refusal = self._why_not(path)
        if refusal is not None:
            done(refusal)
            return

        def load() -> None:
            self.activator.load(path, lambda outcome: self._loaded(outcome, done))

        self.shadowing.end("a bundle is activated", load)

    def shadow(self, path: str, frames: int, done: Done) -> None:
        """Loads a bundle to run beside the model that serves (`daemon.shadow`); an empty path ends the one there is."""
        refusal = self._why_not(path) if path else None
        if refusal is not None:
            done(refusal)
        elif path:
            self.shadowing.begin(path, frames, done)
        else:
            self.shadowing.end_by_command(done)

    def _why_not(self, path: str) -> CommandRefused | None:
        """Why a bundle at `path` may not be loaded now; None where it may be tried."""
        folders = self._config.bundle_directories
        if os.path.dirname(path) not in folders:
            expected, action = f"a file in one of {list(folders)}", "install the bundle there (bundle_directories)"
            self._audit.note("activation.refused", {"path": path[:1024], "expected": expected[:1024]})
            return CommandRefused(RefusalCode.NOT_PERMITTED, "path", expected, path[:256], action)
        return _one_at_a_time() if self.is_changing or self._is_stopping else None

    def rollback(self, model: str, done: Done) -> None:
        """Back to the model that served before; the one that is taken back is refused until it is named again.

        A shadow ends; where there is only that, this was asked for.
        """
        if self.shadowing.is_on and not self.is_changing:
            if self._roster.previous:
                self.shadowing.end("rollback", lambda: self.rollback(model, done))
            else:
                self.shadowing.end_by_command(done)
            return
        names = [model] if model else list(self._roster.previous)
        previous = self._roster.previous.get(names[0]) if len(names) == 1 else None
        if previous is None or self.is_changing:
            done(self._no_rollback(model))
            return
        try:
            pipeline = self._prepare(previous)
        except ModelRefused as refusal:
            self._answer_refused(refusal, done)
            return
        self._audit.note("model.rollback", {"model": previous.name, "digest": previous.bundle.digest})
        self._take_back(self._roster.pipelines[names[0]].model, previous, Verdict.ROLLED_BACK)
        self._switch(pipeline, done)

    def _no_rollback(self, model: str) -> CommandRefused:
        if self.is_changing:
            return _one_at_a_time()
        known, found = list(self._roster.previous), model or "none named"
        if known:
            action = "name one of them"
            return CommandRefused(RefusalCode.NOT_READY, "model", f"one of {', '.join(known)}", found, action)
        action, expected = "activate the bundle that should serve", "a model that replaced another since the start"
        return CommandRefused(RefusalCode.NOT_READY, "model", expected, "none", action)

    # for ill health

    def _fail(self, model: LoadedModel, faults: Faults) -> None:
        """The model's probation came to nothing: what served before it comes back.

        Where nothing may, each probation ends so: that is told, and another looked for, at the 1st, 2nd, 4th, 8th …
        """
        failures = self._failures[model.name] = self._failures.get(model.name, 0) + 1
        if failures & (failures - 1):
            self._begin_anew(model)
            return
        self._audit.note("model.unhealthy", {**model.identity(), **asdict(faults)})
        text, todo = f"{model.label} fails its probation: {faults}", "mend it; it is refused until it is named again"
        self._log.error(text, MessageId.MODEL_UNHEALTHY, todo=todo, MODEL=model.name)
        self._retreating[model.name] = model
        self._retreat(model)

    def _retry(self, now_ns: int) -> None:
        self._retry_at_ns = now_ns + _RETRY_EVERY_NS
        for model in list(self._retreating.values()):
            self._retreat(model)

    def _retreat(self, model: LoadedModel) -> None:
        serving = self._roster.pipelines.get(model.name)
        if serving is None or serving.model is not model or self._is_stopping:
            del self._retreating[model.name]
        elif not self.is_changing:  # else the next look finds out
            del self._retreating[model.name]
            self._retreat_from(model)

    def _retreat_from(self, model: LoadedModel) -> None:
        previous = self._roster.previous.get(model.name)
        path = self._trust.confirmed_path(model.name)
        if previous is not None:
            self._replace_unhealthy(model, previous)
        elif path is not None and path != model.path:
            self.activator.load(path, lambda outcome: self._replace_unhealthy(model, outcome))
        else:
            self._stay(model, "no other is known")

    def _replace_unhealthy(self, model: LoadedModel, other: LoadedModel | ModelRefused) -> None:
        try:
            if isinstance(other, ModelRefused):
                raise other
            pipeline = self._prepare(other)
        except ModelRefused as refusal:
            if isinstance(other, LoadedModel) and other is not self._roster.previous.get(model.name):
                other.unload(self._accelerator)
            self._stay(model, str(refusal))
            return
        self._take_back(model, other, Verdict.UNHEALTHY)

        def switched(outcome: Outcome) -> None:
            self._roster.drop_previous(model.name)  # nobody shall go back to it by mistake

        self._switch(pipeline, switched)

    def _stay(self, model: LoadedModel, why: str) -> None:
        """Nothing else may serve: the model goes on, and its probation begins anew."""
        self._audit.note("model.stays", {**model.identity(), "why": why[:1024]})
        todo = "activate another release; see `fenced status` for its faults"
        self._log.error(f"{model.label} is unhealthy and goes on serving: {why}", todo=todo)
        self._begin_anew(model)

    def _begin_anew(self, model: LoadedModel) -> None:
        self.probation.begin(model, self._roster.pipelines[model.name].counters, may_fail=True)

    # how

    def _loaded(self, outcome: LoadedModel | ModelRefused, done: Done) -> None:
        if isinstance(outcome, LoadedModel):
            try:
                self._switch(self._prepare(outcome), done)
                return
            except ModelRefused as refusal:
                outcome.unload(self._accelerator)
                self._end_trial(outcome)
                outcome = refusal
        self._answer_refused(outcome, done)

    def _prepare(self, model: LoadedModel) -> Pipeline:
        """Raises ModelRefused, noted, where trust or another model has moved past it since, or memory is short."""
        try:
            self._trust.current.require_fresh(model.bundle)
            return self._roster.prepare(model)
        except (Refused, ModelRefused) as error:
            refusal = refused(error) if isinstance(error, Refused) else error
            self._audit.note("model.refused", refusal.as_dict())
            raise refusal from None

    def _answer_refused(self, refusal: ModelRefused, done: Done) -> None:
        self._log.error(
            f"bundle refused: {refusal}",
            MessageId.MODEL_REFUSED,
            todo=refusal.todo,
            MODEL=refusal.model,
            REFUSAL=refusal.code,
        )
        what = f"{refusal.code}: {refusal.what}"
        done(CommandRefused(RefusalCode.MODEL_REFUSED, what, refusal.expected, refusal.found, refusal.todo))

    def _switch(self, pipeline: Pipeline, done: Done) -> None:
        model = pipeline.model

        def switched(pipeline: Pipeline) -> None:
            self._audit.note("model.serving", model.identity(), durable=False)
            text = f"{model.label} serves now, digest {model.bundle.digest}"
            self._log.notice(text, MessageId.SERVING, MODEL=model.name, DIGEST=model.bundle.digest)
            self.on_serving(model)
            self.shadowing.serving_changed(model.name)
            self._failures.pop(model.name, None)
            self.probation.begin(model, pipeline.counters, may_fail=not self._trust.is_confirmed(model.bundle))
            done({**model.identity(), "load_ms": model.load_ns // 1_000_000})

        replaced = self.probation.stop(model.name)
        if replaced is not None:
            self._end_trial(replaced)
        self._roster.switch(pipeline, switched)

    def _take_back(self, model: LoadedModel, other: LoadedModel, verdict: Verdict) -> None:
        """`other` comes back in place of `model`, which gets the verdict unless it was confirmed before."""
        self.probation.stop(model.name)
        if not self._trust.is_confirmed(model.bundle):
            self.trials.lose(model.bundle.digest, verdict, other.path)
        if not self._trust.is_confirmed(other.bundle):
            self.trials.pardon(other.bundle.digest)
            self.trials.begin(other.bundle.digest, "")
        self._write_trials()

    def _end_trial(self, model: LoadedModel) -> None:
        self.trials.end(model.bundle.digest)
        self._write_trials()

    def _serving_beside(self, model: str, digest: str) -> str:
        """Where the bundle that serves lies, unless it is this one: nothing gives way to itself."""
        serving = self._roster.pipelines.get(model)
        return "" if serving is None or serving.model.bundle.digest == digest else serving.model.path

    def _confirm(self, model: LoadedModel) -> None:
        """The model came through its probation: the floor rises now; the disk is waited for on another thread."""
        self._roster.retire_older(model.name)
        if self._trust.confirm(model.bundle, model.path):
            self.chores.begin(
                model.name, lambda: self._make_durable(model), lambda error: self._not_confirmed(model, error)
            )

    def _make_durable(self, model: LoadedModel) -> None:
        self._trust.persist()
        self.trials.forget(model.bundle.digest)
        self.trials.persist()
        self._audit.note("model.confirmed", model.identity())
        text = f"{model.label} is confirmed: nothing older will serve again"
        self._log.notice(text, MessageId.MODEL_CONFIRMED, MODEL=model.name, DIGEST=model.bundle.digest)

    def _not_confirmed(self, model: LoadedModel, error: OSError) -> None:
        self._audit.note("model.not-confirmed", {**model.identity(), "cause": str(error)[:1024]})
        todo = "free or mend the disk of state_directory: until then a restart would not know that it was confirmed"
        self._log.error(f"{model.label} cannot be confirmed on the disk, which is tried again: {error}", todo=todo)

    def _write_trials(self) -> None:
        self.chores.begin(_TRIALS, self.trials.persist, self._trials_not_written)

    def _trials_not_written(self, error: OSError) -> None:
        self._audit.note("trials.not-written", {"cause": str(error)[:1024]})
        todo = "free or mend the disk of state_directory: until then a crash would not be counted"
        self._log.error(f"the trials cannot be written, which is tried again: {error}", todo=todo)

    # the end

    def stop(self) -> None:
        """Begins no more changes."""
        self._is_stopping = True
        self.shadowing.end("the daemon stops")

    def close(self, at_most_ns: int, *, in_order: bool) -> None:
        """Waits for what goes on. `in_order`: the process does not end for what a model did."""
        self.activator.join(at_most_ns)
        self.settle()
        if in_order:
            self.trials.end_all()
            self._write_trials()
        self.chores.close()
        self._room.close()

    def settle(self) -> None:
        """Waits until what was decided so far is on the disk, or was refused by it."""
        self.chores.settle()


def _held_bytes(accelerator: Accelerator) -> int:
    use = accelerator.memory()
    return use.arena_bytes + use.state_bytes + use.weights_bytes + use.code_bytes + use.allocated_bytes


def _one_at_a_time() -> CommandRefused:
    action, found = "wait for it to end, then try again", "another is under way"
    return CommandRefused(RefusalCode.LIMIT, "activation", "one at a time", found, action)
