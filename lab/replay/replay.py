"""Lock-step replay: give a daemon the logged frames set by set and hold its outputs against the logged ones.

A log is read whole and checked against its own summary before the first frame is played. Only what ran is played, in
the order of its results: so recurrent state goes the same way, and the same log through the same bundle gives the same
bytes. Times are not replayed (`lab.replay.realtime` does that): a replay runs as fast as the daemon does.

State begins as the log's last snapshot at or before the start has it; without one, everything before the start is
played first, uncompared (or as many runs as `warm_up` says), from the initial state.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from abi.flat import ResultFlag
from abi.messages import SetAux
from lab.replay.compare import Comparison, Difference, Tolerance, Tolerances, arrays_of
from lab.replay.log import LogReader
from lab.replay.played import LoggedRun, ModelPlan, Plan, Start, read_plan, runs
from lab.replay.refusal import LogRefusal, LogRefused
from lab.replay.rig import Played, Rig
from lab.replay.times import RunTimes, circumstances, ledger_row, logged_row

__all__ = ["Against", "Difference", "Options", "ReplayReport", "Tolerance", "Tolerances", "replay"]


@dataclass
class ReplayReport:
    """What a replay found: `compared` against the log, `against` against another bundle where one was given."""

    log: str
    log_sha256: str
    model: str
    logged_digest: str
    served_digest: str
    """Names and digests; of several models with commas between."""
    mode: str = "lock-step"
    frames: int = 0
    """Sets of frames that were played, those before the start among them."""
    compared: Comparison = field(default_factory=Comparison)
    against_digest: str = ""
    against: Comparison | None = None
    not_logged: int = 0
    """Runs now for which the log holds no result (real time only)."""
    not_run: dict[str, int] = field(default_factory=dict)
    """Sets of frames that did not run now, by status."""
    unrecorded: int = 0
    """Logged results whose pixels are not in the log: not played."""
    uncertain: int = 0
    """Results behind a hole of a model with state, up to its next snapshot or reset: played, and not compared."""
    notes: list[str] = field(default_factory=list)
    """What a reader has to know of the state that it began with, and of holes."""
    times: dict[str, RunTimes] = field(default_factory=lambda: {"logged": RunTimes(), "now": RunTimes()})
    ledgers: dict[str, dict[str, dict[str, int]]] = field(default_factory=dict)
    """`logged`, `now`, and `against`: what became of each stream's frames, by column."""
    units: dict[str, str] = field(default_factory=dict)
    circumstances: dict[str, str] = field(default_factory=dict)

    @property
    def equal(self) -> int:
        return self.compared.equal

    @property
    def within(self) -> int:
        return self.compared.within

    @property
    def mismatched(self) -> int:
        return self.compared.mismatched

    @property
    def worst(self) -> list[Difference]:
        return self.compared.worst

    @property
    def passed(self) -> bool:
        """Whether every logged result was produced again, and the other bundle's were as near as asked for."""
        other = self.against is None or (self.against.mismatched == 0 and self.against.compared > 0)
        complete = self.mode == "real-time" or not self.not_run
        return self.mismatched == 0 and complete and self.equal + self.within > 0 and other

    def as_dict(self) -> dict[str, Any]:
        """For JSON: `compared` and `against` hold each output's error over time, for a page with plots."""
        tree: dict[str, Any] = {"passed": self.passed, **self.__dict__, "compared": self.compared.as_dict()}
        for name in ("equal", "within", "mismatched"):
            tree[name] = getattr(self, name)
        tree["against"] = None if self.against is None else self.against.as_dict()
        tree["times"] = {name: asdict(one) for name, one in self.times.items()}
        return tree


@dataclass(frozen=True)
class Against:
    """A second daemon, which serves the bundle to compare with; `rename`: what it calls the logged models."""

    sockets: Path
    rename: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Options:
    """How to replay. `partial` takes a log that was cut off; `any_model` compares although another bundle serves than
    was recorded; `warm_up`: runs to play before the start where there is no snapshot (None: all).
    """

    tolerances: Tolerances = field(default_factory=Tolerances)
    start: Start = field(default_factory=Start)
    warm_up: int | None = None
    partial: bool = False
    any_model: bool = False
    against: Against | None = None


