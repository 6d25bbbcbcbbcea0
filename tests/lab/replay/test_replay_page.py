"""The page of a replay: self-contained, with every number, and with the worst frames as pictures."""

from __future__ import annotations

import base64
import io
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import matplotlib.image
import numpy as np
import pytest
from numpy.typing import NDArray

from lab import cli
from lab.hil.road import Camera
from lab.replay import page_pictures
from lab.replay.compare import Tolerance, Tolerances
from lab.replay.page import replay_page
from lab.replay.page_lane import lane_columns
from lab.replay.page_pictures import Shown
from lab.replay.replay import Against, Options, ReplayReport, replay
from lab.replay.source import RoadSource
from tests.lab.replay.recording import drive, recording
from tests.support.browser import shown
from tests.support.bundles import BundleMaker, TinyModel, frame_format
from tests.support.daemons import DaemonThread

FRAMES = 5
INK, ORANGE = np.array([0x0B, 0x63, 0xC5]) / 255, np.array([0xD2, 0x69, 0x1E]) / 255


@pytest.fixture(scope="module")
def replayed(tmp_path_factory: pytest.TempPathFactory) -> tuple[ReplayReport, Path]:
    """A log against the bundle that made it, and against one that adds another number, with a deadline."""
    folder = tmp_path_factory.mktemp("page")
    for name in ("models", "others", "now"):
        (folder / name).mkdir()
    maker, log = BundleMaker(folder / "models"), folder / "r.mcap"
    bundle = maker.write(TinyModel("add", deadline_ns=60_000_000_000))
    other = maker.write(TinyModel("add", version="2.0.0", release=2, number=5))
    with (
        DaemonThread(folder, [bundle], maker) as daemon,
        daemon.camera() as camera,
        recording(daemon, log) as recorder,
    ):
        drive(camera, recorder, 1, FRAMES)
    with (
        DaemonThread(folder / "now", [bundle], maker) as now,
        DaemonThread(folder / "others", [other], maker) as others,
    ):
        options = Options(Tolerances(Tolerance(absolute=0.5)), against=Against(others.sockets))
        return replay(now.sockets, log, options=options), log


def pictures_of(page: str) -> list[NDArray[Any]]:
    """The page's JPEGs, decoded: RGB from 0 to 1."""
    coded = re.findall(r'src="data:image/jpeg;base64,([^"]*)"', page)
    return [matplotlib.image.imread(io.BytesIO(base64.b64decode(one)), format="jpeg") / 255 for one in coded]


def near(picture: NDArray[Any], colour: NDArray[Any], within: float = 0.15) -> NDArray[np.bool_]:
    return np.asarray(np.abs(picture[..., :3] - colour).max(axis=2) < within)


def test_the_page_says_everything_and_needs_nothing_else(replayed: tuple[ReplayReport, Path]) -> None:
    report, log = replayed
    assert (report.equal, report.passed) == (FRAMES, False)
    assert report.against is not None
    assert report.against.mismatched == FRAMES
    page = replay_page(report, log)
    assert "NOT reproduced" in page
    assert f"{FRAMES} equal in every bit" in page
    for digest in (report.log_sha256, report.served_digest, report.against_digest):
        assert digest in page
    assert f"<td>{FRAMES}</td>" in page
    assert page.count('class="good">0 of 5') == 2  # deadlines, then and now
    assert "values[" in page
    assert "cpu: " in page
    assert len(pictures_of(page)) == FRAMES
    assert all(near(one, ORANGE).any() and near(one, INK).any() for one in pictures_of(page))
    assert not re.findall(r'(?:src|href)="(?!data:|#)', page)
    assert "<script" not in page


def test_where_all_is_equal_frames_of_the_log_are_shown(replayed: tuple[ReplayReport, Path]) -> None:
    report, log = replayed
    page = replay_page(replace(report, against=None), log)
    assert "Every bit of every output is equal" in page
    assert [f"<h3>Frame {sequence}</h3>" in page for sequence in range(1, FRAMES + 1)] == [
        True,
        False,
        True,
        False,
        True,
    ]
    assert len(pictures_of(page)) == 3
    assert "The worst frames" not in page


