"""ROS 2 bags, written by the library that reads them: raw and coded pictures, their stamps, and what is refused."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
from numpy.typing import NDArray
from rosbags.rosbag2 import StoragePlugin, Writer
from rosbags.typesys import Stores, get_typestore

from abi.colour import CfaOrder, ClockId, Matrix, TimeMark
from lab import cli
from tests.lab.replay.test_import import noise, read, refused

STORE = get_typestore(Stores.ROS2_HUMBLE)
IMAGE, COMPRESSED = "sensor_msgs/msg/Image", "sensor_msgs/msg/CompressedImage"
STAMPS_NS = (7_000_000_000, 7_050_000_000, 7_110_000_000)
LATE_NS = 3_000_000
CAMERA = ["--stream", "road", "--clock", "realtime", "--mark", "exposureEnd"]
COLOUR = ["--range", "full", "--primaries", "bt709", "--transfer", "srgb"]


def _message(kind: str, stamp_ns: int, **fields: object) -> Any:
    stamp = STORE.types["builtin_interfaces/msg/Time"](*divmod(stamp_ns, 1_000_000_000))  # type: ignore[call-arg]
    header = STORE.types["std_msgs/msg/Header"](stamp=stamp, frame_id="camera")  # type: ignore[call-arg]
    return STORE.types[kind](header=header, **fields)  # type: ignore[call-arg]


def write_bag(path: Path, pictures: Mapping[str, tuple[str, dict[str, Any]]], plugin: StoragePlugin) -> Path:
    """A bag in which every topic of `pictures` (kind, fields) comes at all stamps, taken a little later."""
    with Writer(path, version=9, storage_plugin=plugin) as writer:
        topics = {name: writer.add_connection(name, kind, typestore=STORE) for name, (kind, _) in pictures.items()}
        for stamp_ns in STAMPS_NS:
            for name, (kind, fields) in pictures.items():
                data = STORE.serialize_cdr(_message(kind, stamp_ns, **fields), kind)
                writer.write(topics[name], stamp_ns + LATE_NS, data)
    return path


def raw(encoding: str, data: NDArray[np.uint8], columns: int, *, big: int = 0) -> tuple[str, dict[str, Any]]:
    """An Image whose rows are `data` [rows, bytes] and five bytes of padding."""
    padded = np.concatenate([data, np.full((data.shape[0], 5), 77, np.uint8)], axis=1)
    fields = {"height": data.shape[0], "width": columns, "encoding": encoding, "is_bigendian": big,
              "step": padded.shape[1], "data": padded.reshape(-1)}  # fmt: skip
    return IMAGE, fields


@pytest.mark.parametrize("plugin", [StoragePlugin.MCAP, StoragePlugin.SQLITE3])
def test_raw_pictures_come_with_their_stamps(
    plugin: StoragePlugin, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    picture, log = noise(5, 7), tmp_path / "b.mcap"
    topics = {"/left": raw("bgr8", picture[:, :, ::-1].reshape(5, -1), 7), "/right": raw("mono8", picture[:, :, 0], 7)}
    bag = write_bag(tmp_path / "bag", topics, plugin)
    arguments = ["rosbag", str(bag), "-o", str(log), *CAMERA, *COLOUR]
    assert "/left, /right" in refused(capsys, *arguments)
    missing = refused(capsys, "rosbag", str(bag), "-o", str(log), "--topic", "/left", "--stream", "road")
    assert "nothing states range, primaries, transfer, clock, mark" in missing
    assert cli.main(["import", *arguments, "--topic", "/left"]) == 0
    format, submits, pixels, told = read(log)
    assert (format.pixel.name, format.matrix) == ("RGB24", Matrix.IDENTITY)
    assert (format.clock, format.mark, format.period_ns) == (ClockId.REALTIME, TimeMark.EXPOSURE_END, 55_000_000)
    assert tuple(one.sof_ns for one in submits) == STAMPS_NS
    assert all(np.array_equal(one, picture.reshape(-1)) for one in pixels)
    assert "command line" in told["clock"]


@pytest.mark.parametrize("big", [0, 1])
def test_mosaics_and_deep_samples_keep_their_codes(big: int, tmp_path: Path) -> None:
    codes, log = np.random.default_rng(0).integers(0, 1 << 12, (6, 8), np.uint16), tmp_path / "b.mcap"
    data = codes.astype(">u2" if big else "<u2").view(np.uint8)
    bag = write_bag(tmp_path / "bag", {"/raw": raw("bayer_grbg16", data, 8, big=big)}, StoragePlugin.MCAP)
    colour = ["--range", "full", "--primaries", "sensorNative", "--transfer", "linear"]
    assert cli.main(["import", "rosbag", str(bag), "-o", str(log), *CAMERA, *colour, "--format", "R12"]) == 0
    format, _, pixels, told = read(log)
    assert (format.pixel.name, format.cfa) == ("R12", CfaOrder.GRBG)
    assert "bayer_grbg16" in told["cfa"]
    assert np.array_equal(pixels[0].view("<u2").reshape(6, 8), codes)


@pytest.mark.parametrize(("encoding", "order"), [("yuv422", "UYVY"), ("yuv422_yuy2", "YUYV")])
def test_packed_pairs_of_pixels_come_over(encoding: str, order: str, tmp_path: Path) -> None:
    data, log = noise(4, 8)[:, :, :2].reshape(4, 16), tmp_path / "b.mcap"
    bag = write_bag(tmp_path / "bag", {"/raw": raw(encoding, data, 8)}, StoragePlugin.MCAP)
    arguments = ["rosbag", str(bag), "-o", str(log), *CAMERA, *COLOUR, "--matrix", "bt601", "--chroma-site", "left"]
    assert cli.main(["import", *arguments, "--format", order]) == 0
    assert np.array_equal(read(log)[2][0], data.reshape(-1))


def test_coded_pictures_are_decoded(tmp_path: Path) -> None:
    picture, log = noise(8, 8), tmp_path / "b.mcap"
    codec: Any = av.CodecContext.create("png", "w")
    codec.width, codec.height, codec.pix_fmt, codec.time_base = 8, 8, "rgb24", Fraction(1, 20)
    coded = b"".join(map(bytes, [*codec.encode(av.VideoFrame.from_ndarray(picture, "rgb24")), *codec.encode(None)]))
    fields = {"format": "rgb8; png compressed", "data": np.frombuffer(coded, np.uint8)}
    bag = write_bag(tmp_path / "bag", {"/coded": (COMPRESSED, fields)}, StoragePlugin.SQLITE3)
    assert cli.main(["import", "rosbag", str(bag), "-o", str(log), *CAMERA, *COLOUR]) == 0
    assert np.array_equal(read(log)[2][2], picture.reshape(-1))


@pytest.mark.parametrize("encoding", ["8UC3", "bayer_rggg8", "mono32"])
def test_an_encoding_that_does_not_say_its_channels_is_refused(
    encoding: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bag = write_bag(tmp_path / "bag", {"/raw": raw(encoding, noise(4, 4).reshape(4, -1), 4)}, StoragePlugin.MCAP)
    error = refused(capsys, "rosbag", str(bag), "-o", str(tmp_path / "b.mcap"), *CAMERA, *COLOUR)
    assert f"encoding {encoding!r}" in error
    assert "import-pictures" in error


def test_what_is_short_or_no_bag_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    kind, fields = raw("rgb8", noise(4, 4).reshape(4, -1), 4)
    short = write_bag(tmp_path / "bag", {"/raw": (kind, {**fields, "data": fields["data"][:-1]})}, StoragePlugin.MCAP)
    arguments = ["-o", str(tmp_path / "b.mcap"), *CAMERA, *COLOUR]
    assert "67 bytes with a step of 17" in refused(capsys, "rosbag", str(short), *arguments)
    (file,) = short.glob("*.mcap")
    file.write_bytes(file.read_bytes()[:-100])
    assert "import-source" in refused(capsys, "rosbag", str(short), *arguments)
    (tmp_path / "no").mkdir()
    assert "import-source" in refused(capsys, "rosbag", str(tmp_path / "no"), *arguments)
    assert cli.main(["import", "rosbag", str(tmp_path / "absent"), *arguments]) == 3
