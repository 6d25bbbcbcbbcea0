"""What serving costs at its edges: the first frames after READY, a switch of models under way, and 50 000 frames.

`run` measures the first two with the lane model at 20 Hz, as `make bench` does. The third takes minutes and is asked
for by name: `python -m lab.bench.service --frames 50000` serves a tiny model from a process whose garbage collector is
off, so that whatever nobody lets go of adds up, and fits a line through its resident memory.
"""

from __future__ import annotations

import argparse
import itertools
import shlex
import shutil
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from client.control import Control
from lab.bench.row import Row, make_row
from lab.hil.daemon import VEHICLE, DaemonProcess
from lab.hil.probe import frame_format
from lab.hil.releases import prepare
from lab.hil.scenario import DaemonPlan
from lab.hil.served import as_camera, read_model
from lab.json_text import json_text
from lab.replay.drive import Drive, Outcome, pace

SPEC = Path(__file__).parents[2] / "examples" / "lane" / "spec.toml"
MODEL = "lane"
RATE_HZ = 20.0
PERIOD_NS = 1e9 / RATE_HZ
STARTS, STEADY_FRAMES = 9, 30
SWITCHES, FRAMES_A_SWITCH = 8, 60
WARM_UP_SHARE, SAMPLE_EVERY = 0.2, 250
LEAST_KIB = 4 / 50
_COLLECTOR_OFF = "import gc, sys; gc.disable(); from client.cli import main; sys.exit(main(sys.argv[1:]))"


def run(folder: Path) -> list[Row]:
    """Rows for the first three frames after READY, and for a switch."""
    return [*first_frames(folder / "first"), *switches(folder / "switch")]


def _noise(pixels: NDArray[np.uint8]) -> None:
    """A whole frame, as a camera writes it, other bytes in each."""
    grain = np.frombuffer(np.random.default_rng().bytes(4096), np.uint8)
    pixels[:] = np.resize(grain, pixels.size)


def _held_ns(outcome: Outcome) -> float:
    """From Submit read to Release sent: what the daemon does, without the time that a busy machine takes to wake it."""
    if outcome.delivery is None:
        raise RuntimeError(f"a frame did not run: {outcome.status}")
    return float(outcome.release.held_ns)


def first_frames(folder: Path, starts: int = STARTS) -> list[Row]:
    """Submit read to Release sent of frames 1, 2 and 3 after READY, beside the median of the frames after them."""
    bundles, root = prepare(DaemonPlan(spec=SPEC), _new(folder))
    stream_format = as_camera(read_model(bundles[0]).streams["road"])
    firsts: list[list[float]] = [[], [], []]
    steady: list[float] = []
    for start in range(starts):
        with (
            DaemonProcess(folder / f"daemon-{start}", bundles, root, ["road"]) as daemon,
            Drive(daemon.sockets, "road", stream_format, MODEL) as drive,
        ):
            began_s = time.monotonic()
            for index in range(3 + STEADY_FRAMES):
                pace(began_s, index, RATE_HZ)
                taken_ns = _held_ns(drive.step(_noise, index + 1))
                (firsts[index] if index < 3 else steady).append(taken_ns)
    note = (
        f"lane model at {RATE_HZ:.0f} Hz, {starts} starts; Submit read to Release sent; the reach is twice the median"
    )
    peer = "the median of the frames after the third"
    return [
        make_row(f"frame {number} after READY", samples, steady, peer, reach=0.5, note=note)
        for number, samples in enumerate(firsts, 1)
    ]


@dataclass(frozen=True)
class _Switch:
    """gap_ns: the longest time between two results while a release was loaded and switched to."""

    gap_ns: float
    usual_ns: float
    bad_frames: int


def switches(folder: Path, count: int = SWITCHES) -> list[Row]:
    """The longest gap between results across activations under way, beside the longest without any."""
    bundles, root = prepare(DaemonPlan(spec=SPEC, releases=count + 1), _new(folder))
    directories = [bundles[0].parent]
    stream_format = as_camera(read_model(bundles[0]).streams["road"])
    with (
        DaemonProcess(folder / "daemon", bundles[:1], root, ["road"], directories=directories) as daemon,
        Drive(daemon.sockets, "road", stream_format, MODEL, slots=3) as drive,
    ):
        found = [_switch(drive, daemon.sockets, bundle, 1 + at * FRAMES_A_SWITCH)
                 for at, bundle in enumerate(bundles[1:])]  # fmt: skip
    bad = sum(one.bad_frames for one in found)
    gaps = [one.gap_ns for one in found]
    note = (
        f"lane model at {RATE_HZ:.0f} Hz, {count} activations of another release, loading and self-test included; "
        f"{bad} of {count * FRAMES_A_SWITCH} frames came to nothing; longest gap {max(gaps) / 1e6:.1f} ms, "
        f"without a switch {max(one.usual_ns for one in found) / 1e6:.1f} ms"
    )
    return [make_row("gap across a switch", gaps, [2 * PERIOD_NS], "two frame periods", reach=1.0, note=note)]


