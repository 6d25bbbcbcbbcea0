"""A daemon inside the test's own process, on a thread: the real Service with its real sockets, but without the guard.

The guard cannot be taken off again, so it is only in the tests that start a process (`tests/daemon/test_process.py`).
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import TracebackType

from client.camera import Camera
from daemon.config import load
from daemon.health import Notifier, Watchdog
from daemon.journal import MessageId
from daemon.log import Level, Log
from daemon.service import Service
from lab.hil.clients import LIMIT_S, Sockets, ended, picture, run_one, submit
from lab.hil.daemon import PATIENT
from tests.support.bundles import BundleMaker

__all__ = ["LIMIT_S", "DaemonThread", "KeptLog", "Sockets", "config_text", "ended", "picture", "run_one", "submit"]


class KeptLog(Log):
    """Keeps the lines for assertions instead of writing them."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []
        self.fields: list[dict[str, str]] = []

    def write(self, level: Level, message: str, kind: MessageId | None, fields: Mapping[str, str]) -> None:
        self.lines.append(message)
        self.fields.append({**fields, "MESSAGE_ID": kind.name} if kind is not None else dict(fields))


def config_text(folder: Path, bundles: Sequence[Path], maker: BundleMaker, more: str) -> str:
    """A configuration with everything below `folder`. On a busy machine frames may be old, and peers long silent."""
    names = ", ".join(f'"{path}"' for path in bundles)
    head, limits, tail = more.partition("[limits]\n")
    patient = "".join(f"{name} = {value}\n" for name, value in PATIENT.items() if name not in more)
    more = f"{head}[limits]\n{patient}{tail if limits else ''}"
    return (
        f'state_directory = "{folder / "state"}"\nsocket_directory = "{folder / "sockets"}"\n'
        f'root_paths = ["{maker.root_path}"]\nbundle_paths = [{names}]\nbundle_directories = ["{maker.folder}"]\n{more}'
    )


class DaemonThread(Sockets):
    """A context manager around one Service. `lost` is set when it would end its process for a lost device."""

    def __init__(
        self,
        folder: Path,
        bundles: Sequence[Path],
        maker: BundleMaker,
        *,
        more: str = "",
        notifier: Notifier | None = None,
    ) -> None:
        super().__init__(folder / "sockets")
        config_path = folder / "fenced.toml"
        config_path.write_text(config_text(folder, bundles, maker, more))
        self.log = KeptLog()
        self.ready = threading.Event()
        self.lost = threading.Event()
        self.exit_status: int | None = None
        notifier = notifier or Notifier(None)
        self.service = Service(
            load(str(config_path)),
            self.log,
            (notifier, Watchdog(notifier, 0)),
            environment={},
            on_ready=self.ready.set,
            on_lost=self.lost.set,
        )
        self._thread = threading.Thread(target=self._run, name="daemon under test", daemon=True)

    def _run(self) -> None:
        try:
            self.exit_status = self.service.run()
        finally:
            self.ready.set()

    def __enter__(self) -> DaemonThread:
        self._thread.start()
        assert self.ready.wait(LIMIT_S)
        assert self._thread.is_alive(), f"the daemon ended with {self.exit_status}: {self.log.lines}"
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.stop()

    def allow_silence(self, milliseconds: int) -> None:
        """How long peers may be silent from now on. A test that waits for the limit lowers it once all have come."""
        context, server = self.service.context, self.service.server

        def allow() -> None:
            context.limits = replace(context.limits, idle_timeout_ns=milliseconds * 1_000_000)
            server._sweep_ns, server._next_sweep_ns = max(1, milliseconds * 250_000), 0

        self.service.loop.call_soon(allow)

    def camera_when_ready(self) -> Camera:
        """For a daemon that will end by itself: starts it and opens a camera."""
        self._thread.start()
        assert self.ready.wait(LIMIT_S)
        return self.camera()

    def join(self) -> None:
        """Waits for a daemon that ends by itself."""
        self._thread.join(LIMIT_S)
        assert not self._thread.is_alive()

    def run_to_the_end(self) -> int | None:
        """For a daemon that ends by itself; returns its exit status."""
        self._thread.start()
        self.join()
        return self.exit_status

    def stop(self) -> None:
        """Ends it in good order."""
        if self._thread.is_alive():
            self.service.request_stop()
            self._thread.join(LIMIT_S)
        assert not self._thread.is_alive(), "the daemon does not end"
