"""The C++ camera against a scripted peer: every packet it sends, and what it does in shared memory.

The program is built with AddressSanitizer and UndefinedBehaviorSanitizer here, so that a malformed answer that is
read one byte too far fails. `test_cpp_daemon.py` runs the ordinary build against the real daemon.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path

import numpy as np
import pytest

from abi import messages as m
from abi.colour import ChromaSite, ClockId, Matrix, Primaries, Range, TimeMark, Transfer
from abi.flat import SUBMIT, ReleaseStatus
from abi.format import PIXEL_FORMATS, ColourModel, Rect, StreamFormat, make_format
from abi.packet import HEADER_BYTES, Kind
from hal.memory import FIXED_SIZE
from tests.examples.cpp_camera import (
    HEIGHT,
    STREAM_ID,
    WIDTH,
    Slots,
    camera,
    release,
    road_format,
    take_submit,
)
from tests.examples.cpp_programs import Peer, Program


def test_camera_packets_are_the_bytes_that_pycapnp_makes(sanitized: Path, peer: Peer) -> None:
    with camera(sanitized, peer, "--count", "5", "--slots", "2", "--input", "/dev/zero") as program:  # none is dropped
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
    with camera(sanitized, peer, "--slots", "1", "--rate-hz", "1000"):
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


def bt601_or_identity(name: str, stride: int | None, crop: Rect | None = None) -> tuple[StreamFormat, list[str]]:
    """A 321 x 241 format of the table, and the camera's options for it."""
    is_yuv = PIXEL_FORMATS[name].model is ColourModel.YUV
    format = make_format(
        name, 321, 241, range=Range.FULL, matrix=Matrix.BT601 if is_yuv else Matrix.IDENTITY,
        primaries=Primaries.BT2020, transfer=Transfer.SRGB,
        chroma_site=ChromaSite.TOP_LEFT if is_yuv else ChromaSite.NOT_SUBSAMPLED, crop=crop, stride=stride, rows=243,
        clock=ClockId.TAI, mark=TimeMark.READOUT_START, period_ns=40_000_000, camera_name="front",
    )  # fmt: skip
    options = {
        "--stream": "road", "--format": name, "--size": "321x241", "--rows": "243", "--range": "full",
        "--matrix": "bt601" if is_yuv else "identity", "--primaries": "bt2020", "--transfer": "srgb",
        "--chroma-site": "topLeft" if is_yuv else "notSubsampled", "--clock": "tai", "--mark": "readoutStart",
        "--rate-hz": "25", "--name": "front",
    }  # fmt: skip
    options |= {"--stride": str(stride)} if stride else {}
    options |= {"--crop": f"{crop.x},{crop.y},{crop.width},{crop.height}"} if crop else {}
    return format, [word for option in options.items() for word in option]


@pytest.mark.parametrize("name", PIXEL_FORMATS)
def test_every_format_is_laid_out_by_the_table_and_holds_legal_values(sanitized: Path, peer: Peer, name: str) -> None:
    format, options = bt601_or_identity(name, 1408, Rect(1, 2, 300, 200))
    with Program([str(sanitized / "camera"), "--socket", str(peer.path), *options]):
        peer.greet()
        slots = Slots(peer)
        take_submit(peer)
    assert slots.opened == m.OpenStream("road", format)
    pixels = np.frombuffer(slots.pixels[0], np.uint8)
    is_picture = np.zeros(pixels.shape, bool)
    for plane, shape in zip(format.planes, format.pixel.planes, strict=True):
        for row in range(plane.rows):
            at = plane.offset + row * plane.stride
            is_picture[at : at + shape.row_bytes(format.width)] = True
    assert not pixels[~is_picture].any()
    is_word = name in ("R10", "R12", "R16")
    samples = pixels[is_picture].view("<u2") >> (format.pixel.bits - 8) if is_word else pixels[is_picture]
    assert samples.min() >= 16
    assert 128 <= samples.max() <= 235


@pytest.mark.parametrize("name", ["NV12", "NV21", "YU12"])
@pytest.mark.parametrize("stride", [None, 321, 323])
def test_chroma_rows_are_never_cut_short(sanitized: Path, peer: Peer, name: str, stride: int | None) -> None:
    format, options = bt601_or_identity(name, stride)
    with Program([str(sanitized / "camera"), "--socket", str(peer.path), *options]):
        peer.greet()
        assert peer.expect(Kind.OPEN_STREAM) == m.OpenStream("road", format)


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
