"""A recorded drive: MCAP, zstd chunks, holding the session's own messages.

Topics of a log (every message is what crossed the socket or lay in shared memory, byte for byte):

    /camera/STREAM/format    an OpenStream message (Cap'n Proto, session.capnp), again where a camera opened it anew
    /camera/STREAM/submit    a Submit message a frame
    /camera/STREAM/pixels    the frame's buffer, StreamFormat.bufferBytes raw bytes; follows its Submit
    /camera/STREAM/end       a TapEnd message a frame: what became of it
    /model/NAME/layout       a Subscribed message: names, shapes and offsets of the outputs; again where they changed
    /model/NAME/result       a Result message a published result, with its receipt
    /model/NAME/outputs      the result's ring slot from its first output on; follows its Result
    /model/NAME/state        a snapshot of recurrent state (state.capnp), which names the last run that it holds
    /aux/NAME                a SetAux message; its log time is when the daemon took it
    /audit                   an entry of the daemon's audit log, as it was written
    /note/TOPIC              JSON: whatever the recorder wants to keep beside a frame (truth, source, not-recorded)

The metadata record `fenced.log` opens the file and names the ABI version; `fenced.summary` ends it with counts and the
SHA-256 over every message in order (topic, length, bytes). A log without it was cut off: it can be listed and read up
to the last whole chunk, and replay refuses it unless asked to take what is there.
"""

from __future__ import annotations

import hashlib
import os
import queue
import struct
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import IO

from mcap.exceptions import McapError
from mcap.records import Channel, Message, Metadata

from abi import schema
from lab.replay.grammar import Grammar, kind_of
from lab.replay.mcap_index import IndexAudit, IndexFault
from lab.replay.mcap_reader import DAMAGE, records
from lab.replay.mcap_writer import McapWriter
from lab.replay.refusal import LogRefusal, LogRefused

OPENING, SUMMARY = "fenced.log", "fenced.summary"
CHUNK_BYTES = 1 << 20
QUEUED_BYTES = 256 << 20
"""How far the writer thread may lag behind; a recorder that is faster waits, or leaves out what it cannot wait for."""
NICENESS = 10
"""Of the writer thread: compressing comes after what daemon, cameras and recorder do (nice(2))."""
FLUSH_S = 1.0
"""A chunk is closed after this time at the latest: so much may be lost by a kill or a power cut."""

_ENCODINGS = {
    "format": ("session.OpenStream", "capnp"),
    "submit": ("session.Submit", "capnp"),
    "pixels": ("pixels", "raw"),
    "layout": ("session.Subscribed", "capnp"),
    "result": ("result.Result", "capnp"),
    "outputs": ("outputs", "raw"),
    "end": ("session.TapEnd", "capnp"),
    "state": ("state", "raw"),
    "aux": ("session.SetAux", "capnp"),
    "audit": ("audit", "json"),
    "note": ("note", "json"),
}


class _Digest:
    """SHA-256 over (topic, length, bytes) of every message, in order; the same on writing and on reading."""

    def __init__(self) -> None:
        self._sha256 = hashlib.sha256()

    def add(self, topic: str, data: bytes | memoryview) -> None:
        name = topic.encode()
        self._sha256.update(struct.pack("<IQ", len(name), len(data)) + name)
        self._sha256.update(data)

    def hexdigest(self) -> str:
        return self._sha256.hexdigest()


