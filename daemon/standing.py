"""Says it wherever somebody looks when a model serves less than its contract promises, or all of it again.

The audit log and the log are told of every change of a model's mode (`daemon.degradation`), and of a device that is
asked for more than it may give; the service manager shows who serves, and how, in its status line.
"""

from __future__ import annotations

from daemon.audit import AuditLog
from daemon.degradation import Change, Mode
from daemon.health import Notifier
from daemon.log import Log
from daemon.models import LoadedModel
from daemon.pipeline import Pipeline
from daemon.refusal import ModelCode, ModelRefused, Step
from daemon.roster import Roster
from daemon.turns import Claim

_HOW = {
    Mode.MISSING: "misses its deadlines",
    Mode.SKIPPING: "skips every second set",
    Mode.LIGHTER: "runs its lighter entrypoint",
    Mode.LIGHTER_MISSING: "runs its lighter entrypoint and misses its deadlines",
    Mode.LIGHTER_SKIPPING: "runs its lighter entrypoint for every second set",
    Mode.STOPPED: "is stopped",
}

_TODO = "compare p99_ns of its entrypoints with the deadline, and load_percent, in `fenced status`"
_TODO_STOPPED = "`fenced reset-state` or `fenced activate` brings it back"


class Standing:
    """Watches the models of a roster. load_limit_percent: what they may ask of the device together."""

    def __init__(
        self, roster: Roster, audit: AuditLog, log: Log, notifier: Notifier, *, load_limit_percent: int
    ) -> None:
        self._roster = roster
        self._audit, self._log, self._notifier = audit, log, notifier
        self._load_limit_percent = load_limit_percent
        self._is_overloaded = False
        roster.on_change = self._changed
        roster.check = self._refuse_overload

    @property
    def is_whole(self) -> bool:
        """Whether every model runs."""
        return all(one.degradation.mode is not Mode.STOPPED for one in self._roster.pipelines.values())

    def text(self) -> str:
        """One line of who serves, and how where it is less than promised."""
        pipelines = self._roster.pipelines.values()
        served = ", ".join(one.model.label for one in pipelines if one.degradation.mode is not Mode.STOPPED)
        worse = [
            f"{one.model.name} {_HOW[one.degradation.mode]}"
            for one in pipelines
            if one.degradation.mode is not Mode.SERVING
        ]
        return "; ".join([f"serving {served or 'nothing'}", *worse])

    def tell(self) -> None:
        """Tells the service manager who serves now."""
        self._notifier.send(STATUS=self.text())

    def look_at_load(self) -> None:
        """Cameras have come or gone: says so where the models now ask for more of the device than they may."""
        load = self._roster.dispatcher.load_percent()
        was, self._is_overloaded = self._is_overloaded, load > self._load_limit_percent
        if self._is_overloaded and not was:
            self._audit.note("device.overload", {"percent": round(load), "limit": self._load_limit_percent})
            self._log.warning(
                f"the models ask for {load:.0f} % of the device, more than limits.device_load_percent = "
                f"{self._load_limit_percent}: expect misses in those of low priority",
                todo="serve fewer or faster models, or lower the cameras' rate",
            )

    def _refuse_overload(self, model: LoadedModel, old: Pipeline | None) -> None:
        """Raises ModelRefused where `model` asks for too much of the device, and for more than `old` in its place."""
        if old is None:
            return  # nobody has opened its streams: their periods are not known
        dispatcher = self._roster.dispatcher
        width = min(model.graph.threads, dispatcher.turns.places)
        run_ns = model.report.fastest_run_ns[0]  # what it certainly takes: the self-test saw it alone
        new = Claim(model.name, width=width, run_ns=run_ns, period_ns=old.claim.period_ns)
        before, after = dispatcher.load_percent(), dispatcher.load_percent(without=old.claim, more=new)
        if after > max(before, self._load_limit_percent):
            raise ModelRefused(
                Step.CONTRACT,
                ModelCode.DEVICE_LOAD,
                f"{model.label} beside the other models, by the p99 of their runs and their cameras' periods",
                expected=f"at most {self._load_limit_percent} % of the device (limits.device_load_percent)",
                found=f"{after:.0f} %, {before:.0f} % before",
                todo="make the model faster, lower the cameras' rate, or serve fewer models on this device",
            )

    def _changed(self, pipeline: Pipeline, change: Change) -> None:
        model = pipeline.model
        fields = {
            **model.identity(), "before": change.before.value, "mode": change.after.value,
            "misses": change.misses, "window_runs": change.window_runs,
        }  # fmt: skip
        self._audit.note("model.degraded" if change.is_worse else "model.recovered", fields, durable=False)
        if change.is_worse:
            why = f"{change.misses} of the last {change.window_runs} runs missed their deadline"
            todo = _TODO_STOPPED if change.after is Mode.STOPPED else _TODO
            self._log.error(f"{model.label} {_HOW[change.after]}: {why}", todo=todo)
        else:
            self._log.notice(f"{model.label} recovers: {change.before.value} to {change.after.value}")
        self.tell()
