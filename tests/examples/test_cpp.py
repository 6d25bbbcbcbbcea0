"""The C++ camera and consumer against a scripted peer: every packet, every answer, every way to go wrong.

The programs are built with AddressSanitizer and UndefinedBehaviorSanitizer here, so that a malformed answer that is
read one byte too far fails. `test_cpp_daemon.py` runs the ordinary build against the real daemon.
"""

from __future__ import annotations

import mmap
import os
import signal
import struct
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from abi import messages as m
from abi import schema
from abi.colour import ChromaSite, ClockId, Matrix, Primaries, Range, TimeMark, Transfer
from abi.flat import RELEASE, SUBMIT, Release, ReleaseStatus, Submit
from abi.format import PIXEL_FORMATS, ColourModel, StreamFormat, make_format
from abi.packet import HEADER_BYTES, Kind, RefusalCode, encode_header
from hal.memory import FIXED_SIZE, seals
from tests.examples.cpp_programs import NV12_ROAD, TIMEOUT_S, Outcome, Peer, Program

STREAM_ID = 3
SUBSCRIPTION_ID = 9
DIGEST = bytes(range(32))
WIDTH, HEIGHT = 33, 17


@pytest.fixture
def peer(tmp_path: Path) -> Iterator[Peer]:
    with Peer(tmp_path / "peer.sock") as made:
        yield made


def camera(sanitized: Path, peer: Peer, *options: str, stdin: int | None = subprocess.DEVNULL) -> Program:
    size = ("--size", f"{WIDTH}x{HEIGHT}")
    rate = () if "--rate-hz" in options else ("--rate-hz", "200")
    return Program([str(sanitized / "camera"), "--socket", str(peer.path), *NV12_ROAD, *size, *rate, *options], stdin)


def road_format() -> StreamFormat:
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
    value = Release(submit.stream_id, submit.slot, submit.generation, submit.sequence, status, 0, 1_500)
    peer.send(encode_header(Kind.RELEASE) + RELEASE.pack(value._replace(**other)))


# ---- the camera -------------------------------------------------------------------------------------------------


def test_camera_packets_are_the_bytes_that_pycapnp_makes(sanitized: Path, peer: Peer) -> None:
    with camera(sanitized, peer, "--count", "5", "--slots", "2") as program:
        assert peer.greet() == m.Hello(m.Role.CAMERA, "fenced-cpp")
        slots = Slots(peer)
        assert slots.opened == m.OpenStream("road", road_format())
        submits = []
        for _ in range(5):
            submits.append(take_submit(peer))
            release(peer, submits[-1])
        assert peer.expect(Kind.CLOSE_STREAM) == m.CloseStream(STREAM_ID)
        assert peer.expect(Kind.BYE) == m.Bye("done")
        assert peer.ended()
        outcome = program.outcome()
    assert (outcome.code, outcome.stderr) == (0, "")
    assert [submit.sequence for submit in submits] == [0, 1, 2, 3, 4]
    by_slot = [[submit.generation for submit in submits if submit.slot == slot] for slot in range(2)]
    assert all(generations == list(range(1, len(generations) + 1)) for generations in by_slot)
    times = [time for submit in submits for time in (submit.sof_ns, submit.eof_ns)]
    assert times == sorted(times)
    assert outcome.lines("release")[4] | {"slot": ""} == {
        "slot": "", "generation": str(submits[4].generation), "sequence": "4", "status": "run", "code": "ok",
        "held_ns": "1500",
    }  # fmt: skip


def test_camera_shares_sealed_memory_of_the_declared_sizes(sanitized: Path, peer: Peer) -> None:
    with camera(sanitized, peer, "--slots", "8"):
        peer.greet()
        slots = Slots(peer, max_slots=3)
    assert slots.sizes == [3 * 64, *[road_format().buffer_bytes] * 3]
    assert all(found & FIXED_SIZE == FIXED_SIZE for found in slots.seals)


