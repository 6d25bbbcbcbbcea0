"""A camera and a consumer in one process, for a machine that has the vehicle's packages alone: run by path, in a root.

`python film.py LIB SOCKETS STREAM MODEL FRAMES`: takes the packages from the folder LIB, submits FRAMES pictures (the
same on every machine) and prints one JSON line with what came of each. It imports nothing of the lab.
"""

from __future__ import annotations

import json
import platform
import sys
import time
from pathlib import Path
from typing import Any

TIMEOUT_S = 120.0  # under emulation a frame may take a second


def film(sockets: Path, stream: str, model: str, frames: int) -> dict[str, Any]:
    """Outputs by name for each frame, in order, and how the frames ended."""
    from abi import golden  # noqa: PLC0415 (the packages' place is an argument)
    from abi.colour import ChromaSite, ClockId, Matrix, Primaries, Range, TimeMark, Transfer  # noqa: PLC0415
    from abi.format import make_format  # noqa: PLC0415
    from client.camera import Camera  # noqa: PLC0415
    from client.consumer import Consumer  # noqa: PLC0415

    picture = make_format(
        "NV12", 1928, 1208, range=Range.LIMITED, matrix=Matrix.BT709, primaries=Primaries.BT709,
        transfer=Transfer.BT709, chroma_site=ChromaSite.LEFT, clock=ClockId.MONOTONIC, mark=TimeMark.EXPOSURE_START,
        period_ns=50_000_000, camera_name="film",
    )  # fmt: skip
    outputs = []
    with (
        Consumer.subscribe(sockets / "consumer.sock", model, timeout_s=TIMEOUT_S) as consumer,
        Camera.open(sockets / "camera.sock", stream, picture, timeout_s=TIMEOUT_S) as camera,
    ):
        for sequence in range(1, frames + 1):
            frame = camera.acquire(TIMEOUT_S)
            golden.fill(frame.pixels, golden.input_seed(sequence, 0))
            camera.submit(frame, sequence, time.monotonic_ns())
            result = consumer.recv(TIMEOUT_S)
            outputs.append({name: array.reshape(-1).tolist() for name, array in result.outputs.items()})
            while not camera.releases():
                camera.wait(TIMEOUT_S)
        ledger = camera.ledger.as_dict()
    return {"machine": platform.machine(), "outputs": outputs, "ledger": ledger}


if __name__ == "__main__":
    library, at, wanted, served, count = sys.argv[1:]
    sys.path.append(library)
    print(json.dumps(film(Path(at), wanted, served, int(count)), allow_nan=False))