def test_ledgers_then_and_now_are_on_it(replayed: tuple[ReplayReport, Path]) -> None:
    report, _ = replayed
    assert set(report.ledgers) == {"logged", "now", "against"}
    for side, row in (one for one in report.ledgers.items()):
        assert (row["road"]["submitted"], row["road"]["run"]) == (FRAMES, FRAMES), side
    assert report.ledgers["logged"]["road"]["unknown"] == report.ledgers["now"]["road"]["held"] == 0
    assert [len(report.times[side].latency_ms) for side in ("logged", "now")] == [FRAMES, FRAMES]
    assert all(value is not None and value > 50_000 for value in report.times["now"].deadline_ms)


def test_the_command_writes_it(tmp_path: Path, maker: BundleMaker) -> None:
    log, html = tmp_path / "r.mcap", tmp_path / "r.html"
    with DaemonThread(tmp_path, [maker.write(TinyModel("add"))], maker) as daemon:
        with daemon.camera() as camera, recording(daemon, log) as recorder:
            drive(camera, recorder, 1, 2)
        assert cli.main(["replay", str(log), "--sockets", str(daemon.sockets), "--html", str(html)]) == 0
    assert '<span class="good">reproduced</span>' in html.read_text()


def test_a_browser_shows_the_page(replayed: tuple[ReplayReport, Path], tmp_path: Path) -> None:
    picture = shown(replay_page(*replayed), tmp_path, 3600)
    assert near(picture, INK).any(axis=1).sum() > 100  # errors, latencies, what was found
    assert near(picture, ORANGE).any(axis=1).sum() > 100  # latencies as logged, what was wanted
    dark = (picture < 0.4).all(axis=2)
    assert dark.any(axis=1)[:200].any()
    assert dark.any(axis=1).nonzero()[0].max() > 2000


def test_what_is_in_pixels_lies_where_it_belongs() -> None:
    picture = np.full((100, 200, 3), 255, np.uint8)
    wanted = {"boxes": np.array([[[20.0, 10.0, 80.0, 40.0]]], np.float32), "points": np.array([[150.0, 70.0]])}
    found = {"boxes": np.array([[[120.0, 10.0, 180.0, 40.0]]], np.float32), "points": np.array([[50.0, 70.0]])}
    shown = Shown("m", 1, "road", frame_format(), picture, wanted)
    (drawn,) = pictures_of(page_pictures.draw(shown, found, {}, {"boxes": "px", "points": "px"}))
    rows, columns = drawn.shape[:2]
    left, right = drawn[:, : columns // 2], drawn[:, columns // 2 :]
    for colour, box_side, point_side in ((ORANGE, left, right), (INK, right, left)):
        assert near(box_side[: rows // 2], colour).sum() > 100
        assert near(point_side[rows // 2 :], colour, 0.25).sum() > 10
        assert not near(point_side[: rows // 2], colour).any()


def test_the_lane_is_drawn_where_the_road_camera_paints_it() -> None:
    source = RoadSource(seed=1, width=964, height=604)
    pixels = np.zeros(source.format.buffer_bytes, np.uint8)
    truth = source.fill(pixels, 40)
    luma = pixels[: 964 * 604].reshape(604, 964)
    columns, rows = lane_columns(Camera.of_size(964, 604), truth["lane_offset_m"], truth["heading_rad"], -1.75)
    seen = [(round(x), round(y)) for x, y in zip(columns, rows, strict=True) if 30 < x < 930 and y < 590][:12]
    assert len(seen) == 12  # the near part of the right edge, a solid line
    for column, row in seen:
        paint, asphalt = luma[row, column - 12 : column + 13].max(), np.median(luma[row, column - 90 : column - 40])
        assert paint > asphalt + 60


def test_a_lane_is_only_drawn_for_the_camera_that_is_known() -> None:
    wanted = {"lane_offset_m": np.array([0.0], np.float32), "heading_rad": np.array([0.0], np.float32)}
    grey = np.full((604, 964, 3), 128, np.uint8)
    format = RoadSource(seed=1, width=964, height=604).format
    drawn = [pictures_of(page_pictures.draw(Shown("lane", 1, "road", one, grey, wanted), None, {}, {}))[0]
             for one in (format, replace(format, camera_name="another"))]  # fmt: skip
    above = [near(one[: one.shape[0] // 2 + 100], ORANGE, 0.25).sum() for one in drawn]
    assert above[0] > 200
    assert above[1] == 0
