"""dma-bufs: frame memory that a driver allocated (a V4L2 capture queue, a DRM or heap allocation), shared as it is.

The kernel fixes a dma-buf's size for its life, so it needs no seals. It is told from anything else by its fdinfo, which
only the kernel writes (Documentation/driver-api/dma-buf.rst, "DMA buffer debugging"); a name can be made to look like
one. Before the CPU reads, caches are brought in line by DMA_BUF_IOCTL_SYNC (uapi/linux/dma-buf.h). That ioctl also
waits for the writers that the kernel knows of, without end, so `is_written` is asked first and waited for elsewhere.
"""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import select

from hal.error import HalCode, HalError
from hal.memory import Mapping

_SYNC = 0x40086200  # DMA_BUF_IOCTL_SYNC: _IOW('b', 0, struct dma_buf_sync { __u64 flags; })
_READ, _WRITE, _START, _END = 0x1, 0x2, 0x0, 0x4
_EXPORTER = b"exp_name:"


def is_dma_buf(descriptor: int) -> bool:
    """Whether the kernel says that this is a dma-buf. False also where the descriptor cannot be looked at."""
    try:
        with open(f"/proc/self/fdinfo/{descriptor}", "rb") as info:
            return any(line.startswith(_EXPORTER) for line in info)
    except OSError:
        return False


def dma_buf_bytes(descriptor: int) -> int:
    """A dma-buf's size, which never changes. Raises HalError DESCRIPTOR."""
    try:
        return os.lseek(descriptor, 0, os.SEEK_END)  # with 0 the only place it may be sought to
    except OSError as error:
        raise _refusal(error, "the size of a dma-buf cannot be asked") from error


class DmaBuf:
    """One dma-buf, held by a descriptor of its own until the object is closed or gone."""

    def __init__(self, descriptor: int) -> None:
        """Duplicates the descriptor, which stays the caller's. Raises HalError DESCRIPTOR when it is no dma-buf."""
        self._descriptor = -1
        if not is_dma_buf(descriptor):
            raise HalError(HalCode.DESCRIPTOR, "the descriptor is no dma-buf", expected="one from a kernel exporter",
                           todo="export the buffer (VIDIOC_EXPBUF, DMA_HEAP_IOCTL_ALLOC, UDMABUF_CREATE)")  # fmt: skip
        self.size_bytes = dma_buf_bytes(descriptor)
        self._descriptor = fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, 0)
        self._poll = select.poll()
        self._poll.register(self._descriptor, select.POLLIN)

    def __del__(self) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the descriptor; mappings stay. Idempotent."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    def map(self, size_bytes: int) -> Mapping:
        """The first `size_bytes` for reading, shared. Raises HalError SIZE, NOT_PERMITTED."""
        if not 1 <= size_bytes <= self.size_bytes:
            raise HalError(HalCode.SIZE, "a mapping reaches past the end of its dma-buf",
                           expected=f"1..{self.size_bytes} bytes", found=str(size_bytes))  # fmt: skip
        try:
            mapped = mmap.mmap(self._descriptor, size_bytes, flags=mmap.MAP_SHARED, prot=mmap.PROT_READ)
        except OSError as error:
            raise _refusal(error, "the exporter does not let the CPU map its memory") from error
        return Mapping(mapped, size_bytes, False)

    def duplicate(self) -> int:
        """Another descriptor, readable once everything that writes to the memory is done. The caller owns it."""
        return fcntl.fcntl(self._descriptor, fcntl.F_DUPFD_CLOEXEC, 0)

    def is_written(self) -> bool:
        """Whether no writer that the kernel knows of (implicit fence) is still at work."""
        return bool(self._poll.poll(0))

    def begin_read(self) -> None:
        """The CPU is about to read. Raises HalError NOT_PERMITTED."""
        self._sync(_START | _READ)

    def end_read(self) -> None:
        """The CPU has read. Raises HalError NOT_PERMITTED."""
        self._sync(_END | _READ)

    def begin_write(self) -> None:
        """The CPU is about to write. Raises HalError NOT_PERMITTED."""
        self._sync(_START | _WRITE)

    def end_write(self) -> None:
        """The CPU has written. Raises HalError NOT_PERMITTED."""
        self._sync(_END | _WRITE)

    def _sync(self, flags: int) -> None:
        while True:
            try:
                fcntl.ioctl(self._descriptor, _SYNC, flags.to_bytes(8, "little"))
                return
            except OSError as error:
                if error.errno not in (errno.EAGAIN, errno.EINTR):  # which the interface asks to repeat
                    raise _refusal(error, "caches cannot be brought in line with a dma-buf") from error


def _refusal(error: OSError, what: str) -> HalError:
    code = HalCode.DESCRIPTOR if error.errno in (errno.EBADF, errno.ESPIPE, errno.EINVAL) else HalCode.NOT_PERMITTED
    return HalError(code, what, expected="a dma-buf that the CPU may read", found=os.strerror(error.errno or 0),
                    todo="use an exporter that supports CPU access, or copy into a sealed memfd")  # fmt: skip