def expected_picture(frame: int) -> bytes:
    """The NV12 test picture: a diagonal ramp of luma 16..235 that moves four samples a frame, neutral chroma."""
    rows, columns = np.mgrid[0:HEIGHT, 0:WIDTH]
    luma = 16 + ((columns // 4 + rows + 4 * frame) % 220)
    return bytes(luma.astype(np.uint8)) + bytes([128]) * (2 * ((WIDTH + 1) // 2) * ((HEIGHT + 1) // 2))


def test_camera_writes_the_picture_before_it_submits(sanitized: Path, peer: Peer) -> None:
    with camera(sanitized, peer, "--count", "60", "--slots", "1", "--rate-hz", "1000"):
        peer.greet()
        slots = Slots(peer)
        for _ in range(3):
            submit = take_submit(peer)
            assert slots.pixels[0][:] == expected_picture(submit.sequence)
            assert submit.control_word == slots.control_word(0) == 2 * submit.generation
            release(peer, submit)


def test_no_slot_is_written_again_before_its_release(sanitized: Path, peer: Peer) -> None:
    with camera(sanitized, peer, "--slots", "1") as program:
        peer.greet()
        slots = Slots(peer)
        first = take_submit(peer)
        assert program.line("dropped") == {"sequence": "1", "reason": "no-free-slot"}
        assert slots.control_word(0) == first.control_word
        release(peer, first)
        second = take_submit(peer)
    assert second.generation == 2
    assert second.sequence > 1


def test_replay_sends_every_frame_of_the_input_and_marks_the_slot_while_it_writes(sanitized: Path, peer: Peer) -> None:
    frame_bytes = road_format().buffer_bytes
    frames = [bytes([value]) * frame_bytes for value in (11, 22, 33)]
    end, start = os.pipe()
    with (
        open(start, "wb", buffering=0) as pipe,
        open(end, "rb") as stdin,
        camera(sanitized, peer, "--slots", "1", "--input", "-", stdin=stdin.fileno()) as program,
    ):
        peer.greet()
        slots = Slots(peer)
        pipe.write(frames[0])
        submit = take_submit(peer)
        assert slots.pixels[0][:] == frames[0]
        release(peer, submit)
        pipe.write(frames[1][:100])
        slots.wait_for_byte(0, frames[1][0])
        assert slots.control_word(0) == submit.control_word + 1
        pipe.write(frames[1][100:] + frames[2])
        pipe.close()
        for frame in frames[1:]:
            submit = take_submit(peer)
            assert slots.pixels[0][:] == frame
            release(peer, submit)
        assert peer.expect(Kind.CLOSE_STREAM) == m.CloseStream(STREAM_ID)
        assert program.outcome().code == 0


def test_input_that_ends_inside_a_frame_is_a_fault(sanitized: Path, peer: Peer, tmp_path: Path) -> None:
    raw = tmp_path / "frames.nv12"
    raw.write_bytes(bytes(road_format().buffer_bytes + 5))
    with camera(sanitized, peer, "--slots", "2", "--input", str(raw)) as program:
        peer.greet()
        Slots(peer)
        release(peer, take_submit(peer))
        outcome = program.outcome()
    assert outcome.code == 1
    assert f"expected whole frames of {road_format().buffer_bytes} bytes, found 5 at the end" in outcome.stderr


@pytest.mark.parametrize("name", PIXEL_FORMATS)
def test_declared_layout_is_that_of_the_format_table(sanitized: Path, peer: Peer, name: str) -> None:
    pixel = PIXEL_FORMATS[name]
    matrix, site = Matrix.IDENTITY, ChromaSite.NOT_SUBSAMPLED
    if pixel.model is ColourModel.YUV:
        matrix, site = Matrix.BT601, ChromaSite.TOP_LEFT
    expected = make_format(
        name, 321, 241, range=Range.FULL, matrix=matrix, primaries=Primaries.BT2020, transfer=Transfer.SRGB,
        chroma_site=site, stride=1408, rows=243, clock=ClockId.TAI, mark=TimeMark.READOUT_START, period_ns=40_000_000,
        camera_name="front",
    )  # fmt: skip
    options = {
        "--stream": "road", "--format": name, "--size": "321x241", "--stride": "1408", "--rows": "243",
        "--range": "full", "--matrix": "bt601" if matrix is Matrix.BT601 else "identity", "--primaries": "bt2020",
        "--transfer": "srgb", "--chroma-site": "topLeft" if matrix is Matrix.BT601 else "notSubsampled",
        "--clock": "tai", "--mark": "readoutStart", "--rate-hz": "25", "--name": "front",
    }  # fmt: skip
    words = [word for option in options.items() for word in option]
    with Program([str(sanitized / "camera"), "--socket", str(peer.path), *words]):
        peer.greet()
        assert peer.expect(Kind.OPEN_STREAM) == m.OpenStream("road", expected)


@pytest.mark.parametrize("field", ["stream_id", "slot", "generation", "sequence"])
def test_release_of_what_the_daemon_does_not_hold_is_a_fault(sanitized: Path, peer: Peer, field: str) -> None:
    with camera(sanitized, peer) as program:
        peer.greet()
        slots = Slots(peer)
        submit = take_submit(peer)
        release(peer, submit, **{field: {"slot": slots.count}.get(field, getattr(submit, field) + 1)})
        outcome = program.outcome()
    assert outcome.code == 1
    assert "release from the daemon" in outcome.stderr


def test_second_release_of_one_submit_is_a_fault(sanitized: Path, peer: Peer) -> None:
    with camera(sanitized, peer, "--rate-hz", "0.01") as program:  # no second submit comes in between
        peer.greet()
        Slots(peer)
        submit = take_submit(peer)
        release(peer, submit)
        release(peer, submit)
        outcome = program.outcome()
    assert outcome.code == 1


def test_a_signal_waits_for_held_slots_and_closes_the_stream(sanitized: Path, peer: Peer) -> None:
    with camera(sanitized, peer, "--slots", "1") as program:
        peer.greet()
        Slots(peer)
        submit = take_submit(peer)
        program.process.send_signal(signal.SIGTERM)
        release(peer, submit, ReleaseStatus.SUPERSEDED)
        kinds: list[Kind] = []
        while not kinds or kinds[-1] is not Kind.BYE:
            kind, packet, _ = peer.packet()
            kinds.append(kind)
            if kind is Kind.SUBMIT:  # the signal may come a frame later
                release(peer, SUBMIT.unpack(packet[HEADER_BYTES:]))
        outcome = program.outcome()
    assert kinds[-2:] == [Kind.CLOSE_STREAM, Kind.BYE]
    assert outcome.code == 0
    assert outcome.lines("release")[0]["status"] == "superseded"


# ---- refusals, faults, usage ------------------------------------------------------------------------------------

REFUSAL = m.Refusal(
    RefusalCode.FORMAT_MISMATCH, Kind.OPEN_STREAM, "matrix", "BT601", "BT709", "declare the format of the model"
)
REFUSAL_TEXT = """camera: the daemon refused openStream: formatMismatch
  what:     matrix
  expected: BT601
  found:    BT709
  action:   declare the format of the model
"""


def test_refusal_is_printed_whole_and_exits_3(sanitized: Path, peer: Peer) -> None:
    with camera(sanitized, peer) as program:
        peer.greet()
        peer.expect(Kind.OPEN_STREAM)
        peer.answer(REFUSAL)
        assert program.outcome() == Outcome(3, "", REFUSAL_TEXT)


def test_refusal_is_seen_though_the_daemon_has_already_hung_up(sanitized: Path, peer: Peer) -> None:
    with camera(sanitized, peer, "--slots", "4", "--rate-hz", "2000") as program:
        peer.greet()
        Slots(peer)
        take_submit(peer)
        closing = m.Refusal(RefusalCode.PROTOCOL, Kind.SUBMIT, "flags", "0", "1", "send what the schema says")
        peer.answer(closing)
        peer.hang_up()  # with packets of the camera unread
        outcome = program.outcome()
    assert outcome.code == 3
    assert outcome.stderr.startswith("camera: the daemon refused submit: protocol\n  what:     flags\n")


@pytest.mark.parametrize("answer", [None, m.Bye("shutting down")])
def test_end_of_the_session_is_a_fault(sanitized: Path, peer: Peer, answer: m.Bye | None) -> None:
    with camera(sanitized, peer) as program:
        peer.greet()
        peer.expect(Kind.OPEN_STREAM)
        if answer is not None:
            peer.answer(answer)
        peer.hang_up()
        outcome = program.outcome()
    assert outcome.code == 1
    expected = "closed the session" if answer is None else "ended the session: shutting down"
    assert expected in outcome.stderr


WELCOME = m.encode(m.Welcome("0.1.0", 7, 65536, 17))


def with_word(index: int, value: int) -> bytes:
    packet = bytearray(WELCOME)
    struct.pack_into("<Q", packet, 8 * index, value)
    return bytes(packet)


MALFORMED = {
    "one byte": (WELCOME[:1], "length"),
    "header only": (WELCOME[:8], "length"),
    "not whole words": (WELCOME[:-1], "length"),
    "last word missing": (WELCOME[:-8], "words of the message"),
    "trailing word": (WELCOME + bytes(8), "words of the message"),
    "two segments": (with_word(1, 1 | (len(WELCOME) // 8 - 2) << 32), "segments"),
    "abiVersion": (WELCOME[:2] + b"\2\0" + WELCOME[4:], "abiVersion"),
    "flags": (WELCOME[:5] + b"\1" + WELCOME[6:], "flags and reserved"),
    "reserved": (WELCOME[:7] + b"\1" + WELCOME[8:], "flags and reserved"),
    "descriptors that never came": (WELCOME[:4] + b"\1" + WELCOME[5:], "descriptors"),
    "another kind": (b"\6" + WELCOME[1:], "expected welcome with 0 descriptors, found streamOpened"),
    "unknown kind": (b"\xff\xff" + WELCOME[2:], "expected welcome with 0 descriptors, found 65535"),
    "refusal that points out of the packet": (
        b"\3" + with_word(2, 0x0004_0001_0000_0000 | 0x1000 << 2)[1:], "message from the daemon"
    ),
    "longer than any packet": (WELCOME + bytes(1 << 16), "longer than 65536"),
}  # fmt: skip


@pytest.mark.parametrize("case", MALFORMED)
def test_malformed_answer_is_a_fault_with_its_reason(sanitized: Path, peer: Peer, case: str) -> None:
    packet, reason = MALFORMED[case]
    with camera(sanitized, peer) as program:
        peer.expect(Kind.HELLO)
        peer.send(packet)
        outcome = program.outcome()
    assert outcome.code == 1
    assert reason in outcome.stderr


def test_descriptor_that_nobody_asked_for_is_a_fault(sanitized: Path, peer: Peer) -> None:
    with camera(sanitized, peer) as program:
        peer.expect(Kind.HELLO)
        peer.send(WELCOME[:4] + b"\1" + WELCOME[5:], peer.listener.fileno())
        outcome = program.outcome()
    assert outcome.code == 1
    assert "expected welcome with 0 descriptors, found welcome with 1" in outcome.stderr


USAGE = {
    "unknown option": (("--colour", "red"), "unknown option --colour"),
    "no value": (("--count",), "--count: expected a value"),
    "twice": (("--stream", "road"), "--stream: given twice"),
    "no enumerant": (("--cfa", "rgbg"), "--cfa: expected one of unspecified none rggb grbg gbrg bggr, found rgbg"),
    "not a number": (("--slots", "4x"), "--slots: expected a number"),
    "crop of three": (("--crop", "0,0,4"), "--crop: expected 4 numbers"),
    "rate": (("--rate-hz", "nan"), "--rate-hz: expected a number above 0"),
    "stride below a row": (("--stride", "32"), "--stride: expected at least a row's 33 bytes"),
    "rows below the picture": (("--rows", "16"), "--rows: expected at least the picture's 17"),
}


@pytest.mark.parametrize("case", USAGE)
def test_wrong_command_line_exits_2_without_connecting(sanitized: Path, tmp_path: Path, case: str) -> None:
    options, reason = USAGE[case]
    command = [str(sanitized / "camera"), "--socket", str(tmp_path / "none"), *NV12_ROAD]
    outcome = run([*command, "--size", f"{WIDTH}x{HEIGHT}", *options])
    assert outcome.code == 2
    assert outcome.stderr.startswith(f"camera: {reason}")
    assert "usage: camera --socket PATH" in outcome.stderr


def test_missing_option_exits_2(sanitized: Path) -> None:
    outcome = run([str(sanitized / "consumer"), "--model", "lane"])
    assert (outcome.code, outcome.stderr.splitlines()[0]) == (2, "consumer: --socket: missing")


def test_help_goes_to_stdout(sanitized: Path) -> None:
    outcome = run([str(sanitized / "consumer"), "--help"])
    assert outcome.code == 0
    assert outcome.stdout.startswith("usage: consumer --socket PATH")


def test_no_daemon_is_a_fault(sanitized: Path, tmp_path: Path) -> None:
    outcome = run([str(sanitized / "consumer"), "--socket", str(tmp_path / "none"), "--model", "lane"])
    assert (outcome.code, outcome.stdout) == (1, "")
    assert outcome.stderr == f"consumer: connect to {tmp_path / 'none'}: No such file or directory\n"


def run(command: list[str]) -> Outcome:
    with Program(command) as program:
        return program.outcome()
