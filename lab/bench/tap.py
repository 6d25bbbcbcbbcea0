"""What a recorder costs the daemon: frames with a tap beside frames without, in turn, through two daemons alike.

Two recorders are tried: one that is stopped (SIGSTOP), which shows the daemon's own part, sends that are not taken
among it; and `fenced-lab record` at work, a process beside the daemon that copies every frame and compresses it, and so
takes processor time and memory bandwidth that other things could have had. Frames go at 20 Hz then, as a camera's do.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from client.control import Control
from lab.bench.guard import BATCH, frame_cost_ns, loop_processor_ns
from lab.bench.row import Row, make_row
from lab.bench.served import MODEL, SPEC, STREAM
from lab.compile.compiler import compile_spec
from lab.hil.daemon import DaemonProcess
from lab.replay.drive import Drive, pace
from lab.replay.source import RoadSource
from lab.sign.throwaway import sign_throwaway

PEER = "the same daemon without a tap"
RATE_HZ = 20.0
SLOTS = 4  # as `Camera.open` makes them
WARM_UP = 2
START_LIMIT_S = 60.0
_STOPPED = """
import sys, time
from client.tap import Tap
tap = Tap.open(sys.argv[1])
time.sleep(1e6)
"""
_RECORD = "from lab.entry import main; raise SystemExit(main())"


def run(folder: Path, batches: int = 15) -> list[Row]:
    """Four rows, from `batches` batches of frames through each daemon in turn, for each recorder."""
    folder.mkdir(parents=True, exist_ok=True)
    bundle = folder / "lane.fenced"
    compile_spec(SPEC, bundle)
    root = sign_throwaway(bundle, folder)
    with (
        DaemonProcess(folder / "tapped", [bundle], root, [STREAM]) as tapped,
        DaemonProcess(folder / "bare", [bundle], root, [STREAM]) as bare,
    ):
        rows = _rows("recorder stopped", (tapped, bare), batches, 0.0, lambda: _stopped(tapped))
        log = folder / "drive.mcap"
        rows += _rows("recorded", (tapped, bare), batches, RATE_HZ, lambda: _recording(tapped, log))
    return rows


def _rows(name: str, daemons: tuple[DaemonProcess, DaemonProcess], batches: int, rate_hz: float,
          recorder: Callable[[], AbstractContextManager[list[str]]]) -> list[Row]:  # fmt: skip
    source = RoadSource(seed=7)
    picture = np.zeros(source.format.buffer_bytes, np.uint8)
    source.fill(picture, 0)
    latency_ns: tuple[list[int], list[int]] = ([], [])
    processor_ns: tuple[list[float], list[float]] = ([], [])
    with (
        Drive(daemons[0].sockets, STREAM, source.format, MODEL, slots=SLOTS) as ours,
        Drive(daemons[1].sockets, STREAM, source.format, MODEL, slots=SLOTS) as peer,
        recorder() as told,
    ):
        for batch in range(-WARM_UP, batches):
            for side, (drive, daemon) in enumerate(zip((ours, peer), daemons, strict=True)):
                before_ns, start_s = loop_processor_ns(daemon.pid), time.monotonic()
                seen = []
                for index in range(BATCH):
                    if rate_hz:
                        pace(start_s, index, rate_hz)
                    seen.append(frame_cost_ns(drive, picture, (batch + WARM_UP) * BATCH + index))
                if batch >= 0:
                    latency_ns[side].extend(seen)
                    processor_ns[side].append((loop_processor_ns(daemon.pid) - before_ns) / BATCH)
    note = "; ".join(["start of frame to published, less the kernels' time", *told])
    return [
        make_row(f"frame, {name}", *latency_ns, PEER, note=note),
        make_row(f"frame, {name}, processor", *processor_ns, PEER, note="of the loop's thread, a frame"),
    ]


@contextmanager
def _stopped(daemon: DaemonProcess) -> Iterator[list[str]]:
    """A tap that nobody reads; yields what is to be said of it afterwards."""
    told: list[str] = []
    process = subprocess.Popen([sys.executable, "-c", _STOPPED, daemon.sockets / "consumer.sock"])
    try:
        _wait_for_tap(daemon)
        process.send_signal(signal.SIGSTOP)
        yield told
        told.append(f"{_taps(daemon)[0]['missed']} packets dropped for it")
    finally:
        process.kill()
        process.wait()


@contextmanager
def _recording(daemon: DaemonProcess, log: Path) -> Iterator[list[str]]:
    """`fenced-lab record` at work; yields what is to be said of it afterwards."""
    command = [sys.executable, "-c", _RECORD, "--json", "record", str(daemon.sockets), "-o", str(log)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    told: list[str] = []
    try:
        _wait_for_tap(daemon)
        yield told
    finally:
        process.send_signal(signal.SIGINT)
        text, _ = process.communicate(timeout=START_LIMIT_S)
    recorded = json.loads(text)
    frames, without = sum(recorded["frames"].values()), sum(recorded["not_recorded"].values())
    told.append(f"{RATE_HZ:g} Hz, {frames} frames recorded, {without} without pixels, {recorded['missed']} missed")


def _taps(daemon: DaemonProcess) -> list[dict[str, Any]]:
    with Control(daemon.sockets / "control.sock") as control:
        taps: list[dict[str, Any]] = control.status()["taps"]
        return taps


def _wait_for_tap(daemon: DaemonProcess) -> None:
    """The bench's daemon has room for it: this is only the time that a Python process takes to begin."""
    end_s = time.monotonic() + START_LIMIT_S
    while not _taps(daemon):
        if time.monotonic() > end_s:
            raise RuntimeError("the recorder did not begin")
        time.sleep(0.05)
