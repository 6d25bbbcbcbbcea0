"""Sealed memfds, mappings, rings and the refusals of descriptors that prove nothing."""

from __future__ import annotations

import mmap
import os
import socket
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from hal import memory
from hal.error import HalCode, HalError
from hal.memory import PAGE_BYTES, Mapping, MemoryLock, Seal
from tests.support.descriptors import open_descriptors


@pytest.fixture
def descriptors() -> Iterator[list[int]]:
    held: list[int] = []
    yield held
    for descriptor in held:
        os.close(descriptor)


def code_of(act: Callable[[], object]) -> HalCode:
    with pytest.raises(HalError) as caught:
        act()
    return caught.value.code


def test_sealed_memory_has_its_size_for_ever(descriptors: list[int]) -> None:
    fd = memory.create_sealed("test", 5000)
    descriptors.append(fd)
    assert memory.file_bytes(fd) == 5000
    assert memory.seals(fd) & memory.FIXED_SIZE == memory.FIXED_SIZE
    for size in (4999, 5001):
        with pytest.raises(PermissionError):
            os.ftruncate(fd, size)
    assert code_of(lambda: memory.add_seals(fd, Seal.WRITE)) is HalCode.NOT_PERMITTED
    assert not os.get_inheritable(fd)


def test_memory_in_huge_pages_is_refused_by_name(descriptors: list[int]) -> None:
    try:
        fd = os.memfd_create("huge", os.MFD_ALLOW_SEALING | os.MFD_HUGETLB)
    except OSError as error:
        pytest.skip(f"this kernel makes no memfd in huge pages: {error.strerror}")
    descriptors.append(fd)
    size_bytes = os.fstatvfs(fd).f_bsize
    os.ftruncate(fd, size_bytes)  # no page is taken from the pool, which may be empty
    memory.add_seals(fd, memory.FIXED_SIZE)
    with pytest.raises(HalError, match="hugetlb") as refused:
        Mapping.of(fd, size_bytes)
    assert (refused.value.code, refused.value.found) == (HalCode.DESCRIPTOR, f"pages of {size_bytes} bytes (hugetlb)")


