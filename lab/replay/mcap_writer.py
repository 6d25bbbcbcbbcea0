"""Writing an MCAP file (mcap.dev/spec): chunks of messages, each compressed and with its index, and a summary.

The `mcap` library's own writer compresses at zstd's default level, which pixels pay five times the processor time for
and gain nothing by; so the records are put together here, with the library's record classes. Chunks carry the CRC-32 of
their uncompressed bytes.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from typing import IO

import zstandard
from mcap.data_stream import RecordBuilder
from mcap.opcode import Opcode
from mcap.records import (
    Channel,
    Chunk,
    ChunkIndex,
    DataEnd,
    Footer,
    Header,
    Message,
    MessageIndex,
    Metadata,
    MetadataIndex,
    Schema,
    Statistics,
    SummaryOffset,
)

MAGIC = b"\x89MCAP0\r\n"
LEVEL = 1
"""Of zstd. Camera pixels are mostly noise: level 3 makes files a thousandth smaller in five times the time."""


class McapWriter:
    """Writes into an open binary file, which stays the caller's. `finish` writes the summary."""

    def __init__(self, file: IO[bytes], *, chunk_bytes: int, profile: str, library: str) -> None:
        self._file, self._chunk_bytes = file, chunk_bytes
        self._at = 0
        self._zstd = zstandard.ZstdCompressor(level=LEVEL)
        self._schemas: list[Schema] = []
        self._channels: list[Channel] = []
        self._chunks: list[ChunkIndex] = []
        self._metadata: list[MetadataIndex] = []
        self._counts: dict[int, int] = {}
        self._times: tuple[int, int] | None = None
        self._chunk = RecordBuilder()
        self._indices: dict[int, MessageIndex] = {}
        self._span: tuple[int, int] | None = None
        self._write(MAGIC)
        self._record(Header(profile, library))

    def add_metadata(self, name: str, values: Mapping[str, str]) -> None:
        """A record of names and values, behind the chunk that is being filled."""
        self.flush()
        at, record = self._at, Metadata(name=name, metadata=dict(values))
        self._record(record)
        self._metadata.append(MetadataIndex(offset=at, length=self._at - at, name=name))

    def register_schema(self, name: str, encoding: str, data: bytes) -> int:
        """A schema; returns its id."""
        self._schemas.append(Schema(id=len(self._schemas) + 1, name=name, encoding=encoding, data=data))
        self._schemas[-1].write(self._chunk)
        return len(self._schemas)

    def register_channel(self, topic: str, encoding: str, schema_id: int) -> int:
        """A channel; returns its id."""
        channel = Channel(
            id=len(self._channels) + 1, topic=topic, message_encoding=encoding, schema_id=schema_id, metadata={}
        )
        self._channels.append(channel)
        channel.write(self._chunk)
        return len(self._channels)

    def add_message(self, channel_id: int, time_ns: int, data: bytes | memoryview) -> None:
        """One message. The chunk is closed when it is full."""
        message = Message(
            channel_id=channel_id, log_time=time_ns, publish_time=time_ns, sequence=0,
            data=data,
        )  # fmt: skip
        indexed = self._indices.setdefault(channel_id, MessageIndex(channel_id=channel_id, records=[]))
        indexed.records.append((time_ns, self._chunk.count))
        message.write(self._chunk)
        self._span = (min(self._span[0], time_ns), max(self._span[1], time_ns)) if self._span else (time_ns, time_ns)
        self._counts[channel_id] = self._counts.get(channel_id, 0) + 1
        if self._chunk.count >= self._chunk_bytes:
            self.flush()

    def flush(self) -> None:
        """Closes the chunk that is being filled, if it holds a message, and hands everything to the system."""
        if self._span is not None:
            self._end_chunk(self._span)
            self._begin_chunk()
        self._file.flush()

    def finish(self) -> None:
        """Writes the summary; nothing may be added after it."""
        self.flush()
        self._record(DataEnd(0))
        summary, offsets = RecordBuilder(), RecordBuilder()
        start = self._at
        first, last = self._times or (0, 0)
        statistics = Statistics(
            attachment_count=0, channel_count=len(self._channels), channel_message_counts=self._counts,
            chunk_count=len(self._chunks), message_count=sum(self._counts.values()), message_start_time=first,
            message_end_time=last, metadata_count=len(self._metadata), schema_count=len(self._schemas),
        )  # fmt: skip
        groups = (
            (Opcode.SCHEMA, self._schemas), (Opcode.CHANNEL, self._channels), (Opcode.STATISTICS, [statistics]),
            (Opcode.CHUNK_INDEX, self._chunks), (Opcode.METADATA_INDEX, self._metadata),
        )  # fmt: skip
        for opcode, records in groups:
            begin = summary.count
            for record in records:
                record.write(summary)
            if records:
                length = summary.count - begin
                SummaryOffset(group_opcode=opcode, group_start=start + begin, group_length=length).write(offsets)
        offsets_start = start + summary.count
        self._write(summary.end() + offsets.end())
        self._record(Footer(summary_start=start, summary_offset_start=offsets_start, summary_crc=0))
        self._write(MAGIC)
        self._file.flush()

    def _begin_chunk(self) -> None:
        self._chunk = RecordBuilder()
        self._indices = {}
        self._span = None

    def _end_chunk(self, span: tuple[int, int]) -> None:
        content = self._chunk.end()
        packed = self._zstd.compress(content)
        at = self._at
        chunk = Chunk(
            compression="zstd", data=packed, message_start_time=span[0], message_end_time=span[1],
            uncompressed_crc=zlib.crc32(content), uncompressed_size=len(content),
        )  # fmt: skip
        self._record(chunk)
        length, offsets = self._at - at, {}
        indices_at = self._at
        for channel_id, index in self._indices.items():
            offsets[channel_id] = self._at
            self._record(index)
        self._chunks.append(
            ChunkIndex(
                chunk_length=length, chunk_start_offset=at, compression="zstd", compressed_size=len(packed),
                message_end_time=span[1], message_index_length=self._at - indices_at, message_index_offsets=offsets,
                message_start_time=span[0], uncompressed_size=len(content),
            )
        )  # fmt: skip
        first, last = self._times or span
        self._times = min(first, span[0]), max(last, span[1])

    def _record(self, record: Header | Metadata | Chunk | MessageIndex | DataEnd | Footer) -> None:
        builder = RecordBuilder()
        record.write(builder)
        self._write(builder.end())

    def _write(self, data: bytes) -> None:
        self._file.write(data)
        self._at += len(data)