class LogWriter:
    """Writes a log from a thread of its own, so that compression never delays a frame.

    `write` copies its bytes: the caller's buffer is free when it returns; `write_owned` does not: the caller lets go of
    it. An error of the disk is raised by the next of them, or by `close`. Safe from several threads.
    """

    def __init__(self, path: Path, *, about: Mapping[str, str] | None = None) -> None:
        self._file: IO[bytes] = path.open("xb")
        self._writer = McapWriter(self._file, chunk_bytes=CHUNK_BYTES, profile="fenced", library="fenced-lab")
        self._writer.add_metadata(OPENING, {"abiVersion": str(schema.session.abiVersion), **(about or {})})
        self._channels: dict[str, int] = {}
        self._schemas: dict[str, int] = {}
        self._counts: dict[str, int] = {}
        self._digest = _Digest()
        self._queue: queue.SimpleQueue[tuple[str, bytes | memoryview, int] | None] = queue.SimpleQueue()
        self._room = threading.Condition()
        self._queued_bytes = 0
        self._failure: Exception | None = None
        self._thread = threading.Thread(target=self._run, name="log-writer", daemon=True)
        self._thread.start()

    def write(self, topic: str, data: bytes | bytearray | memoryview, log_time_ns: int) -> None:
        """Append one message; `log_time_ns` is CLOCK_MONOTONIC of the recording machine."""
        self.write_owned(topic, bytes(data), log_time_ns)

    def write_owned(self, topic: str, data: bytes | memoryview, log_time_ns: int) -> None:
        """As `write`, of bytes (1-D uint8) that nobody changes any more."""
        self._raise_failure()
        with self._room:
            self._room.wait_for(lambda: self._queued_bytes <= QUEUED_BYTES)
            self._queued_bytes += len(data)
        self._queue.put((topic, data, log_time_ns))

    def has_room(self, size_bytes: int) -> bool:
        """Whether so much could be written now without waiting."""
        return self._queued_bytes + size_bytes <= QUEUED_BYTES

    def close(self) -> None:
        """Write what is queued and the summary. Without this call the log counts as cut off."""
        self._queue.put(None)
        self._thread.join()
        try:
            if self._failure is None:
                counts = {f"count{topic}": str(count) for topic, count in sorted(self._counts.items())}
                self._writer.add_metadata(SUMMARY, {"sha256": self._digest.hexdigest(), **counts})
                self._writer.finish()
        except OSError as error:
            self._failure = error
        try:
            self._file.close()
        except OSError as error:  # what its buffer still held
            self._failure = self._failure or error
        self._raise_failure()

    def __enter__(self) -> LogWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise LogRefused(
                LogRefusal.WRITE,
                "the log could not be written",
                expected="a writable disk with room",
                found=str(self._failure),
                todo="free space or choose another path; what was written up to the last chunk can be read",
            ) from self._failure

    def _run(self) -> None:
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICENESS)  # of this thread alone
        flushed_s = time.monotonic()
        while True:
            try:
                item = self._queue.get(timeout=FLUSH_S)
            except queue.Empty:
                flushed_s = self._flush()
                continue
            if item is None:
                return
            self._take(*item)
            with self._room:
                self._queued_bytes -= len(item[1])
                self._room.notify_all()
            if time.monotonic() - flushed_s > FLUSH_S:
                flushed_s = self._flush()

    def _take(self, topic: str, data: bytes | memoryview, log_time_ns: int) -> None:
        if self._failure is not None:
            return  # keep emptying the queue, so that the recorder is told instead of blocked
        try:
            self._writer.add_message(self._channel(topic), log_time_ns, data)
            self._file.flush()  # whole chunks are the kernel's at once: they outlive this process
        except (OSError, McapError) as error:
            self._failure = error
            return
        self._digest.add(topic, data)
        self._counts[topic] = self._counts.get(topic, 0) + 1

    def _flush(self) -> float:
        """Closes the chunk that is being filled; returns the time."""
        if self._failure is None:
            try:
                self._writer.flush()
            except (OSError, McapError) as error:
                self._failure = error
        return time.monotonic()

    def _channel(self, topic: str) -> int:
        if topic not in self._channels:
            name, encoding = _ENCODINGS[kind_of(topic)]
            if name not in self._schemas:
                self._schemas[name] = self._writer.register_schema(name, encoding, _schema_text(name))
            self._channels[topic] = self._writer.register_channel(topic, encoding, self._schemas[name])
        return self._channels[topic]


def _schema_text(name: str) -> bytes:
    """The .capnp source that describes a channel, so that a log can be read without this program."""
    file, _, struct_name = name.partition(".")
    return (Path(schema.__file__).parent / f"{file}.capnp").read_bytes() if struct_name else b""


@dataclass(frozen=True)
class LogMessage:
    """One message of a log; `log_time_ns` is CLOCK_MONOTONIC of the machine that recorded."""

    topic: str
    data: bytes
    log_time_ns: int

    @property
    def kind(self) -> str:
        return kind_of(self.topic)


