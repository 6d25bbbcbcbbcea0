"""System calls that a frame costs each process on its way: the camera's, the daemon's and the consumer's.

Camera and consumer are processes of their own here, written as the README shows, and strace counts one process after
another while frames pass at an even pace. What a frame needs at the least stands beside: the packets that the protocol
sends and takes there. strace makes every call slower, so counts are read from it and never times.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path

from abi.messages import DeliveryPolicy
from abi.stream_format import StreamFormat
from client.camera import Camera
from client.consumer import Consumer
from lab.bench.corner import corner_format, served_corners
from lab.bench.row import Row
from lab.bench.syscalls import count_calls
from lab.hil.daemon import VEHICLE
from lab.replay.drive import pace

STREAM = "front"
FRAMES, RATE_HZ = 100, 50.0
QUEUE = 7
"""As many results as may wait in the daemon's ring: a traced consumer on a busy machine falls behind."""
PACKETS = {"camera": 2.0, "daemon": 3.0, "consumer": 1.0}
"""Submit out and Release in; Submit in, Result and Release out; Result in."""
_LIMIT_S = 60.0

Counted = dict[str, dict[str, int]]


def run(folder: Path, vehicle: Path = VEHICLE) -> list[Row]:
    """A row for each process; none where strace is missing or may not attach."""
    stream_format = corner_format(RATE_HZ)
    with served_corners(folder, [STREAM], vehicle) as daemon:
        counted = count(daemon.pid, Film(daemon.sockets, STREAM, stream_format, STREAM))
    if counted is None:
        print("system calls a frame: left out, strace is missing or may not attach", file=sys.stderr)
        return []
    return [_row(name, calls) for name, calls in counted.items()]


@dataclass(frozen=True)
class Film:
    """What passes: `frames` frames of a stream at `rate_hz` through the daemon with these sockets to `model`."""

    sockets: Path
    stream: str
    stream_format: StreamFormat
    model: str
    frames: int = FRAMES
    rate_hz: float = RATE_HZ


def count(daemon_pid: int, film: Film) -> Counted | None:
    """Calls by name of each process of PACKETS while the film passes; None where strace cannot count."""
    counted: Counted = {}
    with (
        _process(_consume, film) as (consumer_pid, consumer),
        _process(_submit, film) as (camera_pid, camera),
    ):
        pids = {"camera": camera_pid, "daemon": daemon_pid, "consumer": consumer_pid}

        def pass_frames() -> None:
            consumer.send(film.frames)
            camera.send(film.frames)
            for one in (camera, consumer):
                if not one.poll(_LIMIT_S) or one.recv() != film.frames:
                    raise RuntimeError(f"{film.frames} frames did not pass")

        pass_frames()  # warms up
        for name, pid in pids.items():
            calls = count_calls(pid, pass_frames)
            if calls is None:
                return None
            counted[name] = calls
    return counted


@contextlib.contextmanager
def _process(target: Callable[[Connection, Film], None], film: Film) -> Iterator[tuple[int, Connection]]:
    """A new interpreter that runs `target(pipe, film)` until the pipe closes: its pid, and our end."""
    spawn = multiprocessing.get_context("spawn")
    ours, theirs = spawn.Pipe()
    child = spawn.Process(target=target, args=(theirs, film), daemon=True)
    child.start()
    theirs.close()
    try:
        if not ours.poll(_LIMIT_S) or ours.recv() != "ready":
            raise RuntimeError(f"the process of {child.name} did not begin")
        assert child.pid is not None
        yield child.pid, ours
    finally:
        ours.close()
        child.join()


def _submit(pipe: Connection, film: Film) -> None:
    """For each number that comes, submits so many frames and answers when the last is settled."""
    with (
        Camera.open(
            film.sockets / "camera.sock", film.stream, film.stream_format, 1
        ) as camera,  # one slot: no frame is superseded
        contextlib.suppress(EOFError),
    ):
        pipe.send("ready")
        sequence = 0
        while True:
            frames, start_s = pipe.recv(), time.monotonic()
            for index in range(frames):
                pace(start_s, index, film.rate_hz)
                frame = camera.acquire(timeout_s=10.0)
                camera.submit(frame, sequence, time.monotonic_ns())
                sequence += 1
            camera.wait(timeout_s=10.0)
            pipe.send(frames)


def _consume(pipe: Connection, film: Film) -> None:
    """For each number that comes, takes so many results and answers."""
    with (
        Consumer.subscribe(film.sockets / "consumer.sock", film.model, DeliveryPolicy.EVERY, QUEUE) as consumer,
        contextlib.suppress(EOFError),
    ):
        pipe.send("ready")
        while True:
            frames = pipe.recv()
            for _ in range(frames):
                consumer.recv(timeout_s=10.0)
            pipe.send(frames)


def _row(name: str, calls: dict[str, int]) -> Row:
    a_frame = {call: number / FRAMES for call, number in calls.items() if number / FRAMES >= 0.05}
    kinds = ", ".join(f"{call} {number:.1f}" for call, number in sorted(a_frame.items(), key=lambda one: -one[1]))
    total, packets = sum(calls.values()) / FRAMES, PACKETS[name]
    return Row(f"system calls a frame, {name}", total, packets, "calls", "its packets, one call each", packets / total,
               0.0, 0.0, f"{FRAMES} frames at {RATE_HZ:g} Hz: {kinds}")  # fmt: skip
