"""Cold start: from exec of `fenced serve` to READY with the lane model served, and the memory that is resident then.

The peers are what no daemon can go below in this language: a bare interpreter that imports the same three libraries.
"""

from __future__ import annotations

import subprocess
import time
from pathlib import Path

from lab.bench.row import Row, make_row
from lab.bench.served import served_lane
from lab.hil.daemon import VEHICLE

IMPORTS = "import numpy, capnp, cryptography.hazmat.primitives.asymmetric.ed25519"
STATUS = "print(open('/proc/self/status').read())"
READY_NS, RESIDENT_KIB = 0.7e9, 90 * 1024


def run(folder: Path, starts: int = 7) -> list[Row]:
    """Two rows: time to READY, and resident memory, each beside the bare imports."""
    ready_ns, resident_kib, bare_ns, bare_kib = [], [], [], []
    python = str(VEHICLE / "bin" / "python")
    with served_lane(folder) as daemon:
        for _ in range(starts):
            daemon.stop()
            daemon.start()
            ready_ns.append(daemon.ready_s * 1e9)
            resident_kib.append(_resident_kib(Path(f"/proc/{daemon.pid}/status").read_text()))
            began_ns = time.monotonic_ns()
            done = subprocess.run(
                [python, "-I", "-c", f"{IMPORTS}; {STATUS}"], capture_output=True, text=True, check=True
            )
            bare_ns.append(time.monotonic_ns() - began_ns)
            bare_kib.append(_resident_kib(done.stdout))
    return [
        make_row("cold start to READY", ready_ns, bare_ns, "python with the same imports",
                 note=f"lane model verified, admitted, self-tested; the design asks for {READY_NS / 1e9} s"),
        make_row("resident at READY", resident_kib, bare_kib, "python with the same imports", unit="KiB",
                 note=f"the design asks for {RESIDENT_KIB // 1024} MiB"),
    ]  # fmt: skip


def _resident_kib(status: str) -> float:
    (line,) = (line for line in status.splitlines() if line.startswith("VmRSS:"))
    return float(line.split()[1])
