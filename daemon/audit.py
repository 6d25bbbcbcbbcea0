"""The audit log: JSON lines, each with the SHA-256 of the line before, so that no line can change or vanish unseen.

An entry is `{"seq", "prev", "time_unix_s", "event", …}` in canonical JSON (sorted keys, no spaces). `prev` of the first
entry is 64 zeros. Whoever can write the whole file can forge the whole chain: keep the head that `fenced status` shows
elsewhere to pin it. A last line torn by a power cut is cut off and noted when the log is opened again.
"""

import hashlib
import json
import os
import stat
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from signing.refusal import RefusalCode, Refused, shown

ZERO_HASH = "0" * 64
LINE_LIMIT_BYTES = 16 << 10
_TAIL_BYTES = 2 * LINE_LIMIT_BYTES

Value = str | int | bool | None


class AuditBroken(ValueError):
    """The chain does not hold at `line` (1-based)."""

    code = "audit-broken"

    def __init__(self, line: int, what: str) -> None:
        super().__init__(
            f"line {line}: {what}; lines before it are as they were written, nothing after it can be trusted"
        )
        self.line = line
        self.what = what


@dataclass(frozen=True)
class ChainHead:
    """The end of a chain: how many entries it has, and the SHA-256 (hex) of the last."""

    entries: int
    sha256: str


def encode_entry(head: ChainHead, time_unix_s: int, event: str, fields: Mapping[str, Value]) -> bytes:
    """One entry as its line, newline included. Raises ValueError when it is longer than LINE_LIMIT_BYTES."""
    entry = {**fields, "seq": head.entries + 1, "prev": head.sha256, "time_unix_s": time_unix_s, "event": event}
    line = json.dumps(entry, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False).encode() + b"\n"
    if len(line) > LINE_LIMIT_BYTES:
        raise ValueError(f"audit entry {event!r} has {len(line)} bytes, at most {LINE_LIMIT_BYTES}")
    return line


def advance(head: ChainHead, line: bytes, number: int) -> ChainHead:
    """Checks one line (newline included) against the chain so far; raises AuditBroken."""
    try:
        entry = json.loads(line)
        seq, prev = entry["seq"], entry["prev"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise AuditBroken(number, f"not an audit entry ({type(error).__name__})") from error
    if not line.endswith(b"\n"):
        raise AuditBroken(number, "the line is cut short")
    if seq != head.entries + 1:
        raise AuditBroken(number, f"entry {seq} stands where entry {head.entries + 1} is due")
    if prev != head.sha256:
        raise AuditBroken(number, f"prev is {str(prev)[:64]}, the line before hashes to {head.sha256}")
    return ChainHead(head.entries + 1, hashlib.sha256(line).hexdigest())


def verify(path: str) -> ChainHead:
    """Walks the whole log; returns its head. Raises AuditBroken, or Refused(UNREADABLE_FILE) where there is no log."""
    head, expected = ChainHead(0, ZERO_HASH), "the daemon's audit log, audit.jsonl in its state folder"
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        raise Refused(RefusalCode.UNREADABLE_FILE, shown(path), expected, os.strerror(error.errno or 0)) from error
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise Refused(RefusalCode.UNREADABLE_FILE, shown(path), expected, "a folder, a pipe or a device")
    with open(descriptor, "rb") as file:
        for number in range(1, 1 << 62):
            line = file.readline(LINE_LIMIT_BYTES + 1)
            if not line:
                break
            head = advance(head, line, number)
    return head


class AuditLog:
    """The open log of one daemon; safe from any thread. The descriptor stays open, so writing opens no path."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.lost = 0
        # Entries that `note` could not write.
        self.on_lost: Callable[[str, Exception], None] = lambda event, error: None
        self.on_written: Callable[[bytes], None] = lambda line: None
        # Is given every line that was written, on the thread that wrote it.
        self._counts: dict[tuple[str, str], int] = {}
        self._lock = threading.RLock()
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW, 0o640)
        if not stat.S_ISREG(os.fstat(self._fd).st_mode):
            os.close(self._fd)
            raise AuditBroken(0, f"{path} is not a regular file; move it away")
        cut_bytes, self._head = self._recover()
        if cut_bytes:
            self.append("audit.repaired", {"cut_bytes": cut_bytes})

    @property
    def head(self) -> ChainHead:
        """The chain's end, to be pinned elsewhere."""
        return self._head

    def append(self, event: str, fields: Mapping[str, Value] = MappingProxyType({}), *, durable: bool = True) -> None:
        """Writes one entry; with `durable` it is on the disk when this returns. OSError when it cannot be written."""
        with self._lock:
            line = encode_entry(self._head, int(time.time()), event, fields)
            try:
                written = os.write(self._fd, line)
            except OSError as error:
                error.filename = self.path  # a descriptor's errors have none
                raise
            if written != len(line):
                os.ftruncate(self._fd, os.fstat(self._fd).st_size - written)
                raise OSError(
                    f"audit log {self.path}: only {written} of {len(line)} bytes were written; is the disk full?"
                )
            self._head = ChainHead(self._head.entries + 1, hashlib.sha256(line).hexdigest())
            self._count(event, fields)
            if durable:
                os.fdatasync(self._fd)
            self.on_written(line)

    @property
    def counts(self) -> dict[tuple[str, str], int]:
        """How often each event came since the daemon started, by event and refusal code ("" where it has none)."""
        return dict(self._counts)  # one step for the interpreter: another thread may be counting

    def _count(self, event: str, fields: Mapping[str, Value]) -> None:
        key = (event, str(fields.get("code", "")))
        self._counts[key] = self._counts.get(key, 0) + 1

    def note(self, event: str, fields: Mapping[str, Value] = MappingProxyType({}), *, durable: bool = True) -> None:
        """As `append`, for what has happened already: an entry that cannot be written is counted and told of.

        A full disk must not end what serves. What is still to be decided uses `append`, and is refused with it.
        """
        try:
            self.append(event, fields, durable=durable)
        except (OSError, ValueError) as error:
            self.lost += 1
            self.on_lost(event, error)

    def close(self) -> None:
        """Closes the descriptor."""
        with self._lock:
            os.close(self._fd)

    def _recover(self) -> tuple[int, ChainHead]:
        """Finds the chain's end from the file's tail; cuts off a torn last line. Returns the bytes cut and the head.

        Nothing is cut from a file that is not an audit log.
        """
        size = os.fstat(self._fd).st_size
        tail = os.pread(self._fd, _TAIL_BYTES, max(0, size - _TAIL_BYTES))
        whole = tail.rfind(b"\n") + 1
        head = self._head_of(tail[tail.rfind(b"\n", 0, whole - 1) + 1 : whole]) if whole else ChainHead(0, ZERO_HASH)
        torn = tail[whole:]
        if len(torn) > LINE_LIMIT_BYTES or torn[:1] not in (b"", b"{", b"\0"):  # zeros: a block that was never written
            raise AuditBroken(0, f"the end of {self.path} is not an audit entry; move the file away and keep it")
        if torn:
            os.ftruncate(self._fd, size - len(torn))
            os.fsync(self._fd)
        return len(torn), head

    def _head_of(self, line: bytes) -> ChainHead:
        try:
            seq = int(json.loads(line)["seq"])
        except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
            raise AuditBroken(
                0, f"the last line of {self.path} is not an audit entry; move the file away and keep it"
            ) from error
        return ChainHead(seq, hashlib.sha256(line).hexdigest())
