"""Lock-step: what was recorded is reproduced bit for bit, and whatever differs is named."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from lab import cli
from lab.replay.drive import Drive
from lab.replay.log import LogReader, LogWriter
from lab.replay.record import record
from lab.replay.refusal import LogRefusal, LogRefused
from lab.replay.replay import Tolerance, replay
from tests.lab.compile.tiny_models import SPEC, edited
from tests.support.bundles import HEIGHT, PIXELS, WIDTH, BundleMaker, TinyModel, frame_format
from tests.support.daemons import DaemonThread

FRAMES = 8


class CountingSource:
    """Frames whose pixels all differ from one frame to the next."""

    stream = "road"
    format = frame_format()

    def fill(self, pixels: NDArray[np.uint8], index: int) -> Mapping[str, float]:
        pixels[:] = np.arange(pixels.size, dtype=np.uint64) * (index + 3) % 251
        return {"index": float(index)}


@pytest.fixture(scope="module")
def maker(tmp_path_factory: pytest.TempPathFactory) -> BundleMaker:
    return BundleMaker(tmp_path_factory.mktemp("bundles"))


@pytest.fixture(scope="module")
def daemon(maker: BundleMaker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaemonThread]:
    with DaemonThread(tmp_path_factory.mktemp("daemon"), [maker.write(TinyModel())], maker) as running:
        yield running


@pytest.fixture(scope="module")
def log_path(daemon: DaemonThread, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("log") / "drive.mcap"
    with Drive(daemon.sockets, "road", CountingSource.format, "tiny") as drive, LogWriter(path) as log:
        counts = record(drive, CountingSource(), log, "tiny", FRAMES)
    assert counts == {"run": FRAMES}
    return path


def test_a_recorded_drive_replays_bit_exact(daemon: DaemonThread, log_path: Path) -> None:
    report = replay(daemon.sockets, log_path)
    assert report.passed
    assert (report.frames, report.equal, report.mismatched) == (FRAMES, FRAMES, 0)
    assert report.logged_digest == report.served_digest


def test_the_log_holds_the_session_itself(log_path: Path) -> None:
    info = LogReader(log_path).info()
    info.verify()
    each = {"/camera/road/submit", "/camera/road/pixels", "/model/tiny/result", "/model/tiny/outputs", "/note/truth",
            "/camera/road/end"}  # fmt: skip
    assert info.counts == {"/camera/road/format": 1, "/model/tiny/layout": 1} | dict.fromkeys(each, FRAMES)


def test_another_bundle_is_refused_unless_asked_for(maker: BundleMaker, log_path: Path, tmp_path: Path) -> None:
    other = maker.write(TinyModel(version="2.0.0", release=2, number=4))
    with DaemonThread(tmp_path, [other], maker) as running:
        with pytest.raises(LogRefused) as refused:
            replay(running.sockets, log_path)
        assert refused.value.code is LogRefusal.MODEL
        exact = replay(running.sockets, log_path, any_model=True)
        loose = replay(running.sockets, log_path, any_model=True, tolerance=Tolerance(absolute=1.0))
        tight = replay(running.sockets, log_path, any_model=True, tolerance=Tolerance(absolute=0.5))
    assert (exact.passed, exact.mismatched) == (False, FRAMES)
    assert exact.worst[0].output == "values"
    assert exact.worst[0].absolute == 1.0
    assert (loose.passed, loose.within) == (True, FRAMES)
    assert (tight.passed, tight.mismatched) == (False, FRAMES)


def test_a_log_that_was_cut_off_is_refused_unless_asked_for(
    daemon: DaemonThread, log_path: Path, tmp_path: Path
) -> None:
    cut = tmp_path / "cut.mcap"
    with LogWriter(tmp_path / "long.mcap") as log:
        for message in LogReader(log_path).messages():
            log.write(message.topic, message.data, message.log_time_ns)
            log.write("/note/padding", np.random.default_rng(1).bytes(1 << 18), message.log_time_ns)
    whole = (tmp_path / "long.mcap").read_bytes()
    cut.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(LogRefused) as refused:
        replay(daemon.sockets, cut)
    assert refused.value.code is LogRefusal.UNFINISHED
    partial = replay(daemon.sockets, cut, partial=True)
    assert 0 < partial.equal < FRAMES


def test_the_command_exits_3_on_a_mismatch_and_0_otherwise(
    daemon: DaemonThread, log_path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    altered = tmp_path / "altered.mcap"
    with LogWriter(altered) as log:
        for message in LogReader(log_path).messages():
            data = bytes(len(message.data)) if message.kind == "outputs" else message.data
            log.write(message.topic, data, message.log_time_ns)
    where = ["--sockets", str(daemon.sockets)]
    assert cli.main(["replay", str(log_path), *where]) == 0
    assert cli.main(["replay", str(altered), *where, "--report", str(tmp_path / "r.json")]) == 3
    said = capsys.readouterr().err
    assert "replay-mismatch" in said
    assert re.search(r"worst: frame \d, values off by \d+$", said, re.MULTILINE)
    assert f'"mismatched": {FRAMES}' in (tmp_path / "r.json").read_text()
    assert cli.main(["replay", str(tmp_path / "absent.mcap"), *where]) == 3
    assert cli.main(["log", "info", str(log_path)]) == 0


def played_spec(folder: Path) -> Path:
    """A spec whose input is the stream of the model that the daemon serves."""
    path = folder / "spec.toml"
    path.write_text(edited(SPEC, {
        'format = "NV12"': 'format = "R8"\ncfa = "none"',
        "width = 33": f"width = {WIDTH}", "height = 21": f"height = {HEIGHT}",
        'range = "limited"': 'range = "full"', 'matrix = "bt709"': 'matrix = "identity"',
        'primaries = "bt709"': 'primaries = "sensorNative"', 'transfer = "bt709"': 'transfer = "linear"',
        'chroma_site = "left"': 'chroma_site = "notSubsampled"', "crop = [1, 2, 31, 18]": "",
        "mean = [10.0, 20.0, 30.0]": "mean = [0]", "std = [100.0, 110.0, 120.0]": "std = [1]",
    }))  # fmt: skip
    return path


def test_frames_of_a_file_are_recorded_by_the_spec_they_were_compiled_for(
    daemon: DaemonThread, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    raw, log, sockets = tmp_path / "frames.raw", tmp_path / "played.mcap", ["--sockets", str(daemon.sockets)]
    pixels = np.random.default_rng(5).integers(0, 256, (3, PIXELS), np.uint8)
    raw.write_bytes(pixels.tobytes())
    record_it = ["drive", str(log), *sockets, "--input", str(raw), "--frames", "5", "--rate-hz", "0"]
    assert cli.main(record_it) == 2
    assert "options: --input and --spec" in capsys.readouterr().err
    assert cli.main([*record_it, "--spec", str(played_spec(tmp_path))]) == 0
    played = [message.data for message in LogReader(log).messages() if message.kind == "pixels"]
    assert played == [pixels[index % 3].tobytes() for index in range(5)]
    assert cli.main(["replay", str(log), *sockets]) == 0
    raw.write_bytes(pixels.tobytes()[:-1])
    log.unlink()
    assert cli.main([*record_it, "--spec", str(played_spec(tmp_path))]) == 3
    assert "bad-frames" in capsys.readouterr().err
