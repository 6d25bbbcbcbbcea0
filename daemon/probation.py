"""Probation of what has begun to serve: so many good results confirm a release, too many faults take it back.

A result is good when it was published and met its deadline. Faults are what is the model's or its device's own: a
missed deadline, output that was not written, NaN where the contract refuses it, a run that the device did not finish;
a frame that its camera overwrote is not. They are read from the pipeline's counters, which go on counting from the
release before. What answers nothing is at fault too: a release of which no result was published while as many frames
found no answer as a probation takes (they came after its deadline, or without a partner). An aux input that nobody has
set yet is not: at a start its peer may come later than the cameras.
Counting costs a dictionary look-up a frame, and nothing once the model is confirmed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from abi.flat import ResultFlag
from daemon.counters import Counters
from daemon.loop import Loop
from daemon.models import LoadedModel

OnConfirmed = Callable[[LoadedModel], None]
OnFailed = Callable[[LoadedModel, "Faults"], None]
_LOOK_EVERY_NS = 200_000_000


@dataclass(frozen=True)
class Faults:
    """What went wrong, by kind. deadline_missed: results that came too late, and frames dropped as they would have.

    unanswered: frames that its contract turned away; a fault only where there was no result at all.
    """

    deadline_missed: int = 0
    canary: int = 0
    not_finite: int = 0
    device_errors: int = 0
    unanswered: int = 0

    @classmethod
    def of(cls, counters: Counters) -> Faults:
        """What a pipeline has counted so far."""
        missed = counters.deadline_missed + counters.late_sets
        unanswered = counters.late_arrivals + counters.skew
        return cls(missed, counters.canary, counters.not_finite, counters.device_errors, unanswered)

    def since(self, before: Faults) -> Faults:
        """What came after `before` was counted."""
        return Faults(
            self.deadline_missed - before.deadline_missed,
            self.canary - before.canary,
            self.not_finite - before.not_finite,
            self.device_errors - before.device_errors,
            self.unanswered - before.unanswered,
        )

    @property
    def total(self) -> int:
        """All of them, but for what was not answered."""
        return self.deadline_missed + self.canary + self.not_finite + self.device_errors


@dataclass
class _Probation:
    model: LoadedModel
    counters: Counters
    before: Faults
    published_before: int
    may_fail: bool
    left: int


class Probation:
    """Counts down for each model by name; then, once, calls `on_confirmed` or `on_failed`."""

    def __init__(
        self, frames: int, fault_limit: int, loop: Loop, on_confirmed: OnConfirmed, on_failed: OnFailed
    ) -> None:
        self._frames = frames
        self._fault_limit = fault_limit
        self._on_confirmed = on_confirmed
        self._on_failed = on_failed
        self._running: dict[str, _Probation] = {}
        self._look_at_ns = 0
        loop.add_timer(self._due_ns, self._look)

    def stop(self, name: str) -> LoadedModel | None:
        """The model is about to be replaced: its last run must not confirm it over the one that comes.

        Returns it if it was on probation.
        """
        stopped = self._running.pop(name, None)
        return None if stopped is None else stopped.model

    def begin(self, model: LoadedModel, counters: Counters, *, may_fail: bool) -> None:
        """The model begins to serve. `may_fail`: False for a release that is confirmed already."""
        self._running[model.name] = _Probation(
            model, counters, Faults.of(counters), counters.published, may_fail, self._frames
        )

    def count(self, name: str, flags: ResultFlag) -> None:
        """A result of the model was published."""
        running = self._running.get(name)
        if running is None or not flags & ResultFlag.DEADLINE_MET:
            return
        if running.left > 1 or self._has_failed(running):
            running.left = max(1, running.left - 1)
            return
        del self._running[name]
        self._on_confirmed(running.model)

    def frames_left(self, name: str) -> int:
        """Good results that are still due; 0 once confirmed."""
        running = self._running.get(name)
        return 0 if running is None else running.left

    def faults(self, name: str) -> Faults:
        """What was counted against the model in this probation."""
        running = self._running.get(name)
        return Faults() if running is None else Faults.of(running.counters).since(running.before)

    def _has_failed(self, running: _Probation) -> bool:
        faults = Faults.of(running.counters).since(running.before)
        is_silent = running.counters.published == running.published_before and faults.unanswered >= self._frames
        return running.may_fail and (is_silent or faults.total > self._fault_limit)

    def _due_ns(self) -> int | None:
        return self._look_at_ns if any(one.may_fail for one in self._running.values()) else None

    def _look(self, now_ns: int) -> None:
        self._look_at_ns = now_ns + _LOOK_EVERY_NS
        for name, running in list(self._running.items()):
            if self._has_failed(running):
                faults = self.faults(name)
                del self._running[name]
                self._on_failed(running.model, faults)
