"""openpilot segments, made here: the rlog's count and times for the pictures of an HEVC file."""

from __future__ import annotations

import bz2
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import capnp
import numpy as np
import pytest
import zstandard
from numpy.typing import NDArray

from abi.colour import ClockId, Range, TimeMark
from lab import cli
from lab.replay.importers import openpilot
from tests.lab.replay.test_import import read, refused

ROWS, COLUMNS = 64, 96
FRAME_IDS = (100, 101, 103, 104, 105, 106)  # 102 was dropped
BEGIN_NS = 9_000_000_000_000
ARGUMENTS = ["--stream", "road", "--matrix", "bt601", "--primaries", "bt709", "--transfer", "bt709"]
ARGUMENTS += ["--chroma-site", "left"]
SCHEMA: Any = capnp.load(str(Path(openpilot.__file__).with_name("openpilot.capnp")))


def sof_ns(frame_id: int) -> int:
    return BEGIN_NS + frame_id * 50_000_000


def rlog(event_name: str = "roadEncodeIdx") -> bytes:
    """Events of three cameras and others between, out of order as they come from several processes."""
    events = []
    for place, frame_id in reversed(list(enumerate(FRAME_IDS))):
        event = SCHEMA.Event.new_message(logMonoTime=sof_ns(frame_id) + 70_000_000)
        one = event.init(event_name)
        one.frameId, one.type, one.segmentId = frame_id, 1, place
        one.timestampSof, one.timestampEof = sof_ns(frame_id), sof_ns(frame_id) + 12_000_000
        events.append(event.to_bytes())
        other = SCHEMA.Event.new_message(logMonoTime=1, skipped18=None)
        qcamera = SCHEMA.Event.new_message(logMonoTime=2)
        qcamera.init(event_name).segmentId = place  # type 0: another encoder's
        events += [other.to_bytes(), qcamera.to_bytes()]
    return b"".join(events)


def write_hevc(path: Path) -> list[NDArray[np.uint8]]:
    """Lossless HEVC with frames out of order in the file; returns what is shown, in order."""
    shown = []
    codec: Any = av.CodecContext.create("libx265", "w")
    codec.width, codec.height, codec.pix_fmt, codec.time_base = COLUMNS, ROWS, "yuv420p", Fraction(1, 20)
    codec.color_range = 2
    codec.options = {"x265-params": "lossless=1:bframes=2:log-level=none:pools=none", "preset": "ultrafast"}
    data = b""
    for index in range(len(FRAME_IDS)):
        flat = np.random.default_rng(index).integers(0, 256, (ROWS * 3 // 2, COLUMNS), np.uint8)
        frame = av.VideoFrame.from_ndarray(flat, "yuv420p")
        frame.pts = index
        data += b"".join(map(bytes, codec.encode(frame)))
        shown.append(flat.reshape(-1))
    path.write_bytes(data + b"".join(map(bytes, codec.encode(None))))
    return shown


@pytest.fixture
def segment(tmp_path: Path) -> tuple[Path, list[NDArray[np.uint8]]]:
    folder = tmp_path / "a0--b1--3"
    folder.mkdir()
    (folder / "rlog").write_bytes(rlog())
    return folder, write_hevc(folder / "fcamera.hevc")


def test_pictures_get_their_own_count_and_times(
    segment: tuple[Path, list[NDArray[np.uint8]]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, shown = segment
    log = tmp_path / "s.mcap"
    bare = ["openpilot", str(folder), "-o", str(log), "--stream", "road"]
    assert "--matrix" in refused(capsys, *bare)
    assert cli.main(["import", "openpilot", str(folder), "-o", str(log), "--format", "YU12", *ARGUMENTS]) == 0
    format, submits, pixels, told = read(log)
    assert tuple(one.sequence - 1 for one in submits) == FRAME_IDS
    assert [one.sof_ns for one in submits] == [sof_ns(frame_id) for frame_id in FRAME_IDS]
    assert all(one.eof_ns - one.sof_ns == 12_000_000 for one in submits)
    assert (format.clock, format.mark, format.period_ns) == (ClockId.BOOTTIME, TimeMark.READOUT_START, 50_000_000)
    assert format.range is Range.FULL
    assert "openpilot" in told["clock"]
    assert all(np.array_equal(*pair) for pair in zip(pixels, shown, strict=True))


@pytest.mark.parametrize("packed", ["rlog.bz2", "rlog.zst"])
def test_an_rlog_may_be_packed_and_its_end_cut_off(packed: str, tmp_path: Path) -> None:
    plain = rlog("wideRoadEncodeIdx")
    (tmp_path / packed).write_bytes(
        bz2.compress(plain[:-5]) if packed.endswith("bz2") else zstandard.ZstdCompressor().compress(plain[:-5])
    )
    found = openpilot.encode_indices(tmp_path / packed, "wideRoadEncodeIdx")
    assert [one.frame_id for one in found] == list(FRAME_IDS)
    assert openpilot.encode_indices(tmp_path / packed, "driverEncodeIdx") == []


def test_frames_that_the_rlog_does_not_know_are_left_out(
    segment: tuple[Path, list[NDArray[np.uint8]]], tmp_path: Path
) -> None:
    folder, _ = segment
    whole = (folder / "rlog").read_bytes()
    (folder / "rlog").write_bytes(whole[len(whole) // 2 :])  # places 0 to 2
    log = tmp_path / "s.mcap"
    assert cli.main(["import", "openpilot", str(folder), "-o", str(log), *ARGUMENTS]) == 0
    assert [one.sequence - 1 for one in read(log)[1]] == list(FRAME_IDS[:3])


def test_what_is_no_segment_is_refused(
    segment: tuple[Path, list[NDArray[np.uint8]]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, _ = segment
    arguments = ["-o", str(tmp_path / "s.mcap"), *ARGUMENTS]
    assert cli.main(["import", "openpilot", str(folder), "--camera", "wide", *arguments]) == 3  # no ecamera.hevc
    (folder / "dcamera.hevc").write_bytes(b"")
    assert "knows nothing of dcamera.hevc" in refused(
        capsys, "openpilot", str(folder), "--camera", "driver", *arguments
    )
    (folder / "rlog").write_bytes(b"\xff" * 64)
    assert "rlog could not be read" in refused(capsys, "openpilot", str(folder), *arguments)
    (folder / "rlog").rename(folder / "rlog.bz2")
    assert "rlog.bz2 could not be read" in refused(capsys, "openpilot", str(folder), *arguments)


def test_the_schema_lies_where_cereals_does() -> None:
    """Places on the wire, as cereal's own log.capnp gives them (read off it by pycapnp)."""
    event, index = SCHEMA.Event.schema.node.struct, SCHEMA.EncodeIndex.schema.node.struct
    assert (event.dataWordCount, event.pointerCount, event.discriminantOffset) == (2, 1, 4)
    values = {field.name: (field.discriminantValue, field.slot.offset) for field in event.fields}
    assert values["roadEncodeIdx"] == (14, 0)
    assert values["driverEncodeIdx"] == (74, 0)
    assert values["wideRoadEncodeIdx"] == (75, 0)
    assert {field.name: field.slot.offset for field in index.fields} == {
        "frameId": 0, "type": 2, "encodeId": 2, "segmentNum": 3, "segmentId": 4, "segmentIdEncode": 5,
        "timestampSof": 3, "timestampEof": 4,
    }  # fmt: skip
