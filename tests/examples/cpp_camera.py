"""The daemon's side of the C++ camera's session, step by step, for tests that watch what it does in shared memory."""

from __future__ import annotations

import mmap
import os
import struct
import subprocess
import time
from pathlib import Path

from abi import messages as m
from abi import schema
from abi.colour import ChromaSite, ClockId, Matrix, Primaries, Range, TimeMark, Transfer
from abi.flat import RELEASE, SUBMIT, Release, ReleaseStatus, Submit
from abi.format import StreamFormat, make_format
from abi.packet import HEADER_BYTES, Kind, encode_header
from hal.memory import seals
from tests.examples.cpp_programs import TIMEOUT_S, Peer, Program

STREAM_ID = 3
NV12_ROAD = (
    *("--stream", "road", "--format", "NV12", "--range", "limited", "--matrix", "bt709"),
    *("--primaries", "bt709", "--transfer", "bt709", "--chroma-site", "left"),
)
WIDTH, HEIGHT = 33, 17


def camera(sanitized: Path, peer: Peer, *options: str, stdin: int | None = subprocess.DEVNULL) -> Program:
    """A small NV12 camera at 200 Hz, unless the options say another rate."""
    size = ("--size", f"{WIDTH}x{HEIGHT}")
    rate = () if "--rate-hz" in options else ("--rate-hz", "200")
    return Program([str(sanitized / "camera"), "--socket", str(peer.path), *NV12_ROAD, *size, *rate, *options], stdin)


def road_format() -> StreamFormat:
    """What `camera` must declare."""
    return make_format(
        "NV12", WIDTH, HEIGHT, range=Range.LIMITED, matrix=Matrix.BT709, primaries=Primaries.BT709,
        transfer=Transfer.BT709, chroma_site=ChromaSite.LEFT, clock=ClockId.MONOTONIC, mark=TimeMark.EXPOSURE_START,
        period_ns=5_000_000, camera_name="fenced-cpp",
    )  # fmt: skip


class Slots:
    """What a camera registered: its lease page and its buffers, mapped."""

    def __init__(self, peer: Peer, max_slots: int = 4) -> None:
        self.opened = peer.expect(Kind.OPEN_STREAM)
        peer.answer(m.StreamOpened(STREAM_ID, max_slots))
        kind, packet, descriptors = peer.packet()
        assert kind is Kind.REGISTER_BUFFERS
        self.count = len(descriptors) - 1
        assert packet == m.encode(m.RegisterBuffers(STREAM_ID, self.count), len(descriptors))
        self.seals = [seals(descriptor) for descriptor in descriptors]
        self.sizes = [os.fstat(descriptor).st_size for descriptor in descriptors]
        self.lease, *self.pixels = [mmap.mmap(descriptor, 0, prot=mmap.PROT_READ) for descriptor in descriptors]
        peer.answer(m.BuffersRegistered(STREAM_ID, self.count, True))

    def wait_for_byte(self, slot: int, value: int) -> None:
        """Until the camera has written the slot's first byte."""
        deadline = time.monotonic() + TIMEOUT_S
        while self.pixels[slot][0] != value:
            assert time.monotonic() < deadline

    def control_word(self, slot: int) -> int:
        """The slot's control word as it stands now."""
        return int(struct.unpack_from("<Q", self.lease, slot * 64)[0])


def take_submit(peer: Peer) -> Submit:
    """The next Submit, which must be the bytes that both the flat codec and pycapnp make."""
    kind, packet, descriptors = peer.packet()
    assert (kind, descriptors) == (Kind.SUBMIT, [])
    submit = SUBMIT.unpack(packet[HEADER_BYTES:])
    message = schema.session.Submit.new_message(
        streamId=submit.stream_id, slot=submit.slot, generation=submit.generation, sequence=submit.sequence,
        sofNs=submit.sof_ns, eofNs=submit.eof_ns, controlWord=submit.control_word, exposureNs=submit.exposure_ns,
        flags=submit.flags,
    )  # fmt: skip
    assert packet == encode_header(Kind.SUBMIT) + SUBMIT.pack(submit) == encode_header(Kind.SUBMIT) + message.to_bytes()
    return submit


def release(peer: Peer, submit: Submit, status: ReleaseStatus = ReleaseStatus.RUN, **other: int) -> None:
    """Sends the submit's Release; `other` spoils fields of it."""
    value = Release(submit.stream_id, submit.slot, submit.generation, submit.sequence, status, 0, 1_500)
    peer.send(encode_header(Kind.RELEASE) + RELEASE.pack(value._replace(**other)))
