"""A recorder sees every frame and holds none up: it reads what it can, and is told what it missed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from abi.flat import ReleaseStatus
from abi.packet import RefusalCode
from abi.tap import TapEnd, TapFrame, TapNote, TapStream, TapTopic
from client.camera import Camera
from client.errors import Refused
from client.tap import Tap, TapEvent
from daemon import tap_memory
from daemon.tap import MAX_TAPS
from daemon.tap_memory import TapMemory
from hal.error import HalCode, HalError
from hal.memory import create_sealed, reopen_read_only
from tests.support.bundles import PIXELS, BundleMaker, TinyModel, frame_format
from tests.support.daemons import LIMIT_S, DaemonThread, ended, picture, run_one, submit

NO_AUDIT = "[limits]\nprobation_frames = 1000000\n"  # no model is confirmed while frames are counted


def tap_of(daemon: DaemonThread, *, pixels: bool = True) -> Tap:
    return Tap.open(daemon.sockets / "consumer.sock", pixels=pixels, timeout_s=LIMIT_S)


def until(tap: Tap, kind: type[TapEvent]) -> list[TapEvent]:
    """What the daemon tells, up to the first of this kind."""
    seen: list[TapEvent] = []
    while not seen or not isinstance(seen[-1], kind):
        event = tap.next_event(LIMIT_S)
        assert event is not None, seen
        seen.append(event)
    return seen


def test_a_tap_sees_streams_pixels_and_how_each_frame_ended(tmp_path: Path, maker: BundleMaker) -> None:
    into = np.empty(PIXELS, np.uint8)
    with DaemonThread(tmp_path, [maker.write(TinyModel())], maker) as daemon, daemon.camera() as camera:
        with tap_of(daemon) as tap, daemon.consumer() as consumer:
            model, stream = until(tap, TapStream)
            assert isinstance(model, TapNote)
            assert (model.topic, model.name, model.value) == (TapTopic.MODEL, "tiny", consumer.model_digest)
            assert isinstance(stream, TapStream)
            assert (stream.stream, stream.format, stream.slots, stream.withheld) == ("road", frame_format(), 4, "")
            for sequence in range(1, 6):
                sof_ns = submit(camera, sequence, picture(sequence))
                frame = until(tap, TapFrame)[-1]
                assert isinstance(frame, TapFrame)
                assert (frame.sequence, frame.sof_ns, frame.missed) == (sequence, sof_ns, 0)
                assert tap.copy(frame, into)
                assert np.array_equal(into, picture(sequence))
                end = until(tap, TapEnd)[-1]
                assert isinstance(end, TapEnd)
                assert end[:5] == (*frame[:4], ReleaseStatus.RUN)
            status = daemon.status()["taps"]
            assert [(one["frames"], one["missed"], one["pixels"]) for one in status] == [(5, 0, True)]
        daemon.wait_for(lambda status: not status["taps"])


def test_a_stream_that_opens_later_is_told_of_and_one_that_closes_too(tmp_path: Path, maker: BundleMaker) -> None:
    with DaemonThread(tmp_path, [maker.write(TinyModel())], maker) as daemon, tap_of(daemon) as tap:
        with daemon.camera():
            stream = until(tap, TapStream)[-1]
            assert isinstance(stream, TapStream)
            assert tap.streams[stream.stream_id].has_pixels
        (closed,) = [one for one in until(tap, TapNote) if isinstance(one, TapNote)]
        assert (closed.topic, closed.name) == (TapTopic.STREAM_CLOSED, "road")
        assert tap.streams == {}


def test_what_a_camera_overwrites_is_not_taken_for_the_frame(tmp_path: Path, maker: BundleMaker) -> None:
    into = np.empty(PIXELS, np.uint8)
    with (
        DaemonThread(tmp_path, [maker.write(TinyModel())], maker) as daemon,
        daemon.camera(slots=1) as camera,
        daemon.consumer() as consumer,
        tap_of(daemon) as tap,
    ):
        run_one(camera, consumer, 1, picture(1))
        first = until(tap, TapFrame)[-1]
        assert isinstance(first, TapFrame)
        writing = camera.acquire(LIMIT_S)
        assert not tap.copy(first, into)  # it is being written
        camera.discard(writing)
        assert not tap.copy(first, into)  # it was
        run_one(camera, consumer, 2, picture(2))
        second = until(tap, TapFrame)[-1]
        assert isinstance(second, TapFrame)
        assert tap.copy(second, into)
        assert np.array_equal(into, picture(2))


def test_what_a_camera_writes_during_the_copy_is_not_taken_either(
    tmp_path: Path, maker: BundleMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    into = np.empty(PIXELS, np.uint8)
    with (
        DaemonThread(tmp_path, [maker.write(TinyModel())], maker) as daemon,
        daemon.camera(slots=1) as camera,
        daemon.consumer() as consumer,
        tap_of(daemon) as tap,
    ):
        run_one(camera, consumer, 1, picture(1))
        frame = until(tap, TapFrame)[-1]
        assert isinstance(frame, TapFrame)
        looks = iter(["behind the first", "before the second"])

        def between() -> None:
            if next(looks) == "before the second":
                camera.acquire(LIMIT_S)

        monkeypatch.setattr(tap.streams[frame.stream_id], "_barrier", between)
        assert not tap.copy(frame, into)
        assert np.array_equal(into, picture(1))


def test_a_tap_cannot_write_what_it_sees(tmp_path: Path, maker: BundleMaker) -> None:
    with DaemonThread(tmp_path, [maker.write(TinyModel())], maker) as daemon, daemon.camera(), tap_of(daemon) as tap:
        stream = until(tap, TapStream)[-1]
        assert isinstance(stream, TapStream)
        seen = tap.streams[stream.stream_id]
        assert not seen._buffers[0].flags.writeable
        assert seen._words is not None
        assert not seen._words.flags.writeable


def test_memory_that_others_may_write_goes_to_its_owner_alone(tmp_path: Path) -> None:
    lease, open_to_all = create_sealed("lease", 4096), create_sealed("frame", 4096)
    os.fchmod(open_to_all, 0o666)
    owner = os.fstat(open_to_all).st_uid
    for buffers, stranger in (((lease,), ""), ((open_to_all,), "the mode of its memory")):
        memory = TapMemory(lease, buffers)
        assert memory.withheld_from(owner) == ""
        assert memory.withheld_from(0) == ""
        assert memory.withheld_from(owner + 1)[:22] == stranger
        for descriptor in memory.descriptors:
            with pytest.raises(OSError, match="Bad file descriptor"):
                os.pwrite(descriptor, b"x", 0)
        memory.close()
    for descriptor in (lease, open_to_all):
        os.close(descriptor)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to be another user")
def test_another_user_cannot_open_what_it_was_given_anew_for_writing() -> None:
    memory = create_sealed("frame", 4096)
    given = reopen_read_only(memory)

    def opens(how: str) -> bool:
        command = ["/bin/sh", "-c", f": {how}/proc/self/fd/{given}"]
        done = subprocess.run(
            command, user=65534, group=65534, pass_fds=[given], stderr=subprocess.DEVNULL, check=False
        )
        return done.returncode == 0

    assert (opens("<"), opens("<>")) == (True, False)
    os.fchmod(memory, 0o666)  # what the mode of a memfd is otherwise: such memory is withheld
    assert opens("<>")
    os.close(given)
    os.close(memory)


def test_memory_that_has_no_read_only_form_is_withheld_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    lease, frame = create_sealed("lease", 4096), create_sealed("frame", 4096)
    monkeypatch.setattr(tap_memory, "is_dma_buf", lambda descriptor: descriptor == frame)
    memory = TapMemory(lease, (frame,))
    assert (memory.descriptors, memory.withheld_from(0)) == (
        (),
        "buffer 0 is a dma-buf, which cannot be given read-only",
    )
    monkeypatch.undo()

    def refused(descriptor: int) -> int:
        raise HalError(HalCode.NOT_PERMITTED, "a memfd cannot be opened read-only", found="Permission denied")

    monkeypatch.setattr(tap_memory, "reopen_read_only", refused)
    memory = TapMemory(lease, (frame,))
    assert memory.withheld_from(0) == "the lease page cannot be opened read-only: Permission denied"
    for descriptor in (lease, frame):
        os.close(descriptor)


def test_without_the_wish_for_pixels_none_are_given(tmp_path: Path, maker: BundleMaker) -> None:
    with (
        DaemonThread(tmp_path, [maker.write(TinyModel())], maker) as daemon,
        daemon.camera() as camera,
        tap_of(daemon, pixels=False) as tap,
    ):
        stream = until(tap, TapStream)[-1]
        assert isinstance(stream, TapStream)
        assert (stream.slots, stream.withheld) == (0, "")
        submit(camera, 1, picture(1))
        frame = until(tap, TapFrame)[-1]
        assert isinstance(frame, TapFrame)
        assert not tap.copy(frame, np.empty(PIXELS, np.uint8))


def test_aux_values_refusals_and_the_audit_log_are_told(tmp_path: Path, maker: BundleMaker) -> None:
    gain = np.float32(2).tobytes()
    bundle = maker.write(TinyModel("scale", aux_default=np.float32(1).tobytes()))
    with DaemonThread(tmp_path, [bundle], maker) as daemon, daemon.camera() as camera:
        set_ns = time.monotonic_ns()
        camera.set_aux("gain", set_ns, gain)
        with tap_of(daemon) as tap:
            before = [one for one in until(tap, TapStream) if isinstance(one, TapNote)]
            assert [(one.topic, one.name, one.time_ns) for one in before] == [
                (TapTopic.MODEL, "tiny", 0), (TapTopic.AUX, "gain", set_ns)]  # fmt: skip
            with daemon.control() as control:
                control.set_aux("gain", set_ns + 1, gain)
                later = until(tap, TapNote)[-1]
                assert isinstance(later, TapNote)
                assert (later.topic, later.time_ns, later.value) == (TapTopic.AUX, set_ns + 1, gain)
                with pytest.raises(Refused):
                    control.activate("/nowhere/x.fenced")
            audit = until(tap, TapNote)[-1]
            assert isinstance(audit, TapNote)
            assert audit.topic is TapTopic.AUDIT
            assert b'"event":"activation.refused"' in audit.value
            submit(camera, 7, picture(1), sof_ns=1)
            end = until(tap, TapEnd)[-1]
            assert isinstance(end, TapEnd)
            assert (end.sequence, end.status, end.code) == (7, ReleaseStatus.REFUSED, RefusalCode.TIME_STALE)


def test_who_may_tap_is_configured_and_how_many_is_limited(tmp_path: Path, maker: BundleMaker) -> None:
    bundle = maker.write(TinyModel())
    (tmp_path / "closed").mkdir()
    with DaemonThread(tmp_path / "closed", [bundle], maker, more="[tap]\nuids = [4000000]\n") as daemon:
        with pytest.raises(Refused) as refused:
            tap_of(daemon)
        assert refused.value.code is RefusalCode.NOT_PERMITTED
    (tmp_path / "open").mkdir()
    with DaemonThread(tmp_path / "open", [bundle], maker) as daemon:
        taps = [tap_of(daemon) for _ in range(MAX_TAPS)]
        with pytest.raises(Refused) as refused:
            tap_of(daemon)
        assert refused.value.code is RefusalCode.LIMIT
        for tap in taps:
            tap.close()
        daemon.wait_for(lambda status: not status["taps"])
        tap_of(daemon).close()


_RECORDER = """
import sys, time
sys.path.insert(0, sys.argv[1])
from client.tap import Tap
tap = Tap.open(sys.argv[2])
print("tapped", flush=True)
time.sleep(100)
"""


def frames_past(daemon: DaemonThread, camera: Camera, first: int, count: int) -> None:
    with daemon.consumer() as consumer:
        for sequence in range(first, first + count):
            assert run_one(camera, consumer, sequence, picture(sequence)).receipt.frames[0].sequence == sequence
    ended(camera)  # taps are told before cameras


def test_a_stopped_recorder_holds_nothing_up_and_what_it_missed_is_counted(tmp_path: Path, maker: BundleMaker) -> None:
    frames = 600  # more than the socket of a recorder that reads nothing takes
    with DaemonThread(tmp_path, [maker.write(TinyModel())], maker) as daemon, daemon.camera() as camera:
        arguments = [sys.executable, "-c", _RECORDER, Path(__file__).parents[2], daemon.sockets / "consumer.sock"]
        process = subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        assert process.stdout.readline() == "tapped\n"
        process.send_signal(signal.SIGSTOP)
        with tap_of(daemon) as beside:  # one that reads loses nothing by it
            frames_past(daemon, camera, 1, 50)
            assert sum(isinstance(one, TapFrame) for one in beside.events(0.2)) == 50
        frames_past(daemon, camera, 100, frames)
        assert ended(camera)["run"] == 50 + frames
        (stopped,) = daemon.status()["taps"]
        assert stopped["missed"] > 0
        assert stopped["frames"] < 50 + frames
        process.kill()
        process.wait()
        daemon.wait_for(lambda status: not status["taps"])
        assert daemon.status()["faults"]["internal_errors"] == 0


def test_one_that_was_full_when_a_stream_opened_learns_of_it_later(tmp_path: Path, maker: BundleMaker) -> None:
    into = np.empty(PIXELS, np.uint8)
    with DaemonThread(tmp_path, [maker.write(TinyModel())], maker, more=NO_AUDIT) as daemon, tap_of(daemon) as tap:
        with daemon.camera() as camera:
            frames_past(daemon, camera, 1, 600)
        with daemon.camera() as camera:
            frames_past(daemon, camera, 1, 3)
            told = list(tap.events(0.1))
            assert sum(isinstance(one, TapStream) for one in told) == 1  # the second came when nothing fitted
            sequence = 3
            while not isinstance(told[-1], TapStream):
                sequence += 1
                frames_past(daemon, camera, sequence, 1)
                told += [event for event in (tap.next_event(),) if event is not None]
                assert sequence < 100_000
            frame = until(tap, TapFrame)[-1]
            assert isinstance(frame, TapFrame)
            assert tap.copy(frame, into)
            assert np.array_equal(into, picture(frame.sequence))
            assert len(tap.streams) == 1


def test_one_that_falls_behind_is_told_how_much_it_missed(tmp_path: Path, maker: BundleMaker) -> None:
    with (
        DaemonThread(tmp_path, [maker.write(TinyModel())], maker, more=NO_AUDIT) as daemon,
        daemon.camera() as camera,
        tap_of(daemon) as tap,
    ):
        frames_past(daemon, camera, 1, 600)
        seen = sum(isinstance(one, TapFrame | TapEnd) for one in tap.events())
        frames_past(daemon, camera, 1000, 1)
        last = until(tap, TapEnd)[-1]
        assert isinstance(last, TapEnd)
        assert last.missed == tap.missed > 0
        assert seen + last.missed == 1200
