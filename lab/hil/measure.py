"""What can be said of a drive in numbers, and whether it is within the scenario's bounds.

Measures have the names that a scenario gives them below `[expect]` (`lab.hil.scenario_toml.MEASURES`). What was counted
nowhere is 0; what does not exist (the latency of no result) is NaN and within no bound.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from lab.hil.scenario import Bound, Expectation, Scenario
from lab.hil.trace import Trace

__all__ = ["Check", "judge", "measures"]

Status = Mapping[str, Any]
LANE_HALF_M = 1.5
"""A car further from the lane's centre has left it: the road is not drawn beyond."""
COUNTED = ("refusals", "reasons", "audit", "guard")
ENDS = ("run", "superseded", "late", "torn", "refused", "lost", "held")
"""What a submitted frame can be: together they are all of them, always."""


@dataclass(frozen=True)
class Check:
    """One expectation: what was measured and whether it is within the bound. `why`: where it cannot be told."""

    measure: str
    bound: Bound
    found: float
    passed: bool
    why: str = ""


def measures(scenario: Scenario, trace: Trace, stream: str, before: Status, after: Status) -> dict[str, float]:
    """Every measure but the audit's."""
    found = {
        "frames.results": float(len(trace.results())),
        "frames.missing": float(len(trace.frames) - len(trace.results())),
        "frames.longest_gap": float(trace.longest_gap()),
        "requests.done": float(sum(not one.answer for one in trace.requests)),
        "requests.refused": float(sum(bool(one.answer) for one in trace.requests)),
    }
    found |= {f"latency_ms.{name}": value for name, value in trace.latency_ms().items()}
    found |= _ledger(_stream(before, stream), _stream(after, stream), restarted=before["epoch"] != after["epoch"])
    faults, guard = after["faults"], after["guard"]
    found |= {
        "daemon.internal_errors": float(faults["internal_errors"]),
        "daemon.device_resets": float(faults["device_resets"]),
        "daemon.log_lines_dropped": float(faults["log_lines_dropped"]),
        "daemon.forbidden_acts": float(sum(guard["refused"].values())),
    }
    found |= {f"guard.{act}": float(count) for act, count in guard["refused"].items() if count}
    return found | _outputs(trace) | _car(scenario, trace)


def _stream(status: Status, stream: str) -> Status:
    found: Status = status["streams"].get(stream, {})
    return found


def _ledger(before: Status, after: Status, *, restarted: bool) -> dict[str, float]:
    """The stream's columns, refusals and reasons, less what was there before; a daemon that restarted began at 0."""
    earlier: Status = {} if restarted else before
    found = {}
    for name, value in after.items():
        if isinstance(value, int):
            found[f"ledger.{name}"] = float(value - earlier.get(name, 0))
    held = [name for name in after if isinstance(after[name], int) and name in ENDS]
    if held:
        found["ledger.balanced"] = float(after["submitted"] == sum(after[name] for name in held))
    for table in ("refusals", "reasons"):
        old = earlier.get(table, {})
        found |= {f"{table}.{name}": float(count - old.get(name, 0)) for name, count in after.get(table, {}).items()}
    return found


def _outputs(trace: Trace) -> dict[str, float]:
    found: dict[str, float] = {}
    results = trace.results()
    for name in results[0].outputs if results else ():
        values = np.array([one.outputs[name] for one in results if name in one.outputs])
        found |= {f"output.{name}.min": float(values.min()), f"output.{name}.max": float(values.max())}
        errors = [
            abs(one.outputs[name] - one.truth[name]) for one in results if name in one.outputs and name in one.truth
        ]
        if errors:
            found |= {f"output.{name}.mean_error": float(np.mean(errors)), f"output.{name}.max_error": max(errors)}
    return found


def _car(scenario: Scenario, trace: Trace) -> dict[str, float]:
    lateral_m = trace.lateral_m()
    if not lateral_m:
        return {}
    outside = [index for index, value in enumerate(lateral_m) if value > LANE_HALF_M]
    kept = outside[0] if outside else len(lateral_m)
    return {
        "car.max_lateral_m": max(lateral_m), "car.mean_lateral_m": float(np.mean(lateral_m)),
        "car.kept_s": kept / scenario.rate_hz,
    }  # fmt: skip


def judge(expectations: Sequence[Expectation], found: Mapping[str, float], *, has_audit: bool) -> tuple[Check, ...]:
    """Each expectation against what was measured."""
    return tuple(_check(one, found, has_audit) for one in expectations)


def _check(one: Expectation, found: Mapping[str, float], has_audit: bool) -> Check:
    section = one.measure.partition(".")[0]
    if section == "audit" and not has_audit:
        return Check(one.measure, one.bound, math.nan, False, "the daemon's audit log was not given (--audit)")
    value = found.get(one.measure, 0.0 if section in COUNTED else math.nan)
    why = "" if not math.isnan(value) else "there is no such measure of this drive"
    return Check(one.measure, one.bound, value, one.bound.holds(value), why)
