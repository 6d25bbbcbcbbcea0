"""The I/O half: a bundle is read once into sealed memory while it is hashed; state is written atomically.

What was hashed is what stays: the file's bytes go into a private memfd, are hashed there as they arrive, and the memfd
is sealed before anybody sees it. No path is opened twice, and later changes to the file change nothing. Reading a large
file runs ahead of hashing on a second thread (both release the GIL). The statement is read here only for its sizes; it
stays unverified until `signing.trust` has judged it.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import itertools
import mmap
import os
import queue
import stat
import threading
from collections.abc import Generator, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final, NoReturn

from signing import container, envelope, statement
from signing.bundle import SealedBundle
from signing.container import Layout
from signing.refusal import RefusalCode, Refused, shown
from signing.state import STATE_LIMIT_BYTES, VehicleState, decode_state, encode_state
from signing.trust import TrustStore

SEALS: Final = fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE
_CHUNK_BYTES: Final = 512 * 1024  # stays in a CPU cache between reading and writing
_AHEAD_FROM_BYTES: Final = 4 * 1024 * 1024  # below it, starting a thread costs more than it hides
_MADV_POPULATE_READ: Final = 22  # madvise(2), Linux 5.14; the mmap module of Python 3.11 does not name it
_HEAD_BYTES: Final = container.HEADER_BYTES + container.ENVELOPE_LIMIT_BYTES
_OPEN_FLAGS: Final = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY

_NO_DAMAGE: Final = (
    RefusalCode.UNREADABLE_FILE,
    RefusalCode.UNSAFE_FILE,
    RefusalCode.FILE_CHANGED,
    RefusalCode.UNKNOWN_ALGORITHM,
)
_KINDS: Final = {
    stat.S_IFREG: "a regular file",
    stat.S_IFLNK: "a symbolic link",
    stat.S_IFDIR: "a directory",
    stat.S_IFIFO: "a FIFO",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a character device",
    stat.S_IFBLK: "a block device",
}

PathLike = str | os.PathLike[str]


def read_bundle(path: PathLike, *, limit_bytes: int) -> SealedBundle:
    """Return the bundle file at `path` in sealed memory, at most `limit_bytes` long.

    Raises Refused: UNREADABLE_FILE, UNSAFE_FILE, FILE_TOO_LARGE, FILE_CHANGED, BAD_CONTAINER, and what the strict
    readers of the envelope and the statement raise. A refused file leaves no descriptor and no memory behind.
    """
    with contextlib.ExitStack() as always, contextlib.ExitStack() as unless_sealed:
        file = _RegularFile(path, limit_bytes)
        always.callback(file.close)
        memfd = os.memfd_create("fenced-bundle", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        unless_sealed.callback(os.close, memfd)
        copied = file.copy_chunks(memfd)
        filled_bytes = 0
        while filled_bytes < min(file.size_bytes, _HEAD_BYTES):
            filled_bytes = next(copied)
        layout = _claimed_layout(memfd, file.size_bytes)
        container.require_file_size(layout, file.size_bytes)
        os.ftruncate(memfd, file.size_bytes)
        mapping = mmap.mmap(memfd, file.size_bytes, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ)
        unless_sealed.callback(mapping.close)
        data = unless_sealed.enter_context(memoryview(mapping))
        if file.size_bytes >= _AHEAD_FROM_BYTES:
            copied = _ahead(copied, mapping)
        with contextlib.closing(copied):  # before the memfd is: nothing may still be writing to its number
            digests = _hash_behind(itertools.chain([filled_bytes], copied), data, layout)
        container.require_zero_padding(layout, data)
        file.require_unchanged()
        fcntl.fcntl(memfd, fcntl.F_ADD_SEALS, SEALS)
        unless_sealed.pop_all()
        return SealedBundle(memfd, data, layout, digests)


def read_file(path: PathLike, *, limit_bytes: int) -> bytes:
    """Return a small file whole (a root, a state), under the same rules and refusals as a bundle's file."""
    with contextlib.closing(_RegularFile(path, limit_bytes)) as file:
        data = file.read()
        file.require_unchanged()
        return data


def read_state(path: PathLike) -> VehicleState | None:
    """Return the stored state, or None if the vehicle has none yet.

    Raises Refused: what its reader and `decode_state` raise. A damaged state's advice is how to get it back.
    """
    if not os.path.lexists(path):
        return None
    with _damage_named(path):
        return decode_state(read_file(path, limit_bytes=STATE_LIMIT_BYTES))


def resume_trust(path: PathLike) -> TrustStore | None:
    """Return the trust of the stored state, its root checked again, or None if there is none. Raises Refused."""
    stored = read_state(path)
    if stored is None:
        return None
    with _damage_named(path):
        return TrustStore.resume(stored)


