"""Clients of a daemon on the bench: cameras, consumers and an operator, and the few steps that every check is made of.

Everything goes through the public client over the daemon's sockets, so it is the same against a daemon that the harness
started and one that served already. Waiting is for what the daemon says, never for a length of time.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import numpy as np

from client.camera import Camera
from client.consumer import Consumer, Delivery
from client.control import Control
from lab.hil.probe import PIXELS, Pixels, frame_format
from lab.hil.verdict import WrongAnswer

__all__ = ["LIMIT_S", "Sockets", "ended", "picture", "run_one", "submit"]

LIMIT_S: Final = 30.0
"""Nothing that is waited for takes longer, however busy the machine."""


class Sockets:
    """Clients of a daemon whose sockets are in `sockets`."""

    def __init__(self, sockets: Path) -> None:
        self.sockets = sockets

    def camera(self, stream: str = "road", **more: Any) -> Camera:
        """A camera with an open stream; without a `format` that of the probe models."""
        more = {"format": frame_format(), "timeout_s": LIMIT_S, **more}
        return Camera.open(self.sockets / "camera.sock", stream, **more)

    def consumer(self, model: str = "tiny", **more: Any) -> Consumer:
        """A subscribed consumer."""
        return Consumer.subscribe(self.sockets / "consumer.sock", model, **{"timeout_s": LIMIT_S, **more})

    def control(self) -> Control:
        """An operator's session."""
        return Control(self.sockets / "control.sock", timeout_s=LIMIT_S)

    def status(self) -> dict[str, Any]:
        """The daemon's whole state."""
        with self.control() as control:
            return control.status()

    def wait_for(self, what: Callable[[dict[str, Any]], object]) -> dict[str, Any]:
        """Asks for the status until `what` holds of it. Raises WrongAnswer after LIMIT_S."""
        with self.control() as control:
            deadline = time.monotonic() + LIMIT_S
            while time.monotonic() < deadline:
                status = control.status()
                if what(status):
                    return status
        raise WrongAnswer("the daemon's state", f"another within {LIMIT_S:g} s", str(status))


def picture(seed: int, first: int = 1) -> Pixels:
    """A probe frame's pixels, uint8 [PIXELS]; `first` is the first one, which the slow and the lazy kernel look at."""
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
    """The camera's ledger once the daemon holds nothing of it. Raises WrongAnswer when it keeps a frame."""
    while camera.ledger.held:
        if not camera.wait(LIMIT_S):
            raise WrongAnswer("slots that the daemon holds", "none", f"{camera.ledger.held} after {LIMIT_S:g} s")
    return camera.ledger.as_dict()


def run_one(camera: Camera, consumer: Consumer, sequence: int, pixels: Pixels) -> Delivery:
    """One frame through to its result."""
    submit(camera, sequence, pixels)
    return consumer.recv(timeout_s=LIMIT_S)
