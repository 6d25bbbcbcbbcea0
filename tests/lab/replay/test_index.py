"""A log's index is what follows from its data, or is refused by name; what replay reads does not come by it."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from mcap.data_stream import RecordBuilder
from mcap.records import (
    Channel,
    ChunkIndex,
    DataEnd,
    Footer,
    McapRecord,
    MessageIndex,
    MetadataIndex,
    Statistics,
    SummaryOffset,
)
from mcap.stream_reader import StreamReader
from mcap.writer import Writer

from lab import cli
from lab.replay import log as logs
from lab.replay.log import LogReader, LogWriter
from lab.replay.played import Start, read_plan
from lab.replay.refusal import LogRefusal, LogRefused

Edit = Callable[[list[Any]], None]


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A log of three chunks and two topics."""
    monkeypatch.setattr(logs, "CHUNK_BYTES", 100)
    with LogWriter(tmp_path / "a.mcap", about={"source": "a test"}) as log:
        for at in range(6):
            log.write("/note/a", bytes([at]) * 60, 10 * at)
            log.write("/note/b", b"{}", 10 * at + 1)
    reader = LogReader(tmp_path / "a.mcap")
    info = reader.info()
    info.verify()
    assert info.index is None
    return tmp_path / "a.mcap"


def rewritten(path: Path, edit: Edit) -> LogReader:
    """The same file with other records: the data section's own bytes as they lie, what an edit changes anew."""
    with path.open("rb") as file:
        records: list[Any] = list(StreamReader(file, emit_chunks=True).records)
    edit(records)
    builder = RecordBuilder()
    for record in records:
        record.write(builder)
    magic = path.read_bytes()[:8]
    path.write_bytes(magic + builder.end() + magic)
    return LogReader(path)


def first(records: Sequence[Any], kind: type[McapRecord]) -> Any:
    return next(one for one in records if isinstance(one, kind))


def setting(kind: type[McapRecord], **values: Any) -> Edit:
    """Gives the first record of a kind other values, of the same size."""

    def edit(records: list[Any]) -> None:
        for name, value in values.items():
            setattr(first(records, kind), name, value)

    return edit


def dropping(kind: type[McapRecord]) -> Edit:
    def edit(records: list[Any]) -> None:
        records.remove(first(records, kind))

    return edit


def doubling(kind: type[McapRecord]) -> Edit:
    def edit(records: list[Any]) -> None:
        one = first(records, kind)
        records.insert(records.index(one), one)

    return edit


def swap_channels(records: list[Any]) -> None:
    """In the summary alone: a reader that goes by it takes one topic for the other."""
    at = next(index for index, one in enumerate(records) if isinstance(one, DataEnd))
    mine, other = (one for one in records[at:] if isinstance(one, Channel))
    mine.topic, other.topic = other.topic, mine.topic


EDITS: dict[str, tuple[Edit, str]] = {
    "a message index that leads elsewhere": (setting(MessageIndex, records=[(0, 7), (10, 99)]), "message index at"),
    "a message index of another channel": (setting(MessageIndex, channel_id=9), "of channel 9"),
    "no message index": (dropping(MessageIndex), "its message indexes"),
    "a message index twice": (doubling(MessageIndex), "a message index"),
    "a chunk that lies elsewhere": (setting(ChunkIndex, chunk_start_offset=77), "ChunkIndex 1: chunk_start_offset"),
    "a chunk of other times": (setting(ChunkIndex, message_end_time=9), "ChunkIndex 1: message_end_time"),
    "a chunk whose message indexes lie elsewhere": (
        setting(ChunkIndex, message_index_offsets={1: 5, 2: 6}), "ChunkIndex 1: message_index_offsets",
    ),
    "a chunk that no reader finds": (dropping(ChunkIndex), "ChunkIndex 1: "),
    "a chunk twice": (doubling(ChunkIndex), "ChunkIndex 2: "),
    "other counts": (setting(Statistics, message_count=11), "Statistics 1: message_count"),
    "other counts of a channel": (
        setting(Statistics, channel_message_counts={1: 5, 2: 7}), "Statistics 1: channel_message_counts"
    ),
    "no statistics": (dropping(Statistics), "how many of Statistics"),
    "topics that were swapped": (swap_channels, "Channel 1: topic"),
    "a metadata index that leads elsewhere": (setting(MetadataIndex, offset=8), "MetadataIndex 1: offset"),
    "a summary offset that leads elsewhere": (setting(SummaryOffset, group_start=1), "the summary's offsets"),
    "no summary offset": (dropping(SummaryOffset), "the summary's offsets"),
    "a footer that leads elsewhere": (setting(Footer, summary_start=1), "where the summary begins"),
    "a footer without a summary": (setting(Footer, summary_offset_start=0), "where the summary's offsets begin"),
    "another checksum": (setting(Footer, summary_crc=5), "its checksum"),
}  # fmt: skip


