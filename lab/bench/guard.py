"""The wall's price for a frame: a sealed daemon beside one whose guard was never installed, frame by frame in turn.

Both are `fenced serve` from the vehicle environment with the lane model; the peer differs only in that `guard.install`
and `guard.seal` do nothing in it. Compared are the time from start of frame to published, less the kernels' own time,
and the processor time of the loop's thread for a frame. (A served frame raises no audit event, so that the hook is not
even called: tests/daemon/test_hot_path.py.)
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from lab.bench.row import Row, make_row
from lab.bench.served import MODEL, SPEC, STREAM
from lab.compile.compiler import compile_spec
from lab.hil.daemon import VEHICLE, DaemonProcess
from lab.replay.drive import Drive
from lab.replay.source import RoadSource
from lab.sign.throwaway import sign_throwaway

_UNGUARDED = """#!{python} -I
from daemon import guard
guard.install = lambda: None
guard.seal = lambda **_: None
from client.cli import main
raise SystemExit(main())
"""
PEER = "the same daemon without the guard"
WARM_UP, BATCH = 50, 20


def run(folder: Path, frames: int = 1000) -> list[Row]:
    """Two rows, from `frames` frames through each daemon, in batches of BATCH in turn."""
    folder.mkdir(parents=True, exist_ok=True)
    bundle = folder / "lane.fenced"
    compile_spec(SPEC, bundle)
    root = sign_throwaway(bundle, folder)
    source = RoadSource(seed=7)
    picture = np.zeros(source.format.buffer_bytes, np.uint8)
    source.fill(picture, 0)
    with (
        DaemonProcess(folder / "sealed", [bundle], root, [STREAM]) as sealed,
        DaemonProcess(folder / "open", [bundle], root, [STREAM], vehicle=_unguarded(folder)) as unguarded,
        Drive(sealed.sockets, STREAM, source.format, MODEL) as ours,
        Drive(unguarded.sockets, STREAM, source.format, MODEL) as peer,
    ):
        sides = ((ours, sealed.pid), (peer, unguarded.pid))
        latency_ns: tuple[list[int], list[int]] = ([], [])
        processor_ns: tuple[list[float], list[float]] = ([], [])
        for batch in range(-WARM_UP // BATCH, frames // BATCH):
            for side, (drive, pid) in enumerate(sides):
                before_ns = loop_processor_ns(pid)
                seen = [frame_cost_ns(drive, picture, (batch + WARM_UP) * BATCH + index) for index in range(BATCH)]
                if batch >= 0:
                    latency_ns[side].extend(seen)
                    processor_ns[side].append((loop_processor_ns(pid) - before_ns) / BATCH)
    return [
        make_row("frame, sealed", *latency_ns, PEER, note="start of frame to published, less the kernels' time"),
        make_row("frame, sealed, processor", *processor_ns, PEER, note="of the loop's thread, a frame"),
    ]


def _unguarded(folder: Path) -> Path:
    """A stand-in for the vehicle environment, whose `fenced` does without the guard."""
    program = folder / "unguarded" / "bin" / "fenced"
    program.parent.mkdir(parents=True)
    program.write_text(_UNGUARDED.format(python=VEHICLE / "bin" / "python"))
    program.chmod(0o755)
    return folder / "unguarded"


def frame_cost_ns(drive: Drive, picture: np.ndarray[tuple[int], np.dtype[np.uint8]], sequence: int) -> int:
    """One frame; returns what it cost beside the kernels, in ns."""
    outcome = drive.step(lambda pixels: np.copyto(pixels, picture), sequence)
    if outcome.delivery is None:
        raise RuntimeError(f"frame {sequence} did not run: {outcome.status}")
    receipt = outcome.delivery.receipt
    return receipt.published_ns - outcome.sof_ns - (receipt.completed_ns - receipt.started_ns)


def loop_processor_ns(pid: int) -> int:
    """Time on a processor of the process's first thread, which runs the loop."""
    return int(Path(f"/proc/{pid}/task/{pid}/schedstat").read_text().split()[0])
