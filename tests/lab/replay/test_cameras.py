"""Several cameras in one log: imported in the order of their frames' starts, and played together as they belong."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rosbags.rosbag2 import StoragePlugin, Writer

from abi.colour import ClockId, TimeMark
from abi.flat import RESULT, SUBMIT, Submit
from abi.messages import OpenStream, encode
from abi.packet import HEADER_BYTES
from abi.receipt import Receipt
from client.camera import Frame
from lab import cli
from lab.hil.scenario import CameraPlan, ScenarioRefused
from lab.hil.view import make_view
from lab.replay.importers.contract import Flags, Stated, spelled
from lab.replay.importers.samples import Family, Samples
from lab.replay.importers.write import Part, Picture, Source, write_log
from lab.replay.log import LogReader, LogWriter
from lab.replay.pictures import cameras_of, sets_of
from lab.replay.played import LoggedFrame
from lab.replay.realtime import replay_in_real_time
from lab.replay.refusal import LogRefusal, LogRefused
from lab.replay.replay import Options, replay
from lab.replay.rig import Rig
from tests.lab.replay.test_import import noise, write_video
from tests.lab.replay.test_import_openpilot import ARGUMENTS as OPENPILOT
from tests.lab.replay.test_import_openpilot import FRAME_IDS, rlog, sof_ns, write_hevc
from tests.lab.replay.test_import_rosbag import CAMERA, COLOUR, STORE, _message, raw
from tests.support.bundles import HEIGHT, WIDTH, BundleMaker, TinyModel, frame_format
from tests.support.daemons import DaemonThread, picture

MS = 1_000_000
LEFT_MS, RIGHT_MS = (100, 150, 200, 250), (104, 154, 254)
"""When frames of two cameras begin: the right one dropped its third."""
TEST_CAMERA = [
    f"--{name}={spelled(getattr(frame_format(), name))}" for name in ("range", "primaries", "transfer", "cfa")
]


def order(log: Path) -> list[tuple[str, int]]:
    """A verified log's frames: stream and start, as they stand there."""
    LogReader(log).info().verify()
    submits = (one for one in LogReader(log).messages() if one.kind == "submit")
    return [(one.topic.split("/")[2], SUBMIT.unpack(one.data).sof_ns) for one in submits]


def part(stream: str, times_ms: Sequence[int], clock: ClockId = ClockId.MONOTONIC, seed: int = 0) -> Part:
    """A camera of the test model's pictures, `picture(seed + its number)`, that begin at these times."""

    def pictures() -> Any:
        for number, at_ms in enumerate(times_ms, start=1):
            samples = Samples(Family.MONO8, (picture(seed + number).reshape(HEIGHT, WIDTH),))
            yield Picture(samples, number, at_ms * MS, at_ms * MS, at_ms * MS, f"picture {number}")

    stated = {"clock": Stated(clock, "a test"), "mark": Stated(TimeMark.EXPOSURE_START, "a test")}
    fields = {name: getattr(frame_format(), name) for name in ("range", "primaries", "transfer", "cfa")}
    return Part(Source(stream, pictures(), lambda first: stated, 50 * MS), Flags(stream, fields))


@pytest.fixture
def two(tmp_path: Path) -> Path:
    """A log of a left and a right camera; the left one's pictures are seeded from 1, the right one's from 51."""
    write_log([part("left", LEFT_MS), part("right", RIGHT_MS, seed=50)], tmp_path / "two.mcap")
    return tmp_path / "two.mcap"


def test_frames_of_several_cameras_stand_in_the_order_of_their_starts(two: Path) -> None:
    wanted = sorted(
        [("left", at * MS) for at in LEFT_MS] + [("right", at * MS) for at in RIGHT_MS], key=lambda one: one[1]
    )
    assert order(two) == wanted
    opened, counts = cameras_of(LogReader(two))
    assert counts == {"left": 4, "right": 3}
    assert all(one.format == replace(frame_format(), camera_name=stream) for stream, one in opened.items())


