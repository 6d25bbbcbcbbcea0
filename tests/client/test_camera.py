"""Cameras: slots that are acquired, written, given away and given back, and the lease page that tells."""

from __future__ import annotations

import dataclasses
import fcntl
import mmap
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from abi import messages as m
from abi.flat import SUBMIT, Release, ReleaseStatus, Submit
from abi.format import StreamFormat, prove_bounds
from abi.lease import LeaseEvent
from abi.messages import Role
from abi.packet import LocalProtocolError, RefusalCode
from abi.stream_format import Rect
from client import camera as camera_module
from client.camera import Camera
from client.errors import ConnectionLost, Refused
from hal.memory import create_sealed
from tests.support.link import stream_format
from tests.support.scripted import TIMEOUT_S, Peer, ScriptedDaemon, no_descriptor_leaks


class DaemonSide:
    """What the script of a camera's daemon sees: the shared memory, and every event."""

    def __init__(self) -> None:
        self.events: list[Any] = []
        self.lease: mmap.mmap | None = None
        self.buffers: list[mmap.mmap] = []

    def accept(self, peer: Peer, max_slots: int = 4) -> None:
        """Through RegisterBuffers, with the bounds proof and the seals as the daemon does them."""
        peer.greet()
        opened = peer.receive()
        peer.say(m.StreamOpened(3, max_slots))
        registered = peer.receive()
        lease, *buffers = peer.descriptors
        for descriptor in buffers:
            seals = fcntl.fcntl(descriptor, fcntl.F_GET_SEALS)
            prove_bounds(opened.format, os.fstat(descriptor).st_size, seals)
        assert fcntl.fcntl(lease, fcntl.F_GET_SEALS) & fcntl.F_SEAL_SHRINK
        self.lease = mmap.mmap(lease, registered.slots * 64, prot=mmap.PROT_READ)
        self.buffers = [mmap.mmap(one, opened.format.buffer_bytes, prot=mmap.PROT_READ) for one in buffers]
        peer.say(m.BuffersRegistered(3, registered.slots, True))
        self.events += [opened, registered]

    def close(self) -> None:
        """Unmap."""
        for one in (self.lease, *self.buffers):
            if one is not None:
                one.close()

    def word(self, slot: int) -> int:
        """A slot's control word."""
        assert self.lease is not None
        return int.from_bytes(self.lease[slot * 64 : slot * 64 + 8], "little")


def run(
    tmp_path: Path,
    script: Callable[[Peer, DaemonSide], object],
    body: Callable[[Camera, DaemonSide], object],
    format: StreamFormat | None = None,
    slots: int = 2,
) -> DaemonSide:
    """A camera against a script that starts once its buffers are registered; nothing of it stays behind."""
    side = DaemonSide()

    def whole(peer: Peer) -> None:
        side.accept(peer)
        script(peer, side)
        side.events += peer.until_end()

    def session() -> None:
        with (
            ScriptedDaemon(tmp_path, Role.CAMERA, whole) as daemon,
            Camera.open(daemon.path, "road", format or stream_format(), slots, name="front") as camera,
        ):
            body(camera, side)

    with no_descriptor_leaks():
        session()
        side.close()
    return side


def silent(peer: Peer, side: DaemonSide) -> None:
    """A script that only listens."""


def take_frames(count: int, finish: Callable[[Peer, Submit], object]) -> Callable[[Peer, DaemonSide], None]:
    """A script that finishes `count` frames."""

    def script(peer: Peer, side: DaemonSide) -> None:
        for _ in range(count):
            submit = peer.receive()
            side.events.append(submit)
            finish(peer, submit)

    return script


def superseded(peer: Peer, submit: Submit) -> None:
    peer.push(peer.session.release(3, submit.slot, LeaseEvent.DROP, ReleaseStatus.SUPERSEDED, held_ns=5))


