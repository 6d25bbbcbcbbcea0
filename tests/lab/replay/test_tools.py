"""A part of a log is a log; pictures, tables and videos hold what the log holds."""

from __future__ import annotations

import csv
from pathlib import Path

import av
import numpy as np
import pytest

from abi.format import StreamFormat
from lab import cli
from lab.replay.log import SUMMARY, LogReader, LogWriter
from lab.replay.picture import VideoWriter, rgb_of, write_png
from lab.replay.pictures import cameras_of, pictures
from lab.replay.refusal import LogRefused
from lab.replay.replay import replay
from lab.replay.source import RoadSource
from tests.lab.replay.recording import drive, recording
from tests.support.bundles import HEIGHT, WIDTH, BundleMaker, TinyModel
from tests.support.daemons import DaemonThread, picture


@pytest.fixture
def log(tmp_path: Path, maker: BundleMaker) -> Path:
    """Six frames through a model with state, a snapshot behind the third."""
    path, bundle = tmp_path / "r.mcap", maker.write(TinyModel("total"))
    with (
        DaemonThread(tmp_path, [bundle], maker) as daemon,
        daemon.camera() as camera,
        recording(daemon, path) as recorder,
    ):
        drive(camera, recorder, 1, 3)
        recorder.snapshot()
        drive(camera, recorder, 4, 3)
    return path


def test_a_cut_is_a_log_that_replays(log: Path, tmp_path: Path, maker: BundleMaker) -> None:
    part = tmp_path / "part.mcap"
    assert cli.main(["log", "cut", str(log), "-o", str(part), "--from", "5", "--to", "6"]) == 0
    assert cli.main(["log", "verify", str(part)]) == 0
    info = LogReader(part).info()
    assert info.about["cut_of_sha256"] == LogReader(log).info().sha256
    assert info.counts["/camera/road/pixels"] == info.counts["/model/tiny/result"] == 2  # 4, for the state, and 5
    (tmp_path / "others").mkdir()
    with DaemonThread(tmp_path / "others", sorted(maker.folder.glob("*.fenced")), maker) as daemon:
        report = replay(daemon.sockets, part)
    assert (report.passed, report.equal) == (True, 2)
    assert cli.main(["log", "cut", str(log), "-o", str(tmp_path / "none.mcap"), "--from", "100"]) == 3


def test_what_is_damaged_is_found_and_what_is_cut_off_is_shown(
    log: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cut = tmp_path / "cut.mcap"
    whole = log.read_bytes()
    cut.write_bytes(whole[: whole.index(SUMMARY.encode())])
    assert cli.main(["log", "info", str(cut)]) == 0
    assert "cut off" in capsys.readouterr().out
    assert cli.main(["log", "verify", str(cut)]) == 3
    assert "log-unfinished" in capsys.readouterr().err


def test_a_table_holds_every_result(log: Path, tmp_path: Path) -> None:
    table = tmp_path / "r.csv"
    assert cli.main(["log", "export", str(log), "--csv", str(table)]) == 0
    rows = list(csv.DictReader(table.open()))
    assert [int(row["sequence"]) for row in rows] == [1, 2, 3, 4, 5, 6]
    assert float(rows[1]["values[7]"]) == float(picture(1)[7]) + float(picture(2)[7])
    assert all(float(row["latency_ms"]) > 0 for row in rows)


def test_pictures_and_a_lossless_video_hold_the_pixels(log: Path, tmp_path: Path) -> None:
    assert cli.main(["log", "export", str(log), "--png", str(tmp_path / "png")]) == 0
    assert cli.main(["log", "export", str(log), "--video", str(tmp_path / "v.mkv")]) == 0
    assert cli.main(["log", "export", str(log), "--video", str(tmp_path / "v.mp4"), "--stream", "road"]) == 0
    assert cli.main(["log", "export", str(log), "--png", str(tmp_path / "png"), "--stream", "left"]) == 3
    grey = [picture(sequence).reshape(HEIGHT, WIDTH) for sequence in range(1, 7)]
    files = sorted((tmp_path / "png").iterdir())
    assert [file.name for file in files] == [f"road-{sequence:08}.png" for sequence in range(1, 7)]
    for file, wanted in zip(files, grey, strict=True):
        assert np.array_equal(read(file)[0], np.stack([wanted] * 3, axis=2))
    video = read(tmp_path / "v.mkv")
    assert len(video) == len(read(tmp_path / "v.mp4")) == 6
    assert all(np.array_equal(found, np.stack([one] * 3, axis=2)) for found, one in zip(video, grey, strict=True))


def read(path: Path) -> list[np.ndarray]:
    with av.open(str(path)) as container:
        return [frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)]


def test_a_road_looks_like_a_road(tmp_path: Path) -> None:
    source = RoadSource(1, 320, 200)
    format: StreamFormat = source.format
    pixels = np.zeros(format.buffer_bytes, np.uint8)
    source.fill(pixels, 0)
    shown = rgb_of(pixels, format)
    assert shown.shape == (200, 320, 3)
    sky, road = shown[20, 160].astype(int), shown[190, 160].astype(int)
    assert sky[2] > sky[0]  # blue
    assert abs(road - road.mean()).max() < 40  # grey
    write_png(tmp_path / "road.png", shown)
    assert np.array_equal(read(tmp_path / "road.png")[0], shown)


def test_the_pictures_of_one_camera_can_be_had_alone(log: Path, tmp_path: Path) -> None:
    opened, counts = cameras_of(LogReader(log))
    assert ([one.stream for one in opened.values()], counts) == (["road"], {"road": 6})
    found = [(one.sequence, one.pixels) for one in pictures(LogReader(log), "road")]
    assert found == [(sequence, picture(sequence).tobytes()) for sequence in range(1, 7)]
    with LogWriter(tmp_path / "none.mcap") as writer:
        writer.write("/note/x", b"{}", 1)
    with pytest.raises(LogRefused, match="a log with pixels of each camera"):
        cameras_of(LogReader(tmp_path / "none.mcap"))
    with pytest.raises(LogRefused, match="expected wide, found road"):
        cameras_of(LogReader(log), ["wide"])


def test_a_video_of_nv12_frames_shows_what_the_frames_hold(tmp_path: Path) -> None:
    source = RoadSource(1, 320, 200)
    pixels = np.zeros(source.format.buffer_bytes, np.uint8)
    with VideoWriter(tmp_path / "v.mp4") as video:
        for index in range(3):
            source.fill(pixels, index)
            video.add(pixels.tobytes(), source.format, 50 * index)
    shown = read(tmp_path / "v.mp4")
    assert len(shown) == 3
    assert (
        np.abs(shown[2].astype(int) - rgb_of(pixels, source.format)).mean() < 6
    )  # H.264 at crf 18, chroma interpolated
