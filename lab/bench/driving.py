"""The driving example at its rate: two cameras, aux inputs and recurrent state, from start of frame to published.

Two 1928×1208 NV12 cameras deliver pairs at 20 Hz into the compiled `examples/driving`. The peer is the example's own
deadline. Every pair that came to nothing is in the note.
"""

from __future__ import annotations

import time
from contextlib import ExitStack
from pathlib import Path

import numpy as np

from abi.messages import DeliveryPolicy
from client.camera import Camera
from client.consumer import Consumer
from client.control import Control
from lab.bench.corner import corner_format
from lab.bench.row import Row, make_row, quantile
from lab.compile.compiler import compile_spec
from lab.hil.daemon import VEHICLE, DaemonProcess
from lab.replay.drive import pace
from lab.sign.throwaway import sign_throwaway

SPEC = Path(__file__).parents[2] / "examples" / "driving" / "spec.toml"
STREAMS = ("road", "wide")
RATE_HZ, PAIRS, DEADLINE_NS = 20.0, 300, 100e6
_TIMEOUT_S, _SLOT_S = 2.0, 30.0  # for a result, which may never come, and for a slot, which does
_TRAFFIC_ON_THE_RIGHT = np.array([1, 0], np.float32).tobytes()


def run(folder: Path, pairs: int = PAIRS, vehicle: Path = VEHICLE) -> list[Row]:
    """One row. Raises RuntimeError where no two pairs ran."""
    folder.mkdir(parents=True, exist_ok=True)
    bundle = folder / "driving.fenced"
    compile_spec(SPEC, bundle)
    root = sign_throwaway(bundle, folder)
    with DaemonProcess(folder / "daemon", [bundle], root, STREAMS, vehicle=vehicle) as daemon:
        taken_ns = drive(daemon.sockets, pairs)
        with Control(daemon.sockets / "control.sock") as control:
            ran = control.status()["streams"]["road"]["run"]
    if len(taken_ns) < 2:
        raise RuntimeError(f"{ran} of {pairs} pairs ran")
    note = (
        f"two 1928×1208 NV12 cameras at {RATE_HZ:.0f} Hz, {ran} of {pairs} pairs ran; start of frame to published: "
        f"p99 {quantile(taken_ns, 0.99) / 1e6:.1f} ms, longest {max(taken_ns) / 1e6:.1f} ms"
    )
    return [make_row("driving example, 20 Hz", taken_ns, [DEADLINE_NS], "its deadline", reach=1.0, note=note)]


def drive(sockets: Path, pairs: int) -> list[float]:
    """Nanoseconds from start of frame to published, of every pair that ran."""
    stream_format = corner_format(RATE_HZ)
    picture = np.random.default_rng(1).integers(16, 236, stream_format.buffer_bytes, dtype=np.uint8)
    taken_ns: list[float] = []
    with ExitStack() as stack:
        cameras = [
            stack.enter_context(Camera.open(sockets / "camera.sock", name, stream_format, slots=4, name="bench"))
            for name in STREAMS
        ]
        consumer = stack.enter_context(
            Consumer.subscribe(sockets / "consumer.sock", "driving", DeliveryPolicy.EVERY, 4, name="bench")
        )
        cameras[0].set_aux("traffic_convention", time.monotonic_ns(), _TRAFFIC_ON_THE_RIGHT)
        began_s = time.monotonic()
        for index in range(pairs):
            pace(began_s, index, RATE_HZ)
            sof_ns = time.monotonic_ns()
            for camera in cameras:
                frame = camera.acquire(_SLOT_S)
                np.copyto(frame.pixels, picture)
                camera.submit(frame, index + 1, sof_ns)
            try:
                taken_ns.append(consumer.recv(_TIMEOUT_S).receipt.published_ns - sof_ns)
            except TimeoutError:
                continue  # the pair is in the ledger, and missing in the note
            for camera in cameras:
                camera.releases()
    return taken_ns
