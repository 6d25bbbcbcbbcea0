"""A daemon that serves the pixel probes, and the way of one painted picture through it."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lab.hil.clients import LIMIT_S, Sockets
from lab.hil.daemon import PATIENT, VEHICLE, DaemonProcess
from lab.hil.pixel_probe import SIDE, PixelProbe, build
from lab.hil.probe_lab import ProbeLab

__all__ = ["Paint", "PixelBench", "flat"]

Planes = tuple[NDArray[np.uint8], ...]
Paint = Callable[[Planes], object]
"""Writes a picture into its planes, uint8 [rows, bytes of a row]; what it leaves, and all padding, is noise."""


@dataclass
class PixelBench:
    """Clients of a daemon, and the probes that it serves by name."""

    clients: Sockets
    probes: Mapping[str, PixelProbe]

    @classmethod
    @contextlib.contextmanager
    def started(cls, folder: Path, *, vehicle: Path = VEHICLE) -> Iterator[PixelBench]:
        """Compiles, signs and serves every probe, in `folder`. Raises DaemonFailed, CompileRefused."""
        lab = ProbeLab(folder / "lab")
        probes = build(folder / "specs", lab)
        bundles = [probe.bundle for probe in probes.values()]
        limits = PATIENT
        with DaemonProcess(
            folder / "daemon", bundles, lab.root_path, list(probes), limits=limits, vehicle=vehicle
        ) as daemon:
            yield cls(Sockets(daemon.sockets), probes)

    def values(self, name: str, paint: Paint) -> NDArray[Any]:
        """What the probe makes of one painted picture: float32 [channels, SIDE, SIDE]."""
        format = self.probes[name].format
        noise = np.random.default_rng(1).integers(0, 256, format.buffer_bytes, dtype=np.uint8)
        with (
            self.clients.camera(name, format=format) as camera,
            self.clients.consumer(name) as consumer,
        ):
            frame = camera.acquire(LIMIT_S)
            frame.pixels[:] = noise
            paint(frame.planes)
            camera.submit(frame, 1, time.monotonic_ns())
            values: NDArray[Any] = consumer.recv(timeout_s=LIMIT_S).outputs["values"][0]
            return values


def flat(y: Any, cb: int, cr: int) -> Paint:
    """An NV12 picture whose last columns are luma `y` (one value, or one a column) and whose chroma is flat."""

    def paint(planes: Planes) -> None:
        planes[0][:, -SIDE:] = y
        planes[1][:, 0::2], planes[1][:, 1::2] = cb, cr

    return paint