def replay(
    sockets: Path,
    log: Path,
    *,
    tolerance: Tolerance | None = None,
    partial: bool = False,
    any_model: bool = False,
    options: Options | None = None,
    on_frame: Callable[[int], None] | None = None,
) -> ReplayReport:
    """Play `log` into the daemon behind `sockets` in lock-step, and compare.

    The keywords before `options` are a short way to the most usual of them. Raises LogRefused where the log is not what
    it says, or (MODEL) another bundle serves; Refused, OSError, TimeoutError, ConnectionLost from the sessions.
    """
    if options is None:
        options = Options(Tolerances(tolerance or Tolerance()), partial=partial, any_model=any_model)
    reader = LogReader(log)
    plan = read_plan(reader, options.start, partial=options.partial)
    with ExitStack() as stack:
        rigs = [stack.enter_context(Rig(sockets, plan.opened, list(plan.models)))]
        if options.against is not None:
            other = Rig(options.against.sockets, plan.opened, list(plan.models), rename=options.against.rename)
            rigs.append(stack.enter_context(other))
        report = begin_report(plan, rigs, options)
        session = _LockStep(plan, rigs, options, report)
        for run in runs(reader, plan):
            session.step(run)
            if on_frame is not None:
                on_frame(report.frames)
        end_report(plan, rigs, report)
    return report


def begin_report(plan: Plan, rigs: list[Rig], options: Options) -> ReplayReport:
    """The head of a report. Raises LogRefused (MODEL) where another bundle serves, (TOLERANCES) for unknown outputs."""
    outputs = [view.name for model in plan.models.values() for view in model.layout.outputs]
    options.tolerances.require(outputs)
    for name, model in plan.models.items():
        logged, served = model.layout.model_digest.hex(), rigs[0].digest(name)
        if logged != served and not options.any_model:
            raise LogRefused(
                LogRefusal.MODEL,
                f"{plan.info.path.name} was recorded with another bundle of {name!r}",
                expected=logged,
                found=served,
                todo="serve the bundle of the log, or compare across bundles with --any-model",
            )
    report = ReplayReport(
        plan.info.path.name, plan.info.sha256, ", ".join(plan.models),
        ", ".join(model.layout.model_digest.hex() for model in plan.models.values()),
        ", ".join(rigs[0].digest(name) for name in plan.models),
        compared=Comparison(options.tolerances),
    )  # fmt: skip
    if len(rigs) > 1:
        report.against = Comparison(options.tolerances)
        report.against_digest = ", ".join(rigs[1].digest(name) for name in plan.models)
    return report


def end_report(plan: Plan, rigs: list[Rig], report: ReplayReport) -> None:
    """What is known once everything was played: ledgers and circumstances."""
    report.ledgers["logged"] = {name: logged_row(plan.submitted[name], plan.ends[name]) for name in plan.opened}
    for side, rig in zip(("now", "against"), rigs, strict=False):
        report.ledgers[side] = {name: ledger_row(camera.ledger) for name, camera in rig.cameras.items()}
    report.units = {view.name: view.unit for model in plan.models.values() for view in model.layout.outputs}
    report.circumstances = circumstances(rigs[0].status())
    if again := sum(rig.given_again for rig in rigs):
        report.notes.append(f"{again} sets of frames were late, for this machine was busy, and were given again")
        for name in sorted(set[str]().union(*(rig.stepped for rig in rigs))):
            report.notes.append(f"{name}: it kept state in step with late frames: state went another way")


def begin_state(plan: Plan, rigs: list[Rig], report: ReplayReport, name: str) -> ModelPlan | None:
    """Gives a model the state it had where the replay begins; returns its plan where a snapshot was restored."""
    model = plan.models[name]
    has_state = [rig.has_state(name) for rig in rigs]
    if not any(has_state):
        if has_state[0] is None:
            report.notes.append(f"{name}: this user may not control the daemon: any state was left as it was")
        return None
    known = model.snapshot is not None or (model.first is not None and ResultFlag.STATE_RESET in model.first.flags)
    if not known and (left_out := model.begin_later()):
        report.notes.append(f"{name}: {left_out} runs before the first snapshot of its state are left out")
    for rig in rigs:
        if model.snapshot is None:
            rig.reset_state(name)
        elif rig.has_state(name):
            rig.restore_state(name, model.snapshot_data)
    if model.snapshot is not None:
        report.notes.append(f"{name}: state restored from the snapshot behind run {model.snapshot.fence_value}")
        return model
    report.notes.append(f"{name}: no snapshot before the start: the log's first run is taken to begin anew")
    return None


