"""How many system calls a process makes while something happens: counted by strace from outside, in all its threads."""

from __future__ import annotations

import re
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path

_ATTACH_LIMIT_S = 10.0


def count_calls(pid: int, work: Callable[[], object]) -> dict[str, int] | None:
    """Calls by name that process `pid` made during `work`; None where strace is missing or may not attach."""
    program = shutil.which("strace")
    if program is None:
        return None
    with tempfile.TemporaryDirectory() as folder:
        summary = Path(folder) / "summary"
        command = [program, "-f", "-c", "-U", "name,calls", "-o", str(summary), "-p", str(pid)]
        tracer = subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        assert tracer.stderr is not None
        if "attached" not in tracer.stderr.readline():
            tracer.kill()
            tracer.wait()
            return None
        try:
            work()
        finally:
            tracer.send_signal(signal.SIGINT)
            tracer.communicate(timeout=_ATTACH_LIMIT_S)
        return parse_summary(summary.read_text())


def parse_summary(text: str) -> dict[str, int]:
    """Name and calls from the table that `strace -c -U name,calls` writes."""
    found = {name: int(calls) for name, calls in re.findall(r"^\s*([a-z0-9_]+)\s+(\d+)\s*$", text, re.MULTILINE)}
    found.pop("total", None)
    return found
