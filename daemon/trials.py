"""Releases on trial: those that run and are not confirmed yet, written down before their code first runs.

A process that dies with a trial open leaves the mark of it on the disk; the next start counts the marks. A release
whose trials ended in death `crash_limit` times within `crash_window_s`, that failed its probation, or that an operator
took back, is refused (`TrialRefused`) until `fenced activate` names it again. What ends in order, a stop or a refusal,
takes its mark away; so does being confirmed. The file is a bookkeeper's, not a judge's: what it names is verified like
any other bundle, and one that cannot be read is put aside and begun anew.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from enum import Enum

from daemon.audit import AuditLog
from daemon.refusal import ModelRefused, Step
from signing import store
from signing.refusal import Refused

STATE_NAME = "trials.json"
_LIMIT_BYTES = 1 << 20
_KEPT = 64  # releases; the oldest are forgotten
_KEPT_DEATHS = 16


class Verdict(Enum):
    """Why a release is not tried again by itself. The values are refusal codes."""

    CRASH_LOOP = "crash-loop"  # the daemon died while it was on trial, too often
    UNHEALTHY = "unhealthy"  # too many faults in its probation
    ROLLED_BACK = "rolled-back"  # an operator took it back


class TrialRefused(ModelRefused):
    """A release that had its chance. `instead`: the bundle that served before it, for a start; empty: none known."""

    def __init__(self, trial: Trial, model: str, found: str) -> None:
        super().__init__(
            Step.TRIAL,
            str(trial.verdict),
            f"{model}, digest {trial.digest}",
            expected="a release that was not taken back",
            found=found,
            todo="activate another release; to try this one again name it: `fenced activate PATH`",
        )
        self.model = model
        self.instead = trial.instead


@dataclass(frozen=True)
class Trial:
    """One release by the digest of its statement. `begun_unix_s`: its trials that did not end in order so far."""

    digest: str
    instead: str = ""
    begun_unix_s: tuple[int, ...] = ()
    verdict: str = ""


class Trials:
    """The trials of one vehicle; from any thread. What is changed is on the disk once `persist` has returned."""

    def __init__(
        self,
        state_directory: str,
        audit: AuditLog,
        *,
        crash_limit: int,
        crash_window_s: int,
        now_unix_s: Callable[[], int] = lambda: int(time.time()),
    ) -> None:
        """Reads what the last process left; an unreadable file is noted and begun anew."""
        self._path = os.path.join(state_directory, STATE_NAME)
        self._audit = audit
        self._crash_limit = crash_limit
        self._crash_window_s = crash_window_s
        self._now_unix_s = now_unix_s
        self._lock = threading.Lock()
        self._writing = threading.Lock()
        self._going: list[str] = []  # digests whose trial began in this process and goes on
        self._trials = self._read()

    def require_none_lost(self, model: str, digest: str) -> None:
        """Raises TrialRefused for a release that is refused until it is named again."""
        with self._lock:
            trial = self._trials.get(digest)
            if trial is None:
                return
            deaths = self._deaths(trial)
            is_new = not trial.verdict and deaths >= self._crash_limit
            if is_new:
                trial = replace(trial, verdict=Verdict.CRASH_LOOP.value)
                self._set(trial)
        if is_new:
            self._audit.note("model.crash-loop", {"model": model, "digest": digest, "deaths": deaths})
            self.persist()
        if trial.verdict:
            raise TrialRefused(trial, model, _WORDS[Verdict(trial.verdict)].format(deaths=deaths))

    def lost(self) -> dict[str, str]:
        """The releases that are refused until they are named again: verdicts by digest."""
        with self._lock:
            return {trial.digest: trial.verdict for trial in self._trials.values() if trial.verdict}

    def begin(self, digest: str, instead: str) -> None:
        """The release's code runs from here, once `persist` has returned: if it raises it must not run.

        instead: the bundle that serves in its place if it is lost; empty: none, or the one that is known.
        """
        with self._lock:
            self._going.append(digest)
            trial = self._trials.get(digest, Trial(digest))
            begun = (*trial.begun_unix_s, self._now_unix_s())[-_KEPT_DEATHS:]
            self._set(replace(trial, begun_unix_s=begun, instead=instead or trial.instead))

    def persist(self) -> None:
        """Waits until what is known is on the disk. OSError when it refuses."""
        with self._writing:
            with self._lock:
                text = json.dumps([asdict(trial) for trial in self._trials.values()], separators=(",", ":"))
            store.write_atomically(self._path, text.encode(), mode=0o600)

    def end(self, digest: str) -> None:
        """The trial that goes on ended in order, undecided. Harmless where none goes on."""
        with self._lock:
            trial = self._trials.get(digest)
            if digest in self._going:
                self._going.remove(digest)
                if trial is not None and trial.begun_unix_s:
                    self._set(replace(trial, begun_unix_s=trial.begun_unix_s[:-1]))

    def end_all(self) -> None:
        """The process ends in order, and with it every trial."""
        for digest in tuple(self._going):
            self.end(digest)

    def lose(self, digest: str, verdict: Verdict, instead: str) -> None:
        """The release is taken back, in order, and refused until it is named again."""
        with self._lock:
            self._going = [one for one in self._going if one != digest]
            trial = self._trials.get(digest, Trial(digest))
            self._set(replace(trial, begun_unix_s=(), verdict=verdict.value, instead=instead or trial.instead))

    def pardon(self, digest: str) -> None:
        """The release is named again: what it came to before is forgotten, but not what goes on now."""
        with self._lock:
            trial = self._trials.get(digest)
            if trial is not None:
                going = self._going.count(digest)
                begun = trial.begun_unix_s[-going:] if going else ()
                self._set(replace(trial, begun_unix_s=begun, verdict=""))

    def forget(self, digest: str) -> None:
        """The release is confirmed: nothing is held against it."""
        with self._lock:
            self._going = [one for one in self._going if one != digest]
            self._trials.pop(digest, None)

    def _deaths(self, trial: Trial) -> int:
        """A clock that was set back must not forget deaths: near is near on both sides of now."""
        now = self._now_unix_s()
        return sum(abs(now - at) <= self._crash_window_s for at in trial.begun_unix_s)

    def _set(self, trial: Trial) -> None:
        self._trials.pop(trial.digest, None)
        if trial.begun_unix_s or trial.verdict:
            self._trials[trial.digest] = trial
        while len(self._trials) > _KEPT:
            del self._trials[next(iter(self._trials))]

    def _read(self) -> dict[str, Trial]:
        try:
            return _load(self._path)
        except _UNREADABLE as error:
            self._audit.append("trials.ignored", {"reason": f"{type(error).__name__}: {error}"[:512]})
            return {}


_UNREADABLE = (Refused, ValueError, TypeError, KeyError, RecursionError)


def verdicts(state_directory: str) -> dict[str, str]:
    """The releases, by digest, that a start would not try again. Of a file that cannot be read, as a start, none."""
    try:
        trials = _load(os.path.join(state_directory, STATE_NAME))
    except _UNREADABLE:
        return {}
    return {trial.digest: trial.verdict for trial in trials.values() if trial.verdict}


def _load(path: str) -> dict[str, Trial]:
    """Raises one of _UNREADABLE."""
    if not os.path.lexists(path):
        return {}
    trials = [_decode(one) for one in json.loads(store.read_file(path, limit_bytes=_LIMIT_BYTES))]
    return {trial.digest: trial for trial in trials}


_WORDS = {
    Verdict.CRASH_LOOP: "one during whose trials the daemon died {deaths} times",
    Verdict.UNHEALTHY: "one that failed its probation",
    Verdict.ROLLED_BACK: "one that an operator took back",
}


def _decode(found: dict[str, object]) -> Trial:
    digest, instead, begun, verdict = (found[key] for key in ("digest", "instead", "begun_unix_s", "verdict"))
    if not isinstance(digest, str) or not isinstance(instead, str) or not isinstance(begun, list):
        raise ValueError("a trial with fields of other types")
    if not all(type(at) is int for at in begun) or verdict not in ("", *(one.value for one in Verdict)):
        raise ValueError("a trial with times or a verdict of other types")
    return Trial(digest, instead, tuple(begun), str(verdict))
