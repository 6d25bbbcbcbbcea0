"""Snapshots of recurrent state, taken beside a recording, so that a replay can begin in its middle.

An operator's session asks for them on a thread of its own. Whoever may not control the daemon records without.
"""

from __future__ import annotations

import contextlib
import threading
import time
from pathlib import Path

from abi.snapshot import decode
from client.control import Control
from client.errors import ConnectionLost, Refused
from lab.replay.log import LogWriter


class Snapshots:
    """Takes one of every model each `every_s` seconds (0: none) from `begin` to the context's end.

    `taken`: how many; `why_not`: why none (any more).
    """

    def __init__(self, sockets: Path, log: LogWriter, every_s: float) -> None:
        self._path, self._log, self._every_s = sockets / "control.sock", log, every_s
        self.taken = 0
        self.why_not = ""
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="snapshots", daemon=True)

    def __enter__(self) -> Snapshots:
        return self

    def begin(self) -> None:
        """Takes the first. Results are recorded by now: those behind it are in the log."""
        if self._every_s > 0 and self._thread.ident is None:
            self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        if self._thread.ident is not None:
            self._thread.join()

    def _run(self) -> None:
        stateless: set[str] = set()
        try:
            while True:
                with Control(self._path, name="recorder") as control:  # anew: one that is silent for long is closed
                    self._take_all(control, stateless)
                if self._stop.wait(self._every_s):
                    return
        except (Refused, ConnectionLost, TimeoutError, OSError) as error:
            self.why_not = str(error)

    def _take_all(self, control: Control, stateless: set[str]) -> None:
        for name in [str(model["name"]) for model in control.status()["models"]]:
            if name not in stateless:
                with contextlib.suppress(Refused):  # the model went meanwhile
                    self._take(control, name, stateless)

    def _take(self, control: Control, model: str, stateless: set[str]) -> None:
        snapshot = control.snapshot_state(model)
        header, _ = decode(snapshot)
        if not header.states:
            stateless.add(model)
            return
        self._log.write(f"/model/{model}/state", snapshot, time.monotonic_ns())
        self.taken += 1