def test_topics_of_a_bag_become_cameras_of_one_log(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bag, log, pictures = tmp_path / "bag", tmp_path / "b.mcap", {"/left": noise(5, 7), "/right": noise(5, 7, 1)}
    with Writer(bag, version=9, storage_plugin=StoragePlugin.MCAP) as writer:
        topics = {name: writer.add_connection(name, "sensor_msgs/msg/Image", typestore=STORE) for name in pictures}
        for at_ms in (0, 50, 100):
            for name, behind_ms in (("/right", 3), ("/left", 0)):  # the later one is taken first
                kind, fields = raw("rgb8", pictures[name].reshape(5, -1), 7)
                data = STORE.serialize_cdr(_message(kind, (7_000 + at_ms + behind_ms) * MS, **fields), kind)
                writer.write(topics[name], (7_010 + at_ms) * MS, data)
    arguments = ["rosbag", str(bag), "-o", str(log), *CAMERA[2:], *COLOUR, "--topic", "/right", "--topic", "/left"]
    assert cli.main(["import", *arguments, "--stream", "r"]) == 2
    assert "2 different names, one for each camera in their order" in capsys.readouterr().err
    assert cli.main(["import", *arguments, "--stream", "r", "--stream", "r"]) == 2
    assert not log.exists()
    capsys.readouterr()
    assert cli.main(["--json", "import", *arguments, "--stream", "r", "--stream", "l", "--frames", "2"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["frames"], told["cameras"]["l"]["frames"]) == (4, 2)
    assert "command line" in told["cameras"]["r"]["contract"]["clock"]
    assert order(log) == [("l", 7_000 * MS), ("r", 7_003 * MS), ("l", 7_050 * MS), ("r", 7_053 * MS)]
    pixels = {one.topic: one.data for one in LogReader(log).messages() if one.kind == "pixels"}
    assert pixels["/camera/l/pixels"] == pictures["/left"].tobytes()
    assert pixels["/camera/r/pixels"] == pictures["/right"].tobytes()


def test_cameras_of_a_segment_come_together(tmp_path: Path) -> None:
    folder, log = tmp_path / "segment", tmp_path / "s.mcap"
    folder.mkdir()
    (folder / "rlog").write_bytes(rlog() + rlog("wideRoadEncodeIdx"))
    write_hevc(folder / "fcamera.hevc")
    (folder / "ecamera.hevc").write_bytes((folder / "fcamera.hevc").read_bytes())
    cameras = ["--camera", "wide", "--stream", "wide", "--camera", "road"]  # OPENPILOT names the stream road
    assert cli.main(["import", "openpilot", str(folder), "-o", str(log), *cameras, *OPENPILOT]) == 0
    assert order(log) == [(stream, sof_ns(one)) for one in FRAME_IDS for stream in ("wide", "road")]


def test_videos_that_began_together_come_together(tmp_path: Path) -> None:
    log, colour = tmp_path / "v.mcap", {"colorspace": 1, "color_range": 1, "color_primaries": 1, "color_trc": 1}
    for name, times in (("a", [0, 50]), ("b", [0, 40, 80])):
        write_video(tmp_path / f"{name}.mkv", times, **colour)
    files = [str(tmp_path / "a.mkv"), str(tmp_path / "b.mkv")]
    given = ["--stream", "a", "--stream", "b", "--chroma-site", "center", "--rate-hz", "20"]
    assert cli.main(["import", "video", *files, "-o", str(log), *given]) == 0
    assert [(stream, at // MS - 1000) for stream, at in order(log)] == [
        ("a", 0),
        ("b", 0),
        ("b", 40),
        ("a", 50),
        ("b", 80),
    ]


def test_cameras_on_several_clocks_have_no_order(tmp_path: Path) -> None:
    with pytest.raises(LogRefused, match="left on monotonic, right on tai") as caught:
        write_log([part("left", LEFT_MS), part("right", RIGHT_MS, ClockId.TAI)], tmp_path / "x.mcap")
    assert caught.value.code is LogRefusal.CONTRADICTION
    assert not (tmp_path / "x.mcap").exists()


def test_a_camera_that_goes_back_in_time_leaves_no_log(tmp_path: Path) -> None:
    with pytest.raises(LogRefused, match="picture 3 does not come after"):
        write_log([part("left", LEFT_MS), part("right", (104, 154, 150))], tmp_path / "x.mcap")
    assert not (tmp_path / "x.mcap").exists()


def sets(log: Path) -> list[list[tuple[str, int, int]]]:
    """Stream, sequence, and ms behind the first of its set."""
    reader = LogReader(log)
    found = [list(one) for one in sets_of(reader, cameras_of(reader)[0])]
    return [[(frame.stream, frame.submit.sequence, (at_ns - one[0][0]) // MS) for at_ns, frame in one] for one in found]


def test_frames_that_belong_together_are_one_set(two: Path) -> None:
    assert sets(two) == [
        [("left", 1, 0), ("right", 1, 4)], [("left", 2, 0), ("right", 2, 4)], [("left", 3, 0)],
        [("left", 4, 0), ("right", 3, 4)],
    ]  # fmt: skip


def test_cameras_of_several_clocks_belong_together_as_they_were_logged(tmp_path: Path) -> None:
    path, pixels = tmp_path / "r.mcap", bytes(frame_format().buffer_bytes)
    with LogWriter(path) as log:
        for stream, clock in (("left", ClockId.MONOTONIC), ("right", ClockId.TAI)):
            opened = encode(OpenStream(stream, frame_format(clock=clock)))[HEADER_BYTES:]
            log.write(f"/camera/{stream}/format", opened, 0)
        for number in (1, 2):
            for stream, begin_ns in (("right", 10**18), ("left", 0)):
                sof = begin_ns + number * 50 * MS
                submit = Submit(0, 0, 0, number, sof, sof, 0, 0, 0)
                log.write(f"/camera/{stream}/submit", SUBMIT.pack(submit), number * 50 * MS + len(stream))
                log.write(f"/camera/{stream}/pixels", pixels, number * 50 * MS + len(stream))
    assert sets(path) == [[("left", 1, 0), ("right", 1, 0)], [("left", 2, 0), ("right", 2, 0)]]


def driven(daemon: DaemonThread, two: Path, *more: str) -> Path:
    log = two.with_name("driven.mcap")
    arguments = ["drive", str(log), "--input", str(two), "--rate-hz", "0", "--model", "tiny"]
    assert cli.main([*arguments, "--sockets", str(daemon.sockets), *more]) == 0
    LogReader(log).info().verify()
    return log


def test_cameras_of_a_log_are_driven_together_and_replayed(
    two: Path, tmp_path: Path, maker: BundleMaker, capsys: pytest.CaptureFixture[str]
) -> None:
    bundle = maker.write(TinyModel("pair", streams=("left", "right"), max_skew_ns=20 * MS))
    with DaemonThread(tmp_path, [bundle], maker) as daemon:
        log = driven(daemon, two)
        told = re.findall(r"(\d+) (\w+)", capsys.readouterr().out.rpartition(": ")[2])
        assert len(told) == 2
        assert ("6", "run") in told
        assert ("1", "superseded") in told or ("1", "out_of_skew") in told  # by which camera the daemon heard first
        report = replay(daemon.sockets, log)
    assert (report.passed, report.equal) == (True, 3)
    found = list(LogReader(log).messages())
    truths = [json.loads(one.data) for one in found if one.topic == "/note/truth"]
    assert [(one["sequence"], one["stream"], one["logged_sequence"]) for one in truths] == [
        (1, "left", 1), (1, "right", 1), (2, "left", 2), (2, "right", 2), (3, "left", 3),
        (4, "left", 4), (4, "right", 3),
    ]  # fmt: skip
    outputs = [np.frombuffer(one.data, "<f4") for one in found if one.kind == "outputs"]
    pairs = ((1, 51), (2, 52), (4, 53))
    assert all(
        np.array_equal(one, picture(a).astype(np.float32) - picture(b))
        for one, (a, b) in zip(outputs, pairs, strict=True)
    )
    receipts = [Receipt.from_result(RESULT.unpack(one.data)) for one in found if one.kind == "result"]
    apart = [frames[1].sof_ns - frames[0].sof_ns for frames in (one.frames for one in receipts)]
    assert apart == [4 * MS] * 3  # as they were, on however busy a machine


def test_cameras_that_see_at_the_same_instant_are_told_apart(
    tmp_path: Path, maker: BundleMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Frames that begin and are numbered alike, in another order in the contract than in the log."""
    at_once = tmp_path / "once.mcap"
    write_log([part("left", LEFT_MS), part("right", LEFT_MS, seed=50)], at_once)
    bundle = maker.write(TinyModel("pair", streams=("right", "left"), max_skew_ns=MS))
    more = "".join(f'[stream.{stream}]\nqueueing = "fifo"\n' for stream in ("left", "right"))
    with DaemonThread(tmp_path, [bundle], maker, more=more) as daemon:
        log = driven(daemon, at_once)
        found = [np.frombuffer(one.data, "<f4") for one in LogReader(log).messages() if one.kind == "outputs"]
        assert np.array_equal(found[0], picture(51).astype(np.float32) - picture(1))
        assert replay(daemon.sockets, log).equal == 4
        fill = Rig._filled

        def late(rig: Rig, frame: LoggedFrame) -> Frame:
            time.sleep(2 * MS / 1e9)  # as long a machine may stand still between two cameras
            return fill(rig, frame)

        monkeypatch.setattr(Rig, "_filled", late)
        report = replay_in_real_time(daemon.sockets, log, Options())
    assert (report.equal, report.not_logged, report.not_run) == (4, 0, {})


def test_one_camera_of_several_can_be_driven_alone(two: Path, tmp_path: Path, maker: BundleMaker) -> None:
    with DaemonThread(tmp_path, [maker.write(TinyModel("add", streams=("right",)))], maker) as daemon:
        log = driven(daemon, two, "--stream", "right")
        found = [one.data for one in LogReader(log).messages() if one.kind == "pixels"]
        assert found == [picture(50 + number).tobytes() for number in (1, 2, 3)]
        sockets = ["--sockets", str(daemon.sockets), "--model", "tiny"]
        assert cli.main(["drive", str(tmp_path / "x.mcap"), "--input", str(two), "--stream", "top", *sockets]) == 3
        assert cli.main(["drive", str(tmp_path / "x.mcap"), "--stream", "right", *sockets]) == 2  # of no log


def test_cameras_of_several_rates_run_at_their_own(tmp_path: Path, maker: BundleMaker) -> None:
    """Of a model that takes one of them every frame runs, also where the other camera has none."""
    log = tmp_path / "rates.mcap"
    write_log([part("left", range(100, 600, 50)), part("right", range(100, 600, 100), seed=50)], log)
    bundles = [maker.write(TinyModel("add", name=name, streams=(stream,)), f"{name}.fenced")
               for name, stream in (("tiny", "left"), ("other", "right"))]  # fmt: skip
    with DaemonThread(tmp_path, bundles, maker) as daemon:
        found = LogReader(driven(daemon, log)).info().counts
    assert (found["/camera/left/submit"], found["/camera/right/submit"]) == (10, 5)
    assert found["/model/tiny/result"] == 10


def test_so_many_sets_are_driven_as_were_asked_for(two: Path, tmp_path: Path, maker: BundleMaker) -> None:
    bundle = maker.write(TinyModel("pair", streams=("left", "right"), max_skew_ns=20 * MS))
    with DaemonThread(tmp_path, [bundle], maker) as daemon:
        log = driven(daemon, two, "--frames", "3")
    assert len(order(log)) == 5
    assert LogReader(log).info().counts["/model/tiny/result"] == 2  # the last frame waits for its partner to the end


def test_a_scenario_takes_no_log_of_several_cameras(two: Path) -> None:
    with pytest.raises(ScenarioRefused, match="expected a log of one camera, found left, right"):
        make_view(CameraPlan("log", frames=two), None, frame_format(), 20.0)


def test_a_frame_that_waits_for_its_partner_gets_no_other(tmp_path: Path, maker: BundleMaker) -> None:
    """In lock-step sets follow at once; a queue that holds the one before must not make partners of strangers."""
    slow = tmp_path / "slow.mcap"
    write_log([part("left", (100, 500, 900)), part("right", (104, 904), seed=50)], slow)
    model = TinyModel("pair", streams=("left", "right"), max_skew_ns=200 * MS)
    more = '[stream.left]\nqueueing = "fifo"\n[stream.right]\n'
    with DaemonThread(tmp_path, [maker.write(model)], maker, more=more) as daemon:
        log = driven(daemon, slow)
    results = (
        Receipt.from_result(RESULT.unpack(one.data)) for one in LogReader(log).messages() if one.kind == "result"
    )
    assert [[frame.sequence for frame in one.frames] for one in results] == [[1, 1], [3, 3]]
