"""End to end less kernels at 20 Hz: from a frame's submission to its result in hand, beside the openpilot way.

Ours: the model served by the daemon, the frame in a slot of shared memory, the result read by a consumer. The
peer: a process as openpilot's modeld is one, which unpickles the same model's captured TinyJit, takes a packet for each
frame, makes a tensor of the numpy view over shared memory, calls the JIT, and sends what `.numpy()` gives. Pipeline,
compiled kernels and the one thread are the same on both sides. From each is taken what its own kernels took: ours as
the receipt says, the peer's measured around each call of a kernel in its process, which favours the peer: ctypes' own
time counts as the kernel's.
"""

from __future__ import annotations

import contextlib
import mmap
import multiprocessing
import os
import pickle
import socket
import statistics
import struct
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from client.consumer import Delivery
from hal.memory import create_sealed
from lab.bench.dispatch import open_bench_target
from lab.bench.kernels import subjects
from lab.bench.row import Row, make_row
from lab.bench.served import SPEC
from lab.compile.compiler import compile_spec
from lab.compile.model import load_model
from lab.compile.spec_toml import load_spec
from lab.compile.target import open_target
from lab.hil.daemon import PATIENT, VEHICLE, DaemonProcess
from lab.hil.served import as_camera, read_model
from lab.replay.drive import Drive, outputs_bytes, pace
from lab.sign.throwaway import sign_throwaway

RATE_HZ, FRAMES, WARM_UP = 20.0, 200, 10
REACH = 5.0
PEER = "unpickle, numpy in, TinyJit, .numpy()"
STREAM = "road"
_LANE = SPEC.with_name("lane.onnx")
RESULT_BYTES = 1 << 20
_START_S, _LIMIT_S = 120.0, 10.0
_ANSWER = struct.Struct("<qq")
Pixels = NDArray[np.uint8]
Taken = tuple[int, int]
"""ns of a frame, and of them in kernels."""
Peer = Callable[[], tuple[int, int, bytes]]
"""Gives the peer one frame: ns until its answer was read, ns of them in kernels, the values' bytes."""


def run(folder: Path, models: Path | None = None, frames: int = FRAMES, vehicle: Path = VEHICLE) -> list[Row]:
    """A row of `frames` frames on each side, in turn, for the lane model and for the public ones in folder `models`.

    Raises RuntimeError where the two sides compute different results.
    """
    rows = []
    for subject in subjects(models):
        spec = folder / subject.name / "spec.toml"
        spec.parent.mkdir(parents=True)
        spec.write_text(_lane_text() if subject.path == _LANE else subject.spec(threads=1))
        rows.append(_row(spec, subject.name, frames, vehicle))
    return rows


def _lane_text() -> str:
    """The lane example's spec for one thread: tinygrad's CPU device runs a kernel's cores one after another."""
    text = SPEC.read_text().replace("threads = 2", "threads = 1")
    return text.replace('"lane.onnx"', f'"{_LANE}"')


def _row(spec: Path, name: str, frames: int, vehicle: Path) -> Row:
    bundle, pickled = spec.with_suffix(".fenced"), spec.with_suffix(".pickle")
    launches = len(compile_spec(spec, bundle).launches)
    pickle_jit(spec, pickled)
    root = sign_throwaway(bundle, spec.parent)
    model = read_model(bundle)
    stream_format = as_camera(model.streams[STREAM])
    picture = np.random.default_rng(1).integers(0, 256, stream_format.buffer_bytes, np.uint8)
    with (
        DaemonProcess(spec.parent / "daemon", [bundle], root, [STREAM], limits=PATIENT, vehicle=vehicle) as daemon,
        Drive(daemon.sockets, STREAM, stream_format, model.name) as drive,
        modeld(pickled, picture) as peer,
    ):
        ours, theirs = _alternate(drive, peer, picture, frames)
    mine_us, other_us = (statistics.median(one[1] for one in side) / 1000 for side in (ours, theirs))
    mine, other = ([took - kernels for took, kernels in side] for side in (ours, theirs))
    note = f"{launches} launches, one thread, {frames} frames; kernels {mine_us:.0f} µs and {other_us:.0f} µs taken off"
    return make_row(f"end to end, {name}, {RATE_HZ:g} Hz", mine, other, PEER, reach=REACH, note=note)


def _alternate(drive: Drive, peer: Peer, picture: Pixels, frames: int) -> tuple[list[Taken], list[Taken]]:
    """Both sides in turn, each at RATE_HZ, after WARM_UP frames of each."""
    ours: list[Taken] = []
    theirs: list[Taken] = []
    start_s = time.monotonic()
    for index in range(WARM_UP + frames):
        pace(start_s, 2 * index, 2 * RATE_HZ)
        mine, delivery = _through(drive, picture, index + 1)
        pace(start_s, 2 * index + 1, 2 * RATE_HZ)
        *other, values = peer()
        if values != outputs_bytes(delivery):
            raise RuntimeError("the two sides compute different results")
        ours.append(mine)
        theirs.append((other[0], other[1]))
    return ours[WARM_UP:], theirs[WARM_UP:]


