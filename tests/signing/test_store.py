"""The store: one bounded read of a safe file into memory that nobody can change, and roots and state from disk."""

from __future__ import annotations

import errno
import fcntl
import itertools
import mmap
import os
import socket
import threading
import tracemalloc
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from signing import store
from signing.container import ENVELOPE_LIMIT_BYTES
from signing.refusal import RefusalCode, Refused
from signing.state import Floor, VehicleState, encode_state
from signing.trust import TrustStore
from tests.simulators import BundleSimulator, flip_byte, refusal, sign_root
from tests.support.descriptors import open_descriptors

LIMIT_BYTES = 16 * 1024 * 1024
UNSAFE = RefusalCode.UNSAFE_FILE


@pytest.fixture
def sim(tmp_path: Path) -> BundleSimulator:
    simulator = BundleSimulator(tmp_path)
    simulator.write()
    return simulator


def shown_path(path: Path) -> str:
    text = repr(str(path))
    return text if len(text) <= 96 else text[:93] + "..."


# Sealed memory


def test_sealed_bytes_are_the_file_s(sim: BundleSimulator) -> None:
    sealed = store.read_bundle(sim.path, limit_bytes=LIMIT_BYTES)
    data = sim.file_bytes()
    assert os.pread(sealed.memfd, len(data) + 1, 0) == data
    assert sealed.size_bytes == len(data)
    assert sealed.envelope == sim.envelope().encode()


def test_memory_is_sealed_against_every_change(sim: BundleSimulator) -> None:
    sealed = store.read_bundle(sim.path, limit_bytes=LIMIT_BYTES)
    memfd = sealed.memfd
    assert fcntl.fcntl(memfd, fcntl.F_GET_SEALS) == (
        fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE
    )
    for change in (lambda: os.pwrite(memfd, b"x", 0), lambda: os.ftruncate(memfd, 0)):
        with pytest.raises(PermissionError):
            change()
    assert fcntl.fcntl(memfd, fcntl.F_GETFD) & fcntl.FD_CLOEXEC


def test_views_cannot_be_written(sim: BundleSimulator) -> None:
    view = sim.read().blob("graph")
    with pytest.raises(TypeError):
        view[0] = 0


@pytest.mark.parametrize("size_bytes", [0, 1, 4095, 4096, 4097, store._CHUNK_BYTES, 3 * store._CHUNK_BYTES + 5])
def test_blobs_are_hashed_across_chunks(sim: BundleSimulator, size_bytes: int) -> None:
    sim.blobs["weights"] = os.urandom(size_bytes)
    verified = sim.verify()
    assert bytes(verified.blob("weights")) == sim.blobs["weights"]
    sim.write(flip_byte(sim.file_bytes(), -1 if size_bytes == 0 else verified.blob_span("sbom.json")[0]))
    with pytest.raises(Refused):
        sim.read()


@pytest.mark.parametrize("name", ["graph", "code", "weights", "sbom.json"])
@pytest.mark.parametrize("place", ["first", "last"])
def test_every_byte_counts(sim: BundleSimulator, name: str, place: str) -> None:  # case 31, small
    offset_bytes, size_bytes = sim.read().blob_span(name)
    sim.write(flip_byte(sim.file_bytes(), offset_bytes + (0 if place == "first" else size_bytes - 1)))
    with pytest.raises(Refused, match=f"blob {name}") as refused:
        sim.read()
    assert refused.value.code is RefusalCode.DIGEST_MISMATCH


def test_swap_after_reading_changes_nothing(sim: BundleSimulator, tmp_path: Path) -> None:  # case 22
    sealed = store.read_bundle(sim.path, limit_bytes=LIMIT_BYTES)
    other = tmp_path / "other"
    other.write_bytes(b"evil" * 5000)
    os.rename(other, sim.path)
    assert os.pread(sealed.memfd, 1 << 20, 0) == sim.file_bytes()


