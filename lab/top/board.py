"""What the view shows: the daemon's newest state, and what follows from the states before it.

A pure record: `take` is given a `fenced status` and the time at which it was read. Rates are over the states kept;
latency is noted once for each result that was newly published.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

__all__ = ["Board"]

KEPT_LATENCIES: Final = 60
RATE_OVER_S: Final = 3.0

Status = Mapping[str, Any]


@dataclass
class Board:
    """`status` is None while no daemon answers, and `problem` then says why."""

    status: Status | None = None
    problem: str = ""
    _runs: dict[str, deque[tuple[float, int]]] = field(default_factory=dict)
    _latency_ms: dict[str, deque[float]] = field(default_factory=dict)
    _published: dict[str, int] = field(default_factory=dict)

    def take(self, status: Status, now_s: float) -> None:
        """The daemon said this at `now_s` (any clock that goes forward)."""
        if self.status is not None and self.status["epoch"] != status["epoch"]:
            self._runs.clear()  # another daemon counts anew
            self._published.clear()
        self.status, self.problem = status, ""
        for name, ledger in status["streams"].items():
            runs = self._runs.setdefault(name, deque())
            runs.append((now_s, ledger["run"]))
            while len(runs) > 2 and now_s - runs[1][0] > RATE_OVER_S:
                runs.popleft()
        for model in status["models"]:
            name, published = model["name"], model["runs"]["published"]
            if published != self._published.get(name, 0):
                kept = self._latency_ms.setdefault(name, deque(maxlen=KEPT_LATENCIES))
                kept.append(model["runs"]["last_latency_ns"] / 1e6)
            self._published[name] = published

    def lose(self, problem: str) -> None:
        """No daemon answers."""
        self.status, self.problem = None, problem
        self._runs.clear()

    def rate_hz(self, stream: str) -> float | None:
        """Frames of a stream that ran, a second; None until two states tell."""
        runs = self._runs.get(stream, deque())
        if len(runs) < 2 or runs[-1][0] <= runs[0][0]:
            return None
        return (runs[-1][1] - runs[0][1]) / (runs[-1][0] - runs[0][0])

    def latency_ms(self, model: str) -> tuple[float, ...]:
        """Start of frame to published of a model's results that were seen, oldest first, milliseconds."""
        return tuple(self._latency_ms.get(model, ()))

    @property
    def in_flight(self) -> int:
        """Fences that were ACTIVE: models with a run on the device."""
        return sum(bool(model["busy"]) for model in self.status["models"]) if self.status else 0
