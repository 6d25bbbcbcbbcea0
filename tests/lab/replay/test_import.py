"""Imported drives hold the samples as they were, and nothing about them is guessed."""

from __future__ import annotations

import json
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
from numpy.typing import NDArray

from abi.colour import CfaOrder, ChromaSite, ClockId, Matrix, Primaries, Range, TimeMark, Transfer
from abi.flat import SUBMIT, Submit
from abi.format import make_format
from abi.messages import OpenStream, decode
from abi.packet import Kind
from abi.stream_format import StreamFormat
from lab import cli
from lab.replay.importers.contract import Flags, Stated, settle, spelled
from lab.replay.importers.samples import LAYOUTS, Family, Samples, pack
from lab.replay.log import LogReader
from lab.replay.picture import rgb_of, write_png
from lab.replay.refusal import LogRefusal, LogRefused
from lab.replay.replay import replay
from tests.support.bundles import HEIGHT, WIDTH, BundleMaker, TinyModel, frame_format
from tests.support.daemons import DaemonThread, picture

ROWS, COLUMNS = 48, 64


def read(path: Path) -> tuple[StreamFormat, list[Submit], list[NDArray[np.uint8]], dict[str, str]]:
    """A verified log's format, submits, buffers, and who stated what."""
    reader = LogReader(path)
    reader.info().verify()
    found = list(reader.messages())
    opened = decode(Kind.OPEN_STREAM, next(one.data for one in found if one.kind == "format"))
    assert isinstance(opened, OpenStream)
    submits = [SUBMIT.unpack(one.data) for one in found if one.kind == "submit"]
    pixels = [np.frombuffer(one.data, np.uint8) for one in found if one.kind == "pixels"]
    return opened.format, submits, pixels, json.loads(next(one.data for one in found if one.kind == "note"))


def noise(rows: int, columns: int, seed: int = 0) -> NDArray[np.uint8]:
    return np.random.default_rng(seed).integers(0, 256, (rows, columns, 3), np.uint8)