@contextlib.contextmanager
def _damage_named(path: PathLike) -> Iterator[None]:
    """A state is the vehicle's own: nobody can write anew what is wrong inside it, so say which file to restore.

    How the file lies on the disk (a link, its mode, its owner), and what this machine cannot check, is no damage.
    """
    try:
        yield
    except Refused as refused:
        if refused.code in _NO_DAMAGE:
            raise
        name = shown(os.fspath(path))
        what = refused.what if refused.what == name else f"{refused.what} in {name}"
        raise Refused(refused.code, what, refused.expected, refused.found, RefusalCode.BAD_STATE.todo) from refused


def write_state(path: PathLike, state: VehicleState) -> None:
    """Make `state` durable at `path`: the old or the new file is there after a power cut at any point.

    tmp + fsync + rename + fsync(directory). OSError if the disk refuses; then the old state stands.
    """
    write_atomically(path, encode_state(state), mode=0o600)


def open_trust(root_paths: Sequence[PathLike], state_path: PathLike) -> TrustStore:
    """Return the vehicle's trust: its stored state, or, if it has none yet, the first root; then the newer roots.

    `root_paths` are root files in the order of their versions. What changes is durable before this returns.
    Raises Refused of the files' readers and of `TrustStore`; ValueError without a root.
    """
    if not root_paths:
        raise ValueError("open_trust needs at least one root file")
    roots = [read_file(path, limit_bytes=container.ENVELOPE_LIMIT_BYTES) for path in root_paths]
    resumed = resume_trust(state_path)
    trusted = (resumed or TrustStore.bootstrap(roots[0])).follow(roots)
    if resumed is None or trusted.state != resumed.state:
        write_state(state_path, trusted.state)
    return trusted


def write_atomically(path: PathLike, data: bytes, *, mode: int) -> None:
    """Replace the file at `path` by `data`, wholly or not at all, and return only when it is on the disk."""
    target = Path(path)
    directory = os.open(target.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        temporary = f".{target.name}.tmp"
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary, dir_fd=directory)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        fd = os.open(temporary, flags, mode, dir_fd=directory)
        try:
            _write_all(fd, memoryview(data))
            os.fchmod(fd, mode)
            os.fsync(fd)
        finally:
            os.close(fd)
        os.rename(temporary, target.name, src_dir_fd=directory, dst_dir_fd=directory)
        os.fsync(directory)
    finally:
        os.close(directory)


def _write_all(fd: int, data: memoryview) -> None:
    while data:
        data = data[os.write(fd, data) :]


