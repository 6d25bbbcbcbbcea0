"""Replay from any point, with state and aux values as they were, of one bundle or two, in lock-step or by the clock."""

from __future__ import annotations

import json
import time
from pathlib import Path

import numpy as np
import pytest

from abi.packet import RefusalCode
from client.errors import Refused
from lab import cli
from lab.replay.compare import Tolerance, Tolerances
from lab.replay.log import LogReader, LogWriter
from lab.replay.played import FrameSet, Start
from lab.replay.realtime import replay_in_real_time
from lab.replay.refusal import LogRefusal, LogRefused
from lab.replay.replay import Against, Options, replay
from lab.replay.rig import Rig
from tests.lab.replay.recording import drive, recording
from tests.support.bundles import BundleMaker, TinyModel, frame_format
from tests.support.daemons import DaemonThread, ended, picture, submit

FRAMES = 6


def recorded(folder: Path, maker: BundleMaker, model: TinyModel, *, snapshot_behind: int = 0) -> tuple[Path, Path]:
    """A log of FRAMES frames of a model, which had seen two before; with a snapshot behind so many. And the bundle."""
    log, bundle = folder / "r.mcap", maker.write(model)
    with DaemonThread(folder, [bundle], maker) as daemon, daemon.camera() as camera:
        for sequence in (1, 2):
            submit(camera, sequence, picture(sequence))
            ended(camera)
        with recording(daemon, log) as recorder:
            for sequence in range(3, 3 + FRAMES):
                if snapshot_behind and sequence == 3 + snapshot_behind:
                    recorder.snapshot()
                drive(camera, recorder, sequence, 1)
    return log, bundle


@pytest.fixture
def others(tmp_path: Path) -> Path:
    """A folder for the daemon that the log is replayed into."""
    (tmp_path / "others").mkdir()
    return tmp_path / "others"


def test_a_log_that_began_in_the_middle_goes_on_from_its_snapshot(
    tmp_path: Path, others: Path, maker: BundleMaker
) -> None:
    log, bundle = recorded(tmp_path, maker, TinyModel("total"), snapshot_behind=2)
    with DaemonThread(others, [bundle], maker) as daemon:
        blind = replay(daemon.sockets, log, options=Options(start=Start(sequence=3)))
        assert (blind.passed, blind.mismatched) == (False, FRAMES)  # its state holds two frames that are not in the log
        whole = replay(daemon.sockets, log)
        assert (whole.passed, whole.equal, whole.frames) == (True, FRAMES - 2, FRAMES - 2)
        assert whole.notes[0] == "tiny: 2 runs before the first snapshot of its state are left out"
        behind = replay(daemon.sockets, log, options=Options(start=Start(sequence=6)))
        assert (behind.passed, behind.equal, behind.frames) == (True, 3, 4)  # the one between is played, not compared
        assert "restored from the snapshot" in behind.notes[0]
        again = replay(daemon.sockets, log, options=Options(start=Start(sequence=6)))
        assert again.as_dict() | {"times": 0} == behind.as_dict() | {"times": 0}


def test_without_a_snapshot_what_lies_before_the_start_is_played_for_the_state(
    tmp_path: Path, others: Path, maker: BundleMaker
) -> None:
    log, bundle = tmp_path / "r.mcap", maker.write(TinyModel("total"))
    with (
        DaemonThread(tmp_path, [bundle], maker) as daemon,
        daemon.camera() as camera,
        recording(daemon, log) as recorder,
    ):
        drive(camera, recorder, 1, 2)
        with daemon.control() as control:
            control.reset_state()
        drive(camera, recorder, 3, 3)
    with DaemonThread(others, [bundle], maker) as daemon:
        whole = replay(daemon.sockets, log)
        assert (whole.equal, whole.passed) == (5, True)  # the reset is followed
        warm = replay(daemon.sockets, log, options=Options(start=Start(sequence=5)))
        assert (warm.frames, warm.equal, warm.passed) == (5, 1, True)
        short = replay(daemon.sockets, log, options=Options(start=Start(sequence=2), warm_up=1))
        assert (short.frames, short.equal) == (5, 4)
        cold = replay(daemon.sockets, log, options=Options(start=Start(sequence=5), warm_up=1))
        assert (cold.frames, cold.mismatched) == (2, 1)
        with pytest.raises(LogRefused) as refused:
            replay(daemon.sockets, log, options=Options(start=Start(sequence=50)))
        assert refused.value.code is LogRefusal.START
        late = replay(daemon.sockets, log, options=Options(start=Start(seconds=0.0)))
        assert late.equal == 5