def test_truncating_after_reading_changes_nothing(sim: BundleSimulator) -> None:  # case 23
    verified = sim.read()
    os.truncate(sim.path, 0)
    assert bytes(verified.blob("code")) == sim.blobs["code"]


# What is not read


def test_missing_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "absent"
    expected, found = "a readable regular file", "No such file or directory"
    with refusal(RefusalCode.UNREADABLE_FILE, shown_path(path), expected, found):
        store.read_bundle(path, limit_bytes=LIMIT_BYTES)


@pytest.mark.parametrize("path", ["lane\0.fenced", "lane\ud800"], ids=itertools.count())
def test_path_that_cannot_exist_is_refused(path: str) -> None:
    found = "a NUL or a lone surrogate in it"
    with refusal(RefusalCode.UNREADABLE_FILE, ascii(path), "a path that can exist", found):
        store.read_bundle(path, limit_bytes=LIMIT_BYTES)


def make_fifo(path: Path) -> None:
    os.mkfifo(path)


def make_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as server:
        os.chdir(path.parent)
        server.bind(path.name)


@pytest.mark.parametrize(
    ("make", "kind"),
    [
        (lambda path: path.symlink_to(path.parent / "lane.fenced"), "a symbolic link"),
        (lambda path: path.symlink_to("/nowhere"), "a symbolic link"),
        (lambda path: path.mkdir(), "a directory"),
        (make_fifo, "a FIFO"),
        (make_socket, "a socket"),
    ],
)
def test_odd_file_is_refused(
    sim: BundleSimulator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make: Callable[[Path], None], kind: str
) -> None:  # case 21
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "odd"
    make(path)
    with refusal(UNSAFE, shown_path(path), "a regular file", kind):
        store.read_bundle(path, limit_bytes=LIMIT_BYTES)


def test_device_is_refused_and_not_opened(monkeypatch: pytest.MonkeyPatch) -> None:  # case 21
    monkeypatch.setattr(store.os, "open", lambda *_: pytest.fail("a device was opened"))
    with refusal(UNSAFE, "'/dev/null'", "a regular file", "a character device"):
        store.read_bundle("/dev/null", limit_bytes=LIMIT_BYTES)


def test_hard_link_is_refused(sim: BundleSimulator, tmp_path: Path) -> None:  # case 21
    os.link(sim.path, tmp_path / "second name")
    with refusal(UNSAFE, shown_path(sim.path), "exactly one name (no hard links)", "2 names"):
        sim.read()


@pytest.mark.parametrize("mode", [0o664, 0o646, 0o620, 0o602])
def test_file_writable_by_others_is_refused(sim: BundleSimulator, mode: int) -> None:
    sim.path.chmod(mode)
    with refusal(UNSAFE, shown_path(sim.path), "no write access for group or others", f"mode {mode:04o}"):
        sim.read()


@pytest.mark.parametrize("mode", [0o644, 0o600, 0o444, 0o755])
def test_file_that_only_its_owner_writes_is_read(sim: BundleSimulator, mode: int) -> None:
    sim.path.chmod(mode)
    assert sim.read()


def status_with(status: os.stat_result, **changes: int) -> os.stat_result:
    names = [
        "st_mode",
        "st_ino",
        "st_dev",
        "st_nlink",
        "st_uid",
        "st_gid",
        "st_size",
        "st_atime",
        "st_mtime",
        "st_ctime",
    ]
    return os.stat_result([changes.get(name, getattr(status, name)) for name in names])


@pytest.mark.parametrize("looked", ["lstat", "fstat"])
def test_file_of_another_user_is_refused(sim: BundleSimulator, monkeypatch: pytest.MonkeyPatch, looked: str) -> None:
    """Looked at by name before it is opened, and by descriptor after, for names move in between."""
    stranger = os.geteuid() + 4321
    status = status_with(os.stat(sim.path), st_uid=stranger)
    monkeypatch.setattr(store.os, looked, lambda _: status)
    before = open_descriptors()
    with refusal(UNSAFE, shown_path(sim.path), "root or this user as owner", f"owner {stranger}"):
        sim.read()
    assert open_descriptors() <= before