class _RegularFile:
    """An open file that is safe to read: regular, one name, and nobody else may change it.

    The type is looked at before opening, because opening a device acts on it, and again after, because names move.
    """

    def __init__(self, path: PathLike, limit_bytes: int) -> None:
        """Open the file at `path`; Refused (UNREADABLE_FILE, UNSAFE_FILE, FILE_TOO_LARGE) leaves nothing open."""
        self._path = shown(os.fspath(path))
        with self._readable(), contextlib.ExitStack() as on_refusal:
            self._require_safe(os.lstat(path))
            self._fd = os.open(path, _OPEN_FLAGS)
            on_refusal.callback(self.close)
            status = os.fstat(self._fd)
            self._require_safe(status)
            if status.st_size > limit_bytes:
                raise Refused(
                    RefusalCode.FILE_TOO_LARGE, self._path, f"at most {limit_bytes} bytes", f"{status.st_size} bytes"
                )
            on_refusal.pop_all()
        self.size_bytes = status.st_size
        self._marks = _marks(status)

    def close(self) -> None:
        """Close the descriptor."""
        os.close(self._fd)

    def read(self) -> bytes:
        """Return the whole file."""
        data = bytearray(self.size_bytes)
        view = memoryview(data)
        while view:
            view = view[self._read_into(view, self.size_bytes - len(view)) :]
        return bytes(data)

    def copy_chunks(self, memfd: int) -> Generator[int]:
        """Copy the file into the empty `memfd` chunk by chunk, giving after each how many bytes are there."""
        buffer = memoryview(bytearray(min(_CHUNK_BYTES, self.size_bytes)))
        copied_bytes = 0
        while copied_bytes < self.size_bytes:
            wanted = buffer[: self.size_bytes - copied_bytes]
            part = wanted[: self._read_into(wanted, copied_bytes)]
            _write_all(memfd, part)
            copied_bytes += len(part)
            yield copied_bytes

    def require_unchanged(self) -> None:
        """Refuse if the file was touched since it was opened."""
        if _marks(os.fstat(self._fd)) != self._marks:
            self._refuse_changed("another size or time")

    def _read_into(self, buffer: memoryview, offset_bytes: int) -> int:
        with self._readable():
            count = os.preadv(self._fd, [buffer], offset_bytes)
        if count == 0:
            self._refuse_changed(f"its end at {offset_bytes} bytes")
        return count

    def _refuse_changed(self, found: str) -> NoReturn:
        raise Refused(RefusalCode.FILE_CHANGED, self._path, "the file that was opened, unchanged", found)

    @contextlib.contextmanager
    def _readable(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            code = RefusalCode.UNSAFE_FILE if error.errno == errno.ELOOP else RefusalCode.UNREADABLE_FILE
            raise Refused(code, self._path, "a readable regular file", os.strerror(error.errno or 0)) from error
        except ValueError as error:
            found = "a NUL or a lone surrogate in it"
            raise Refused(RefusalCode.UNREADABLE_FILE, self._path, "a path that can exist", found) from error

    def _require_safe(self, status: os.stat_result) -> None:
        mode = stat.S_IMODE(status.st_mode)
        kind = _KINDS.get(stat.S_IFMT(status.st_mode), "something else")
        faults = (
            (kind != "a regular file", "a regular file", kind),
            (status.st_uid not in (0, os.geteuid()), "root or this user as owner", f"owner {status.st_uid}"),
            (bool(mode & 0o022), "no write access for group or others", f"mode {mode:04o}"),
            (status.st_nlink != 1, "exactly one name (no hard links)", f"{status.st_nlink} names"),
        )
        for wrong, expected, found in faults:
            if wrong:
                raise Refused(RefusalCode.UNSAFE_FILE, self._path, expected, found)


def _marks(status: os.stat_result) -> tuple[int, int, int]:
    return status.st_size, status.st_mtime_ns, status.st_ctime_ns


def _claimed_layout(memfd: int, file_bytes: int) -> Layout:
    """Return the layout that the unverified envelope claims; the file's head is in `memfd`."""
    span = container.read_header(os.pread(memfd, container.HEADER_BYTES, 0))
    if span.end_bytes > file_bytes:
        expected = f"at least {span.end_bytes} bytes for its envelope"
        raise Refused(RefusalCode.BAD_CONTAINER, "bundle size", expected, f"{file_bytes} bytes")
    raw = os.pread(memfd, span.size_bytes, span.offset_bytes)
    claimed = statement.decode(envelope.parse(raw, payload_type=envelope.BUNDLE_PAYLOAD_TYPE).payload)
    return container.layout(span.size_bytes, [blob.size_bytes for blob in claimed.blobs])


def _ahead(filled: Iterator[int], mapping: mmap.mmap) -> Generator[int]:
    """Run `filled` to its end on another thread and give its values as they come; what it raises is raised here.

    A value is how many bytes of `mapping` are filled. While the caller has others to work on, the thread also maps the
    pages behind it, which saves the caller their faults; where it is hard pressed, the caller takes them.
    """
    given: queue.SimpleQueue[int | BaseException | None] = queue.SimpleQueue()

    def run() -> None:
        done_bytes = 0
        try:
            for end_bytes in filled:
                if not given.empty():
                    _map_pages(mapping, done_bytes, end_bytes)
                given.put(end_bytes)
                done_bytes = end_bytes
            given.put(None)
        except BaseException as error:  # handed over whole, to be raised in the caller's thread
            given.put(error)

    thread = threading.Thread(target=run, name="fenced-read-ahead")
    thread.start()
    try:
        while (value := given.get()) is not None:
            if isinstance(value, BaseException):
                raise value
            yield value
    finally:
        value = None  # an error that is its own frame's local would live until the next garbage collection
        thread.join()


def _map_pages(mapping: mmap.mmap, start_bytes: int, end_bytes: int) -> None:
    first_bytes = start_bytes // mmap.PAGESIZE * mmap.PAGESIZE
    with contextlib.suppress(OSError):  # a kernel that cannot: whoever reads the pages takes the faults
        mapping.madvise(_MADV_POPULATE_READ, first_bytes, end_bytes - first_bytes)


def _hash_behind(filled: Iterable[int], data: memoryview, layout: Layout) -> tuple[str, ...]:
    """Return the lowercase hex SHA-256 of each blob, hashing every byte once as soon as `filled` has passed it."""
    hashers = [hashlib.sha256() for _ in layout.blobs]
    done_bytes = 0
    for end_bytes in filled:
        for hasher, span in zip(hashers, layout.blobs, strict=True):
            hasher.update(data[max(span.offset_bytes, done_bytes) : min(span.end_bytes, end_bytes)])
        done_bytes = end_bytes
    return tuple(hasher.hexdigest() for hasher in hashers)