def test_only_what_ran_is_played_so_that_state_goes_the_same_way(
    tmp_path: Path, others: Path, maker: BundleMaker
) -> None:
    log, bundle = tmp_path / "r.mcap", maker.write(TinyModel("total"))
    with (
        DaemonThread(tmp_path, [bundle], maker) as daemon,
        daemon.camera() as camera,
        recording(daemon, log) as recorder,
    ):
        drive(camera, recorder, 1, 2)
        with daemon.control() as control:
            control.drain()
            submit(camera, 3, picture(3))  # refused
            ended(camera)
            control.resume()
        drive(camera, recorder, 4, 2)
    with DaemonThread(others, [bundle], maker) as daemon:
        report = replay(daemon.sockets, log)
    assert (report.passed, report.frames, report.equal, report.notes[1:]) == (True, 4, 4, [])


def test_pixels_that_are_missing_are_told_of_and_not_made_up(tmp_path: Path, others: Path, maker: BundleMaker) -> None:
    log, bundle = recorded(tmp_path, maker, TinyModel())
    holed, seen = tmp_path / "holed.mcap", 0
    with LogWriter(holed) as writer:
        for message in LogReader(log).messages():
            seen += message.kind == "pixels"
            if message.kind != "pixels" or seen != 2:
                writer.write(message.topic, message.data, message.log_time_ns)
    with DaemonThread(others, [bundle], maker) as daemon:
        report = replay(daemon.sockets, holed)
    assert (report.passed, report.equal, report.unrecorded) == (True, FRAMES - 1, 1)


def test_behind_a_hole_state_is_taken_up_again_from_a_snapshot(
    tmp_path: Path, others: Path, maker: BundleMaker
) -> None:
    log, bundle = tmp_path / "r.mcap", maker.write(TinyModel("total"))
    with (
        DaemonThread(tmp_path, [bundle], maker) as daemon,
        daemon.camera() as camera,
        recording(daemon, log) as recorder,
    ):
        drive(camera, recorder, 1, 4)
        recorder.snapshot()
        drive(camera, recorder, 5, 2)
    holed, seen = tmp_path / "holed.mcap", 0
    with LogWriter(holed) as writer:  # the pixels of the second frame are lost
        for message in LogReader(log).messages():
            seen += message.kind == "pixels"
            if message.kind != "pixels" or seen != 2:
                writer.write(message.topic, message.data, message.log_time_ns)
    with DaemonThread(others, [bundle], maker) as daemon:
        report = replay(daemon.sockets, holed, options=Options(start=Start(sequence=1)))
    assert (report.passed, report.unrecorded, report.uncertain) == (True, 1, 2)
    assert report.compared.sequences == [1, 5, 6]
    assert report.equal == 3
    assert "taken up again from the snapshot before result 5" in report.notes[-1]


def test_aux_values_from_before_the_start_hold(tmp_path: Path, others: Path, maker: BundleMaker) -> None:
    log = tmp_path / "r.mcap"
    bundle = maker.write(TinyModel("scale", aux_default=np.float32(1).tobytes()))
    with (
        DaemonThread(tmp_path, [bundle], maker) as daemon,
        daemon.camera() as camera,
        recording(daemon, log) as recorder,
    ):
        camera.set_aux("gain", time.monotonic_ns(), np.float32(7).tobytes())
        drive(camera, recorder, 1, 4)
    with DaemonThread(others, [bundle], maker) as daemon:
        report = replay(daemon.sockets, log, options=Options(start=Start(sequence=3)))
    assert (report.passed, report.frames, report.equal) == (True, 2, 2)