def test_file_of_root_or_of_this_user_is_read(sim: BundleSimulator, monkeypatch: pytest.MonkeyPatch) -> None:
    status = os.stat(sim.path)
    monkeypatch.setattr(store.os, "geteuid", lambda: 4321)
    for uid in (0, 4321):
        monkeypatch.setattr(store.os, "lstat", lambda _, uid=uid: status_with(status, st_uid=uid))
        monkeypatch.setattr(store.os, "fstat", lambda _, uid=uid: status_with(status, st_uid=uid))
        assert store.read_bundle(sim.path, limit_bytes=LIMIT_BYTES)


def test_link_put_in_place_before_opening_is_refused(sim: BundleSimulator, monkeypatch: pytest.MonkeyPatch) -> None:
    """The name is a file when looked at and a link when opened."""
    link = sim.path.parent / "link"
    link.symlink_to(sim.path)
    monkeypatch.setattr(store.os, "lstat", lambda _: os.stat(sim.path))
    found = "Too many levels of symbolic links"
    with refusal(UNSAFE, shown_path(link), "a readable regular file", found):
        store.read_bundle(link, limit_bytes=LIMIT_BYTES)


def test_fifo_put_in_place_before_opening_blocks_nothing(sim: BundleSimulator, monkeypatch: pytest.MonkeyPatch) -> None:
    fifo = sim.path.parent / "fifo"
    os.mkfifo(fifo)
    real = os.lstat(sim.path)
    monkeypatch.setattr(store.os, "lstat", lambda _: real)
    with refusal(UNSAFE, shown_path(fifo), "a regular file", "a FIFO"):
        store.read_bundle(fifo, limit_bytes=LIMIT_BYTES)


def test_file_over_the_limit_is_refused(sim: BundleSimulator) -> None:
    size_bytes = sim.path.stat().st_size
    assert store.read_bundle(sim.path, limit_bytes=size_bytes)
    expected, found = f"at most {size_bytes - 1} bytes", f"{size_bytes} bytes"
    with refusal(RefusalCode.FILE_TOO_LARGE, shown_path(sim.path), expected, found):
        store.read_bundle(sim.path, limit_bytes=size_bytes - 1)


@pytest.mark.parametrize("off_by", [-4096, -1, 1, 4096])
def test_file_longer_or_shorter_than_signed_is_refused(sim: BundleSimulator, off_by: int) -> None:  # case 19
    data = sim.file_bytes()
    sim.write((data + bytes(max(off_by, 0)))[: len(data) + off_by])
    expected, found = f"{len(data)} bytes by its blobs", f"{len(data) + off_by} bytes"
    with refusal(RefusalCode.BAD_CONTAINER, "bundle size", expected, found):
        sim.read()


def test_padding_that_is_not_zero_is_refused(sim: BundleSimulator) -> None:  # case 19
    data = sim.file_bytes()
    sim.write(flip_byte(data, -1))
    with refusal(RefusalCode.BAD_CONTAINER, f"padding at offset {len(data) - 1}", "zero", "0x01"):
        sim.read()


@pytest.mark.parametrize("size_bytes", [0, 1, 15])
def test_tiny_file_is_refused(sim: BundleSimulator, size_bytes: int) -> None:
    sim.write(sim.file_bytes()[:size_bytes])
    with refusal(RefusalCode.BAD_CONTAINER, "bundle size", "at least 16 bytes", f"{size_bytes} bytes"):
        sim.read()


def test_envelope_cut_short_is_refused(sim: BundleSimulator) -> None:
    envelope_bytes = len(sim.envelope().encode())
    sim.write(sim.file_bytes()[: envelope_bytes + 15])
    expected = f"at least {envelope_bytes + 16} bytes for its envelope"
    with refusal(RefusalCode.BAD_CONTAINER, "bundle size", expected, f"{envelope_bytes + 15} bytes"):
        sim.read()


