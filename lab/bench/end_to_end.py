"""End to end less kernels at 20 Hz: from a frame's submission to its result in hand, beside the openpilot way.

Ours: the lane model served by the daemon, the frame in a slot of shared memory, the result read by a consumer. The
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
import struct
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hal.memory import create_sealed
from lab.bench.dispatch import open_bench_target
from lab.bench.row import Row, make_row
from lab.bench.served import MODEL, SPEC, STREAM
from lab.compile.compiler import compile_spec
from lab.compile.model import load_model
from lab.compile.spec_toml import load_spec
from lab.compile.target import open_target
from lab.hil.daemon import VEHICLE, DaemonProcess
from lab.replay.drive import Drive, outputs_bytes, pace
from lab.replay.source import RoadSource
from lab.sign.throwaway import sign_throwaway

RATE_HZ, FRAMES, WARM_UP = 20.0, 200, 10
REACH = 5.0
PEER = "unpickle, numpy in, TinyJit, .numpy()"
_START_S = 120.0
_ANSWER = struct.Struct("<q")
Pixels = NDArray[np.uint8]


def run(folder: Path, frames: int = FRAMES, vehicle: Path = VEHICLE) -> list[Row]:
    """One row of `frames` frames on each side, in turn. Raises RuntimeError where the two compute different results."""
    folder.mkdir(parents=True, exist_ok=True)
    spec, bundle, pickled = _one_thread(folder), folder / "lane.fenced", folder / "lane.pickle"
    compile_spec(spec, bundle)
    pickle_jit(spec, pickled)
    root = sign_throwaway(bundle, folder)
    source = RoadSource(seed=7)
    picture = np.zeros(source.format.buffer_bytes, np.uint8)
    source.fill(picture, 0)
    ours, theirs, kernels = [], [], ([], [])  # type: ignore[var-annotated]
    with (
        DaemonProcess(folder / "daemon", [bundle], root, [STREAM], vehicle=vehicle) as daemon,
        Drive(daemon.sockets, STREAM, source.format, MODEL) as drive,
        modeld(pickled, picture) as peer,
    ):
        start_s = time.monotonic()
        for index in range(-WARM_UP, frames):
            pace(start_s, 2 * (index + WARM_UP), 2 * RATE_HZ)
            outcome = drive.step(lambda pixels: np.copyto(pixels, picture), index + WARM_UP + 1)
            took_ns = time.monotonic_ns() - outcome.sof_ns
            if outcome.delivery is None:
                raise RuntimeError(f"frame {index} did not run: {outcome.status}")
            receipt = outcome.delivery.receipt
            pace(start_s, 2 * (index + WARM_UP) + 1, 2 * RATE_HZ)
            peer_ns, peer_kernels_ns, values = peer()
            if values != outputs_bytes(outcome.delivery):
                raise RuntimeError("the two sides compute different results")
            if index >= 0:
                kernels[0].append(receipt.completed_ns - receipt.started_ns)
                kernels[1].append(peer_kernels_ns)
                ours.append(took_ns - kernels[0][-1])
                theirs.append(peer_ns - peer_kernels_ns)
    mine_us, other_us = (np.median(one) / 1000 for one in kernels)
    note = f"lane model, one thread, {frames} frames; kernels {mine_us:.0f} µs and {other_us:.0f} µs are not in it"
    return [make_row(f"end to end, {RATE_HZ:g} Hz", ours, theirs, PEER, reach=REACH, note=note)]


def _one_thread(folder: Path) -> Path:
    """The lane example's spec for one thread: tinygrad's CPU device runs a kernel's cores one after another."""
    path = folder / "lane.toml"
    text = SPEC.read_text().replace("threads = 2", "threads = 1")
    path.write_text(text.replace('"lane.onnx"', f'"{SPEC.with_name("lane.onnx")}"'))
    return path


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
def modeld(pickled: Path, picture: Pixels) -> Iterator[Callable[[], tuple[int, int, bytes]]]:
    """The peer's process. What is yielded gives it one frame: ns until the answer, ns in kernels, the values' bytes."""
    descriptor = create_sealed("bench-frame", picture.nbytes)
    frame: Pixels = np.frombuffer(mmap.mmap(descriptor, picture.nbytes), np.uint8)
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
        answer = ours.recv(4096)
        took_ns = time.monotonic_ns() - sent_ns
        if not answer:
            raise RuntimeError("the peer's process ended")
        return took_ns, _ANSWER.unpack_from(answer)[0], answer[_ANSWER.size :]

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
        frame: Pixels = np.frombuffer(mmap.mmap(file.fileno(), frame_bytes), np.uint8)
        from tinygrad import Tensor  # noqa: PLC0415 (after the compiler's environment is set)

        jit = pickle.loads(pickled.read_bytes())
        kernels_ns = _count_kernel_time(jit)
        end.send(b"ready")
        while end.recv(64):
            kernels_ns[0] = 0
            outputs = jit(Tensor(frame).to(None).contiguous().realize())
            values = b"".join(one.numpy().tobytes() for one in outputs)
            end.send(_ANSWER.pack(kernels_ns[0]) + values)


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