def test_memory_in_huge_pages_is_told_by_its_file_system(
    descriptors: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    fd = memory.create_sealed("test", 5000)
    descriptors.append(fd)
    Mapping.of(fd, 5000)
    huge = list(os.fstatvfs(fd))
    huge[0] = 2 << 20
    monkeypatch.setattr(os, "fstatvfs", lambda _: os.statvfs_result(huge))
    with pytest.raises(HalError, match="MFD_HUGETLB") as refused:
        Mapping.of(fd, 5000)
    assert (refused.value.code, refused.value.found) == (HalCode.DESCRIPTOR, "pages of 2097152 bytes (hugetlb)")


def test_a_sealed_copy_cannot_be_written_by_anybody(descriptors: list[int]) -> None:
    fd = memory.seal_copy("test", b"abc")
    descriptors.append(fd)
    assert os.pread(fd, 10, 0) == b"abc"
    with pytest.raises(PermissionError):
        os.pwrite(fd, b"x", 0)
    assert code_of(lambda: Mapping.of(fd, 3, writable=True)) is HalCode.NOT_PERMITTED
    mapping = Mapping.of(fd, 3)
    assert bytes(mapping.view) == b"abc"
    assert mapping.view.readonly
    assert not mapping.writable


def test_copies_of_any_byte_view_are_whole(descriptors: list[int]) -> None:
    words = memoryview(bytearray(range(16))).cast("I")
    fd = memory.seal_copy("test", words)
    descriptors.append(fd)
    assert os.pread(fd, 100, 0) == bytes(range(16))


def test_executable_and_plain_memory_are_told_apart(descriptors: list[int]) -> None:
    run, plain = memory.seal_copy("run", b"x", executable=True), memory.seal_copy("plain", b"x")
    descriptors += [run, plain]
    assert os.fstat(run).st_mode & 0o111
    if os.fstat(plain).st_mode & 0o111:
        pytest.skip("this kernel knows no MFD_NOEXEC_SEAL")
    assert Seal.EXEC in memory.seals(plain)


def test_a_ring_is_written_here_and_read_there(descriptors: list[int]) -> None:
    mapping, reader = memory.create_ring("ring", 2 * PAGE_BYTES)
    descriptors.append(reader)
    mapping.view[0] = 7
    assert Mapping.of(reader, 2 * PAGE_BYTES).view[0] == 7
    assert code_of(lambda: Mapping.of(reader, PAGE_BYTES, writable=True)) is HalCode.NOT_PERMITTED
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.write(reader, b"x")
    again = os.open(f"/proc/self/fd/{reader}", os.O_RDWR)  # even a reader that opens it anew
    descriptors.append(again)
    assert code_of(lambda: Mapping.of(again, PAGE_BYTES, writable=True)) is HalCode.NOT_PERMITTED
    with pytest.raises(PermissionError):
        os.write(again, b"x")
    mapping.view[1] = 8
    assert mapping.view[1] == 8


@pytest.mark.parametrize("size", [0, -1, memory.MAX_MAPPING_BYTES + 1])
def test_impossible_sizes_are_refused(size: int, descriptors: list[int]) -> None:
    fd = memory.create_sealed("test", PAGE_BYTES)
    descriptors.append(fd)
    assert code_of(lambda: memory.create_sealed("test", size)) is HalCode.SIZE
    assert code_of(lambda: Mapping.of(fd, size)) is HalCode.SIZE
    assert code_of(lambda: Mapping.anonymous(size)) is HalCode.SIZE


def test_a_mapping_stays_inside_its_memory_and_on_pages(descriptors: list[int]) -> None:
    fd = memory.create_sealed("test", 2 * PAGE_BYTES)
    descriptors.append(fd)
    os.pwrite(fd, b"second", PAGE_BYTES)
    assert bytes(Mapping.of(fd, 6, offset=PAGE_BYTES).view) == b"second"
    assert Mapping.of(fd, PAGE_BYTES, offset=PAGE_BYTES).address % PAGE_BYTES == 0
    assert code_of(lambda: Mapping.of(fd, PAGE_BYTES + 1, offset=PAGE_BYTES)) is HalCode.SIZE
    assert code_of(lambda: Mapping.of(fd, 1, offset=1)) is HalCode.ALIGNMENT
    assert code_of(lambda: Mapping.of(fd, 1, offset=-PAGE_BYTES)) is HalCode.ALIGNMENT


def test_memory_that_can_shrink_is_not_mapped(descriptors: list[int]) -> None:
    fd = os.memfd_create("loose", os.MFD_ALLOW_SEALING)
    descriptors.append(fd)
    os.ftruncate(fd, PAGE_BYTES)
    assert code_of(lambda: Mapping.of(fd, PAGE_BYTES)) is HalCode.NOT_SHRINK_SEALED
    memory.add_seals(fd, Seal.SHRINK)
    Mapping.of(fd, PAGE_BYTES)


@pytest.mark.parametrize("between", ["file_bytes", "seals"])
def test_memory_that_is_cut_short_while_it_is_looked_at_is_not_mapped(
    descriptors: list[int], monkeypatch: pytest.MonkeyPatch, between: str
) -> None:
    """Its owner shrinks and seals it right after one of the looks: a length that was proved before the seal is none."""
    fd = os.memfd_create("loose", os.MFD_ALLOW_SEALING)
    descriptors.append(fd)
    os.ftruncate(fd, 4 * PAGE_BYTES)
    look = getattr(memory, between)

    def look_and_lose(descriptor: int) -> object:
        found: object = look(descriptor)
        if not look_at_seals(fd) & Seal.SHRINK:
            os.ftruncate(fd, PAGE_BYTES)
            memory.add_seals(fd, Seal.SHRINK)
        return found

    look_at_seals = memory.seals
    monkeypatch.setattr(memory, between, look_and_lose)
    assert code_of(lambda: Mapping.of(fd, 4 * PAGE_BYTES)) in (HalCode.SIZE, HalCode.NOT_SHRINK_SEALED)


def test_what_is_not_memory_is_refused_by_name(descriptors: list[int]) -> None:
    left, right = socket.socketpair()
    with left, right:
        assert code_of(lambda: memory.file_bytes(left.fileno())) is HalCode.DESCRIPTOR
        assert code_of(lambda: memory.seals(left.fileno())) is HalCode.DESCRIPTOR
    with tempfile.TemporaryFile() as file:
        file.truncate(PAGE_BYTES)
        shrinkable = code_of(lambda: Mapping.of(file.fileno(), PAGE_BYTES))
        assert shrinkable in (HalCode.DESCRIPTOR, HalCode.NOT_SHRINK_SEALED)  # a tmpfs file carries the seal SEAL
    assert code_of(lambda: memory.file_bytes(1 << 20)) is HalCode.NOT_PERMITTED


def test_released_memory_lives_as_long_as_something_uses_it() -> None:
    mapping = Mapping.anonymous(PAGE_BYTES)
    view = mapping.view
    mapping.release()
    view[0] = 1
    assert view[0] == 1
    assert code_of(lambda: mapping.view) is HalCode.CLOSED
    mapping.advise(mmap.MADV_NORMAL)


def test_an_unmapped_range_leaves_the_address_space(descriptors: list[int]) -> None:
    fd = memory.create_sealed("fenced-test-unmap", 4 * PAGE_BYTES)
    descriptors.append(fd)
    mapping = Mapping.of(fd, 4 * PAGE_BYTES)
    assert "fenced-test-unmap" in Path("/proc/self/maps").read_text()
    del mapping
    assert "fenced-test-unmap" not in Path("/proc/self/maps").read_text()


def test_advice_that_the_kernel_does_not_know_is_no_error_and_a_refused_one_is() -> None:
    mapping = Mapping.anonymous(PAGE_BYTES)
    mapping.advise(mmap.MADV_HUGEPAGE)
    mapping.advise(9999)


def test_no_descriptor_is_lost_by_a_refusal() -> None:
    before = open_descriptors()
    for _ in range(50):
        with pytest.raises(HalError):
            memory.create_sealed("test", 0)
        mapping, reader = memory.create_ring("ring", PAGE_BYTES)
        os.close(reader)
        del mapping
        os.close(memory.seal_copy("test", b"x"))
    assert open_descriptors() <= before


def test_no_more_descriptors_is_a_typed_refusal(monkeypatch: pytest.MonkeyPatch) -> None:
    def none_left(name: str, flags: int) -> int:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(os, "memfd_create", none_left)
    assert code_of(lambda: memory.create_sealed("test", 1)) is HalCode.OUT_OF_MEMORY


def test_a_kernel_without_the_exec_flags_still_makes_memory(
    monkeypatch: pytest.MonkeyPatch, descriptors: list[int]
) -> None:
    real = os.memfd_create
    asked: list[int] = []

    def old_kernel(name: str, flags: int) -> int:
        asked.append(flags)
        if flags & 0x18:
            raise OSError(22, "Invalid argument")
        return real(name, flags)

    monkeypatch.setattr(os, "memfd_create", old_kernel)
    descriptors += [memory.seal_copy("test", b"x", executable=True), memory.create_sealed("test", 1)]
    assert asked == [0x13, 0x3, 0xB, 0x3]


def test_memory_is_locked_or_refused_by_name() -> None:
    mapping = Mapping.anonymous(PAGE_BYTES)
    try:
        MemoryLock().lock(mapping)
    except HalError as error:
        assert error.code in (HalCode.OUT_OF_MEMORY, HalCode.NOT_PERMITTED)  # noqa: PT017 (depends on the limit)
    mapping.address = 1 << 46
    assert code_of(lambda: MemoryLock().lock(mapping)) in (HalCode.OUT_OF_MEMORY, HalCode.NOT_PERMITTED)
