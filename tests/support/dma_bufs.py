"""dma-bufs for tests: real ones from /dev/udmabuf where the kernel has it, and memfds that the kernel seems to export.

The stand-in replaces what the kernel says and does (fdinfo, the sync ioctl, the implicit fence), nothing of ours, so
that the driver's and the daemon's own code runs on machines without an exporter. It cannot show coherence.
"""

from __future__ import annotations

import array
import fcntl
import os
import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from hal import dma_buf

UDMABUF = Path("/dev/udmabuf")
_UDMABUF_CREATE = 0x40187542  # linux/udmabuf.h: _IOW('u', 0x42, struct udmabuf_create), 24 bytes
START_READ, END_READ, START_WRITE, END_WRITE = 1, 5, 2, 6  # linux/dma-buf.h: DMA_BUF_SYNC_{READ,WRITE,START,END}


def require_udmabuf() -> None:
    """Skips the test where no real dma-buf can be made."""
    if not os.access(UDMABUF, os.R_OK | os.W_OK):
        pytest.skip(f"{UDMABUF} is missing: this kernel has no exporter of dma-bufs that a test may use")


def real_dma_buf(size_bytes: int) -> int:
    """A dma-buf over a memfd, from /dev/udmabuf. The size is rounded up to whole pages."""
    pages = -(-size_bytes // 4096) * 4096
    memory = os.memfd_create("udmabuf", os.MFD_ALLOW_SEALING | os.MFD_CLOEXEC)
    os.ftruncate(memory, pages)
    fcntl.fcntl(memory, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)
    device = os.open(UDMABUF, os.O_RDWR | os.O_CLOEXEC)
    try:
        return int(fcntl.ioctl(device, _UDMABUF_CREATE, struct.pack("=IIQQ", memory, 1, 0, pages)))
    finally:
        os.close(device)
        os.close(memory)


class SeemingExporter:
    """Memfds without seals, which the code under test takes for dma-bufs. `syncs`: the flags of every sync ioctl."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.syncs: list[int] = []
        self.fail_reads = False
        self._inodes: set[int] = set()
        self._pending: dict[int, int] = {}  # inode -> a pipe that is readable once the writers are done
        self._ioctl: Callable[..., object] = fcntl.ioctl
        monkeypatch.setattr(dma_buf, "is_dma_buf", self._is_exported)
        for module in ("daemon.slots", "client.camera"):
            monkeypatch.setattr(f"{module}.is_dma_buf", self._is_exported)
        monkeypatch.setattr(dma_buf.fcntl, "ioctl", self._sync)
        monkeypatch.setattr(dma_buf.DmaBuf, "is_written", lambda one: not self._fence(one._descriptor))
        monkeypatch.setattr(dma_buf.DmaBuf, "duplicate", lambda one: os.dup(self._fence(one._descriptor)))

    def export(self, size_bytes: int) -> int:
        """A new one."""
        descriptor = os.memfd_create("seeming-dma-buf", os.MFD_CLOEXEC)
        os.ftruncate(descriptor, size_bytes)
        self._inodes.add(os.fstat(descriptor).st_ino)
        return descriptor

    def write_later(self, descriptor: int) -> Callable[[], None]:
        """A writer that the kernel knows of begins; it ends when the returned function is called."""
        reader, writer = os.pipe()
        inode = os.fstat(descriptor).st_ino
        self._pending[inode] = reader

        def done() -> None:
            del self._pending[inode]
            os.write(writer, b"x")

        return done

    def _is_exported(self, descriptor: int) -> bool:
        return os.fstat(descriptor).st_ino in self._inodes

    def _fence(self, descriptor: int) -> int:
        return self._pending.get(os.fstat(descriptor).st_ino, 0)

    def _sync(self, descriptor: int, request: int, argument: object = 0, *more: object) -> object:
        if request != dma_buf._SYNC:
            return self._ioctl(descriptor, request, argument, *more)
        assert self._is_exported(descriptor)
        assert isinstance(argument, bytes)
        (flags,) = array.array("Q", argument)
        if self.fail_reads and flags == START_READ:
            raise OSError(5, "Input/output error")
        self.syncs.append(flags)
        return 0
