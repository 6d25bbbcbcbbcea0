"""How late a frame is at worst, with and without `[realtime]`: on a quiet machine, and with every core taken by others.

Two daemons serve the same small model; one asks for SCHED_FIFO for its loop and its worker, and for locked memory.
Batches of frames alternate between them. The time of a frame is from its submission to its result's `published`, as
its receipt says; the camera is this process, by SCHED_FIFO above both, so that it is not the camera that is measured.
"""

from __future__ import annotations

import os
import statistics
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from lab.bench.busy import busy
from lab.bench.corner import corner_bundles, corner_format
from lab.bench.row import Row, quantile
from lab.hil.daemon import PATIENT, VEHICLE, DaemonProcess
from lab.replay.drive import Drive, pace

STREAM = "front"
RATE_HZ, BATCH = 100.0, 50
CAMERA_PRIORITY, LOOP_PRIORITY, WORKER_PRIORITY = 30, 20, 10
REALTIME = {"fifo_priority": LOOP_PRIORITY, "lock_memory": True}
DEVICE: dict[str, str | int | list[int]] = {"fifo_priority": WORKER_PRIORITY, "lock_memory": True}
_SHARE = 0.99
_PEER = "the same daemon without [realtime]"


def run(folder: Path, frames: int = 600, vehicle: Path = VEHICLE) -> list[Row]:
    """Two rows of `frames` frames on each side; none, with the reason on stderr, without the right to priorities."""
    try:
        with _priority(CAMERA_PRIORITY):
            return _measure(folder, frames, vehicle)
    except PermissionError as error:
        print(f"jitter: left out: SCHED_FIFO: {error}", file=sys.stderr)
        return []


def _measure(folder: Path, frames: int, vehicle: Path) -> list[Row]:
    bundles, root = corner_bundles(folder, [STREAM])
    with ExitStack() as stack:
        company = stack.enter_context(busy(sorted(os.sched_getaffinity(0))))
        drives, rows = {}, []
        for name in ("ordinary", "realtime"):
            wanted, device = (REALTIME, DEVICE) if name == "realtime" else (None, None)
            daemon = DaemonProcess(
                folder / name, bundles, root, [STREAM], limits=PATIENT, realtime=wanted, device=device, vehicle=vehicle
            )
            stack.enter_context(daemon)
            drives[name] = stack.enter_context(Drive(daemon.sockets, STREAM, corner_format(RATE_HZ), STREAM))
        for load in ("quiet", "every core taken"):
            if load != "quiet":
                company.go_on()
            times: dict[str, list[int]] = {name: [] for name in drives}
            for _ in range(-(-frames // BATCH)):
                for name, drive in drives.items():
                    times[name] += _batch(drive)
            rows.append(_row(load, times["realtime"], times["ordinary"]))
    return rows


def _batch(drive: Drive) -> list[int]:
    """Times in ns of a batch of frames, after one that wakes everything."""
    taken, began_s = [], time.monotonic()
    for index in range(BATCH + 1):
        pace(began_s, index, RATE_HZ)
        outcome = drive.step(_paint, time.monotonic_ns())
        if outcome.delivery is None:
            raise RuntimeError(f"a frame did not run: {outcome.status}")
        taken.append(outcome.delivery.receipt.published_ns - outcome.sof_ns)
    return taken[1:]


def _paint(pixels: NDArray[np.uint8]) -> None:
    pixels[:64] = np.frombuffer(os.urandom(64), np.uint8)


def _row(load: str, ours: list[int], peer: list[int]) -> Row:
    mine, other = quantile(ours, _SHARE), quantile(peer, _SHARE)
    low, median, high = statistics.quantiles(ours, n=4)
    note = (
        f"p99 of {len(ours)} frames, submitted to published; medians {median / 1000:.0f} µs and "
        f"{statistics.median(peer) / 1000:.0f} µs, slowest {max(ours) / 1000:.0f} µs and {max(peer) / 1000:.0f} µs"
    )
    return Row(f"frame p99, {load}", mine, other, "ns", _PEER, other / mine, (high - low) / median, note=note)


@contextmanager
def _priority(priority: int) -> Iterator[None]:
    """This thread by SCHED_FIFO, and what it starts by the ordinary policy."""
    os.sched_setscheduler(0, os.SCHED_FIFO | os.SCHED_RESET_ON_FORK, os.sched_param(priority))
    try:
        yield
    finally:
        os.sched_setscheduler(0, os.SCHED_OTHER | os.SCHED_RESET_ON_FORK, os.sched_param(0))
