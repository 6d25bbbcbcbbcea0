"""Shared memory that cannot be pulled away or written behind one's back: sealed memfds and their mappings.

A memfd's seals (memfd_create(2), fcntl(2) F_ADD_SEALS) are the proof that its owner can no longer shrink it, which
would turn a read into SIGBUS, or write to it. Files given to others are made here; descriptors received from others
are checked here before they are mapped. A mapping stays valid until the last object that uses it is gone, so a frame
in flight keeps its memory even if the peer that sent it is dead. Errors are HalError.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import mmap
import os
import stat
import weakref
from enum import IntFlag

import numpy as np
from numpy.typing import NDArray

from hal.error import HalCode, HalError

PAGE_BYTES = mmap.PAGESIZE
MAX_MAPPING_BYTES = 1 << 34  # 16 GiB: far above any model or frame, far below what could wrap an address
_MFD_CLOEXEC, _MFD_ALLOW_SEALING, _MFD_EXEC, _MFD_NOEXEC_SEAL = 0x1, 0x2, 0x10, 0x8  # linux/memfd.h
_F_ADD_SEALS, _F_GET_SEALS = 1033, 1034  # linux/fcntl.h


class Seal(IntFlag):
    """F_SEAL_* of linux/fcntl.h."""

    NONE = 0
    SEAL = 0x1
    SHRINK = 0x2
    GROW = 0x4
    WRITE = 0x8
    FUTURE_WRITE = 0x10
    EXEC = 0x20


FIXED_SIZE = Seal.SHRINK | Seal.GROW | Seal.SEAL
CONSTANT = FIXED_SIZE | Seal.WRITE


def create_sealed(name: str, size_bytes: int) -> int:
    """A new writable memfd of zeros whose size is fixed for ever. Returns a descriptor that the caller owns.

    Its mode (0644) lets other users who are given a read-only descriptor not open it anew for writing.
    """
    descriptor = _create(name, size_bytes, executable=False)
    try:
        os.fchmod(descriptor, 0o644)
        add_seals(descriptor, FIXED_SIZE)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def seal_copy(name: str, data: bytes | bytearray | memoryview, *, executable: bool = False) -> int:
    """A new memfd that holds a copy of `data` and can never change again. Returns a descriptor that the caller owns."""
    view = memoryview(data).cast("B")
    descriptor = _create(name, view.nbytes, executable)
    try:
        done = 0
        while done < view.nbytes:
            done += os.write(descriptor, view[done:])
        add_seals(descriptor, CONSTANT)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def create_ring(name: str, size_bytes: int) -> tuple[Mapping, int]:
    """A ring that only this process can write: its writable mapping, and a read-only descriptor for readers.

    After the mapping is made the file is sealed with F_SEAL_FUTURE_WRITE, so no reader can map it writable or write to
    it, however it opens the descriptor. The caller owns the descriptor; the mapping lives on its own.
    """
    descriptor = _create(name, size_bytes, executable=False)
    try:
        mapping = Mapping.of(descriptor, size_bytes, writable=True)
        add_seals(descriptor, FIXED_SIZE | Seal.FUTURE_WRITE)
        return mapping, reopen_read_only(descriptor)
    finally:
        os.close(descriptor)


def reopen_read_only(descriptor: int) -> int:
    """A second, read-only open of the same memfd, for a peer that must not write. The caller owns it."""
    try:
        return os.open(f"/proc/self/fd/{descriptor}", os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise _refusal(error, "a memfd cannot be opened read-only", "check that /proc is mounted") from error


def seals(descriptor: int) -> Seal:
    """The seals of a descriptor. Raises HalError DESCRIPTOR where it is not a memfd (or cannot carry seals)."""
    try:
        return Seal(fcntl.fcntl(descriptor, _F_GET_SEALS))
    except OSError as error:
        raise HalError(
            HalCode.DESCRIPTOR,
            "the descriptor cannot carry seals",
            expected="a memfd made with MFD_ALLOW_SEALING",
            found=os.strerror(error.errno or 0),
            todo="share memory with memfd_create, not with a plain file",
        ) from error


def add_seals(descriptor: int, wanted: Seal) -> None:
    """Seal a memfd. Raises HalError NOT_PERMITTED, for instance WRITE while a writable mapping is alive."""
    try:
        fcntl.fcntl(descriptor, _F_ADD_SEALS, int(wanted))
    except OSError as error:
        raise _refusal(error, f"seals {wanted!r} were refused", "drop writable mappings before sealing") from error


def file_bytes(descriptor: int) -> int:
    """The size of the memory behind a received descriptor. Raises HalError DESCRIPTOR unless it is a memory file."""
    try:
        status = os.fstat(descriptor)
    except OSError as error:
        raise _refusal(error, "the descriptor cannot be inspected", "pass an open memfd") from error
    if not stat.S_ISREG(status.st_mode):
        found = stat.filemode(status.st_mode)
        raise HalError(HalCode.DESCRIPTOR, "not memory", expected="a memfd", found=f"a file of mode {found}")
    return status.st_size


class Mapping:
    """A mapped range of memory: `address`, `size_bytes`, `writable`, and `view`, a memoryview of its bytes.

    Unmapped when the last view, buffer or fence that uses it is gone; `release` lets go of this object's own hold.
    """

    __slots__ = ("__weakref__", "_array", "_map", "address", "size_bytes", "writable")

    def __init__(self, mapped: mmap.mmap, size: int, writable: bool) -> None:
        self._map: mmap.mmap | None = mapped
        self._array: NDArray[np.uint8] | None = np.frombuffer(mapped, np.uint8, size)
        self.address: int = self._array.ctypes.data
        self.size_bytes = size
        self.writable = writable

    @classmethod
    def of(cls, descriptor: int, size: int, *, offset: int = 0, writable: bool = False) -> Mapping:
        """Map `size` bytes of a descriptor from `offset` (a multiple of PAGE_BYTES), shared.

        The descriptor must hold that many bytes and be sealed against shrinking (writable ones made here are not yet).
        Raises HalError SIZE, ALIGNMENT, NOT_SHRINK_SEALED, DESCRIPTOR (huge pages), NOT_PERMITTED.
        """
        _check_size(size)
        if offset < 0 or offset % PAGE_BYTES:
            raise HalError(HalCode.ALIGNMENT, "a mapping starts inside a page", expected=f"a multiple of {PAGE_BYTES}",
                           found=str(offset))  # fmt: skip
        file_bytes(descriptor)  # that it is memory at all
        if not writable and not seals(descriptor) & Seal.SHRINK:
            raise HalError(HalCode.NOT_SHRINK_SEALED, "memory that its owner can shrink", expected="F_SEAL_SHRINK",
                           found=repr(seals(descriptor)), todo="seal the memfd before passing it")  # fmt: skip
        held = file_bytes(descriptor)  # only now: until the seal is seen its owner may cut it short at any time
        if offset + size > held:
            raise HalError(HalCode.SIZE, "a mapping reaches past the end of its memory",
                           expected=f"at most {held} bytes", found=f"{offset} + {size}")  # fmt: skip
        _require_ordinary_pages(descriptor)
        protection = mmap.PROT_READ | (mmap.PROT_WRITE if writable else 0)
        try:
            mapped = mmap.mmap(descriptor, size, flags=mmap.MAP_SHARED, prot=protection, offset=offset)
        except OSError as error:
            todo = "map it read-only, or raise the memory limit"
            raise _refusal(error, f"{size} bytes cannot be mapped", todo) from error
        return cls(mapped, size, writable)

    @classmethod
    def anonymous(cls, size: int) -> Mapping:
        """Private zeroed memory of `size` bytes, page aligned."""
        _check_size(size)
        try:
            mapped = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        except OSError as error:
            raise _refusal(error, f"{size} bytes of memory are not available", "free memory") from error
        return cls(mapped, size, True)

    @property
    def view(self) -> memoryview:
        """The bytes. Read-only unless the mapping is writable. Raises HalError CLOSED after `release`."""
        return self.array.data

    @property
    def array(self) -> NDArray[np.uint8]:
        """The bytes as a 1-D uint8 array over the same memory."""
        if self._array is None:
            raise HalError(HalCode.CLOSED, "the mapping was released")
        return self._array

    def advise(self, advice: int) -> None:
        """madvise(2) for the whole mapping, for instance MADV_HUGEPAGE. A kernel without it is not an error."""
        if self._map is not None:
            try:
                self._map.madvise(advice)
            except OSError as error:
                if error.errno != errno.EINVAL:
                    raise _refusal(error, "madvise was refused", "turn the option off") from error

    def release(self) -> None:
        """Let go. Views, device buffers and fences that still use the memory keep it mapped until they are gone."""
        self._array = None
        self._map = None


class HeldBytes:
    """The bytes of the mappings that are still in use, which any thread may make and drop meanwhile."""

    def __init__(self) -> None:
        self._held: dict[int, weakref.ref[Mapping]] = {}

    def add(self, mapping: Mapping) -> None:
        """Counts the mapping until nobody holds it."""
        key = id(mapping)
        self._held[key] = weakref.ref(mapping, lambda _: self._held.pop(key, None))

    @property
    def total_bytes(self) -> int:
        """Their sum now."""
        held = [reference() for reference in tuple(self._held.values())]  # a tuple is made in one step
        return sum(mapping.size_bytes for mapping in held if mapping is not None)


class MemoryLock:
    """mlock(2): keeps mappings resident, so that no run waits for a page. Needs RLIMIT_MEMLOCK or CAP_IPC_LOCK."""

    def __init__(self) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._libc.mlock.argtypes = (ctypes.c_void_p, ctypes.c_size_t)

    def lock(self, mapping: Mapping) -> None:
        """Lock until the mapping is gone. Raises HalError OUT_OF_MEMORY or NOT_PERMITTED."""
        if self._libc.mlock(mapping.address, mapping.size_bytes):
            error = OSError(ctypes.get_errno(), "mlock")
            raise _refusal(error, f"{mapping.size_bytes} bytes cannot be locked", "raise LimitMEMLOCK")


def _create(name: str, size: int, executable: bool) -> int:
    _check_size(size)
    flags = _MFD_CLOEXEC | _MFD_ALLOW_SEALING
    try:
        try:
            descriptor = os.memfd_create(name, flags | (_MFD_EXEC if executable else _MFD_NOEXEC_SEAL))
        except OSError as error:
            if error.errno != errno.EINVAL:  # Linux before 6.3 knows neither flag
                raise
            descriptor = os.memfd_create(name, flags)
    except OSError as error:
        raise _refusal(error, "memfd_create failed", "free descriptors or memory") from error
    try:
        os.ftruncate(descriptor, size)
    except OSError as error:
        os.close(descriptor)
        raise _refusal(error, f"a memfd of {size} bytes cannot be made", "free memory") from error
    return descriptor


def _require_ordinary_pages(descriptor: int) -> None:
    """Refuse memory of hugetlbfs (MFD_HUGETLB), which no seal keeps readable.

    Its owner may punch a hole into it (fallocate(2)) whatever the seals against shrinking say; where the pool of huge
    pages has run out, reading there is SIGBUS. A hole in an ordinary memfd reads as zeros. The file system's own block
    size tells them apart; st_blksize does not, as a memfd in transparent huge pages has a large one too.
    """
    block_bytes = os.fstatvfs(descriptor).f_bsize
    if block_bytes != PAGE_BYTES:
        raise HalError(HalCode.DESCRIPTOR, "memory in huge pages (hugetlb), of which parts can be taken away",
                       expected=f"a memfd in pages of {PAGE_BYTES} bytes",
                       found=f"pages of {block_bytes} bytes (hugetlb)",
                       todo="make the memfd without MFD_HUGETLB")  # fmt: skip


def _check_size(size: int) -> None:
    if not 1 <= size <= MAX_MAPPING_BYTES:
        raise HalError(HalCode.SIZE, "a size no memory has", expected=f"1..{MAX_MAPPING_BYTES}", found=str(size))


def _refusal(error: OSError, what: str, todo: str) -> HalError:
    out = error.errno in (errno.ENOMEM, errno.ENOSPC, errno.EMFILE, errno.ENFILE)
    code = HalCode.OUT_OF_MEMORY if out else HalCode.NOT_PERMITTED
    return HalError(code, what, found=os.strerror(error.errno or 0), todo=todo)