def test_opening_registers_sealed_buffers_of_the_format(tmp_path: Path) -> None:
    def body(camera: Camera, side: DaemonSide) -> None:
        assert (camera.slots, camera.free, camera.zero_copy) == (2, 2, True)
        assert camera.stream_format == stream_format()
        assert camera.fileno() >= 0

    side = run(tmp_path, silent, body)
    assert side.events == [
        m.OpenStream("road", stream_format()),
        m.RegisterBuffers(3, 2),
        m.CloseStream(3),
        m.Bye("closed"),
    ]


def test_no_more_slots_are_registered_than_the_daemon_takes(tmp_path: Path) -> None:
    assert run(tmp_path, silent, lambda camera, side: None, slots=9).events[1] == m.RegisterBuffers(3, 4)


def test_pixels_are_the_daemons_memory(tmp_path: Path) -> None:
    def body(camera: Camera, side: DaemonSide) -> None:
        frame = camera.acquire()
        assert (frame.pixels.dtype, frame.pixels.shape) == (np.uint8, (4608,))
        frame.pixels[:] = np.arange(4608, dtype=np.uint32).astype(np.uint8)
        assert side.buffers[frame.slot][:] == bytes(frame.pixels)
        camera.submit(frame, 1, 100)

    run(tmp_path, take_frames(1, superseded), body)


def test_planes_are_views_without_padding(tmp_path: Path) -> None:
    padded = stream_format(stride=80, crop=Rect(0, 0, 64, 48), rows=50)

    def body(camera: Camera, side: DaemonSide) -> None:
        frame = camera.acquire()
        luma, chroma = frame.planes
        assert (luma.shape, chroma.shape) == ((48, 64), (24, 64))
        luma[:] = 7
        chroma[:] = 9
        found = np.frombuffer(side.buffers[frame.slot], np.uint8)
        rows = found[: 80 * 50].reshape(50, 80)
        assert (rows[:48, :64] == 7).all()
        assert not rows[48:].any()
        assert not rows[:, 64:].any()
        uv = found[80 * 50 :].reshape(25, 80)
        assert (uv[:24, :64] == 9).all()
        assert uv.sum() == 9 * 24 * 64
        del found, rows, uv

    run(tmp_path, silent, body, padded)


def test_the_control_word_is_odd_while_the_slot_is_written(tmp_path: Path) -> None:
    words: list[int] = []

    def body(camera: Camera, side: DaemonSide) -> None:
        assert side.word(0) == 0
        frame = camera.acquire()
        assert side.word(frame.slot) == 1
        camera.submit(frame, 1, 100)
        assert side.word(frame.slot) == 2
        assert camera.wait(TIMEOUT_S) == 1
        other = camera.acquire()
        assert other.slot != frame.slot
        camera.discard(other)
        assert side.word(other.slot) == 2
        again = camera.acquire()
        assert (again.slot, side.word(again.slot)) == (frame.slot, 3)
        camera.submit(again, 2, 200)
        words.extend(event.control_word for event in side.events if isinstance(event, Submit))

    side = run(tmp_path, take_frames(2, superseded), body)
    assert [event.control_word for event in side.events if isinstance(event, Submit)] == [2, 4]


def test_a_submit_says_all_that_was_given(tmp_path: Path) -> None:
    read, write = os.pipe()

    def fenced(peer: Peer, submit: Submit) -> None:
        if submit.flags:
            assert os.fstat(peer.descriptors[-1]).st_ino == os.fstat(read).st_ino
        superseded(peer, submit)

    def body(camera: Camera, side: DaemonSide) -> None:
        sent = camera.submit(camera.acquire(), 4, 100, 130, exposure_ns=11)
        assert SUBMIT.unpack(sent, 8) == Submit(3, 0, 1, 4, 100, 130, 2, 11, 0)
        camera.submit(camera.acquire(), 6, 200, in_fence=read)
        while sum(camera.ledger.released) < 2:
            camera.wait(TIMEOUT_S)
        os.fstat(read)  # still ours

    side = run(tmp_path, take_frames(2, fenced), body)
    os.close(read)
    os.close(write)
    assert [event for event in side.events if isinstance(event, Submit)] == [
        Submit(3, 0, 1, 4, 100, 130, 2, 11, 0),
        Submit(3, 1, 1, 6, 200, 200, 2, 0, 1),
    ]


