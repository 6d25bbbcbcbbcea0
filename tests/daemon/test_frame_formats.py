"""Formats that cameras declared wrongly in the field, over the real socket: refused by name, and the session goes on.

Row numbers are those of cases/frames.md; tests/test_frame_cases.py has the whole index.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from abi import messages as m
from abi.format import ChromaSite, ClockId, Matrix, Primaries, Range, TimeMark, Transfer, make_format
from abi.graph import Graph
from abi.packet import RefusalCode
from abi.stream_format import Plane, StreamFormat
from hal.memory import create_sealed
from tests.support.bundles import BundleMaker, TinyModel, frame_format
from tests.support.daemons import DaemonThread
from tests.support.raw_peer import RawPeer, close_all, good_descriptors

OWN = {"clock": ClockId.MONOTONIC, "mark": TimeMark.EXPOSURE_START, "period_ns": 50_000_000, "camera_name": "raw"}
LUMA = Plane(0, 1280, 720, 921_600)


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaemonThread]:
    folder = tmp_path_factory.mktemp("formats")
    (folder / "models").mkdir()
    maker = BundleMaker(folder / "models")
    with DaemonThread(folder, [maker.write(TinyModel())], maker) as running:
        yield running


def nv12(**changes: object) -> StreamFormat:
    made = make_format("NV12", 1280, 720, range=Range.LIMITED, matrix=Matrix.BT709, primaries=Primaries.BT709,
                       transfer=Transfer.BT709, chroma_site=ChromaSite.LEFT, **OWN)  # type: ignore[arg-type]  # fmt: skip
    return replace(made, **changes)  # type: ignore[arg-type]


def rgb(name: str, width: int, height: int, **changes: object) -> StreamFormat:
    made = make_format(name, width, height, range=Range.FULL, matrix=Matrix.IDENTITY, primaries=Primaries.BT709,
                       transfer=Transfer.SRGB, chroma_site=ChromaSite.NOT_SUBSAMPLED, **OWN)  # type: ignore[arg-type]  # fmt: skip
    return replace(made, **changes)  # type: ignore[arg-type]


FIELDS = {
    "format.range": ({"range": Range.UNSPECIFIED}, {"range": Range.LIMITED}),
    "format.transfer": ({"transfer": Transfer.UNSPECIFIED}, {"transfer": Transfer.SRGB}),
}


@pytest.mark.parametrize("field", FIELDS)
def test_a_field_has_one_name_whether_it_is_wrong_or_only_not_the_models(daemon: DaemonThread, field: str) -> None:
    with RawPeer(daemon) as peer:
        answers = [peer.open_unchecked(replace(frame_format(), **changes)) for changes in FIELDS[field]]  # type: ignore[arg-type]
    assert [(one.code, one.what) for one in answers if isinstance(one, m.Refusal)] == [
        (RefusalCode.BAD_FORMAT, field), (RefusalCode.FORMAT_MISMATCH, field),
    ]  # fmt: skip


def plane_of(format: StreamFormat, **changes: int) -> tuple[Plane]:
    return (replace(format.planes[0], **changes),)


R8_4096 = rgb("R8", 4096, 16)
BGR = rgb("BGR24", 1280, 720)
SMALL = rgb("R8", 40, 25)  # 1000 bytes
CASES = {
    "3 stride beyond the buffer": (
        replace(R8_4096, planes=plane_of(R8_4096, stride=4128)), "planes[0].sizeBytes", "66016", "65536",
    ),
    "3 stride and size beyond the buffer": (
        replace(R8_4096, planes=plane_of(R8_4096, stride=4128, size_bytes=4128 * 16)), "planes[0]", "65536", "66048",
    ),
    "5 chroma one byte short": (
        nv12(planes=(LUMA, Plane(921_600, 1280, 360, 460_799))), "planes[1].sizeBytes", "460800", "460799",
    ),
    "10 range": (nv12(range=Range.UNSPECIFIED), "range", "LIMITED, FULL", "UNSPECIFIED"),
    "10 matrix": (nv12(matrix=Matrix.UNSPECIFIED), "matrix", "BT709", "UNSPECIFIED"),
    "10 primaries": (nv12(primaries=Primaries.UNSPECIFIED), "primaries", "BT2020", "UNSPECIFIED"),
    "10 transfer": (nv12(transfer=Transfer.UNSPECIFIED), "transfer", "SRGB", "UNSPECIFIED"),
    "10 chroma site": (nv12(chroma_site=ChromaSite.UNSPECIFIED), "chromaSite", "TOP_LEFT", "UNSPECIFIED"),
    "10 clock": (nv12(clock=ClockId.UNSPECIFIED), "clock", "BOOTTIME", "UNSPECIFIED"),
    "20 negative stride": (
        nv12(planes=(replace(LUMA, stride=-640), nv12().planes[1])), "planes[0].stride", "1280..", "-640",
    ),
    "21 zero stride": (replace(BGR, planes=plane_of(BGR, stride=0)), "planes[0].stride", "3840..", "0"),
    "22 a multiply that wraps 32 bits": (
        replace(rgb("ABGR8888", 1, 1), width=1_073_741_825), "width", "32768", "1073741825",
    ),
    "31 an offset far outside": (
        replace(SMALL, planes=plane_of(SMALL, offset=1 << 40)), "planes[0]", "1000 bytes", str(1 << 40),
    ),
    "a tiled modifier": (nv12(modifier=0x0100_0000_0000_0001), "modifier", "DRM_FORMAT_MOD_LINEAR", "INTEL layout 0x1"),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_a_wrongly_declared_format_is_refused_by_field_and_sizes(daemon: DaemonThread, case: str) -> None:
    format, field, expected, found = CASES[case]
    with RawPeer(daemon) as peer:
        refusal = peer.open_unchecked(format)
        assert isinstance(refusal, m.Refusal)
        assert refusal.code is RefusalCode.BAD_FORMAT
        assert refusal.what.endswith(field)
        assert expected in refusal.expected
        assert found in refusal.found
        assert refusal.action
        assert isinstance(peer.ask(m.OpenStream("road", frame_format())), m.StreamOpened)  # the session goes on
    daemon.wait_for(lambda status: status["peers"]["camera"] == 0)


def test_a_buffer_laid_out_for_another_stride_is_refused_at_registration(tmp_path: Path, maker: BundleMaker) -> None:
    wide = make_format("R8", 4096, 16, stride=4128, range=Range.FULL, matrix=Matrix.IDENTITY,
                       primaries=Primaries.SENSOR_NATIVE, transfer=Transfer.LINEAR,
                       chroma_site=ChromaSite.NOT_SUBSAMPLED)  # fmt: skip

    def widened(graph: Graph) -> Graph:
        frame = replace(graph.buffers[0], size_bytes=wide.buffer_bytes)
        return replace(graph, buffers=(frame, *graph.buffers[1:]), frames=(replace(graph.frames[0], format=wide),))

    bundle = maker.write(TinyModel(), edit_graph=widened)
    with DaemonThread(tmp_path, [bundle], maker) as daemon, RawPeer(daemon) as peer:
        opened = peer.ask(m.OpenStream("road", replace(wide, **OWN)))  # type: ignore[arg-type]
        assert isinstance(opened, m.StreamOpened)
        narrow = good_descriptors(1, 4096 * 16)
        refusal = peer.ask(m.RegisterBuffers(opened.stream_id, 1), narrow)
        assert isinstance(refusal, m.Refusal)
        assert refusal.code is RefusalCode.BAD_BUFFER
        assert refusal.what == "buffer 0, descriptor"
        assert ("66048" in refusal.expected, "65536" in refusal.found) == (True, True)
        close_all(narrow)


def test_memory_that_was_shrunk_or_could_be_is_refused_at_registration(daemon: DaemonThread) -> None:
    with RawPeer(daemon) as peer:
        opened = peer.ask(m.OpenStream("road", frame_format()))
        assert isinstance(opened, m.StreamOpened)
        unsealed = os.memfd_create("unsealed", os.MFD_ALLOW_SEALING)
        os.ftruncate(unsealed, frame_format().buffer_bytes)
        descriptors = (create_sealed("lease", 64), unsealed)
        refusal = peer.ask(m.RegisterBuffers(opened.stream_id, 1), descriptors)
        assert isinstance(refusal, m.Refusal)
        assert refusal.code is RefusalCode.BAD_BUFFER
        assert "F_SEAL_SHRINK" in refusal.expected
        os.ftruncate(unsealed, 1)  # which it could, so it was right to be refused
        close_all(descriptors)
    daemon.wait_for(lambda status: status["peers"]["camera"] == 0)
