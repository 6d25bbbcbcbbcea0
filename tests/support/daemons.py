"""A daemon inside the test's own process, on a thread: the real Service with its real sockets, but without the guard.

The guard cannot be taken off again, so it is only in the tests that start a process (`tests/daemon/test_process.py`).
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

import numpy as np
from numpy.typing import NDArray

from client.camera import Camera
from client.consumer import Consumer
from client.control import Control
from daemon.config import load
from daemon.health import Notifier, Watchdog
from daemon.log import Log
from daemon.service import Service
from tests.support.bundles import BundleMaker, frame_format

START_LIMIT_S = 30.0


class QuietLog(Log):
    """Keeps the lines for assertions instead of writing them."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def write(self, level: int, message: str) -> None:
        self.lines.append(message)


class DaemonThread:
    """A context manager around one Service. `lost` is set when it would end its process for a lost device."""

    def __init__(self, folder: Path, bundles: Sequence[Path], maker: BundleMaker, *, more: str = "") -> None:
        self.folder = folder
        self.sockets = folder / "sockets"
        self.config_path = folder / "fenced.toml"
        names = ", ".join(f'"{path}"' for path in bundles)
        self.config_path.write_text(
            f'state_directory = "{folder / "state"}"\nsocket_directory = "{self.sockets}"\n'
            f'root_path = "{maker.root_path}"\nbundle_paths = [{names}]\nbundle_directories = ["{maker.folder}"]\n'
            f"{more}"
        )
        self.log = QuietLog()
        self.ready = threading.Event()
        self.lost = threading.Event()
        self.exit_status: int | None = None
        notifier = Notifier(None)
        self.service = Service(
            load(str(self.config_path)), self.log, (notifier, Watchdog(notifier, 0)), environment={},
            on_ready=self.ready.set, on_lost=self.lost.set,
        )  # fmt: skip
        self._thread = threading.Thread(target=self._run, name="daemon under test", daemon=True)

    def _run(self) -> None:
        try:
            self.exit_status = self.service.run()
        finally:
            self.ready.set()

    def __enter__(self) -> DaemonThread:
        self._thread.start()
        assert self.ready.wait(START_LIMIT_S)
        assert self._thread.is_alive(), f"the daemon ended with {self.exit_status}: {self.log.lines}"
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.stop()

    def run_to_the_end(self) -> int | None:
        """For a daemon that ends by itself; returns its exit status."""
        self._thread.start()
        self._thread.join(START_LIMIT_S)
        assert not self._thread.is_alive()
        return self.exit_status

    def stop(self) -> None:
        """Ends it in good order."""
        if self._thread.is_alive():
            self.service.request_stop()
            self._thread.join(START_LIMIT_S)
        assert not self._thread.is_alive(), "the daemon does not end"

    def camera(self, stream: str = "road", **more: object) -> Camera:
        """A camera with an open stream."""
        return Camera.open(self.sockets / "camera.sock", stream, frame_format(), **more)  # type: ignore[arg-type]

    def consumer(self, model: str = "tiny", **more: object) -> Consumer:
        """A subscribed consumer."""
        return Consumer.subscribe(self.sockets / "consumer.sock", model, **more)  # type: ignore[arg-type]

    def control(self) -> Control:
        """An operator's session."""
        return Control(self.sockets / "control.sock")


def picture(seed: int) -> NDArray[np.uint8]:
    """A frame's pixels."""
    return np.random.default_rng(seed).integers(1, 256, 64 * 16, dtype=np.uint8)