def test_a_frame_cannot_be_used_after_it_was_given_away(tmp_path: Path) -> None:
    def body(camera: Camera, side: DaemonSide) -> None:
        frame = camera.acquire()
        camera.submit(frame, 1, 100)
        for use in (lambda: frame.pixels, lambda: frame.planes):
            with pytest.raises(RuntimeError, match="slot 0 was given away; acquire another"):
                use()
        for call in (lambda: camera.submit(frame, 2, 200), lambda: camera.discard(frame)):
            with pytest.raises(LocalProtocolError, match="one that this camera acquired and still has"):
                call()
        discarded = camera.acquire()
        camera.discard(discarded)
        with pytest.raises(RuntimeError):
            _ = discarded.pixels

    run(tmp_path, take_frames(1, superseded), body)


def test_what_cannot_be_submitted_stays_the_cameras(tmp_path: Path) -> None:
    def body(camera: Camera, side: DaemonSide) -> None:
        camera.submit(camera.acquire(), 5, 100)
        frame = camera.acquire()
        with pytest.raises(LocalProtocolError, match="sequence: expected above 5, found 5"):
            camera.submit(frame, 5, 200)
        assert side.word(frame.slot) == 1
        frame.pixels[0] = 1
        camera.submit(frame, 6, 200)

    side = run(tmp_path, take_frames(2, superseded), body)
    assert [event.sequence for event in side.events if isinstance(event, Submit)] == [5, 6]


def test_a_camera_waits_for_slots_that_the_daemon_holds(tmp_path: Path) -> None:
    def hold_both(peer: Peer, side: DaemonSide) -> None:
        first, second = peer.receive(), peer.receive()
        third = peer.receive()  # an aux input: the sign to go on
        assert isinstance(third, m.SetAux)
        superseded(peer, second)  # a release on the way of the answer is kept
        peer.say(m.AuxSet("go"))
        superseded(peer, first)

    def body(camera: Camera, side: DaemonSide) -> None:
        camera.submit(camera.acquire(), 1, 100)
        camera.submit(camera.acquire(), 2, 200)
        assert camera.free == 0
        with pytest.raises(TimeoutError, match="the daemon holds all 2 slots"):
            camera.acquire(timeout_s=0.01)
        with pytest.raises(TimeoutError):
            camera.acquire()
        assert camera.poll() == 0
        camera.set_aux("go", time.monotonic_ns(), b"\1")
        assert [camera.acquire(TIMEOUT_S).slot for _ in range(2)] == [1, 0]  # the one that was free longest first
        assert camera.releases() == [
            Release(3, 1, 1, 2, ReleaseStatus.SUPERSEDED, RefusalCode.OK, 5),
            Release(3, 0, 1, 1, ReleaseStatus.SUPERSEDED, RefusalCode.OK, 5),
        ]
        assert camera.releases() == []
        assert camera.ledger.as_dict()["superseded"] == 2

    run(tmp_path, hold_both, body)


def test_waiting_in_vain_gives_nothing(tmp_path: Path) -> None:
    def body(camera: Camera, side: DaemonSide) -> None:
        assert camera.wait(0.01) == 0
        assert camera.releases() == []

    run(tmp_path, silent, body)


def test_a_refused_frame_is_free_again(tmp_path: Path) -> None:
    def refuse(peer: Peer, submit: Submit) -> None:
        code = RefusalCode.NOT_READY
        peer.push(peer.session.release(3, submit.slot, LeaseEvent.DROP, ReleaseStatus.REFUSED, code))

    def body(camera: Camera, side: DaemonSide) -> None:
        camera.submit(camera.acquire(), 1, 100)
        camera.wait(TIMEOUT_S)
        (release,) = camera.releases()
        assert (release.status, release.code) == (ReleaseStatus.REFUSED, RefusalCode.NOT_READY)
        assert camera.free == 2
        assert camera.ledger.as_dict()["refusals"] == {"not_ready": 1}

    run(tmp_path, take_frames(1, refuse), body)


