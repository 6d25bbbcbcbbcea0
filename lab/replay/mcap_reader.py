"""Reading an MCAP file (mcap.dev/spec) from its beginning to its end, without its index, whole or cut off.

Each record is told to an audit of the index with the place where it lies, so that one reading gives the messages and
whether the index, by which other readers find them, leads there (`lab.replay.mcap_index`).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import IO, Final

from mcap.exceptions import McapError
from mcap.opcode import Opcode
from mcap.records import Channel, Chunk, DataEnd, McapRecord, Message, Schema
from mcap.stream_reader import CRCValidationError, StreamReader, get_chunk_data_stream
from zstandard import ZstdError

from lab.replay.mcap_index import IndexAudit

__all__ = ["DAMAGE", "records"]

DAMAGE = (
    McapError, CRCValidationError, ZstdError, struct.error, UnicodeDecodeError,
    OverflowError, MemoryError,  # a length that no file has
)  # fmt: skip
MAGIC_BYTES: Final = 8


def records(file: IO[bytes], audit: IndexAudit) -> Iterator[McapRecord]:
    """What the data section of `file` holds: metadata, and of chunks each channel and message.

    A damaged record ends it quietly only where it is the last thing in the file, or belongs to the index. Raises one
    of DAMAGE.
    """
    size_bytes = file.seek(0, 2)
    file.seek(0)
    reader = StreamReader(file, emit_chunks=True, validate_crcs=True).records
    in_data, begin = True, 0
    while True:
        try:
            record = next(reader)
            end = file.tell()
            begin = max(begin, MAGIC_BYTES)
            audit.take(record, begin, end, b"" if isinstance(record, Chunk) else _read_again(file, begin, end))
            inside = _of_chunk(record, audit) if isinstance(record, Chunk) else [record]
        except StopIteration:
            audit.end(file, size_bytes)
            return
        except DAMAGE as error:
            if in_data and not (begin and file.tell() == size_bytes):
                raise
            audit.damaged(error)
            return
        begin = end
        in_data = in_data and not isinstance(record, DataEnd)
        if in_data:
            yield from inside


def _read_again(file: IO[bytes], begin: int, end: int) -> bytes:
    """Its bytes; the library's reader goes by what a record holds and lets its length be whatever it is."""
    file.seek(begin)
    return file.read(end - begin)


def _of_chunk(chunk: Chunk, audit: IndexAudit) -> list[McapRecord]:
    """Its records; the audit hears where each message lies in it, from the beginning of what was compressed."""
    stream, length = get_chunk_data_stream(chunk, validate_crc=True)
    found: list[McapRecord] = []
    while stream.count < length:
        at = stream.count
        opcode, size = stream.read1(), stream.read8()
        if opcode == Opcode.MESSAGE:
            message = Message.read(stream, size)
            audit.take_message(message, at)
            found.append(message)
        elif opcode == Opcode.CHANNEL:
            channel = Channel.read(stream)
            audit.take_channel(channel)
            found.append(channel)
        elif opcode == Opcode.SCHEMA:
            audit.take_schema(Schema.read(stream))
        else:
            stream.read(size)
    return found
