"""Reading a scenario from TOML, strictly: unknown tables, keys, events and measures are refused by name.

Paths are taken from the scenario's own folder. What a key means is said in docs/hil.md.
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, TypeVar

from lab.hil.bench import PROBES
from lab.hil.scenario import (
    Bound,
    CameraPlan,
    CarPlan,
    DaemonPlan,
    Event,
    EventKind,
    Expectation,
    Pace,
    Params,
    Scenario,
    ScenarioRefusal,
    ScenarioRefused,
)

__all__ = ["EVENT_PARAMS", "MEASURES", "load_scenario"]

T = TypeVar("T")
MAX_DURATION_S, MAX_RATE_HZ, MAX_RELEASES = 86_400.0, 1_000.0, 9
SOURCES: Final = ("road", "noise", "file", "log")

_COUNT: Final = {"count": 1}
EVENT_PARAMS: Final[Mapping[EventKind, Mapping[str, Any]]] = {
    EventKind.DROP_FRAMES: _COUNT,
    EventKind.BURST: _COUNT,
    EventKind.STALL_CAMERA: {"for_s": float},
    EventKind.BLIND_CAMERA: {"for_s": float},
    EventKind.REPEAT_SEQUENCE: _COUNT,
    EventKind.TURN_BACK_CLOCK: {"by_ms": 1.0, **_COUNT},
    EventKind.OVERWRITE_FRAME: _COUNT,
    EventKind.FAIL_FENCE: {"outcome": "error", **_COUNT},
    EventKind.KILL_CAMERA: {},
    EventKind.KILL_CONSUMER: {},
    EventKind.STOP_CONSUMER: {},
    EventKind.SEND_NONSENSE: {},
    EventKind.SET_AUX: {"name": str, "values": list, "age_ms": 0.0},
    EventKind.ACTIVATE: {"release": 0, "path": "", "tampered": False},
    EventKind.ROLLBACK: {},
    EventKind.DRAIN: {},
    EventKind.RESUME: {},
    EventKind.RESET_STATE: {},
    EventKind.KILL_DAEMON: {},
}
"""The parameters of each event: a type where it must be given, else its default."""

_PARAM_RULES: Final[Mapping[str, tuple[str, Callable[[Any], bool]]]] = {
    "count": ("1 to 1000000", lambda found: 1 <= found <= 1_000_000),
    "for_s": ("0 to 86400", lambda found: 0 <= found <= MAX_DURATION_S),
    "by_ms": ("0 to 86400000", lambda found: 0 <= found <= 1e3 * MAX_DURATION_S),
    "age_ms": ("0 to 86400000", lambda found: 0 <= found <= 1e3 * MAX_DURATION_S),
    "outcome": ("error or never", lambda found: found in ("error", "never")),
    "values": ("numbers", lambda found: all(type(one) in (int, float) for one in found)),
    "release": (f"0 to {MAX_RELEASES}", lambda found: 0 <= found <= MAX_RELEASES),
}
"""What a parameter may be beyond its type, and whether it is that."""

_ANY: Final = "*"
MEASURES: Final[Mapping[str, tuple[str, ...]]] = {
    "frames": ("results", "missing", "longest_gap"),
    "ledger": (
        "submitted",
        "run",
        "superseded",
        "late",
        "torn",
        "refused",
        "lost",
        "held",
        "camera_dropped",
        "balanced",
    ),
    "refusals": (_ANY,),
    "reasons": (_ANY,),
    "latency_ms": ("p50", "p90", "p99", "max", "mean"),
    "audit": ("chain_holds", _ANY),
    "daemon": ("internal_errors", "forbidden_acts", "device_resets", "log_lines_dropped"),
    "guard": (_ANY,),
    "requests": ("done", "refused"),
    "output": (_ANY,),
    "car": ("max_lateral_m", "mean_lateral_m", "kept_s"),
}
"""What an expectation can be about: the keys of each table below `[expect]`; `*` stands for names of the daemon's."""


class _Table:
    """One TOML table; every key must be taken."""

    def __init__(self, data: Mapping[str, Any], where: str) -> None:
        self._data, self.where = dict(data), where

    def refuse(
        self, key: str, expected: str, found: object, code: ScenarioRefusal = ScenarioRefusal.VALUE
    ) -> Exception:
        """The refusal of one key of this table."""
        return ScenarioRefused(
            code,
            f"{self.where}{key}",
            expected=expected,
            found=repr(found),
            todo="correct it; docs/hil.md has the keys",
        )

    def take(self, key: str, kind: type[T], default: T | None = None) -> T:
        """The value of `key`, which must be there unless there is a default."""
        if key not in self._data:
            if default is None:
                raise self.refuse(key, f"a {kind.__name__}", None, ScenarioRefusal.KEY_MISSING)
            return default
        found = self._data.pop(key)
        if kind is float and type(found) is int:
            found = float(found)
        if type(found) is not kind or (isinstance(found, float) and not math.isfinite(found)):
            raise self.refuse(key, f"a {kind.__name__}", found)
        return found

    def number(self, key: str, least: float, most: float, default: float | None = None) -> float:
        """A float within bounds."""
        found = self.take(key, float, default)
        if not least <= found <= most:
            raise self.refuse(key, f"{least:g} to {most:g}", found)
        return found

    def count(self, key: str, default: int, most: int = 1_000_000) -> int:
        """An integer of at least 1."""
        found = self.take(key, int, default)
        if not 1 <= found <= most:
            raise self.refuse(key, f"1 to {most}", found)
        return found

    def choice(self, key: str, choices: tuple[str, ...], default: str) -> str:
        """One of some words."""
        found = self.take(key, str, default)
        if found not in choices:
            raise self.refuse(key, f"one of {', '.join(choices)}", found)
        return found

    def table(self, key: str) -> _Table:
        """A table, empty where it is not there."""
        return _Table(self.take(key, dict, {}), f"{self.where}{key}.")

    def has(self, key: str) -> bool:
        """Whether the key is there and not taken."""
        return key in self._data

    def rest(self) -> dict[str, Any]:
        """What was not taken; it counts as taken now."""
        taken, self._data = self._data, {}
        return taken

    def done(self) -> None:
        """Refuses the first key that was not taken."""
        for key, found in self._data.items():
            raise self.refuse(key, "no such key", found, ScenarioRefusal.KEY_UNKNOWN)