def test_a_refused_aux_input_is_raised(tmp_path: Path) -> None:
    def script(peer: Peer, side: DaemonSide) -> None:
        assert peer.receive() == m.SetAux("speed", 5, b"xx")
        peer.say(m.Refusal(RefusalCode.UNKNOWN_AUX, 12, "name", "mass", "speed", "set another"))

    def body(camera: Camera, side: DaemonSide) -> None:
        with pytest.raises(Refused, match="UNKNOWN_AUX"):
            camera.set_aux("speed", 5, b"xx")

    run(tmp_path, script, body)


@pytest.mark.parametrize("step", ["open", "register"])
def test_a_refused_stream_leaves_nothing_behind(tmp_path: Path, step: str) -> None:
    def script(peer: Peer) -> None:
        peer.greet()
        peer.receive()
        kind = 5
        if step == "register":
            peer.say(m.StreamOpened(3, 4))
            peer.receive()
            kind = 7
        peer.say(m.Refusal(RefusalCode.FORMAT_MISMATCH, kind, "format.range", "LIMITED", "FULL", "declare it as it is"))
        peer.until_end()

    def refused() -> RefusalCode:
        with ScriptedDaemon(tmp_path, Role.CAMERA, script) as daemon, pytest.raises(Refused) as caught:
            Camera.open(daemon.path, "road", stream_format())
        return caught.value.code

    with no_descriptor_leaks():
        assert refused() is RefusalCode.FORMAT_MISMATCH


def test_a_bad_format_is_not_even_sent(tmp_path: Path) -> None:
    def script(peer: Peer) -> None:
        peer.greet()
        assert peer.until_end() == [m.Bye("closed")]

    bad = dataclasses.replace(stream_format(), period_ns=0)
    with (
        no_descriptor_leaks(),
        ScriptedDaemon(tmp_path, Role.CAMERA, script) as daemon,
        pytest.raises(LocalProtocolError, match="periodNs"),
    ):
        Camera.open(daemon.path, "road", bad)


def test_a_dead_daemon_is_seen_and_the_frames_memory_lives_on(tmp_path: Path) -> None:
    def script(peer: Peer) -> None:
        DaemonSide().accept(peer)
        peer.receive()

    with ScriptedDaemon(tmp_path, Role.CAMERA, script) as daemon:
        camera = Camera.open(daemon.path, "road", stream_format(), slots=2)
        given, frame = camera.acquire(), camera.acquire()
        camera.submit(given, 1, 100)
        with pytest.raises(ConnectionLost):
            camera.wait(TIMEOUT_S)
        frame.pixels[:] = 3
        with pytest.raises(ConnectionLost):
            camera.acquire(1.0)
        camera.close()
        assert (frame.pixels == 3).all()


def test_memory_that_cannot_be_had_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def script(peer: Peer) -> None:
        peer.greet()
        peer.receive()
        peer.say(m.StreamOpened(3, 4))
        peer.until_end()

    def create(name: str, size_bytes: int) -> int:
        if name == "fenced-frame-1":
            raise MemoryError
        return create_sealed(name, size_bytes)

    monkeypatch.setattr(camera_module, "create_sealed", create)

    def fail() -> None:
        with ScriptedDaemon(tmp_path, Role.CAMERA, script) as daemon, pytest.raises(MemoryError):
            Camera.open(daemon.path, "road", stream_format())

    with no_descriptor_leaks():
        fail()


def test_closing_twice_is_no_error(tmp_path: Path) -> None:
    def body(camera: Camera, side: DaemonSide) -> None:  # and closed again where it was opened
        camera.close()
        camera.close()
        with pytest.raises(ConnectionLost):
            camera.wait(0.01)

    run(tmp_path, silent, body)
