"""A log is what its summary says, or is refused; a log that was cut off reads up to its last whole chunk."""

from __future__ import annotations

import errno
import random
import resource
from pathlib import Path
from random import Random
from typing import Any

import pytest
from mcap.reader import make_reader

from lab.replay.log import LogReader, LogWriter
from lab.replay.mcap_writer import McapWriter
from lab.replay.refusal import LogRefusal, LogRefused

FRAME_BYTES = 300_000


def frame_bytes(index: int) -> bytes:
    return random.Random(index).randbytes(FRAME_BYTES)


def write_log(path: Path, frames: int = 12) -> None:
    with LogWriter(path, about={"source": "test"}) as log:
        for index in range(frames):
            log.write("/note/submit", index.to_bytes(8, "little"), index)
            log.write("/note/pixels", frame_bytes(index), index)


def test_a_log_reads_back_as_it_was_written(tmp_path: Path) -> None:
    write_log(tmp_path / "a.mcap")
    reader = LogReader(tmp_path / "a.mcap")
    pixels = [m.data for m in reader.messages() if m.topic == "/note/pixels"]
    assert pixels == [frame_bytes(i) for i in range(12)]
    info = reader.info()
    info.verify()
    assert info.counts == {"/note/submit": 12, "/note/pixels": 12}
    assert info.about["source"] == "test"
    assert info.about["abiVersion"] == "1"


def test_the_callers_buffer_is_free_after_write(tmp_path: Path) -> None:
    buffer = bytearray(b"a" * 64)
    with LogWriter(tmp_path / "a.mcap") as log:
        log.write("/note/pixels", memoryview(buffer), 0)
        buffer[:] = b"b" * 64
    assert [m.data for m in LogReader(tmp_path / "a.mcap").messages()] == [b"a" * 64]


def test_a_recorder_that_was_killed_leaves_a_readable_but_unfinished_log(tmp_path: Path) -> None:
    write_log(tmp_path / "whole.mcap")
    whole = (tmp_path / "whole.mcap").read_bytes()
    for part in (0.2, 0.5, 0.75):
        cut = tmp_path / f"cut{part}.mcap"
        cut.write_bytes(whole[: int(len(whole) * part)])
        info = LogReader(cut).info()
        assert not info.finished
        with pytest.raises(LogRefused) as refused:
            info.verify()
        assert refused.value.code is LogRefusal.UNFINISHED
    assert 0 < sum(LogReader(tmp_path / "cut0.5.mcap").info().counts.values()) < 24


@pytest.mark.parametrize("part", [0.1, 0.25, 0.5, 0.9])
def test_a_flipped_byte_in_a_chunk_is_refused(tmp_path: Path, part: float) -> None:
    write_log(tmp_path / "a.mcap")
    damaged = bytearray((tmp_path / "a.mcap").read_bytes())
    damaged[int(len(damaged) * part)] ^= 0x10
    (tmp_path / "a.mcap").write_bytes(damaged)
    with pytest.raises(LogRefused) as refused:
        LogReader(tmp_path / "a.mcap").info().verify()
    assert refused.value.code in (LogRefusal.UNREADABLE, LogRefusal.DIGEST)


@pytest.mark.parametrize("length", [1 << 40, 1 << 62, (1 << 64) - 1])
def test_a_record_with_a_length_that_no_file_has_is_refused(tmp_path: Path, length: int) -> None:
    write_log(tmp_path / "a.mcap", frames=1)
    damaged = bytearray((tmp_path / "a.mcap").read_bytes())
    damaged[9:17] = length.to_bytes(8, "little")  # of the first record: magic, opcode, length
    (tmp_path / "a.mcap").write_bytes(damaged)
    with pytest.raises(LogRefused) as refused:
        LogReader(tmp_path / "a.mcap").info()
    assert refused.value.code is LogRefusal.UNREADABLE


def test_a_log_whose_summary_belongs_to_another_is_refused(tmp_path: Path) -> None:
    write_log(tmp_path / "a.mcap")
    write_log(tmp_path / "b.mcap", frames=11)
    info, other = LogReader(tmp_path / "a.mcap").info(), LogReader(tmp_path / "b.mcap").info()
    info.claimed = other.claimed
    with pytest.raises(LogRefused) as refused:
        info.verify()
    assert refused.value.code is LogRefusal.DIGEST


@pytest.mark.parametrize("content", [b"", b"not mcap at all", b"\x89MCAP0\r\n" + b"\xff" * 64])
def test_other_files_are_refused_by_name(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "x.mcap").write_bytes(content)
    with pytest.raises(LogRefused) as refused:
        LogReader(tmp_path / "x.mcap").info()
    assert refused.value.code in (LogRefusal.UNREADABLE, LogRefusal.NOT_A_FENCED_LOG)
    assert "x.mcap" in str(refused.value)


def test_a_log_is_never_written_over(tmp_path: Path) -> None:
    write_log(tmp_path / "a.mcap")
    with pytest.raises(FileExistsError):
        LogWriter(tmp_path / "a.mcap")


def test_a_full_disk_is_told_to_the_recorder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    log = LogWriter(tmp_path / "a.mcap")
    monkeypatch.setattr(McapWriter, "add_message", full)
    log.write("/note/pixels", bytes(8), 0)
    with pytest.raises(LogRefused, match="No space left") as refused:
        log.close()
    assert refused.value.code is LogRefusal.WRITE


@pytest.mark.parametrize("room", [100, 1_000_000, 3_602_300])  # of the opening, of the frames, of the summary
def test_a_log_that_outgrows_its_room_is_refused_wherever_it_ends(tmp_path: Path, room: int) -> None:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:  # the kernel's own refusal; also the file's buffer, which closing writes again, is met by it
        resource.setrlimit(resource.RLIMIT_FSIZE, (room, before[1]))
        with pytest.raises(LogRefused, match="File too large") as refused:
            write_log(tmp_path / "a.mcap")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert refused.value.code is LogRefusal.WRITE
    assert (tmp_path / "a.mcap").stat().st_size == room


def test_other_readers_find_everything_by_its_index(tmp_path: Path) -> None:
    path = tmp_path / "a.mcap"
    blocks = [Random(at).randbytes(300_000) for at in range(10)]
    with LogWriter(path, about={"source": "a test"}) as log:
        for at, block in enumerate(blocks):
            log.write("/note/pixels", block, 10 * at)
            log.write("/note/x", b"{}", 10 * at + 1)
    with path.open("rb") as file:
        reader = make_reader(file, validate_crcs=True)
        summary = reader.get_summary()
        assert summary is not None
        assert summary.statistics is not None
        assert (summary.statistics.message_count, summary.statistics.chunk_count) == (20, len(summary.chunk_indexes))
        assert len(summary.chunk_indexes) > 1
        assert sorted(channel.topic for channel in summary.channels.values()) == ["/note/pixels", "/note/x"]
        found = [one.data for _, _, one in reader.iter_messages("/note/pixels", starting_at=30, ending_before=60)]
        assert found == blocks[3:6]
        assert [one.name for one in reader.iter_metadata()] == ["fenced.log", "fenced.summary"]
        assert reader.get_header().profile == "fenced"