def test_envelope_at_its_limit_is_read(sim: BundleSimulator) -> None:
    """White space inside the JSON fills the envelope to the last byte allowed."""
    raw = sim.envelope().encode()
    filled = raw + b" " * (ENVELOPE_LIMIT_BYTES - len(raw))
    sim.write(sim.file_bytes(filled))
    assert sim.read().sealed.envelope == filled


def test_declared_size_beyond_the_file_is_refused_before_memory_is_taken(sim: BundleSimulator) -> None:  # case 19
    sim.edit_statement = lambda document: document["predicate"]["blobs"][0].update(sizeBytes=2**63 - 1)
    sim.write()
    tracemalloc.start()
    try:
        with pytest.raises(Refused) as refused:
            sim.read()
        assert refused.value.code is RefusalCode.BAD_CONTAINER
        assert tracemalloc.get_traced_memory()[1] < 8 * 1024 * 1024
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("spoil", [b"", b"FENCED\0\1" + bytes(8), b"\0" * 5000], ids=itertools.count())
def test_refusal_leaves_nothing_open(sim: BundleSimulator, spoil: bytes) -> None:
    sim.write(spoil)
    before = open_descriptors()
    for _ in range(3):
        with pytest.raises(Refused):
            sim.read()
    assert open_descriptors() <= before


def test_refusal_late_in_reading_leaves_nothing_open(sim: BundleSimulator) -> None:
    sim.write(flip_byte(sim.file_bytes(), -1))
    before = open_descriptors(), threading.active_count()
    with pytest.raises(Refused):
        sim.read()
    assert open_descriptors() <= before[0]
    assert threading.active_count() <= before[1]


# Files that change while they are read


def change_while_reading(monkeypatch: pytest.MonkeyPatch, change: Callable[[], object], at_call: int) -> None:
    """Run `change` before the read number `at_call`, and read in small steps so that there are several."""
    real, calls = os.preadv, 0

    def preadv(fd: int, buffers: list[memoryview], offset: int) -> int:
        nonlocal calls
        calls += 1
        if calls == at_call:
            change()
        return real(fd, [buffers[0][:4096]], offset)

    monkeypatch.setattr(store.os, "preadv", preadv)


@pytest.mark.parametrize("at_call", [1, 2, 4])
def test_file_cut_while_it_is_read_is_refused(
    sim: BundleSimulator, monkeypatch: pytest.MonkeyPatch, at_call: int
) -> None:
    change_while_reading(monkeypatch, lambda: os.truncate(sim.path, 0), at_call)
    before = open_descriptors(), threading.active_count()
    with refusal(
        RefusalCode.FILE_CHANGED,
        shown_path(sim.path),
        "the file that was opened, unchanged",
        f"its end at {(at_call - 1) * 4096} bytes",
    ):
        sim.read()
    assert open_descriptors() <= before[0]
    assert threading.active_count() <= before[1]