def _switch(drive: Drive, sockets: Path, bundle: Path, first: int) -> _Switch:
    """Frames at an even pace, the activation begun after a third of them."""
    published: list[int] = []
    bad, began_s = 0, time.monotonic()

    def activate() -> tuple[int, int]:
        began_ns = time.monotonic_ns()
        with Control(sockets / "control.sock") as control:
            control.activate(bundle)
        return began_ns, time.monotonic_ns()

    with ThreadPoolExecutor(1) as pool:
        for index in range(FRAMES_A_SWITCH):
            if index == FRAMES_A_SWITCH // 3:
                activation = pool.submit(activate)
            pace(began_s, index, RATE_HZ)
            outcome = drive.step(_noise, first + index)
            bad += outcome.delivery is None
            if outcome.delivery is not None:
                published.append(outcome.delivery.receipt.published_ns)
        began_ns, ended_ns = activation.result()
    during, usual = [0.0], [0.0]
    for before, after in itertools.pairwise(published):
        overlaps = after >= began_ns and before <= ended_ns + PERIOD_NS
        (during if overlaps else usual).append(float(after - before))
    return _Switch(max(during), max(usual), bad)


@dataclass(frozen=True)
class Slope:
    """A line through resident memory: KiB for each 1000 frames, with its standard error, and the ends of it."""

    kib_per_1000: float
    error_kib: float
    warm_kib: float
    last_kib: float
    frames: int

    @property
    def is_zero(self) -> bool:
        """Within three standard errors, or too little to add up to a page over 50 000 frames."""
        return abs(self.kib_per_1000) <= max(3 * self.error_kib, LEAST_KIB)


def resident_slope(folder: Path, frames: int) -> Slope:
    """Serves so many frames with the collector off. Raises RuntimeError where a frame comes to nothing."""
    bundles, root = prepare(DaemonPlan(probe="tiny"), _new(folder))
    vehicle = _without_collector(folder / "vehicle")
    stream_format = frame_format()
    seen: list[tuple[int, int]] = []
    with DaemonProcess(folder / "daemon", bundles, root, ["road"], vehicle=vehicle) as daemon:
        status = Path(f"/proc/{daemon.pid}/status")
        with Drive(daemon.sockets, "road", stream_format, "tiny") as drive:
            for sequence in range(1, frames + 1):
                _held_ns(drive.step(_noise, sequence))
                if sequence % SAMPLE_EVERY == 0 and sequence >= WARM_UP_SHARE * frames:
                    seen.append((sequence, _resident_kib(status)))
    return fit(seen, frames)


def fit(seen: Sequence[tuple[int, int]], frames: int) -> Slope:
    """Least squares over (frame, KiB); the error assumes that samples are independent."""
    at, kib = (np.array(column, np.float64) for column in zip(*seen, strict=True))
    slope, level = np.polyfit(at, kib, 1)
    residue = kib - (slope * at + level)
    spread = float(residue @ residue) / max(1, len(seen) - 2)
    error = float(np.sqrt(spread / float(((at - at.mean()) ** 2).sum())))
    return Slope(1000 * float(slope), 1000 * error, float(kib[0]), float(kib[-1]), frames)


def _resident_kib(status: Path) -> int:
    (line,) = (line for line in status.read_text().splitlines() if line.startswith("VmRSS:"))
    return int(line.split()[1])


def _without_collector(folder: Path, vehicle: Path = VEHICLE) -> Path:
    """A `fenced` of the vehicle environment whose garbage collector is off."""
    (folder / "bin").mkdir(parents=True)
    script = folder / "bin" / "fenced"
    python = shlex.join([str(vehicle / "bin" / "python"), "-I", "-c", _COLLECTOR_OFF])
    script.write_text(f'#!/bin/sh\nexec {python} "$@"\n')
    script.chmod(0o755)
    return folder


def _new(folder: Path) -> Path:
    folder.mkdir(parents=True)
    return folder


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints the rows, or with --frames the slope; exit status 1 where memory grows."""
    parser = argparse.ArgumentParser(prog="python -m lab.bench.service", description=__doc__)
    parser.add_argument("--frames", type=int, default=0, help="serve so many with the collector off instead")
    parser.add_argument("-o", "--out", type=Path, default=Path("out/service"), help="scratch folder, made anew")
    parsed = parser.parse_args(arguments)
    shutil.rmtree(parsed.out, ignore_errors=True)
    parsed.out = parsed.out.absolute()  # a daemon works elsewhere
    if not parsed.frames:
        print(json_text([asdict(row) for row in run(parsed.out)], indent=2))
        return 0
    began_s = time.monotonic()
    slope = resident_slope(parsed.out, parsed.frames)
    print(json_text({**asdict(slope), "zero_within_noise": slope.is_zero, "seconds": time.monotonic() - began_s}))
    return 0 if slope.is_zero else 1


if __name__ == "__main__":
    sys.exit(main())
