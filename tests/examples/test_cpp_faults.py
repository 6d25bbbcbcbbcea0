"""Refusals, faults and wrong command lines of the C++ camera: which exit code, and in which words.

Built with sanitizers, like `test_cpp.py`.
"""

from __future__ import annotations

import os
import struct
from pathlib import Path

import pytest

from abi import messages as m
from abi.packet import Kind, RefusalCode
from tests.examples.cpp_camera import (
    HEIGHT,
    NV12_ROAD,
    WIDTH,
    Slots,
    camera,
    road_format,
    take_submit,
)
from tests.examples.cpp_programs import Outcome, Peer, Program

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


LAST_WORDS = m.Refusal(RefusalCode.PROTOCOL, Kind.SUBMIT, "flags", "0", "1", "send what the schema says")


def test_refusal_is_read_though_the_daemon_left_packets_unread(sanitized: Path, peer: Peer) -> None:
    with camera(sanitized, peer, "--slots", "2") as program:
        peer.greet()
        Slots(peer)
        take_submit(peer)
        peer.await_packet()  # the second and last that the camera can send
        peer.answer(LAST_WORDS)
        peer.hang_up()
        outcome = program.outcome()
    assert outcome.code == 3
    assert outcome.stderr.startswith("camera: the daemon refused submit: protocol\n  what:     flags\n")


@pytest.mark.parametrize("answer", [LAST_WORDS, None])
def test_refusal_is_read_when_the_next_packet_cannot_be_sent(
    sanitized: Path, peer: Peer, answer: m.Refusal | None
) -> None:
    frame = bytes([9]) * road_format().buffer_bytes
    end, start = os.pipe()
    with (
        open(start, "wb", buffering=0) as pipe,
        open(end, "rb") as stdin,
        camera(sanitized, peer, "--slots", "2", "--input", "-", stdin=stdin.fileno()) as program,
    ):
        peer.greet()
        slots = Slots(peer)
        pipe.write(frame + frame[:100])
        submit = take_submit(peer)
        slots.wait_for_byte(1 - submit.slot, frame[0])  # it waits inside its second frame now
        if answer is not None:
            peer.answer(answer)
        peer.hang_up()
        pipe.write(frame[100:])
        outcome = program.outcome()
    code, words = (1, "closed the session") if answer is None else (3, "refused submit: protocol")
    assert (outcome.code, outcome.stderr.splitlines()[0]) == (code, f"camera: the daemon {words}")


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
