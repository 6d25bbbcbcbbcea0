"""What one run of the benchmarks found, and on which machine: the content of `bench.json`."""

from __future__ import annotations

import os
import platform
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

from lab.bench.curve import Curve
from lab.bench.row import Row
from lab.json_text import json_text


@dataclass(frozen=True)
class Machine:
    """Where and when. cores: those that this process may use. load: average of the minute before the run."""

    cpu: str
    cores: int
    memory_mib: int
    kernel: str
    python: str
    fenced: str
    began: str
    load: float


@dataclass(frozen=True)
class Result:
    """Rows and curves in the order in which they were measured. failed: benchmarks that ended in an error."""

    machine: Machine
    rows: tuple[Row, ...]
    curves: tuple[Curve, ...]
    failed: tuple[str, ...] = ()

    def to_json(self) -> str:
        """As `bench.json` holds it."""
        return json_text(asdict(self), indent=2)


def this_machine() -> Machine:
    """This machine, now."""
    names = [line.partition(":")[2].strip() for line in Path("/proc/cpuinfo").read_text().splitlines()
             if line.startswith("model name")]  # fmt: skip
    return Machine(
        cpu=names[0] if names else platform.machine(),
        cores=len(os.sched_getaffinity(0)),
        memory_mib=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") >> 20,
        kernel=platform.release(),
        python=platform.python_version(),
        fenced=version("fenced"),
        began=datetime.now(UTC).isoformat(timespec="seconds"),
        load=round(os.getloadavg()[0], 2),
    )