def test_aux_values_are_those_of_the_run(tmp_path: Path, others: Path, maker: BundleMaker) -> None:
    log = tmp_path / "r.mcap"
    bundle = maker.write(TinyModel("scale", aux_default=np.float32(1).tobytes()))
    with (
        DaemonThread(tmp_path, [bundle], maker) as daemon,
        daemon.camera() as camera,
        recording(daemon, log) as recorder,
    ):
        for sequence, gain in enumerate((2, 3, 5), 1):
            camera.set_aux("gain", time.monotonic_ns(), np.float32(gain).tobytes())
            drive(camera, recorder, sequence, 1)
    with DaemonThread(others, [bundle], maker) as daemon:
        report = replay(daemon.sockets, log)
    assert (report.passed, report.equal) == (True, 3)


def test_frames_of_two_cameras_are_played_as_the_pairs_that_ran(
    tmp_path: Path, others: Path, maker: BundleMaker
) -> None:
    log = tmp_path / "r.mcap"
    bundle = maker.write(TinyModel("pair", streams=("left", "right"), max_skew_ns=20_000_000))
    with (
        DaemonThread(tmp_path, [bundle], maker) as daemon,
        daemon.camera("left") as left,
        daemon.camera("right") as right,
        recording(daemon, log) as recorder,
    ):
        for sequence in range(1, 5):
            sof_ns = time.monotonic_ns()
            submit(left, sequence, picture(sequence), sof_ns - 5_000_000)
            submit(right, 100 + sequence, picture(50 + sequence), sof_ns)
            recorder.wait_for(lambda seen, sequence=sequence: seen.results["tiny"] == sequence)  # type: ignore[misc]
    with DaemonThread(others, [bundle], maker) as daemon:
        report = replay(daemon.sockets, log)
    assert (report.passed, report.equal) == (True, 4)


def test_two_bundles_are_held_against_each_other_on_one_log(tmp_path: Path, others: Path, maker: BundleMaker) -> None:
    log, bundle = recorded(tmp_path, maker, TinyModel())
    second = maker.write(TinyModel(name="candidate", number=5), "second.fenced")
    (others / "b").mkdir()
    with DaemonThread(others, [bundle], maker) as one, DaemonThread(others / "b", [second], maker) as other:
        against = Against(other.sockets, {"tiny": "candidate"})
        exact = replay(one.sockets, log, options=Options(against=against))
        loose = replay(
            one.sockets, log, options=Options(Tolerances(outputs={"values": Tolerance(2.0)}), against=against)
        )
    assert (exact.passed, exact.equal) == (False, FRAMES)  # the log's own bundle agrees with it
    assert exact.against is not None
    assert (exact.against.mismatched, exact.against.outputs["values"].largest) == (FRAMES, 2.0)
    assert loose.against is not None
    assert (loose.passed, loose.against.within) == (True, FRAMES)