def _through(drive: Drive, picture: Pixels, sequence: int) -> tuple[Taken, Delivery]:
    """One frame through the daemon until its result was read; the slot comes back untimed."""
    frame = drive.camera.acquire(_LIMIT_S)
    np.copyto(frame.pixels, picture)
    sof_ns = time.monotonic_ns()
    drive.camera.submit(frame, sequence, sof_ns)
    delivery = drive.consumer.recv(_LIMIT_S)
    took_ns = time.monotonic_ns() - sof_ns
    receipt = delivery.receipt
    if receipt.frames[0].sequence != sequence:
        raise RuntimeError(f"frame {sequence} did not run")
    drive.camera.wait(_LIMIT_S)
    drive.camera.releases()
    return (took_ns, receipt.completed_ns - receipt.started_ns), delivery


def pickle_jit(spec_path: Path, path: Path) -> None:
    """What a compile of openpilot's leaves: the spec's pipeline captured by TinyJit, pickled."""
    spec = load_spec(spec_path)
    target = open_target(spec)
    with target.context():
        from tinygrad import Tensor, TinyJit  # noqa: PLC0415 (after the compiler's environment is set)

        from lab.compile.network import operators  # noqa: PLC0415
        from lab.compile.pipeline import build_pipeline  # noqa: PLC0415

        model = load_model(spec, operators())
        jit = TinyJit(build_pipeline(spec, model, target), prune=True)
        for _ in range(3):
            frame = np.zeros(spec.inputs[0].stream_format.buffer_bytes, np.uint8)
            jit(Tensor(frame).to(None).contiguous().realize())
        path.write_bytes(pickle.dumps(jit))


@contextlib.contextmanager
def modeld(pickled: Path, picture: Pixels) -> Iterator[Peer]:
    """The peer's process: frame and result in shared memory, a packet each way."""
    descriptor = create_sealed("bench-modeld", picture.nbytes + RESULT_BYTES)
    shared: Pixels = np.frombuffer(mmap.mmap(descriptor, picture.nbytes + RESULT_BYTES), np.uint8)
    frame, result = shared[: picture.nbytes], shared[picture.nbytes :]
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    process = multiprocessing.get_context("spawn").Process(
        target=_serve, args=(theirs, pickled, os.getpid(), descriptor, picture.nbytes), daemon=True
    )
    process.start()
    theirs.close()

    def one() -> tuple[int, int, bytes]:
        np.copyto(frame, picture)
        sent_ns = time.monotonic_ns()
        ours.send(b"frame")
        answer = ours.recv(_ANSWER.size)
        if not answer:
            raise RuntimeError("the peer's process ended")
        kernels_ns, size_bytes = _ANSWER.unpack(answer)
        values = bytes(result[:size_bytes])
        return time.monotonic_ns() - sent_ns, kernels_ns, values

    try:
        ours.settimeout(_START_S)
        if ours.recv(16) != b"ready":
            raise RuntimeError("the peer's process did not begin")
        yield one
    finally:
        ours.close()
        process.join(10)
        if process.is_alive():
            process.kill()
            process.join()
        os.close(descriptor)


def _serve(end: socket.socket, pickled: Path, pid: int, descriptor: int, frame_bytes: int) -> None:
    """The loop of a modeld: until the other end closes."""
    with open(f"/proc/{pid}/fd/{descriptor}", "r+b") as file, open_bench_target("cpu").context():
        shared: Pixels = np.frombuffer(mmap.mmap(file.fileno(), frame_bytes + RESULT_BYTES), np.uint8)
        frame, result = shared[:frame_bytes], shared[frame_bytes:]
        from tinygrad import Tensor  # noqa: PLC0415 (after the compiler's environment is set)

        jit = pickle.loads(pickled.read_bytes())
        kernels_ns = _count_kernel_time(jit)
        end.send(b"ready")
        while end.recv(64):
            kernels_ns[0] = 0
            outputs = jit(Tensor(frame).to(None).contiguous().realize())
            values = [one.numpy().reshape(-1).view(np.uint8) for one in outputs]
            size_bytes = sum(one.size for one in values)
            np.concatenate(values, out=result[:size_bytes])
            end.send(_ANSWER.pack(kernels_ns[0], size_bytes))


def _count_kernel_time(jit: Any) -> list[int]:
    """Makes every kernel of the JIT add its time to the one number of the list."""
    from tinygrad.engine.realize import get_runtime  # noqa: PLC0415 (as above)

    total = [0]

    def counted(function: Callable[..., None]) -> Callable[..., None]:
        def call(*arguments: Any) -> None:
            began_ns = time.perf_counter_ns()
            function(*arguments)
            total[0] += time.perf_counter_ns() - began_ns

        return call

    for program in {
        id(one): one for one in (get_runtime("CPU", call.src[0]) for call in jit.captured.linear.src)
    }.values():
        program.fxn = counted(program.fxn)
    return total
