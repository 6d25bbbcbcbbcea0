"""Cost against growth through a daemon: frames from VGA to 8 MP, streams from 1 to 8, consumers from 1 to 8.

The models do next to nothing (`lab.bench.corner`). Sizes take turns in batches through one daemon, so that a busy
moment of the machine hits all of them. Streams and consumers are told in processor time of the daemon's loop, beside
the bare packets of the protocol, sent and received by a Python loop on sockets of the same kind.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from abi.messages import DeliveryPolicy
from client.consumer import Consumer
from lab.bench import peers
from lab.bench.corner import Size, corner_format, served_corners
from lab.bench.curve import Curve, make_curve
from lab.bench.guard import loop_processor_ns
from lab.hil.daemon import VEHICLE
from lab.replay.drive import QUEUE, Drive, Fill

SIZES: dict[str, Size] = {
    "vga": (640, 480), "hd": (1280, 720), "road": (1928, 1208), "five": (2592, 1944), "eight": (3840, 2160),
}  # fmt: skip
COUNTS = (1, 2, 4, 8)
BATCHES, WARM_UP, FRAMES = 16, 2, 10
"""Batches of so many frames, or rounds of frames, each; the first WARM_UP are not counted."""
LIMIT_S = 10.0
MP = 1e6
STREAM = "front"


def frame_sizes(folder: Path, batches: int = BATCHES, vehicle: Path = VEHICLE) -> list[Curve]:
    """Start of frame to published, less the kernels' time; beside a copy of the frame. Two curves:

    by a camera that writes 64 bytes of a frame, so that caches stay warm, and by one that writes all of it.
    """
    costs: list[dict[float, list[float]]] = [{}, {}, {}]
    with ExitStack() as stack:
        daemon = stack.enter_context(served_corners(folder, SIZES, vehicle))
        drives = {
            name: stack.enter_context(Drive(daemon.sockets, name, corner_format(size=size), name))
            for name, size in SIZES.items()
        }
        for batch in range(-WARM_UP, batches):
            for name, size in SIZES.items():
                taken = _frames(drives[name], corner_format(size=size).buffer_bytes)
                if batch >= 0:
                    for into, samples in zip(costs, taken, strict=True):
                        into.setdefault(size[0] * size[1] / MP, []).extend(samples)
    painted, written, copied = costs
    return [
        make_curve(name, "MP", {size: (ours[size], copied[size]) for size in ours},
                   cost="start of frame to published, less kernels", peer="one copy of the frame", note=note)
        for name, ours, note in (
            ("frame size", painted, "NV12, 640×480 to 3840×2160, 64 bytes of each written, caches warm"),
            ("frame size, written whole", written, "the camera's writing leaves the caches to the frame"),
        )
    ]  # fmt: skip


def _frames(drive: Drive, size_bytes: int) -> tuple[list[float], list[float], list[float]]:
    """ns of FRAMES frames painted, of as many written whole, and of as many copies."""
    picture = np.full(size_bytes, 128, np.uint8)
    copy = np.empty_like(picture)
    painted = [_cost_ns(drive, _paint) for _ in range(FRAMES)]
    written = [_cost_ns(drive, lambda pixels: np.copyto(pixels, picture)) for _ in range(FRAMES)]
    copied = []
    for _ in range(FRAMES + 1):
        began_ns = time.perf_counter_ns()
        np.copyto(copy, picture)
        copied.append(float(time.perf_counter_ns() - began_ns))
    return painted, written, copied[1:]  # the first touches its pages


def _cost_ns(drive: Drive, fill: Fill) -> float:
    sequence = time.monotonic_ns()
    outcome = drive.step(fill, sequence)
    if outcome.delivery is None:
        raise RuntimeError(f"frame {sequence} did not run: {outcome.status}")
    receipt = outcome.delivery.receipt
    return receipt.published_ns - outcome.sof_ns - (receipt.completed_ns - receipt.started_ns)


def streams(folder: Path, batches: int = BATCHES, vehicle: Path = VEHICLE) -> list[Curve]:
    """Processor time of the loop for a frame of each stream, all submitted at once."""
    names = [f"camera{index}" for index in range(COUNTS[-1])]
    with ExitStack() as stack:
        daemon = stack.enter_context(served_corners(folder, names, vehicle))
        drives = [stack.enter_context(Drive(daemon.sockets, name, corner_format(), name)) for name in names]
        found = _in_turn(daemon.pid, batches, received=1, sent=2, counts=COUNTS,
                         act=lambda count, at: _round(drives[:count], at))  # fmt: skip
    return [make_curve("streams", "stream", found, cost="processor time of the loop, a frame of each",
                       peer="one recv and two sends for each",
                       note="all submitted at once; each stream has a model and a consumer of its own")]  # fmt: skip


def consumers(folder: Path, batches: int = BATCHES, vehicle: Path = VEHICLE) -> list[Curve]:
    """Processor time of the loop for a frame whose result goes to every consumer."""
    with ExitStack() as stack:
        daemon = stack.enter_context(served_corners(folder, [STREAM], vehicle))
        drive = stack.enter_context(Drive(daemon.sockets, STREAM, corner_format(), STREAM))
        found: dict[float, tuple[list[float], list[float]]] = {}
        for count in COUNTS:  # consumers stay once they are there: the counts cannot take turns
            with ExitStack() as subscribed:
                more = [
                    subscribed.enter_context(
                        Consumer.subscribe(daemon.sockets / "consumer.sock", STREAM, DeliveryPolicy.EVERY, QUEUE)
                    )
                    for _ in range(count - 1)
                ]
                found |= _in_turn(daemon.pid, batches, received=0, sent=1, counts=(count,),
                                  act=lambda _, at: _deliver(drive, more, at))  # fmt: skip  # noqa: B023
    return [make_curve("consumers", "consumer", found, cost="processor time of the loop, a frame",
                       peer="one send for each", note="every consumer by the policy EVERY")]  # fmt: skip


def _in_turn(
    pid: int, batches: int, *, received: int, sent: int, act: Callable[[int, int], None], counts: Sequence[int]
) -> dict[float, tuple[list[float], list[float]]]:
    """For each count, processor time of one `act(count, sequence)` and of the bare packets, the mean of each batch."""
    found: dict[float, tuple[list[float], list[float]]] = {count: ([], []) for count in counts}
    with ExitStack() as stack:
        bare = {count: stack.enter_context(peers.packets(count, received, sent)) for count in counts}
        for batch in range(-WARM_UP, batches):
            for count, (ours, theirs) in found.items():
                before_ns = loop_processor_ns(pid)
                for _ in range(FRAMES):
                    act(int(count), time.monotonic_ns())
                ours_ns = (loop_processor_ns(pid) - before_ns) / FRAMES
                theirs_ns = sum(bare[int(count)]() for _ in range(FRAMES)) / FRAMES
                if batch >= 0:
                    ours.append(ours_ns)
                    theirs.append(theirs_ns)
    return found


def _round(drives: Sequence[Drive], sequence: int) -> None:
    """A frame of each at once, until every one is settled."""
    frames = [drive.camera.acquire(LIMIT_S) for drive in drives]
    for frame in frames:
        _paint(frame.pixels)
    for drive, frame in zip(drives, frames, strict=True):
        drive.camera.submit(frame, sequence, time.monotonic_ns())
    for drive in drives:
        drive.consumer.recv(LIMIT_S)
        if not drive.camera.wait(LIMIT_S):
            raise TimeoutError(f"frame {sequence} was not released within {LIMIT_S} s")
        drive.camera.releases()


def _deliver(drive: Drive, more: Sequence[Consumer], sequence: int) -> None:
    outcome = drive.step(_paint, sequence)
    if outcome.delivery is None:
        raise RuntimeError(f"frame {sequence} did not run: {outcome.status}")
    for one in more:
        one.recv(LIMIT_S)


def _paint(pixels: NDArray[np.uint8]) -> None:
    pixels[:64] ^= 1
