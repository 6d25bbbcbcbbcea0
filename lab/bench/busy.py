"""Other processes that take whole cores, as a benchmark's company: made once, stopped and let go on between samples."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

_LOOP = "import os, sys\nos.sched_setaffinity(0, {int(sys.argv[1])})\nos.nice(int(sys.argv[2]))\nwhile True: pass"


class Busy:
    """One busy process for each of the cores it was made with, of the given niceness. Stopped at first."""

    def __init__(self, cores: Sequence[int], niceness: int = 0) -> None:
        loop = [sys.executable, "-S", "-c", _LOOP]
        self._processes = [subprocess.Popen([*loop, str(core), str(niceness)]) for core in cores]
        self.stop()

    def go_on(self) -> None:
        """Take the cores."""
        self._signal(signal.SIGCONT)

    def stop(self) -> None:
        """Leave the cores to others."""
        self._signal(signal.SIGSTOP)

    def end(self) -> None:
        """No more of them."""
        self._signal(signal.SIGKILL)
        for process in self._processes:
            process.wait()

    def _signal(self, number: signal.Signals) -> None:
        for process in self._processes:
            os.kill(process.pid, number)


@contextmanager
def busy(cores: Sequence[int], niceness: int = 0) -> Iterator[Busy]:
    """See `Busy`; ended on leaving."""
    company = Busy(cores, niceness)
    try:
        yield company
    finally:
        company.end()