class _LockStep:
    """Plays run after run on every rig, and compares."""

    def __init__(self, plan: Plan, rigs: list[Rig], options: Options, report: ReplayReport) -> None:
        self._plan, self._rigs, self._report = plan, rigs, report
        self._restored = {name: begin_state(plan, rigs, report, name) for name in plan.models}
        self._stateful = {name for name in plan.models if any(rig.has_state(name) for rig in rigs)}
        self._last: dict[str, tuple[int, int]] = {}
        self._skip = {name: self._skipped(name, options) for name in plan.models}
        self._holes: set[str] = set()
        self._held_aux: dict[str, SetAux] = {}  # of runs that were not played
        for name, model in self._restored.items():
            if model is not None and model.snapshot is not None:
                self._last[name] = model.snapshot.timeline, model.snapshot.fence_value
        self._played: set[str] = set()

    def _skipped(self, name: str, options: Options) -> int:
        """Fence values up to this one are not played: a snapshot holds them, or nothing depends on them."""
        model = self._plan.models[name]
        restored, start = self._restored[name], model.start
        if start is None:
            return 1 << 64  # nothing of this model lies behind the start
        if restored is not None and restored.snapshot is not None:
            return restored.snapshot.fence_value
        if name not in self._stateful:
            return start.fence_value - 1
        return 0 if options.warm_up is None else start.fence_value - 1 - options.warm_up

    def step(self, run: LoggedRun) -> None:
        """One run of the log."""
        start = self._plan.models[run.model].start
        same_timeline = start is None or run.receipt.timeline == start.timeline
        held = {**self._held_aux, **{value.name: value for value in run.aux}}
        if not run.compared and same_timeline and run.receipt.fence_value <= self._skip[run.model]:
            self._held_aux = held
            return
        self._follow_state(run)
        if any(frame is None or frame.pixels is None for frame in run.frames):
            self._held_aux = held
            self._report.unrecorded += 1
            self._note_hole(run.model, f"the frames of result {run.sequence} are not in the log")
            return
        run, self._held_aux = replace(run, aux=tuple(held.values())), {}
        played = [rig.play(run) for rig in self._rigs]
        self._report.frames += 1
        if played[0].delivery is None:
            self._report.not_run[played[0].status] = self._report.not_run.get(played[0].status, 0) + 1
        elif run.compared and run.model in self._holes:
            self._report.uncertain += 1
        elif run.compared:
            self._compare(run, played)

    def _follow_state(self, run: LoggedRun) -> None:
        """State is reset where it was, and taken up from snapshots behind runs that the log knows nothing of."""
        model, receipt = run.model, run.receipt
        if model not in self._stateful:
            return
        timeline, fence = self._last.get(model, (receipt.timeline, receipt.fence_value - 1))
        if (run.was_reset or timeline != receipt.timeline) and not self._is_restored(run):
            for rig in self._rigs:
                rig.reset_state(model)
            self._holes.discard(model)
        elif receipt.fence_value > fence + 1:
            count = receipt.fence_value - fence - 1
            self._note_hole(model, f"{count} runs before result {run.sequence} are not in the log")
        if model in self._holes and run.snapshot is not None:
            for rig in self._rigs:
                rig.restore_state(model, run.snapshot[1])
            self._holes.discard(model)
            self._report.notes.append(f"{model}: state taken up again from the snapshot before result {run.sequence}")
        self._last[model] = receipt.timeline, receipt.fence_value
        self._played.add(model)

    def _is_restored(self, run: LoggedRun) -> bool:
        """Whether the snapshot that was restored is of after the reset that this run tells of."""
        restored = self._restored[run.model]
        taken = None if restored is None else restored.snapshot
        return run.model not in self._played and taken is not None and taken.state_epoch == run.receipt.state_epoch

    def _note_hole(self, model: str, what: str) -> None:
        if model in self._stateful and model not in self._holes:
            self._holes.add(model)
            self._report.notes.append(f"{model}: {what}: results are not compared until its state is known again")

    def _compare(self, run: LoggedRun, played: list[Played]) -> None:
        report, now = self._report, played[0].delivery
        assert now is not None
        found = self._rigs[0].outputs(run.model, now)
        report.compared.add(run.sequence, found, arrays_of(run.layout.outputs, run.outputs), run.model)
        report.times["logged"].add(run.receipt)
        report.times["now"].add(now.receipt)
        if report.against is not None:
            other = played[1].delivery
            theirs = {} if other is None else self._rigs[1].outputs(run.model, other)
            report.against.add(run.sequence, theirs, found, run.model)