def write_video(path: Path, times: list[int], **colour: int) -> list[NDArray[np.uint8]]:
    """Lossless 4:2:0, shown at `times` (ms); returns Y, Cb, Cr of each one after another."""
    planes = []
    with av.open(str(path), "w") as container:
        stream: Any = container.add_stream("ffv1", rate=1000)
        stream.width, stream.height, stream.pix_fmt = COLUMNS, ROWS, "yuv420p"
        stream.codec_context.time_base = Fraction(1, 1000)
        for name, value in colour.items():
            setattr(stream.codec_context, name, value)
        for index, time in enumerate(times):
            flat = np.random.default_rng(index).integers(0, 256, (ROWS * 3 // 2, COLUMNS), np.uint8)
            frame = av.VideoFrame.from_ndarray(flat, "yuv420p")
            frame.pts, frame.time_base = time, Fraction(1, 1000)
            for name, value in colour.items():
                setattr(frame, name, value)
            container.mux(stream.encode(frame))
            planes.append(flat.reshape(-1))
        container.mux(stream.encode(None))
    return planes


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    capsys.readouterr()
    assert cli.main(["import", *arguments]) == 3
    return capsys.readouterr().err


BT709 = {"colorspace": 1, "color_range": 1, "color_primaries": 1, "color_trc": 1}


def test_a_real_drive_comes_over_sample_by_sample(
    shared_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    drive, log = shared_dir / "data" / "road.mp4", tmp_path / "road.mcap"
    arguments = ["video", str(drive), "-o", str(log), "--stream", "road", "--format", "YU12", "--frames", "3"]
    assert "--chroma-site" in refused(capsys, *arguments)
    assert not log.exists()
    assert cli.main(["import", *arguments, "--chroma-site", "left"]) == 0
    format, submits, pixels, told = read(log)
    assert (format.width, format.height, format.period_ns) == (960, 540, 40_000_000)
    assert (format.range, format.matrix, format.chroma_site) == (Range.LIMITED, Matrix.BT601, ChromaSite.LEFT)
    assert "coded stream" in told["matrix"]
    assert "command line" in told["chroma_site"]
    assert [one.sof_ns for one in submits] == [1_000_000_000, 1_040_000_000, 1_080_000_000]
    with av.open(str(drive)) as container:
        for found, frame in zip(pixels, container.decode(video=0), strict=False):
            assert np.array_equal(found, frame.to_ndarray().reshape(-1))


def test_a_video_keeps_its_own_times_and_says_who_said_what(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    video, log = tmp_path / "v.mkv", tmp_path / "v.mcap"
    planes = write_video(video, [0, 50, 220], **BT709)
    arguments = ["video", str(video), "-o", str(log), "--stream", "road", "--chroma-site", "center"]
    error = refused(capsys, *arguments, "--range", "full")
    assert "import-contradiction" in error
    assert "limited by the coded stream" in error
    assert not log.exists()
    assert cli.main(["import", *arguments, "--rate-hz", "20"]) == 0
    format, submits, pixels, _ = read(log)
    assert [(one.sof_ns - submits[0].sof_ns) // 1_000_000 for one in submits] == [0, 50, 220]
    assert (format.pixel.name, format.period_ns, format.clock) == ("NV12", 50_000_000, ClockId.MONOTONIC)
    luma, chroma = pixels[1][: ROWS * COLUMNS], pixels[1][ROWS * COLUMNS :]
    assert np.array_equal(luma, planes[1][: ROWS * COLUMNS])
    assert np.array_equal(chroma[0::2], planes[1][ROWS * COLUMNS :].reshape(2, -1)[0])
    assert cli.main(["import", *arguments]) == 3  # it is there already, and stays as it is
    assert read(log)[1] == submits


def test_everything_that_nobody_states_is_asked_for_at_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_video(tmp_path / "v.mkv", [0, 50])
    error = refused(capsys, "video", str(tmp_path / "v.mkv"), "-o", str(tmp_path / "v.mcap"), "--stream", "road")
    assert "import-unstated" in error
    assert "--range limited|full; --matrix" in error
    assert error.count("--") == 5  # range, matrix, primaries, transfer, chroma site
    assert "import-unstated" in refused(capsys, "video", str(tmp_path / "v.mkv"), "-o", str(tmp_path / "v.mcap"))


def test_a_folder_of_pictures_in_the_order_of_its_numbers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder, log = tmp_path / "pictures", tmp_path / "p.mcap"
    folder.mkdir()
    for number in (10, 2, 1):
        write_png(folder / f"{number}.png", noise(ROWS, COLUMNS, number))
    given = ["--stream", "road", "--range", "full", "--primaries", "bt709", "--transfer", "srgb"]
    arguments = ["images", str(folder), "-o", str(log), *given]
    assert "--rate-hz RATE" in refused(capsys, *arguments)
    assert cli.main(["import", *arguments, "--rate-hz", "10"]) == 0
    format, submits, pixels, _ = read(log)
    assert (format.pixel.name, format.matrix, format.period_ns) == ("RGB24", Matrix.IDENTITY, 100_000_000)
    assert [one.sof_ns - submits[0].sof_ns for one in submits] == [0, 100_000_000, 200_000_000]
    for found, number in zip(pixels, (1, 2, 10), strict=True):
        assert np.array_equal(found, noise(ROWS, COLUMNS, number).reshape(-1))
    write_png(folder / "3.png", noise(ROWS, COLUMNS + 2))
    log.unlink()
    error = refused(capsys, *arguments, "--rate-hz", "10")
    assert "3.png is not as the pictures before it" in error
    assert not log.exists()
    (folder / "0.png").write_bytes(b"no picture")
    assert "0.png could not be decoded" in refused(capsys, *arguments, "--rate-hz", "10")


def test_a_jpeg_is_what_its_standard_says(tmp_path: Path) -> None:
    codec: Any = av.CodecContext.create("mjpeg", "w")
    codec.width, codec.height, codec.pix_fmt, codec.time_base = COLUMNS, ROWS, "yuvj420p", Fraction(1, 20)
    frame = av.VideoFrame.from_ndarray(np.full((ROWS * 3 // 2, COLUMNS), 90, np.uint8), "yuvj420p")
    (tmp_path / "p").mkdir()
    (tmp_path / "p" / "1.jpg").write_bytes(b"".join(map(bytes, [*codec.encode(frame), *codec.encode(None)])))
    log = tmp_path / "p.mcap"
    given = ["--stream", "road", "--primaries", "bt709", "--transfer", "srgb", "--rate-hz", "20"]
    assert cli.main(["import", "images", str(tmp_path / "p"), "-o", str(log), *given]) == 0
    format, _, pixels, told = read(log)
    assert (format.range, format.matrix, format.chroma_site) == (Range.FULL, Matrix.BT601, ChromaSite.CENTER)
    assert "T.871" in told["matrix"]
    assert abs(int(pixels[0][0]) - 90) <= 1


def test_pictures_that_no_format_holds_without_loss_are_refused(tmp_path: Path) -> None:
    codec: Any = av.CodecContext.create("png", "w")
    codec.width, codec.height, codec.pix_fmt, codec.time_base = COLUMNS, ROWS, "rgb48be", Fraction(1, 20)
    deep = av.VideoFrame.from_ndarray(np.zeros((ROWS, COLUMNS, 3), np.uint16), "rgb48be")
    (tmp_path / "1.png").write_bytes(b"".join(map(bytes, [*codec.encode(deep), *codec.encode(None)])))
    given = ["--stream", "road", "--rate-hz", "20"]
    assert cli.main(["import", "images", str(tmp_path), "-o", str(tmp_path / "p.mcap"), *given]) == 3


COLOUR: dict[str, Any] = {"range": Range.FULL, "primaries": Primaries.BT709, "transfer": Transfer.SRGB}
CAMERA: dict[str, Any] = {
    "clock": ClockId.MONOTONIC,
    "mark": TimeMark.EXPOSURE_START,
    "period_ns": 50_000_000,
    "camera_name": "c",
}


@pytest.mark.parametrize("size", [(6, 4), (7, 5)])
def test_all_layouts_of_one_picture_show_the_same(size: tuple[int, int]) -> None:
    columns, rows = size
    sample = np.random.default_rng(1)

    def plane(*shape: int) -> NDArray[np.uint8]:
        return sample.integers(0, 256, shape, np.uint8)

    half = (-(-rows // 2), -(-columns // 2))
    made = {
        Family.YUV420: Samples(Family.YUV420, (plane(rows, columns), plane(*half), plane(*half))),
        Family.YUV422: Samples(Family.YUV422, (plane(rows, columns), plane(rows, half[1]), plane(rows, half[1]))),
        Family.RGB: Samples(Family.RGB, (plane(rows, columns, 3),)),
    }
    for family, samples in made.items():
        yuv = family is not Family.RGB
        own: dict[str, Any] = {
            "matrix": Matrix.BT601 if yuv else Matrix.IDENTITY,
            "chroma_site": ChromaSite.LEFT if yuv else ChromaSite.NOT_SUBSAMPLED,
        }
        shown = []
        for name in LAYOUTS[family]:
            format = make_format(name, columns, rows, stride=columns * 4 + 32, rows=rows + 1, **COLOUR, **own, **CAMERA)
            shown.append(rgb_of(pack(samples, format), format))
        assert all(np.array_equal(one, shown[0]) for one in shown)
        if not yuv:
            assert np.array_equal(shown[0], samples.planes[0])
    wide = sample.integers(0, 1 << 12, (rows, columns), np.uint16)
    format = make_format("R12", columns, rows, matrix=Matrix.IDENTITY, chroma_site=ChromaSite.NOT_SUBSAMPLED,
                         stride=64, **COLOUR, **CAMERA)  # fmt: skip
    found = pack(Samples(Family.MONO16, (wide,)), format)
    assert np.array_equal(found.reshape(rows, 64)[:, : 2 * columns].copy().view("<u2"), wide)


def test_a_spec_states_the_whole_contract() -> None:
    contract = make_format("NV21", 64, 48, matrix=Matrix.BT601, chroma_site=ChromaSite.LEFT, stride=128, **COLOUR)
    stated = {"clock": Stated(ClockId.REALTIME, "x"), "mark": Stated(TimeMark.EXPOSURE_END, "x")}
    flags = Flags("road", contract=contract)
    format, told = settle(flags, LAYOUTS[Family.YUV420], (64, 48), stated, 1000)
    assert format == replace(contract, clock=ClockId.REALTIME, mark=TimeMark.EXPOSURE_END, period_ns=1000,
                             camera_name="road")  # fmt: skip
    assert told["matrix"] == "bt601, stated by the spec"
    for layouts, size, code in (
        (LAYOUTS[Family.YUV420], (64, 50), LogRefusal.PICTURES),
        (LAYOUTS[Family.RGB], (64, 48), LogRefusal.PICTURES),
    ):
        with pytest.raises(LogRefused) as caught:
            settle(flags, layouts, size, stated, 1000)
        assert caught.value.code is code
    with pytest.raises(LogRefused) as caught:
        settle(flags, LAYOUTS[Family.YUV420], (64, 48), {**stated, "range": Stated(Range.LIMITED, "the file")}, 1000)
    assert caught.value.code is LogRefusal.CONTRADICTION
    with pytest.raises(LogRefused) as caught:  # what contradicts the layout
        settle(Flags("road", {**COLOUR, "matrix": Matrix.BT709}), LAYOUTS[Family.RGB], (64, 48), stated, 1000)
    assert caught.value.code is LogRefusal.CONTRADICTION
    assert CfaOrder.NONE.name.lower() in told["cfa"]


def test_an_imported_drive_is_driven_into_a_bundle_and_replayed(tmp_path: Path, maker: BundleMaker) -> None:
    folder, log, driven = tmp_path / "pictures", tmp_path / "p.mcap", tmp_path / "driven.mcap"
    folder.mkdir()
    for number in range(1, 4):
        grey = picture(number).reshape(HEIGHT, WIDTH)
        (folder / f"{number}.pgm").write_bytes(b"P5\n%d %d\n255\n" % (WIDTH, HEIGHT) + grey.tobytes())
    fields = ("range", "primaries", "transfer", "cfa")
    given = [f"--{name}={spelled(getattr(frame_format(), name))}" for name in fields]
    arguments = ["images", str(folder), "-o", str(log), "--stream", "road", "--rate-hz", "20", *given]
    assert cli.main(["import", *arguments]) == 0
    bundle = maker.write(TinyModel("add"))
    with DaemonThread(tmp_path, [bundle], maker) as daemon:
        sockets = ["--sockets", str(daemon.sockets)]
        assert cli.main(["drive", str(driven), "--input", str(log), "--rate-hz", "0", *sockets]) == 2  # which model?
        assert cli.main(["drive", str(driven), "--input", str(log), "--rate-hz", "0", "--model", "tiny", *sockets]) == 0
        with pytest.raises(LogRefused, match="fenced-lab drive"):
            replay(daemon.sockets, log)
        report = replay(daemon.sockets, driven)
    assert (report.passed, report.equal) == (True, 3)
    truths = [json.loads(one.data) for one in LogReader(driven).messages() if one.topic == "/note/truth"]
    assert [one["logged_sequence"] for one in truths] == [1, 2, 3]
    assert np.array_equal(read(driven)[2][2], picture(3))
