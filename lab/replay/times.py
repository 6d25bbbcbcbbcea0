"""When results came, then and now, and what became of every frame: what a replay's report holds besides values."""

from __future__ import annotations

import math
import platform
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from abi.flat import ReleaseStatus
from abi.ledger import Ledger
from abi.receipt import Receipt

__all__ = ["RunTimes", "circumstances", "ledger_row", "logged_row"]

NS_PER_MS, NS_PER_S = 1e6, 1e9


@dataclass
class RunTimes:
    """Of the compared runs in order, each from the start of its first frame. `deadline_ms`: None where none was set."""

    at_s: list[float] = field(default_factory=list)
    """Start of frame, since that of the first compared run."""
    latency_ms: list[float] = field(default_factory=list)
    """To published."""
    device_ms: list[float] = field(default_factory=list)
    """From started to completed."""
    deadline_ms: list[float | None] = field(default_factory=list)
    missed: int = 0
    """Runs that were published behind their deadline."""
    first_ns: int | None = None

    def add(self, receipt: Receipt) -> None:
        """One more run."""
        began_ns = min(frame.sof_monotonic_ns for frame in receipt.frames)
        self.first_ns = began_ns if self.first_ns is None else self.first_ns
        self.at_s.append((began_ns - self.first_ns) / NS_PER_S)
        self.latency_ms.append((receipt.published_ns - began_ns) / NS_PER_MS)
        self.device_ms.append((receipt.completed_ns - receipt.started_ns) / NS_PER_MS)
        due = receipt.deadline_ns
        self.deadline_ms.append((due - began_ns) / NS_PER_MS if due else None)
        self.missed += bool(due) and not receipt.deadline_met

    def quantile(self, share: float) -> float:
        """The latency in ms that this share of runs stays within; NaN of none."""
        if not self.latency_ms:
            return math.nan
        ordered = sorted(self.latency_ms)
        return ordered[min(len(ordered) - 1, math.ceil(share * len(ordered)) - 1 if share else 0)]


def ledger_row(ledger: Ledger) -> dict[str, int]:
    """A camera's ledger by column; `held` is 0 once everything is settled."""
    columns = {status.name.lower(): ledger.released[status] for status in ReleaseStatus}
    return {"submitted": ledger.submitted, **columns, "held": ledger.held, "camera_dropped": ledger.camera_dropped}


def logged_row(submitted: int, ends: Counter[int]) -> dict[str, int]:
    """A stream's ledger as the log tells it: `unknown` are frames whose end is not in it."""
    columns = {status.name.lower(): ends[status] for status in ReleaseStatus}
    return {"submitted": submitted, **columns, "unknown": submitted - ends.total()}


def circumstances(status: Mapping[str, Any] | None) -> dict[str, str]:
    """Daemon, device and machine of a replay. `status`: the daemon's own words; None where this user may not ask."""
    found = {"machine": platform.platform(), "processor": _processor(), "Python": platform.python_version()}
    if status is not None:
        device = status["device"]
        found = {"daemon": str(status["version"]),
                 "device": f"{device['driver']}: {device['name']}, {device['cores']} cores", **found}  # fmt: skip
    return found


def _processor() -> str:
    with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
        named = (line.partition(":")[2].strip() for line in file if line.startswith("model name"))
        return next(named, platform.machine())