@pytest.mark.parametrize("case", EDITS)
def test_a_wrong_index_is_refused_by_name(path: Path, case: str, capsys: pytest.CaptureFixture[str]) -> None:
    edit, what = EDITS[case]
    before = list(LogReader(path).messages())
    reader = rewritten(path, edit)
    with pytest.raises(LogRefused, match="the index is wrong: ") as refused:
        reader.info().verify()
    assert refused.value.code is LogRefusal.INDEX
    assert what in refused.value.what
    assert refused.value.expected != refused.value.found
    assert cli.main(["log", "verify", str(path)]) == 3
    assert "log-index" in capsys.readouterr().err
    assert list(reader.messages()) == before  # what it tells is not believed
    info = reader.info()
    info.verify(index=False)
    assert info.index is not None


def test_an_index_as_it_was_is_right(path: Path) -> None:
    rewritten(path, lambda records: None).info().verify()


@pytest.mark.parametrize("left", [1, 8, 20, 200, 500])
def test_a_log_that_was_cut_in_its_index_is_refused_by_name(path: Path, left: int) -> None:
    path.write_bytes(path.read_bytes()[:-left])
    info = LogReader(path).info()
    assert info.finished
    with pytest.raises(LogRefused) as refused:
        info.verify()
    assert refused.value.code is LogRefusal.INDEX


def test_bytes_behind_the_end_are_refused(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b"x")
    with pytest.raises(LogRefused, match="what follows the footer") as refused:
        LogReader(path).info().verify()
    assert refused.value.found == "1 bytes"


def test_no_flipped_byte_of_an_index_goes_unseen(tmp_path: Path) -> None:
    path = tmp_path / "c.mcap"
    with LogWriter(path) as log:
        log.write("/note/a", b"{}", 1)
    whole, before = path.read_bytes(), LogReader(path).info()
    with path.open("rb") as file:
        footer: Any = list(StreamReader(file).records)[-1]
    for at in range(footer.summary_start, len(whole)):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        info = LogReader(path).info()
        assert info.index is not None, at
        assert (info.sha256, info.claimed) == (before.sha256, before.claimed)


def test_records_behind_the_data_are_none_of_it(path: Path) -> None:
    """A forged claim in the summary section, where no reader of the data looks."""

    def edit(records: list[Any]) -> None:
        claim = next(one for one in records if getattr(one, "name", "") == logs.SUMMARY)
        records.insert(len(records) - 1, replace(claim, metadata={**claim.metadata, "sha256": "00"}))

    info = rewritten(path, edit).info()
    info.verify(index=False)
    assert info.index is not None
    assert info.index.found == "Metadata"


def test_an_index_by_the_mcap_librarys_own_writer_is_right_too(tmp_path: Path) -> None:
    """With a checksum and empty groups, which our recorder does not write."""
    path = tmp_path / "b.mcap"
    with path.open("wb") as file:
        writer = Writer(file, chunk_size=100)
        writer.start(profile="fenced", library="another")
        writer.add_metadata(logs.OPENING, {"abiVersion": "1"})
        channel = writer.register_channel("/note/a", "json", writer.register_schema("note", "json", b""))
        for at in range(9):
            writer.add_message(channel, at, b"{}" * 20, at)
        writer.finish()
    info = LogReader(path).info()
    assert info.index is None
    data = bytearray(path.read_bytes())
    data[-12] ^= 1  # of the checksum, which stands before the magic
    path.write_bytes(data)
    fault = LogReader(path).info().index
    assert fault is not None
    assert fault.what == "the footer: its checksum of the summary"
    assert int(fault.expected) ^ int(fault.found) == 1


def test_a_replay_refuses_a_wrong_index_and_where_asked_to_goes_without_it(path: Path) -> None:
    reader = rewritten(path, setting(Statistics, message_count=11))
    with pytest.raises(LogRefused) as refused:
        read_plan(reader, Start(), partial=False)
    assert refused.value.code is LogRefusal.INDEX
    with pytest.raises(LogRefused, match="nothing that could be played") as refused:
        read_plan(reader, Start(), partial=True)
    assert refused.value.code is LogRefusal.FORMAT


def test_info_tells_of_a_wrong_index(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rewritten(path, setting(Statistics, message_count=11))
    assert cli.main(["log", "info", str(path)]) == 0
    assert "wrong: Statistics 1: message_count: expected 12, found 11" in capsys.readouterr().out
    assert cli.main(["--json", "log", "info", str(path)]) == 0
    told = json.loads(capsys.readouterr().out)["index"]
    assert told == {"what": "Statistics 1: message_count", "expected": "12", "found": "11"}