@pytest.mark.parametrize("change", ["grow", "touch"])
def test_file_touched_while_it_is_read_is_refused(
    sim: BundleSimulator, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    size_bytes = sim.path.stat().st_size
    changes: dict[str, Callable[[], object]] = {
        "grow": lambda: os.truncate(sim.path, size_bytes + 1),
        "touch": lambda: os.utime(sim.path, ns=(1, 1)),
    }
    change_while_reading(monkeypatch, changes[change], 3)
    expected = "the file that was opened, unchanged"
    with refusal(RefusalCode.FILE_CHANGED, shown_path(sim.path), expected, "another size or time"):
        sim.read()


def test_read_error_is_a_refusal(sim: BundleSimulator, monkeypatch: pytest.MonkeyPatch) -> None:
    def preadv(*_: object) -> int:
        raise OSError(errno.EIO, "bad sector")

    monkeypatch.setattr(store.os, "preadv", preadv)
    found = "Input/output error"
    with refusal(RefusalCode.UNREADABLE_FILE, shown_path(sim.path), "a readable regular file", found):
        sim.read()


def write_large(sim: BundleSimulator) -> None:
    """A file that is read ahead on another thread."""
    sim.blobs["weights"] = os.urandom(store._AHEAD_FROM_BYTES)
    sim.write()


def test_fault_of_the_reading_thread_is_raised_here(sim: BundleSimulator, monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory runs out after the first chunk: the error arrives, and nothing is left behind."""
    write_large(sim)
    real, threads = os.write, []

    def write(fd: int, data: memoryview) -> int:
        threads.append(threading.current_thread().name)
        if len(threads) == 2:
            raise OSError(errno.ENOSPC, "no room")
        return real(fd, data)

    monkeypatch.setattr(store.os, "write", write)
    before = open_descriptors(), threading.active_count()
    with pytest.raises(OSError, match="no room"):
        sim.read()
    assert open_descriptors() <= before[0]
    assert threading.active_count() <= before[1]
    assert threads == [threading.current_thread().name, "fenced-read-ahead"]


@pytest.mark.parametrize("advice", [store._MADV_POPULATE_READ, 1 << 20], ids=["this kernel", "one that cannot"])
def test_large_file_comes_whole(sim: BundleSimulator, monkeypatch: pytest.MonkeyPatch, advice: int) -> None:
    write_large(sim)
    monkeypatch.setattr(store, "_MADV_POPULATE_READ", advice)
    bundle = sim.read()
    assert {name: bytes(bundle.blob(name)) for name in sim.blobs} == sim.blobs


def test_reader_that_is_ahead_maps_pages_for_the_hash(sim: BundleSimulator, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first chunk is wanted at once; behind it, until the caller comes to them, pages are mapped without a gap."""
    write_large(sim)
    ranges: list[tuple[int, int]] = []
    hash_behind, real, step_bytes = store._hash_behind, os.preadv, 300_001
    monkeypatch.setattr(store.os, "preadv", lambda fd, buffers, offset: real(fd, [buffers[0][:step_bytes]], offset))

    class Noted(mmap.mmap):
        def madvise(self, advice: int, start: int, length: int) -> None:  # type: ignore[override]
            ranges.append((start, start + length))
            super().madvise(advice, start, length)

    def late(filled: Iterator[int], *rest: Any) -> tuple[str, ...]:
        head, first = next(filled), next(filled)
        for thread in threading.enumerate():
            if thread.name == "fenced-read-ahead":
                thread.join()
        return hash_behind(itertools.chain([head, first], filled), *rest)

    monkeypatch.setattr(store.mmap, "mmap", Noted)
    monkeypatch.setattr(store, "_hash_behind", late)
    bundle = sim.read()
    assert {name: bytes(bundle.blob(name)) for name in sim.blobs} == sim.blobs
    assert ranges[0][0] <= 3 * step_bytes  # head, first, and what came before we asked
    for (before, end), (start, _) in itertools.pairwise(ranges):
        assert before < start <= end
        assert start % mmap.PAGESIZE == 0
    assert ranges[-1][1] == sim.path.stat().st_size


def test_hashing_that_fails_leaves_no_thread_writing(sim: BundleSimulator, monkeypatch: pytest.MonkeyPatch) -> None:
    """The memfd's number may be another file's once it is closed."""
    write_large(sim)

    def fail(filled: Iterator[int], *_: object) -> tuple[str, ...]:
        next(filled)  # the head
        next(filled)  # the first that the thread brought
        raise MemoryError

    order: list[str] = []
    join, close = threading.Thread.join, os.close
    monkeypatch.setattr(store, "_hash_behind", fail)
    monkeypatch.setattr(threading.Thread, "join", lambda self: (order.append(self.name), join(self)))
    monkeypatch.setattr(store.os, "close", lambda fd: (order.append("close"), close(fd)))
    before = open_descriptors(), threading.active_count()
    with pytest.raises(MemoryError):
        sim.read()
    assert order == ["fenced-read-ahead", "close", "close"]
    assert open_descriptors() <= before[0]
    assert threading.active_count() <= before[1]


def test_short_reads_are_completed(sim: BundleSimulator, monkeypatch: pytest.MonkeyPatch) -> None:
    """Reads of 100 bytes: the envelope, too, comes in many pieces."""
    real = os.preadv
    monkeypatch.setattr(store.os, "preadv", lambda fd, buffers, offset: real(fd, [buffers[0][:100]], offset))
    assert {name: bytes(sim.read().blob(name)) for name in sim.blobs} == sim.blobs


def test_short_writes_are_completed(sim: BundleSimulator, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.write
    monkeypatch.setattr(store.os, "write", lambda fd, data: real(fd, data[:1000]))
    assert {name: bytes(sim.read().blob(name)) for name in sim.blobs} == sim.blobs


# Small files, roots and state


def test_small_file_is_read_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "root.json"
    path.write_bytes(data := os.urandom(10_000))
    path.chmod(0o600)
    assert store.read_file(path, limit_bytes=10_000) == data
    change_while_reading(monkeypatch, lambda: None, 0)
    assert store.read_file(str(path), limit_bytes=10_000) == data
    with refusal(RefusalCode.FILE_TOO_LARGE, shown_path(path), "at most 9999 bytes", "10000 bytes"):
        store.read_file(path, limit_bytes=9999)


def test_small_file_touched_while_it_is_read_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "root.json"
    path.write_bytes(bytes(10_000))
    path.chmod(0o600)
    change_while_reading(monkeypatch, lambda: os.utime(path, ns=(1, 1)), 2)
    before = open_descriptors()
    expected = "the file that was opened, unchanged"
    with refusal(RefusalCode.FILE_CHANGED, shown_path(path), expected, "another size or time"):
        store.read_file(path, limit_bytes=10_000)
    assert open_descriptors() <= before


STATE = VehicleState(b"envelope", 2, {"lane": Floor(5, "a" * 64)})


def test_state_comes_back_from_disk(tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    assert store.read_state(path) is None
    store.write_state(path, STATE)
    assert store.read_state(path) == STATE
    store.write_state(path, replace(STATE, trust_epoch=3))
    assert store.read_state(path) == replace(STATE, trust_epoch=3)
    assert path.stat().st_mode & 0o7777 == 0o600
    assert [one.name for one in tmp_path.iterdir()] == ["state.json"]


def test_state_mode_does_not_depend_on_the_umask(tmp_path: Path) -> None:
    old = os.umask(0o777)
    try:
        store.write_state(tmp_path / "state.json", STATE)
    finally:
        os.umask(old)
    assert (tmp_path / "state.json").stat().st_mode & 0o7777 == 0o600


def test_dangling_state_link_is_no_missing_state(tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    path.symlink_to("/nowhere")
    with refusal(UNSAFE, shown_path(path), "a regular file", "a symbolic link"):
        store.read_state(path)


def test_oversize_state_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    path.write_bytes(b" " * (1024 * 1024 + 1))
    path.chmod(0o600)
    with pytest.raises(Refused) as refused:
        store.read_state(path)
    assert refused.value.code is RefusalCode.FILE_TOO_LARGE


@pytest.mark.parametrize(
    ("damage", "code"),
    [
        (lambda data: data[:-1], RefusalCode.BAD_JSON),
        (lambda _: b"", RefusalCode.BAD_JSON),
        (lambda data: data.replace(b'"trustEpoch"', b'"trustepoch"'), RefusalCode.BAD_STATE),
        (lambda data: data + b" " * (1 << 20), RefusalCode.FILE_TOO_LARGE),
        (lambda _: encode_state(VehicleState(b"{}", 1)), RefusalCode.BAD_ENVELOPE),
    ],
    ids=["cut short", "empty", "another field", "too long", "another root"],
)
def test_damaged_state_is_to_be_restored_not_written_anew(
    sim: BundleSimulator, tmp_path: Path, damage: Callable[[bytes], bytes], code: RefusalCode
) -> None:
    state = tmp_path / "trust.json"
    roots = [write_root(sim, "1.json", 1)]
    store.open_trust(roots, state)
    state.write_bytes(damage(state.read_bytes()))
    with pytest.raises(Refused) as refused:
        store.open_trust(roots, state)
    assert (refused.value.code, refused.value.todo) == (code, RefusalCode.BAD_STATE.todo)
    assert "from a backup" in refused.value.todo
    assert "without its rollback floors" in refused.value.todo
    assert shown_path(state) in refused.value.what


def write_root(sim: BundleSimulator, name: str, version: int, **changes: object) -> Path:
    path = sim.path.parent / name
    path.write_bytes(sign_root(replace(sim.root, version=version, **changes), sim.keys.root))  # type: ignore[arg-type]
    path.chmod(0o644)
    return path


def test_first_start_trusts_the_provisioned_root_and_remembers_it(sim: BundleSimulator, tmp_path: Path) -> None:
    state = tmp_path / "state.json"
    trusted = store.open_trust([write_root(sim, "1.json", 1)], state)
    assert (trusted.root.version, trusted.state.trust_epoch) == (1, 1)
    assert store.read_state(state) == trusted.state
    assert store.open_trust([write_root(sim, "1.json", 1)], state) == trusted


def test_newer_roots_are_accepted_and_remembered(sim: BundleSimulator, tmp_path: Path) -> None:
    state = tmp_path / "state.json"
    roots = [write_root(sim, f"{n}.json", n) for n in (1, 2, 3)]
    store.open_trust(roots[:1], state)
    trusted = store.open_trust(roots, state)
    assert (trusted.root.version, trusted.state.trust_epoch) == (3, 3)
    assert store.read_state(state) == trusted.state
    assert store.open_trust(roots[:1], state) == trusted


def test_unchanged_state_is_not_written_again(
    sim: BundleSimulator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = tmp_path / "state.json"
    roots = [write_root(sim, "1.json", 1)]
    trusted = store.open_trust(roots, state)
    store.write_state(state, trusted.confirm(sim.read()).state)
    monkeypatch.setattr(store, "write_state", lambda *_: pytest.fail("written again"))
    assert store.open_trust(roots, state).state.floors["lane"].release == 5


def test_swapped_root_file_is_refused(sim: BundleSimulator, tmp_path: Path) -> None:
    state = tmp_path / "state.json"
    store.open_trust([write_root(sim, "1.json", 1)], state)
    with pytest.raises(Refused) as refused:
        store.open_trust([write_root(sim, "1.json", 1, minimum_releases={"lane": 1})], state)
    assert refused.value.code is RefusalCode.ROOT_CHAIN_BROKEN


def test_trust_needs_a_root(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="open_trust needs at least one root file"):
        store.open_trust([], tmp_path / "state.json")
    assert not (tmp_path / "state.json").exists()


def test_oversize_root_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "root.json"
    path.write_bytes(b" " * (ENVELOPE_LIMIT_BYTES + 1))
    path.chmod(0o644)
    with pytest.raises(Refused) as refused:
        store.open_trust([path], tmp_path / "state.json")
    assert refused.value.code is RefusalCode.FILE_TOO_LARGE


def test_state_with_a_forged_root_is_refused(sim: BundleSimulator, tmp_path: Path) -> None:
    state = tmp_path / "state.json"
    roots = [write_root(sim, "1.json", 1)]
    forged = sign_root(sim.root, sim.keys.build)
    store.write_state(state, VehicleState(forged, 1))
    with pytest.raises(Refused):
        store.open_trust(roots, state)
    assert TrustStore.bootstrap(roots[0].read_bytes())
