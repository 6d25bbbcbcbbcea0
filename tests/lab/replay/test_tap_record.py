"""Recording a daemon from beside: the log holds what happened, whatever becomes of the recorder or the daemon."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from abi import messages
from abi.flat import RESULT, SUBMIT, ReleaseStatus
from abi.messages import SetAux
from abi.packet import Kind
from abi.snapshot import decode
from abi.tap import TAP_END
from lab import cli
from lab.replay.log import CHUNK_BYTES, LogMessage, LogReader, LogWriter
from lab.replay.refusal import LogRefused
from tests.lab.replay.recording import Recording, drive
from tests.support.bundles import BundleMaker, TinyModel
from tests.support.daemons import LIMIT_S, DaemonThread, ended, picture, submit


def of(log: list[LogMessage], topic: str) -> list[bytes]:
    return [one.data for one in log if one.topic == topic]


def test_a_recording_holds_everything_that_crossed(tmp_path: Path, maker: BundleMaker) -> None:
    model = TinyModel("scale", aux_default=np.float32(1).tobytes())
    with DaemonThread(tmp_path, [maker.write(model)], maker) as daemon:
        recording = Recording(daemon, tmp_path / "r.mcap")
        with daemon.camera() as camera:
            drive(camera, recording, 1, 2)
            set_ns = time.monotonic_ns()
            camera.set_aux("gain", set_ns, np.float32(3).tobytes())
            drive(camera, recording, 3, 2)
            submit(camera, 9, picture(9), sof_ns=1)  # stale: refused
            ended(camera)
        recording.wait_for(lambda seen: seen.notes["stream_closed"])
        log = recording.finish()
    assert [SUBMIT.unpack(one).sequence for one in of(log, "/camera/road/submit")] == [1, 2, 3, 4]
    assert of(log, "/camera/road/pixels") == [picture(sequence).tobytes() for sequence in (1, 2, 3, 4)]
    ends = [TAP_END.unpack(one) for one in of(log, "/camera/road/end")]
    assert [(one.sequence, one.status) for one in ends] == [
        *((sequence, ReleaseStatus.RUN) for sequence in (1, 2, 3, 4)), (9, ReleaseStatus.REFUSED)]  # fmt: skip
    assert [RESULT.unpack(one).receipt_frame0_sequence for one in of(log, "/model/tiny/result")] == [1, 2, 3, 4]
    gains = (1, 1, 3, 3)
    expected = [model.values(picture(at), gain=gain).tobytes() for at, gain in enumerate(gains, 1)]
    assert of(log, "/model/tiny/outputs") == expected
    (aux,) = of(log, "/aux/gain")
    assert messages.decode(Kind.SET_AUX, aux) == SetAux("gain", set_ns, np.float32(3).tobytes())
    (served,) = of(log, "/note/model")
    (layout,) = [messages.decode(Kind.SUBSCRIBED, one) for one in of(log, "/model/tiny/layout")]
    assert isinstance(layout, messages.Subscribed)
    assert json.loads(served)["digest"] == layout.model_digest.hex()
    assert recording.recorded is not None
    assert (recording.recorded.frames, recording.recorded.missed) == ({"road": 4}, 0)


def test_a_frame_that_was_written_again_is_logged_as_not_recorded(
    tmp_path: Path, maker: BundleMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    with DaemonThread(tmp_path, [maker.write(TinyModel())], maker) as daemon:
        recording = Recording(daemon, tmp_path / "r.mcap")
        with daemon.camera() as camera:
            drive(camera, recording, 1, 1)
            monkeypatch.setattr("client.tap.TappedStream.copy", lambda self, frame, into: False)
            drive(camera, recording, 2, 1)
            monkeypatch.undo()
            monkeypatch.setattr(LogWriter, "has_room", lambda self, size_bytes: False)
            drive_ready = recording.seen.frames["road"]
            submit(camera, 3, picture(3))
            recording.wait_for(lambda seen: sum(seen.not_recorded.values()) == 2)
            monkeypatch.undo()
            recording.wait_for(lambda seen: sum(seen.results.values()) == 3)
            drive(camera, recording, 4, 1)
        log = recording.finish()
    assert drive_ready == 1
    skipped = [json.loads(one) for one in of(log, "/note/not-recorded")]
    assert [(one["sequence"], one["reason"]) for one in skipped] == [
        (2, "overwritten before it was copied"), (3, "the writer is behind")]  # fmt: skip
    assert of(log, "/camera/road/pixels") == [picture(1).tobytes(), picture(4).tobytes()]
    assert len(of(log, "/camera/road/submit")) == 4


def test_a_bundle_with_other_outputs_is_followed(tmp_path: Path, maker: BundleMaker) -> None:
    second = maker.write(TinyModel(version="2.0.0", release=2, unit="m"), "second.fenced")
    with DaemonThread(tmp_path, [maker.write(TinyModel())], maker) as daemon:
        recording = Recording(daemon, tmp_path / "r.mcap")
        with daemon.camera() as camera, daemon.control() as control:
            drive(camera, recording, 1, 1)
            control.activate(second)
            recording.wait_for(lambda seen: seen.notes["model"] == 2)
            for sequence in range(2, 2000):
                submit(camera, sequence, picture(sequence))
                ended(camera)
                if sum(recording.seen.results.values()) > 1:
                    break
        log = recording.finish()
    layouts = [messages.decode(Kind.SUBSCRIBED, one) for one in of(log, "/model/tiny/layout")]
    assert [one.outputs[0].unit for one in layouts if isinstance(one, messages.Subscribed)] == ["1", "m"]


def test_a_daemon_that_ends_leaves_a_whole_log(tmp_path: Path, maker: BundleMaker) -> None:
    with DaemonThread(tmp_path, [maker.write(TinyModel())], maker) as daemon:
        recording = Recording(daemon, tmp_path / "r.mcap")
        with daemon.camera() as camera:
            drive(camera, recording, 1, 2)
        daemon.stop()
        recording.finish()
    assert recording.recorded is not None
    assert "the daemon stops" in recording.recorded.ended


def test_state_is_kept_where_the_recorder_may_ask_for_it(
    tmp_path: Path, maker: BundleMaker, capsys: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "r.mcap"
    with DaemonThread(tmp_path, [maker.write(TinyModel("total"))], maker) as daemon, daemon.camera() as camera:
        for sequence in range(1, 4):
            submit(camera, sequence, picture(sequence))
            ended(camera)
        assert cli.main(["record", str(daemon.sockets), "-o", str(log), "--seconds", "0.5"]) == 0
    assert "0 frames, 0 results" in capsys.readouterr().out
    (state,) = of(list(LogReader(log).messages()), "/model/tiny/state")
    header, (values,) = decode(state)
    assert header.model == "tiny"
    total = sum(picture(sequence).astype(np.float32) for sequence in range(1, 4))
    assert np.array_equal(np.frombuffer(values, np.float32), total)
    with DaemonThread(
        tmp_path, [maker.write(TinyModel("total"))], maker, more="[control]\nuids = [4000000]\n"
    ) as daemon:
        log.unlink()
        assert cli.main(["record", str(daemon.sockets), "-o", str(log), "--seconds", "0.5"]) == 0
    assert "no snapshots of state: NOT_PERMITTED" in capsys.readouterr().out


_RECORD = "import sys; sys.path.insert(0, sys.argv.pop(1)); from lab.entry import main; sys.exit(main())"


def test_what_a_killed_recorder_wrote_reads_back_to_the_last_chunk(tmp_path: Path, maker: BundleMaker) -> None:
    log, root = tmp_path / "r.mcap", Path(__file__).parents[3]
    with DaemonThread(tmp_path, [maker.write(TinyModel())], maker) as daemon, daemon.camera() as camera:
        command = [sys.executable, "-c", _RECORD, root, "record", daemon.sockets, "-o", log]
        process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
        daemon.wait_for(lambda status: status["taps"] and status["models"][0]["subscriptions"])
        sequence, deadline = 0, time.monotonic() + LIMIT_S
        while not log.exists() or log.stat().st_size < 2 * CHUNK_BYTES:  # one at least is whole
            assert time.monotonic() < deadline
            sequence += 1
            submit(camera, sequence, picture(sequence))
            ended(camera)
        process.send_signal(signal.SIGKILL)
        process.wait()
    info = LogReader(log).info()
    assert not info.finished
    with pytest.raises(LogRefused, match="log-unfinished"):
        info.verify()
    read, at = 0, 0
    for message in LogReader(log).messages():
        if message.kind == "submit":
            at = SUBMIT.unpack(message.data).sequence
        elif message.kind == "pixels":  # of those that it was quick enough for
            assert message.data == picture(at).tobytes()
            read += 1
    assert 0 < read <= sequence


def test_a_recording_ends_in_good_order_at_sigint(tmp_path: Path, maker: BundleMaker) -> None:
    log, root = tmp_path / "r.mcap", Path(__file__).parents[3]
    with DaemonThread(tmp_path, [maker.write(TinyModel())], maker) as daemon:
        command = [sys.executable, "-c", _RECORD, root, "--json", "record", daemon.sockets, "-o", log]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        daemon.wait_for(lambda status: status["taps"] and status["models"][0]["subscriptions"])
        process.send_signal(signal.SIGINT)
        said, _ = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 0
    assert json.loads(said)["ended"] == "asked to"
    LogReader(log).info().verify()
