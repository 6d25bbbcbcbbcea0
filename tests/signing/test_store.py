"""The store: one bounded read of a safe file into memory that nobody can change."""

from __future__ import annotations

import errno
import fcntl
import itertools
import os
import socket
import threading
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest

from signing import store
from signing.container import ENVELOPE_LIMIT_BYTES
from signing.refusal import RefusalCode, Refused
from tests.simulators import BundleSimulator, flip_byte, refusal
from tests.support.descriptors import open_descriptors
from tests.support.odd_files import change_while_reading, shown_path

LIMIT_BYTES = 16 * 1024 * 1024
UNSAFE = RefusalCode.UNSAFE_FILE


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
