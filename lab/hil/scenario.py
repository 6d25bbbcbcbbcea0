"""A scenario: one drive of one camera against one daemon, what befalls it and when, and what must be seen.

These are values; `lab.hil.scenario_toml` reads them from a file and `lab.hil.run` plays them. Times of the scenario are
seconds of its own clock, which starts with the first frame: under Pace.LOCK_STEP it goes as fast as frames settle.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Final

__all__ = [
    "Bound", "CameraPlan", "CarPlan", "DaemonPlan", "Event", "EventKind", "Expectation", "Pace", "Params", "Scenario",
    "ScenarioRefusal", "ScenarioRefused",
]  # fmt: skip

Params = dict[str, float | int | str | bool | list[float]]


class ScenarioRefusal(Enum):
    """Why a scenario was not played, stable across versions."""

    UNREADABLE = "scenario-unreadable"
    KEY_MISSING = "scenario-key-missing"
    KEY_UNKNOWN = "scenario-key-unknown"
    VALUE = "scenario-value"
    EVENT_UNKNOWN = "scenario-event-unknown"
    MEASURE_UNKNOWN = "scenario-measure-unknown"
    NEEDS_OWN_DAEMON = "scenario-needs-own-daemon"
    MODEL = "scenario-model"
    STOPPED = "scenario-stopped"


class ScenarioRefused(Exception):
    """The scenario cannot be played as it stands, or not on this bench, and no frame was sent; or it came to a stop."""

    def __init__(self, code: ScenarioRefusal, what: str, *, expected: str, found: str, todo: str) -> None:
        self.code, self.what, self.expected, self.found, self.todo = code, what, expected, found, todo
        super().__init__(f"{code.value}: {what}: expected {expected}, found {found}; {todo}")


class Pace(Enum):
    """How fast the scenario's clock goes."""

    LOCK_STEP = "lock-step"  # the next frame begins once the one before is settled
    REAL_TIME = "real-time"


class EventKind(Enum):
    """What can befall a drive; docs/hil.md says what each does and which parameters it takes."""

    DROP_FRAMES = "drop frames"
    BURST = "burst"
    STALL_CAMERA = "stall camera"
    BLIND_CAMERA = "blind camera"
    REPEAT_SEQUENCE = "repeat sequence"
    TURN_BACK_CLOCK = "turn back clock"
    OVERWRITE_FRAME = "overwrite frame"
    FAIL_FENCE = "fail fence"
    KILL_CAMERA = "kill camera"
    KILL_CONSUMER = "kill consumer"
    STOP_CONSUMER = "stop consumer"
    SEND_NONSENSE = "send nonsense"
    SET_AUX = "set aux"
    ACTIVATE = "activate"
    ROLLBACK = "rollback"
    DRAIN = "drain"
    RESUME = "resume"
    RESET_STATE = "reset state"
    KILL_DAEMON = "kill daemon"


@dataclass(frozen=True)
class Event:
    """Something that happens at `at_s`, before the frame that is due then. `params`: checked by kind when read."""

    at_s: float
    kind: EventKind
    params: Params


_OPERATORS: Final[dict[str, Callable[[float, float], bool]]] = {
    "==": operator.eq, "!=": operator.ne, "<=": operator.le, ">=": operator.ge, "<": operator.lt, ">": operator.gt,
}  # fmt: skip


@dataclass(frozen=True)
class Bound:
    """A comparison with a number, as `>= 1150`."""

    comparison: str
    number: float

    @classmethod
    def parse(cls, text: str | float) -> Bound:
        """Of `OPERATOR NUMBER`, or of a number that must be met exactly. Raises ValueError."""
        if not isinstance(text, str):
            return cls("==", float(text))
        comparison, _, number = text.strip().partition(" ")
        if comparison not in _OPERATORS:
            raise ValueError(f'one of {", ".join(_OPERATORS)} and a number, as ">= 10"')
        return cls(comparison, float(number))

    def holds(self, value: float) -> bool:
        """Whether `value` is within the bound; NaN never is."""
        return not math.isnan(value) and _OPERATORS[self.comparison](value, self.number)

    def __str__(self) -> str:
        return f"{self.comparison} {self.number:g}"


@dataclass(frozen=True)
class Expectation:
    """A measure of the drive and the bound that it must be within. `measure`: as `ledger.torn`."""

    measure: str
    bound: Bound


@dataclass(frozen=True)
class DaemonPlan:
    """The daemon that a scenario starts: of a compiled spec, of a signed bundle with its root, or of a probe.

    `releases`: how many releases of the model are signed, for events that activate another.
    """

    spec: Path | None = None
    bundle: Path | None = None
    root: Path | None = None
    probe: str | None = None
    releases: int = 1
    limits: dict[str, int] | None = None


@dataclass(frozen=True)
class CameraPlan:
    """The camera: `road` (the synthetic road, by its seed), `noise`, or `frames` played from a raw file or a log."""

    source: str = "road"
    seed: int = 1
    frames: Path | None = None
    slots: int = 3


@dataclass(frozen=True)
class CarPlan:
    """A car that the outputs steer; without it a scenario is an open loop. `left_m`: where in the lane it begins."""

    offset_output: str = "lane_offset_m"
    heading_output: str = "heading_rad"
    left_m: float = 0.0


@dataclass(frozen=True)
class Scenario:
    """The whole of it. `model`: whose results are watched; None: the only one that the daemon serves."""

    name: str
    about: str
    duration_s: float
    rate_hz: float
    pace: Pace
    model: str | None
    daemon: DaemonPlan
    camera: CameraPlan
    car: CarPlan | None
    events: tuple[Event, ...]
    expectations: tuple[Expectation, ...]

    @property
    def frames(self) -> int:
        """Frame periods in the drive."""
        return round(self.duration_s * self.rate_hz)