def load_scenario(path: Path) -> Scenario:
    """The scenario in the file at `path`. Raises ScenarioRefused."""
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ScenarioRefused(
            ScenarioRefusal.UNREADABLE,
            str(path),
            expected="a TOML file",
            found=str(error),
            todo="check path and syntax",
        ) from error
    top, folder = _Table(data, ""), path.resolve().parent
    head = top.table("scenario")
    scenario = Scenario(
        name=head.take("name", str),
        about=head.take("about", str, ""),
        duration_s=head.number("duration_s", 0.01, MAX_DURATION_S),
        rate_hz=head.number("rate_hz", 0.1, MAX_RATE_HZ, 20.0),
        pace=Pace(head.choice("pace", tuple(pace.value for pace in Pace), Pace.LOCK_STEP.value)),
        model=head.take("model", str) if head.has("model") else None,
        daemon=_daemon(top.table("daemon"), folder),
        camera=_camera(top.table("camera"), folder),
        car=_car(top.table("car")) if top.has("car") else None,
        events=tuple(sorted((_event(one, index) for index, one in enumerate(_events(top))), key=lambda one: one.at_s)),
        expectations=tuple(_expectations(top.table("expect"))),
    )
    head.done()
    top.done()
    return scenario


def _path(table: _Table, key: str, folder: Path) -> Path | None:
    return folder / table.take(key, str) if table.has(key) else None


def _daemon(table: _Table, folder: Path) -> DaemonPlan:
    limits = table.table("limits")
    plan = DaemonPlan(
        spec=_path(table, "spec", folder), bundle=_path(table, "bundle", folder), root=_path(table, "root", folder),
        probe=table.choice("probe", tuple(PROBES), "tiny") if table.has("probe") else None,
        releases=table.count("releases", 1, MAX_RELEASES),
        limits={key: limits.take(key, int) for key in list(limits._data)},
    )  # fmt: skip
    given = [name for name in ("spec", "bundle", "probe") if getattr(plan, name) is not None]
    if len(given) > 1 or (plan.bundle is None) != (plan.root is None):
        raise table.refuse("spec, bundle, probe", "one of them, and a root with a bundle", given)
    table.done()
    return plan


def _camera(table: _Table, folder: Path) -> CameraPlan:
    plan = CameraPlan(
        source=table.choice("source", SOURCES, "noise"), seed=table.take("seed", int, 1),
        frames=_path(table, "frames", folder), slots=table.count("slots", 3, 16),
    )  # fmt: skip
    if (plan.source in ("file", "log")) != (plan.frames is not None):
        raise table.refuse("frames", 'a path with source = "file" or "log", and only then', plan.frames)
    table.done()
    return plan


def _car(table: _Table) -> CarPlan:
    usual = CarPlan()
    plan = CarPlan(
        table.take("offset_output", str, usual.offset_output), table.take("heading_output", str, usual.heading_output),
        table.number("left_m", -1.0, 1.0, usual.left_m),
    )  # fmt: skip
    table.done()
    return plan


def _events(top: _Table) -> list[Mapping[str, Any]]:
    found = top.take("event", list, [])
    if not all(isinstance(one, dict) for one in found):
        raise top.refuse("event", "[[event]] tables", found)
    return found


def _event(data: Mapping[str, Any], index: int) -> Event:
    table = _Table(data, f"event[{index}].")
    at_s, name = table.number("at_s", 0.0, MAX_DURATION_S), table.take("event", str)
    kinds = {kind.value: kind for kind in EventKind}
    if name not in kinds:
        raise table.refuse("event", f"one of {', '.join(kinds)}", name, ScenarioRefusal.EVENT_UNKNOWN)
    params: Params = {}
    for key, default in EVENT_PARAMS[kinds[name]].items():
        params[key] = found = (
            table.take(key, default) if isinstance(default, type) else table.take(key, type(default), default)
        )
        expected = _PARAM_RULES[key][0] if key in _PARAM_RULES else ""
        if expected and not _PARAM_RULES[key][1](found):
            raise table.refuse(key, expected, found)
    table.done()
    return Event(at_s, kinds[name], params)


def _expectations(table: _Table) -> list[Expectation]:
    expectations = []
    for section, keys in MEASURES.items():
        for key, value in table.table(section).rest().items():
            nested = value.items() if section == "output" and isinstance(value, dict) else [("", value)]
            for part, text in nested:
                measure = f"{section}.{key}" + (f".{part}" if part else "")
                if key not in keys and _ANY not in keys:
                    expected = f"one of {', '.join(keys)}"
                    raise table.refuse(measure, expected, text, ScenarioRefusal.MEASURE_UNKNOWN)
                expectations.append(Expectation(measure, _bound(table, measure, text)))
    table.done()
    return expectations


def _bound(table: _Table, measure: str, text: object) -> Bound:
    try:
        if isinstance(text, bool) or not isinstance(text, str | int | float):
            raise ValueError("a number or a comparison")
        return Bound.parse(text)
    except ValueError as error:
        raise table.refuse(measure, 'a number, or a comparison as ">= 10"', text) from error
