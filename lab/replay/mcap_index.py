"""Whether the index of an MCAP log leads to what lies in it: message indexes behind chunks, and the summary section.

Replay reads a log from beginning to end and needs no index; other readers (Foxglove, the `mcap` tool) find messages by
it alone, and a wrong one shows them another drive than was recorded. Everything in it follows from the data, so it is
built again from where the records lie, and must be equal, part by part.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from typing import IO, Any, Final

from mcap.data_stream import RecordBuilder
from mcap.opcode import Opcode
from mcap.records import (
    Channel,
    Chunk,
    ChunkIndex,
    DataEnd,
    Footer,
    Header,
    McapRecord,
    Message,
    MessageIndex,
    Metadata,
    MetadataIndex,
    Schema,
    Statistics,
    SummaryOffset,
)

__all__ = ["IndexAudit", "IndexFault"]

_SHOWN: Final = 160
_IN_DATA: Final = (Header, Chunk, MessageIndex, Metadata, DataEnd)
_GROUPS: Final = (
    (Schema, Opcode.SCHEMA), (Channel, Opcode.CHANNEL), (Statistics, Opcode.STATISTICS),
    (ChunkIndex, Opcode.CHUNK_INDEX), (MetadataIndex, Opcode.METADATA_INDEX),
)  # fmt: skip
"""What a summary section holds, in this order."""
_FOOTER_HEAD_BYTES: Final = 1 + 8 + 8 + 8
"""Of the footer what its checksum covers, if it has one: opcode, length, both places (mcap.dev/spec#footer-op0x02)."""


@dataclass(frozen=True)
class IndexFault:
    """The first thing that is wrong: `what`, what the data asks for, what was `found`."""

    what: str
    expected: str
    found: str


@dataclass
class _OpenChunk:
    """A chunk whose message indexes are still to come."""

    index: ChunkIndex
    end: int
    messages: dict[int, list[tuple[int, int]]]


def _written(record: McapRecord) -> bytes:
    builder = RecordBuilder()
    record.write(builder)
    data: bytes = builder.end()
    return data


class IndexAudit:
    """Told every record of a file in order, with where it lies; `fault` is known once the file has ended."""

    def __init__(self) -> None:
        self.fault: IndexFault | None = None
        self._found: dict[type, list[Any]] = {kind: [] for kind, _ in _GROUPS}
        self._data: dict[type, list[Any]] = {kind: [] for kind, _ in _GROUPS}
        self._offsets: list[SummaryOffset] = []
        self._places: dict[int, tuple[int, int]] = {}
        self._counts: dict[int, int] = {}
        self._span: tuple[int, int] | None = None
        self._open: _OpenChunk | None = None
        self._summary_begin: int | None = None
        self._footer_begin = self._crc = 0

    def take(self, record: McapRecord, begin: int, end: int, data: bytes) -> None:
        """A record in no chunk, which lies from `begin` up to `end` in the file; `data`: its bytes, but of chunks."""
        if data and data != _written(record):
            self._blame(f"{type(record).__name__} at byte {begin}", _written(record).hex(), data.hex())
        if self._summary_begin is not None:
            self._take_summary(record, begin, end)
            return
        if isinstance(record, MessageIndex):
            self._take_message_index(record, begin, end)
            return
        self._close_chunk()
        if isinstance(record, Chunk):
            index = ChunkIndex(
                chunk_length=end - begin, chunk_start_offset=begin, compression=record.compression,
                compressed_size=len(record.data), message_end_time=record.message_end_time, message_index_length=0,
                message_index_offsets={}, message_start_time=record.message_start_time,
                uncompressed_size=record.uncompressed_size,
            )  # fmt: skip
            self._open = _OpenChunk(index, end, {})
        elif isinstance(record, Metadata):
            self._data[MetadataIndex].append(MetadataIndex(offset=begin, length=end - begin, name=record.name))
        elif isinstance(record, DataEnd):
            self._summary_begin = end
        elif not isinstance(record, _IN_DATA):
            self._blame("the data section", "chunks and metadata", type(record).__name__)

    def take_message(self, message: Message, at: int) -> None:
        """A message of the chunk that was taken last, `at` so many bytes behind its uncompressed beginning."""
        assert self._open is not None
        self._open.messages.setdefault(message.channel_id, []).append((message.log_time, at))
        self._counts[message.channel_id] = self._counts.get(message.channel_id, 0) + 1

    def take_schema(self, schema: Schema) -> None:
        """A schema in a chunk."""
        self._data[Schema].append(schema)

    def take_channel(self, channel: Channel) -> None:
        """A channel in a chunk."""
        self._data[Channel].append(channel)

    def damaged(self, error: Exception) -> None:
        """The file could not be read any further."""
        self._blame("its end", "a whole summary section, footer and magic", f"{type(error).__name__}: {error}")

    def end(self, file: IO[bytes], size_bytes: int) -> None:
        """The footer and the magic behind it were read from a file of so many bytes."""
        if file.tell() != size_bytes:
            self._blame("what follows the footer", "nothing", f"{size_bytes - file.tell()} bytes")
        if self._summary_begin is not None and self._crc:
            file.seek(self._summary_begin)
            crc = zlib.crc32(file.read(self._footer_begin + _FOOTER_HEAD_BYTES - self._summary_begin))
            self._hold("the footer: its checksum of the summary", crc, self._crc)

    def _blame(self, what: str, expected: object, found: object) -> None:
        texts = (text if len(text := str(one)) <= _SHOWN else f"{text[:_SHOWN]}…" for one in (expected, found))
        self.fault = self.fault or IndexFault(what, *texts)

    def _hold(self, what: str, expected: object, found: object) -> None:
        if expected != found:
            self._blame(what, expected, found)

    def _take_message_index(self, record: MessageIndex, begin: int, end: int) -> None:
        chunk = self._open
        if chunk is None or record.channel_id in chunk.index.message_index_offsets:
            self._blame("a message index", "one behind the chunk that it is of", f"another at byte {begin}")
            return
        chunk.index.message_index_offsets[record.channel_id] = begin
        chunk.index.message_index_length = end - chunk.end
        what = f"the message index at byte {begin}, of channel {record.channel_id}"
        self._hold(what, chunk.messages.get(record.channel_id, []), record.records)

    def _close_chunk(self) -> None:
        chunk, self._open = self._open, None
        if chunk is None:
            return
        index, times = chunk.index, [time for one in chunk.messages.values() for time, _ in one]
        what = f"the chunk at byte {index.chunk_start_offset}"
        self._hold(f"{what}: its message indexes", sorted(chunk.messages), sorted(index.message_index_offsets))
        span = (min(times), max(times)) if times else (0, 0)
        self._hold(f"{what}: its times", span, (index.message_start_time, index.message_end_time))
        self._data[ChunkIndex].append(index)
        if times:
            first, last = self._span or span
            self._span = min(first, span[0]), max(last, span[1])

    def _take_summary(self, record: McapRecord, begin: int, end: int) -> None:
        kind = type(record)
        if isinstance(record, Footer):
            self._take_footer(record, begin)
        elif isinstance(record, SummaryOffset):
            self._offsets.append(record)
        elif kind in self._found:
            opcode = next(opcode for one, opcode in _GROUPS if one is kind)
            self._found[kind].append(record)
            self._places[opcode] = self._places.get(opcode, (begin, end))[0], end
        else:
            self._blame("the summary section", "what is told of the data", kind.__name__)

    def _take_footer(self, footer: Footer, begin: int) -> None:
        first, last = self._span or (0, 0)
        statistics = Statistics(
            attachment_count=0, channel_count=len(self._data[Channel]), channel_message_counts=self._counts,
            chunk_count=len(self._data[ChunkIndex]), message_count=sum(self._counts.values()), message_end_time=last,
            message_start_time=first, metadata_count=len(self._data[MetadataIndex]),
            schema_count=len(self._data[Schema]),
        )  # fmt: skip
        self._data[Statistics] = [statistics]
        for kind, _ in _GROUPS:
            self._hold_group(kind.__name__, self._data[kind], self._found[kind])
        places = {int(opcode): (at, end - at) for opcode, (at, end) in self._places.items()}
        told = {one.group_opcode: (one.group_start, one.group_length) for one in self._offsets if one.group_length}
        self._hold("the summary's offsets", places, told)
        ends = max((end for _, end in self._places.values()), default=self._summary_begin)
        self._hold("the footer: where the summary begins", self._summary_begin, footer.summary_start)
        self._hold("the footer: where the summary's offsets begin", ends, footer.summary_offset_start)
        self._footer_begin, self._crc = begin, footer.summary_crc

    def _hold_group(self, name: str, expected: list[Any], found: list[Any]) -> None:
        for at, (wanted, is_there) in enumerate(zip(expected, found, strict=False), start=1):
            for field, value in vars(wanted).items():
                self._hold(f"{name} {at}: {field}", value, getattr(is_there, field))
        self._hold(f"how many of {name} there are", len(expected), len(found))
