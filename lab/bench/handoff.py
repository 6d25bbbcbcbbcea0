"""Hand-off: from the call of `Camera.submit` to the daemon having checked the frame and taken it over.

Beside each peer of `lab.bench.peers`, at the same pace and in turn, so that all sides sleep and wake alike. No pixel is
copied on the way: the frame stays in its slot (tests/daemon/test_zero_copy.py holds that). A row a rate goes on to the
frame being on the device. What it costs in system calls: `lab.bench.calls`.
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from lab.bench import peers
from lab.bench.accepted import NotingVehicle
from lab.bench.corner import corner_format, served_corners
from lab.bench.row import Row, block_ratios, make_row, quantile
from lab.hil.daemon import VEHICLE
from lab.replay.drive import Drive, pace

STREAM = "front"
SAMPLES_AT_HZ = {20.0: 100, 60.0: 200, 200.0: 400}
REACH = 1 / 1.5  # of the ping's median


def run(folder: Path, samples_at_hz: dict[float, int] = SAMPLES_AT_HZ, vehicle: Path = VEHICLE) -> list[Row]:
    """Rows for p50 and p99 at each rate beside each peer."""
    stream_format, rows = corner_format(), []
    picture = np.zeros(stream_format.buffer_bytes, np.uint8)
    folder.mkdir(parents=True, exist_ok=True)
    noting = NotingVehicle(folder, vehicle)
    with (
        contextlib.ExitStack() as stack,
        served_corners(folder, [STREAM], noting.path) as daemon,
        Drive(daemon.sockets, STREAM, stream_format, STREAM) as drive,
    ):
        beside = {
            f"SEQPACKET ping of {peers.PACKET_BYTES} B, one recv": stack.enter_context(peers.ping(picture)),
            "ping and a copy of the frame": stack.enter_context(peers.copy(picture)),
        }
        if peers.iceoryx2_module() is None:
            _leave_out("hand-off beside iceoryx2", "the package is absent: pip install 'fenced-lab[bench]'")
        else:
            beside["iceoryx2, a sample of the frame's size"] = stack.enter_context(peers.iceoryx2(picture))
        frames = _Frames(drive, picture, noting)
        for rate_hz, count in samples_at_hz.items():
            ours_ns, theirs_ns = _in_turn(frames, beside, rate_hz, count)
            for name, samples_ns in theirs_ns.items():
                rows += _rows(rate_hz, ours_ns, name, samples_ns)
            rows.append(_to_device(rate_hz, frames.to_device_ns[-count:], next(iter(theirs_ns.items()))))
    return rows


class _Frames:
    """Frames one after another through one drive. `to_device_ns`: of each, from submit to being on the device."""

    def __init__(self, drive: Drive, picture: NDArray[np.uint8], noting: NotingVehicle) -> None:
        self._drive, self._picture, self._noting, self._sequence = drive, picture, noting, 0
        self.to_device_ns: list[int] = []

    def one_way(self) -> int:
        """One frame, whole way; nanoseconds from submit to being accepted."""
        self._sequence += 1
        outcome = self._drive.step(lambda pixels: np.copyto(pixels, self._picture), self._sequence)
        if outcome.delivery is None:
            raise RuntimeError(f"frame {self._sequence} did not run: {outcome.status}")
        self.to_device_ns.append(outcome.delivery.receipt.submitted_ns - outcome.sof_ns)
        return self._noting.accepted_ns(self._sequence) - outcome.sof_ns


def _in_turn(
    frames: _Frames, beside: dict[str, peers.OneWay], rate_hz: float, count: int
) -> tuple[list[int], dict[str, list[int]]]:
    """`count` samples of each side, each side at `rate_hz` while it is its turn."""
    ours_ns: list[int] = []
    theirs_ns: dict[str, list[int]] = {name: [] for name in beside}
    sides = [(frames.one_way, ours_ns), *((beside[name], theirs_ns[name]) for name in beside)]
    start_s, turn = time.monotonic(), 0
    for _ in range(count):
        for one_way, samples_ns in sides:
            pace(start_s, turn, rate_hz)
            samples_ns.append(one_way())
            turn += 1
    return ours_ns, theirs_ns


def _rows(rate_hz: float, ours_ns: Sequence[int], peer: str, theirs_ns: Sequence[int]) -> list[Row]:
    rows = []
    low, high = quantile(ours_ns, 0.25), quantile(ours_ns, 0.75)
    for share, text in ((0.5, "p50"), (0.99, "p99")):
        mine, other = quantile(ours_ns, share), quantile(theirs_ns, share)
        reach = REACH if share == 0.5 and peer.startswith("SEQPACKET") else 0.0
        rows.append(Row(f"hand-off {text}, {rate_hz:g} Hz", mine, other, "ns", peer, other / mine,
                        (high - low) / quantile(ours_ns, 0.5), reach,
                        f"submit → accepted, 1928×1208 NV12, {len(ours_ns)} frames; 0 bytes copied",
                        block_ratios(ours_ns, theirs_ns) if share == 0.5 else ()))  # fmt: skip
    return rows


def _to_device(rate_hz: float, ours_ns: Sequence[int], peer: tuple[str, Sequence[int]]) -> Row:
    name, theirs_ns = peer
    p99_us = quantile(ours_ns, 0.99) / 1000
    note = f"accepted, sampled, bound and given to the device; p99 {p99_us:.0f} µs"
    return make_row(f"to the device, {rate_hz:g} Hz", ours_ns, theirs_ns, name, note=note)


def _leave_out(row: str, reason: str) -> None:
    print(f"{row}: left out, {reason}", file=sys.stderr)