@dataclass
class LogInfo:
    """What a log claims, and what was found by reading all of it."""

    path: Path
    about: dict[str, str] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)
    sha256: str = ""
    """Over the messages that were read."""
    claimed: dict[str, str] | None = None
    """The summary; None where the log was cut off."""
    index: IndexFault | None = None
    """What is wrong with the index behind the data, by which other readers find messages; replay never uses it."""

    @property
    def finished(self) -> bool:
        return self.claimed is not None

    def verify(self, *, index: bool = True) -> None:
        """Raise LogRefused unless the log is whole and is what its summary says, and its `index` tells the same."""
        if self.claimed is None:
            raise LogRefused(
                LogRefusal.UNFINISHED,
                f"{self.path.name} ends without a summary: its recorder was cut off",
                expected="a finished log",
                found=f"{sum(self.counts.values())} messages up to the last whole chunk",
                todo="record again, or replay what is there with --partial",
            )
        counted = {f"count{topic}": str(count) for topic, count in self.counts.items()}
        found = {"sha256": self.sha256, **counted}
        for key in sorted(set(found) | set(self.claimed)):
            if found.get(key) != self.claimed.get(key):
                raise LogRefused(
                    LogRefusal.DIGEST,
                    f"{self.path.name} is not the log its summary describes ({key})",
                    expected=str(self.claimed.get(key)),
                    found=str(found.get(key)),
                    todo="do not use this file; fetch the recording again",
                )
        if index and self.index is not None:
            raise LogRefused(
                LogRefusal.INDEX, f"{self.path.name}: the index is wrong: {self.index.what}",
                expected=self.index.expected, found=self.index.found,
                todo="fetch the recording again; its data is whole: fenced-lab log cut gives it another index",
            )  # fmt: skip


class LogReader:
    """Reads a log in order, whole or cut off."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def info(self, visit: Callable[[LogMessage], None] = lambda message: None) -> LogInfo:
        """Read everything once, check every chunk's CRC, and return claims beside findings.

        `visit` sees each message.
        """
        info = LogInfo(self.path)
        digest = _Digest()
        for record in self._records(info):
            digest.add(record.topic, record.data)
            visit(record)
            info.counts[record.topic] = info.counts.get(record.topic, 0) + 1
        info.sha256 = digest.hexdigest()
        return info

    def messages(self) -> Iterator[LogMessage]:
        """Every message in the order it was recorded; stops quietly where the log was cut off."""
        return self._records(LogInfo(self.path))

    def _records(self, info: LogInfo) -> Iterator[LogMessage]:
        topics: dict[int, str] = {}
        grammar, audit, at = Grammar(), IndexAudit(), 0
        try:
            with self.path.open("rb") as file:
                for record in records(file, audit):
                    if isinstance(record, Channel):
                        topics[record.id] = record.topic
                    elif isinstance(record, Metadata):
                        _take_metadata(info, record)
                    elif isinstance(record, Message):
                        self._require_opening(info)
                        topic, at = topics[record.channel_id], at + 1
                        grammar.require(topic, record.data, at)
                        yield LogMessage(topic, record.data, record.log_time)
        except (OSError, KeyError, *DAMAGE) as error:
            raise LogRefused(
                LogRefusal.UNREADABLE,
                f"{self.path} could not be read",
                expected="an undamaged MCAP file written by fenced-lab record",
                found=f"{type(error).__name__}: {error}",
                todo="check the path, or fetch the recording again",
            ) from error
        info.index = audit.fault
        self._require_opening(info)

    def _require_opening(self, info: LogInfo) -> None:
        if not info.about:
            raise LogRefused(
                LogRefusal.NOT_A_FENCED_LOG,
                f"{self.path} is not a fenced log",
                expected=f"a metadata record {OPENING!r} before the first message",
                found="none",
                todo="name a file that fenced-lab record wrote",
            )
        ours, theirs = str(schema.session.abiVersion), info.about.get("abiVersion")
        if theirs != ours:
            raise LogRefused(
                LogRefusal.FORMAT, f"{self.path} holds messages of another ABI", expected=f"version {ours}",
                found=f"version {theirs}", todo="read it with the fenced-lab of the version that recorded it",
            )  # fmt: skip


def _take_metadata(info: LogInfo, record: Metadata) -> None:
    if record.name == OPENING:
        info.about = dict(record.metadata)
    elif record.name == SUMMARY:
        info.claimed = dict(record.metadata)
