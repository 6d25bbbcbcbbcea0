"""Many logs through many bundles: units of work, tried again where a machine failed, and one merged result.

What a log or a bundle is refused for stays refused; what failed for another reason (a daemon that died, a connection,
a worker or its whole machine that went away) is tried again, on whichever machine is free. A unit that could not be
played is in the result with its reason, and the batch has not passed.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from client.errors import ConnectionLost, Refused
from lab.compile.refusal import CompileRefused
from lab.hil.daemon import DaemonFailed
from lab.refusal import LabRefused
from lab.replay.compare import OutputSummary
from lab.replay.refusal import LogRefused
from lab.replay.replay import ReplayReport
from lab.replay.unit import Unit, run_unit
from signing import refusal as signing_refusal

__all__ = ["FAILED", "BatchReport", "Outcome", "Refusal", "Work", "attempt", "failure", "may_retry", "run_here"]

FAILED = "failed"
"""The code of what another attempt may get right."""
_RETRIED = (DaemonFailed, ConnectionLost, TimeoutError, OSError)
Work = Callable[[Unit], ReplayReport]


@dataclass(frozen=True)
class Refusal:
    """Why a unit was not played: a refusal's code, or FAILED."""

    code: str
    text: str


@dataclass
class Outcome:
    """What came of one unit: a report, or why there is none. `parts`: the report's part of the page, if asked for."""

    unit: Unit
    report: ReplayReport | None = None
    refusal: Refusal | None = None
    host: str = ""
    """The machine that it ran on."""
    seconds: float = 0.0
    """Of the last attempt."""
    attempts: int = 1
    parts: list[str] = field(default_factory=list)

    @property
    def passed(self) -> bool:
        """Whether it was played and reproduced."""
        return self.report is not None and self.report.passed

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "log": str(self.unit.log), "bundle": str(self.unit.bundle), "passed": self.passed, "host": self.host,
            "seconds": self.seconds, "attempts": self.attempts,
            "refused": None if self.refusal is None else {"code": self.refusal.code, "text": self.refusal.text},
            "report": None if self.report is None else self.report.as_dict(),
        }  # fmt: skip


@dataclass
class BatchReport:
    """All outcomes, in the order of the units."""

    outcomes: list[Outcome]

    @property
    def passed(self) -> bool:
        """Whether every unit was reproduced."""
        return bool(self.outcomes) and all(one.passed for one in self.outcomes)

    def merged(self) -> dict[str, dict[str, OutputSummary]]:
        """By bundle, each output's error over all logs; of a comparison of two bundles if there was one."""
        found: dict[str, dict[str, OutputSummary]] = {}
        for one in self.outcomes:
            if one.report is None:
                continue
            outputs = found.setdefault(one.unit.bundle.name if one.unit.bundle else str(one.unit.sockets), {})
            for name, summary in (one.report.against or one.report.compared).outputs.items():
                outputs.setdefault(name, OutputSummary()).merge(summary)
        return found

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        merged = {name: {output: vars(one) for output, one in found.items()} for name, found in self.merged().items()}
        return {"passed": self.passed, "outputs": merged, "units": [one.as_dict() for one in self.outcomes]}


def attempt(unit: Unit, *, with_page: bool, work: Work = run_unit) -> Outcome:
    """One attempt at a unit, on this machine; what went wrong is an outcome too."""
    began_s = time.monotonic()
    outcome = Outcome(unit, host=socket.gethostname())
    try:
        outcome.report = work(unit)
        if with_page:
            from lab.replay.page import replay_parts  # noqa: PLC0415 (brings matplotlib in)

            outcome.parts = replay_parts(outcome.report, unit.log)
    except (LogRefused, LabRefused, CompileRefused, signing_refusal.Refused) as refused:
        outcome.refusal = Refusal(refused.code.value, str(refused))
    except Refused as refused:
        outcome.refusal = Refusal(refused.code.name.lower().replace("_", "-"), str(refused))
    except _RETRIED as error:
        outcome.refusal = failure(error)
    outcome.seconds = time.monotonic() - began_s
    return outcome


def failure(error: BaseException) -> Refusal:
    """What another attempt may get right, in a line."""
    text = f"{type(error).__name__}: {error}".strip().splitlines()
    return Refusal(FAILED, text[0][:500])


def may_retry(outcome: Outcome) -> bool:
    """Whether another attempt may end otherwise."""
    return outcome.refusal is not None and outcome.refusal.code == FAILED


def run_here(units: Sequence[Unit], *, retries: int, with_page: bool, work: Work = run_unit) -> Iterator[Outcome]:
    """Every unit on this machine, one after another, in order."""
    for unit in units:
        for number in range(1, retries + 2):
            outcome = attempt(unit, with_page=with_page, work=work)
            outcome.attempts = number
            if not may_retry(outcome):
                break
        yield outcome
