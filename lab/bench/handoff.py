"""Hand-off: from the call of `Camera.submit` to the daemon having checked the frame and given it to the device.

The peer is the least that Python can do between two processes: a SOCK_SEQPACKET packet of the same size, taken by one
blocking recv. Both are one-way times between two CLOCK_MONOTONIC readings in two processes, at the same pace, taken in
turns, so that both sides sleep and wake alike. No pixel is copied on the way: the frame stays in its slot.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import socket
import struct
import time
from pathlib import Path

import numpy as np

from abi.flat import SUBMIT
from abi.packet import HEADER_BYTES
from lab.bench.row import Row, make_row
from lab.bench.served import MODEL, STREAM, served_lane
from lab.replay.drive import Drive, pace
from lab.replay.source import RoadSource

PACKET_BYTES = HEADER_BYTES + SUBMIT.size_bytes
RATES_HZ = (20.0, 60.0)
REACH = 1 / 1.5


def run(folder: Path, frames: int = 200) -> list[Row]:
    """One row a rate, for `frames` frames of 1928×1208 NV12 in each."""
    source = RoadSource(seed=7)
    picture = np.zeros(source.format.buffer_bytes, np.uint8)
    source.fill(picture, 0)
    rows = []
    with served_lane(folder) as daemon, _pinger() as ping, \
            Drive(daemon.sockets, STREAM, source.format, MODEL) as drive:  # fmt: skip
        sequence = 0
        for rate_hz in RATES_HZ:
            ours_ns, peer_ns, start_s = [], [], time.monotonic()
            for index in range(frames):
                pace(start_s, 2 * index, 2 * rate_hz)
                sequence += 1
                outcome = drive.step(lambda pixels: np.copyto(pixels, picture), sequence)
                if outcome.delivery is not None:
                    ours_ns.append(outcome.delivery.receipt.submitted_ns - outcome.sof_ns)
                pace(start_s, 2 * index + 1, 2 * rate_hz)
                peer_ns.append(_one_way_ns(ping))
            p99_ns = sorted(ours_ns)[int(0.99 * len(ours_ns))]
            note = f"submit → on the device, 1928×1208 NV12; p99 {p99_ns / 1000:.0f} µs; 0 bytes of pixels copied"
            rows.append(make_row(f"hand-off, {rate_hz:g} Hz", ours_ns, peer_ns,
                                 f"SEQPACKET ping of {PACKET_BYTES} B, one recv", reach=REACH, note=note))  # fmt: skip
    return rows


def _one_way_ns(ping: socket.socket) -> int:
    sent_ns = time.monotonic_ns()
    ping.send(bytes(PACKET_BYTES))
    (received_ns,) = struct.unpack("<q", ping.recv(8))
    return int(received_ns) - sent_ns


@contextlib.contextmanager
def _pinger():  # type: ignore[no-untyped-def]
    """A socket to another process that answers each packet with the time at which its recv returned."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    process = multiprocessing.get_context("fork").Process(target=_answer, args=(ours, theirs), daemon=True)
    process.start()
    theirs.close()
    try:
        yield ours
    finally:
        ours.close()
        process.join(5)


def _answer(ours: socket.socket, theirs: socket.socket) -> None:
    ours.close()
    while theirs.recv(4096):
        theirs.send(struct.pack("<q", time.monotonic_ns()))