def test_the_command_serves_both_bundles_itself(
    tmp_path: Path,
    others: Path,
    maker: BundleMaker,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    log, bundle = recorded(tmp_path, maker, TinyModel())
    second = maker.write(TinyModel(number=5), "second.fenced")
    served = []

    def serve(folder: Path, bundles: list[Path], root: Path, streams: list[str], **more: object) -> DaemonThread:
        served.append((bundles, root, streams))
        return DaemonThread(folder, bundles, maker)

    monkeypatch.setattr("lab.replay.served.DaemonProcess", serve)
    tolerances = tmp_path / "t.toml"
    tolerances.write_text("[output.values]\nabsolute = 2\n")
    both = ["replay", str(log), "--bundle", str(bundle), "--against", str(second)]
    assert cli.main([*both]) == 2
    both += ["--root", str(maker.root_path)]
    assert cli.main([*both, "--report", str(tmp_path / "r.json")]) == 3
    said = capsys.readouterr()
    assert "second.fenced against what serves: largest 2, mean 2, outside in 6 frames" in said.out
    assert "worst: frame 3, values off by 2" in said.err
    assert json.loads((tmp_path / "r.json").read_text())["against"]["series"]["values"] == [2.0] * FRAMES
    assert cli.main([*both, "--tolerances", str(tolerances)]) == 0
    assert served[:2] == [([one], maker.root_path, ["road"]) for one in (bundle, second)]
    tolerances.write_text("[output.value]\nabsolute = 2\n")
    assert cli.main([*both, "--tolerances", str(tolerances)]) == 3
    assert "expected  one of values" in capsys.readouterr().err


@pytest.mark.parametrize(
    "text", ["[output.values]\nabsolut = 1", "[default]\nrelative = -1", "[x]", "a", "default = 3"]
)
def test_tolerances_that_are_none_are_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "t.toml").write_text(text)
    with pytest.raises(LogRefused) as refused:
        Tolerances.load(tmp_path / "t.toml")
    assert refused.value.code is LogRefusal.TOLERANCES


def test_by_the_logs_clock_frames_come_as_far_apart_as_they_did(
    tmp_path: Path, others: Path, maker: BundleMaker
) -> None:
    log, bundle = recorded(tmp_path, maker, TinyModel())
    slow, count = tmp_path / "slow.mcap", 0
    with LogWriter(slow) as writer:  # the same frames, 20 ms apart
        for message in LogReader(log).messages():
            count += message.kind == "submit"
            at_ns = message.log_time_ns if count == 0 else 1_000_000_000 + 20_000_000 * count
            writer.write(message.topic, message.data, at_ns)
    with DaemonThread(others, [bundle], maker) as daemon:
        began_s = time.monotonic()
        report = replay_in_real_time(daemon.sockets, slow, Options())
        took_s = time.monotonic() - began_s
    assert report.mode == "real-time"
    assert (report.frames, report.equal + sum(report.not_run.values())) == (FRAMES, FRAMES)
    assert report.equal > 0
    assert report.passed
    assert took_s >= 0.1  # never faster than the log


def test_a_stream_that_nobody_takes_is_refused_by_the_daemon(tmp_path: Path, others: Path, maker: BundleMaker) -> None:
    log, _ = recorded(tmp_path, maker, TinyModel())
    other = maker.write(TinyModel(streams=("left",)), "left.fenced")
    with DaemonThread(others, [other], maker) as daemon, pytest.raises(Refused) as refused:
        replay(daemon.sockets, log)
    assert refused.value.code is RefusalCode.UNKNOWN_STREAM
    assert frame_format().camera_name  # the log's own format was offered


def test_what_is_late_on_a_busy_machine_is_given_again(
    tmp_path: Path, others: Path, maker: BundleMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    deadline_ns = 10_000_000_000
    log, bundle = recorded(tmp_path, maker, TinyModel("total", deadline_ns=deadline_ns), snapshot_behind=2)
    given, late = Rig.submit, iter([True, True])

    def submit(rig: Rig, frames: FrameSet, sequence: int) -> None:
        given(rig, frames, sequence, age_ns=2 * deadline_ns * next(late, False))

    monkeypatch.setattr(Rig, "submit", submit)
    with DaemonThread(others, [bundle], maker) as daemon:
        report = replay(daemon.sockets, log)
    assert (report.passed, report.equal) == (True, FRAMES - 2)
    assert report.ledgers["now"]["road"]["late"] == 2
    assert any(note.startswith("2 sets of frames were late") for note in report.notes)
    assert not any("another way" in note for note in report.notes)
