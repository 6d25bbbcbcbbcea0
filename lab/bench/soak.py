"""`make soak`: four cameras at 20 Hz for as long as asked, and whether the daemon stays as it was.

It holds when every stream's ledger balances and nothing was lost, torn, late or refused, and when descriptors, mappings
and resident memory of the daemon are where they were once it had warmed up. Frames are whole 1928×1208 NV12 pictures;
the models do next to nothing (`lab.bench.corner`), for it is the daemon that is tried, not kernels.
"""

from __future__ import annotations

import argparse
import contextlib
import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from abi.messages import DeliveryPolicy
from client.camera import Camera
from client.consumer import Consumer
from client.control import Control
from lab.bench.corner import corner_format, served_corners
from lab.hil.daemon import VEHICLE
from lab.json_text import json_text
from lab.replay.drive import pace

STREAMS = ("front", "left", "right", "rear")
ENDS = ("run", "superseded", "late", "torn", "refused", "lost", "held")
BAD_ENDS = ("late", "torn", "refused", "lost")
WARM_UP_S, WARM_UP_SHARE = 15.0, 0.1
"""Until then, whichever is later, every page of every slot has been touched."""
RESIDENT_SLACK_KIB = 512
"""What an allocator may add and take away without anything growing."""
TIMEOUT_S = 5.0


@dataclass(frozen=True)
class Sample:
    """The daemon's process at one instant."""

    at_s: float
    resident_kib: int
    descriptors: int
    mappings: int


def sample(pid: int, at_s: float) -> Sample:
    """Read it from /proc."""
    process = Path(f"/proc/{pid}")
    (line,) = (line for line in (process / "status").read_text().splitlines() if line.startswith("VmRSS:"))
    maps = (process / "maps").read_text().count("\n")
    return Sample(at_s, int(line.split()[1]), len(list((process / "fd").iterdir())), maps)


def verdict(samples: Sequence[Sample], ledgers: Mapping[str, Mapping[str, Any]], submitted: int) -> list[str]:
    """What did not hold, in words; empty when everything did. `submitted`: frames that each camera sent."""
    faults = []
    for name, ledger in ledgers.items():
        if ledger["submitted"] != submitted or submitted != sum(ledger[end] for end in ENDS):
            faults.append(f"{name}: {submitted} frames were sent, the ledger says {dict(ledger)}")
        bad = {end: ledger[end] for end in BAD_ENDS if ledger[end]}
        if bad:
            faults.append(f"{name}: frames that came to nothing: {bad}; {ledger['reasons']} {ledger['refusals']}")
    last = samples[-1]
    first = next((one for one in samples if one.at_s >= max(WARM_UP_S, WARM_UP_SHARE * last.at_s)), last)
    for what in ("descriptors", "mappings"):
        if getattr(last, what) != getattr(first, what):
            faults.append(f"{what}: {getattr(first, what)} when warm, {getattr(last, what)} at the end")
    if last.resident_kib > first.resident_kib + RESIDENT_SLACK_KIB:
        faults.append(f"resident memory: {first.resident_kib} KiB when warm, {last.resident_kib} at the end")
    return faults


class _Stream:
    """One camera and one consumer that wants every result."""

    def __init__(self, sockets: Path, name: str, rate_hz: float) -> None:
        self.camera = Camera.open(sockets / "camera.sock", name, corner_format(rate_hz), slots=4, name="soak")
        self.consumer = Consumer.subscribe(sockets / "consumer.sock", name, DeliveryPolicy.EVERY, 4, name="soak")
        self.results = 0

    def submit(self, sequence: int, picture: NDArray[np.uint8]) -> None:
        frame = self.camera.acquire(TIMEOUT_S)
        np.copyto(frame.pixels, picture)
        self.camera.submit(frame, sequence, time.monotonic_ns())

    def take(self) -> None:
        """Whatever has come; the slots that are free again too."""
        self.camera.releases()
        with contextlib.suppress(TimeoutError):
            while True:
                self.consumer.recv(0.0)
                self.results += 1

    def settle(self) -> None:
        """Until the daemon holds nothing of it."""
        while self.camera.ledger.held:
            if not self.camera.wait(TIMEOUT_S):
                raise TimeoutError(f"a frame was not released within {TIMEOUT_S} s")
        self.take()

    def close(self) -> None:
        self.camera.close()
        self.consumer.close()


def run(folder: Path, minutes: float, rate_hz: float, vehicle: Path = VEHICLE) -> int:
    """Soak in `folder`, made anew; prints a line every ten seconds and the verdict. 0 when everything held."""
    shutil.rmtree(folder, ignore_errors=True)
    with served_corners(folder, STREAMS, vehicle) as daemon, contextlib.ExitStack() as stack:
        streams = [_Stream(daemon.sockets, name, rate_hz) for name in STREAMS]
        for one in streams:
            stack.callback(one.close)
        submitted = round(minutes * 60 * rate_hz)
        samples = _drive(streams, daemon.pid, submitted, rate_hz)
        with Control(daemon.sockets / "control.sock") as control:
            ledgers = control.status()["streams"]
    faults = verdict(samples, ledgers, submitted)
    report = {"minutes": minutes, "rate_hz": rate_hz, "frames": submitted * len(STREAMS),
              "results": sum(one.results for one in streams), "ledgers": ledgers, "faults": faults,
              "samples": [asdict(one) for one in samples]}  # fmt: skip
    (folder / "soak.json").write_text(json_text(report, indent=2) + "\n")
    print(f"{report['frames']} frames, {report['results']} results")
    for fault in faults:
        print(f"not held: {fault}", file=sys.stderr)
    print("everything held" if not faults else f"{len(faults)} things did not hold; see {folder / 'soak.json'}")
    return 1 if faults else 0


def _drive(streams: Sequence[_Stream], pid: int, frames: int, rate_hz: float) -> list[Sample]:
    picture = np.random.default_rng(1).integers(16, 236, corner_format().buffer_bytes, dtype=np.uint8)
    start_s, samples = time.monotonic(), []
    every = max(1, round(rate_hz))
    for index in range(frames):
        pace(start_s, index, rate_hz)
        for one in streams:
            one.submit(index + 1, picture)
        for one in streams:
            one.take()
        if index % every == 0:
            samples.append(sample(pid, time.monotonic() - start_s))
        if index % (10 * every) == 0:
            print(f"{samples[-1].at_s:7.1f} s  resident {samples[-1].resident_kib} KiB  "
                  f"descriptors {samples[-1].descriptors}  mappings {samples[-1].mappings}", flush=True)  # fmt: skip
    for one in streams:
        one.settle()
    samples.append(sample(pid, time.monotonic() - start_s))
    return samples


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m lab.bench.soak", description=run.__doc__)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--rate-hz", type=float, default=20.0)
    parser.add_argument("-o", "--output", type=Path, default=Path("out/soak"), help="folder, made anew")
    given = parser.parse_args()
    return run(given.output, given.minutes, given.rate_hz)


if __name__ == "__main__":
    sys.exit(main())
