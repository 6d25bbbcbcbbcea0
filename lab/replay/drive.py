"""Driving a daemon in lock-step: one camera stream, one consumer, one frame at a time.

`Drive.step` gives the daemon one frame and waits until it is settled: the slot released and, where the frame ran, its
result read. Recording, replay, the demo and the HIL harness all go through here, over the public client alone.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

import numpy as np
from numpy.typing import NDArray

from abi.flat import Release, ReleaseStatus
from abi.messages import DeliveryPolicy
from abi.packet import HEADER_BYTES, RefusalCode
from abi.stream_format import StreamFormat
from client.camera import Camera
from client.consumer import Consumer, Delivery
from lab.refusal import LabRefusal, LabRefused

QUEUE = 2
"""Results that may wait for us; in lock-step there is never more than one."""

Fill = Callable[[NDArray[np.uint8]], object]
"""Writes a whole frame into the buffer it is given: uint8 [bufferBytes], shared memory."""


@dataclass(frozen=True)
class Outcome:
    """What became of one frame. `submit` is the message that was sent; `pixels` the slot, valid until the next step."""

    submit: bytes
    sof_ns: int
    pixels: NDArray[np.uint8]
    release: Release
    delivery: Delivery | None
    """The result; None where the frame did not run."""

    @property
    def status(self) -> str:
        """`run`, `late`, … and for a refused frame the refusal's code."""
        status = ReleaseStatus(self.release.status)
        return (
            status.name.lower() if status is not ReleaseStatus.REFUSED else RefusalCode(self.release.code).name.lower()
        )


class Drive:
    """A camera and a consumer against one daemon. Use as a context manager."""

    def __init__(self, sockets: Path, stream: str, stream_format: StreamFormat, model: str, *, slots: int = 2,
                 timeout_s: float = 10.0) -> None:  # fmt: skip
        self.timeout_s = timeout_s
        path, every = sockets / "consumer.sock", DeliveryPolicy.EVERY
        self.consumer = Consumer.subscribe(path, model, every, QUEUE, name="drive", timeout_s=timeout_s)
        try:
            path = sockets / "camera.sock"
            self.camera = Camera.open(path, stream, stream_format, slots, name="drive", timeout_s=timeout_s)
        except BaseException:
            self.consumer.close()
            raise

    def __enter__(self) -> Drive:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """End both sessions."""
        self.camera.close()
        self.consumer.close()

    def step(self, fill: Fill, sequence: int) -> Outcome:
        """Fill a slot, submit it as starting now, and wait until it is settled.

        The start of frame is the instant of submission, CLOCK_MONOTONIC: a picture that is played has no exposure.
        Raises TimeoutError, ConnectionLost, Refused.
        """
        frame = self.camera.acquire(self.timeout_s)
        pixels = frame.pixels
        fill(pixels)
        sof_ns = time.monotonic_ns()
        packet = self.camera.submit(frame, sequence, sof_ns)
        release = self._settled(sequence)
        ran = release.status == ReleaseStatus.RUN
        delivery = self._result(sequence) if ran else None
        return Outcome(packet[HEADER_BYTES:], sof_ns, pixels, release, delivery)

    def _settled(self, sequence: int) -> Release:
        while True:
            if not self.camera.wait(self.timeout_s):
                raise TimeoutError(f"frame {sequence} was not released within {self.timeout_s} s")
            for release in self.camera.releases():
                if release.sequence == sequence:
                    return release

    def _result(self, sequence: int) -> Delivery:
        while True:
            delivery = self.consumer.recv(self.timeout_s)
            if any(frame.sequence == sequence for frame in delivery.receipt.frames):
                return delivery


def outputs_bytes(delivery: Delivery) -> bytes:
    """The outputs' values one after another, in the order of the subscription: what a log keeps and replay compares."""
    return b"".join(array.tobytes() for array in delivery.outputs.values())


def pace(start_s: float, index: int, rate_hz: float) -> None:
    """Sleep until frame `index` of a clock that began at `start_s` (time.monotonic) is due; late ones do not wait."""
    left_s = start_s + index / rate_hz - time.monotonic()
    if left_s > 0:
        time.sleep(left_s)


def sockets_of(path: Path) -> Path:
    """The folder with a daemon's three sockets. Raises LabRefused naming what is missing."""
    for role in ("camera", "consumer", "control"):
        if not os.path.exists(path / f"{role}.sock"):
            raise LabRefused(
                LabRefusal.NO_DAEMON, str(path), expected=f"a folder with {role}.sock", found="none there",
                todo="name the daemon's socket_directory, and start it first",
            )  # fmt: skip
    return path
