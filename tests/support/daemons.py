"""A daemon inside the test's own process, on a thread: the real Service with its real sockets, but without the guard.

The guard cannot be taken off again, so it is only in the tests that start a process (`tests/daemon/test_process.py`).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from client.camera import Camera
from client.consumer import Consumer, Delivery
from client.control import Control
from daemon.config import load
from daemon.health import Notifier, Watchdog
from daemon.log import Level, Log
from daemon.service import Service
from tests.support.bundles import PIXELS, BundleMaker, Pixels, frame_format

LIMIT_S = 30.0


class KeptLog(Log):
    """Keeps the lines for assertions instead of writing them."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def write(self, level: Level, message: str) -> None:
        self.lines.append(message)


def config_text(folder: Path, bundles: Sequence[Path], maker: BundleMaker, more: str) -> str:
    """A configuration with everything below `folder`. Frames may be old: a busy machine is no reason to refuse one."""
    names = ", ".join(f'"{path}"' for path in bundles)
    if "max_age_ms" not in more:
        head, limits, tail = more.partition("[limits]\n")
        more = f"{head}[limits]\nmax_age_ms = 60000\n{tail if limits else ''}"
    return (
        f'state_directory = "{folder / "state"}"\nsocket_directory = "{folder / "sockets"}"\n'
        f'root_paths = ["{maker.root_path}"]\nbundle_paths = [{names}]\nbundle_directories = ["{maker.folder}"]\n{more}'
    )


class Sockets:
    """Clients of a daemon whose sockets are in `sockets`."""

    def __init__(self, sockets: Path) -> None:
        self.sockets = sockets

    def camera(self, stream: str = "road", **more: Any) -> Camera:
        """A camera with an open stream."""
        more.setdefault("format", frame_format())
        return Camera.open(self.sockets / "camera.sock", stream, **more)

    def consumer(self, model: str = "tiny", **more: Any) -> Consumer:
        """A subscribed consumer."""
        return Consumer.subscribe(self.sockets / "consumer.sock", model, **more)

    def control(self) -> Control:
        """An operator's session."""
        return Control(self.sockets / "control.sock")

    def status(self) -> dict[str, Any]:
        """The daemon's whole state."""
        with self.control() as control:
            return control.status()

    def wait_for(self, what: Callable[[dict[str, Any]], object]) -> dict[str, Any]:
        """Asks for the status until `what` holds of it."""
        with self.control() as control:
            deadline = time.monotonic() + LIMIT_S
            while time.monotonic() < deadline:
                status = control.status()
                if what(status):
                    return status
        raise AssertionError(f"it never came to be: {status}")


class DaemonThread(Sockets):
    """A context manager around one Service. `lost` is set when it would end its process for a lost device."""

    def __init__(self, folder: Path, bundles: Sequence[Path], maker: BundleMaker, *, more: str = "") -> None:
        super().__init__(folder / "sockets")
        config_path = folder / "fenced.toml"
        config_path.write_text(config_text(folder, bundles, maker, more))
        self.log = KeptLog()
        self.ready = threading.Event()
        self.lost = threading.Event()
        self.exit_status: int | None = None
        notifier = Notifier(None)
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


def picture(seed: int, first: int = 1) -> Pixels:
    """A frame's pixels; `first` is the first one, which the slow and the lazy kernel look at."""
    pixels = np.random.default_rng(seed).integers(1, 255, PIXELS, dtype=np.uint8)
    pixels[0] = first
    return pixels


def submit(camera: Camera, sequence: int, pixels: Pixels, sof_ns: int | None = None, **more: Any) -> int:
    """Writes and submits one frame, taken now unless `sof_ns` says otherwise; returns its SOF."""
    frame = camera.acquire(timeout_s=LIMIT_S)
    frame.pixels[:] = pixels
    sof_ns = time.monotonic_ns() if sof_ns is None else sof_ns
    camera.submit(frame, sequence, sof_ns, **more)
    return sof_ns


def ended(camera: Camera) -> dict[str, Any]:
    """The camera's ledger once the daemon holds nothing of it."""
    while camera.ledger.held:
        assert camera.wait(LIMIT_S), "the daemon keeps a frame"
    return camera.ledger.as_dict()


def run_one(camera: Camera, consumer: Consumer, sequence: int, pixels: Pixels) -> Delivery:
    """One frame through to its result."""
    submit(camera, sequence, pixels)
    return consumer.recv(timeout_s=LIMIT_S)
