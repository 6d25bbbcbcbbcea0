"""sync_files for tests: real ones from the kernel's software timeline where it has one, and stand-ins below our code.

A stand-in is a pipe that the kernel seems to call a sync_file: what is replaced is what the kernel says of it
(/proc/self/fd, SYNC_IOC_FILE_INFO), nothing of ours. A byte in the pipe makes it readable, as a signalled fence is.
"""

from __future__ import annotations

import errno
import fcntl
import os
import struct
from pathlib import Path
from typing import Any

import pytest

SW_SYNC = Path("/sys/kernel/debug/sync/sw_sync")
_CREATE_FENCE = 0xC0285700  # drivers/dma-buf/sw_sync.c: _IOWR('W', 0, struct sw_sync_create_fence_data), 40 bytes
_INCREMENT = 0x40045701  # drivers/dma-buf/sw_sync.c: _IOW('W', 1, __u32)
_FILE_INFO = 0xC0383E04  # linux/sync_file.h: SYNC_IOC_FILE_INFO, 56 bytes, s32 status at 32
_INFO = struct.Struct("=32siIIIQ")


class SoftwareFence:
    """A fence of a kernel timeline of its own. `end` with `good` False gives the timeline up: the kernel's -ENOENT."""

    def __init__(self) -> None:
        self._timeline = os.open(SW_SYNC, os.O_RDWR | os.O_CLOEXEC)
        made = fcntl.ioctl(self._timeline, _CREATE_FENCE, struct.pack("=I32si", 1, b"fenced-test", 0))
        self.descriptor = int(struct.unpack("=I32si", made)[2])

    def end(self, good: bool) -> None:
        if good:
            fcntl.ioctl(self._timeline, _INCREMENT, struct.pack("=I", 1))
        else:
            os.close(self._timeline)
            self._timeline = -1

    def close(self) -> None:
        os.close(self.descriptor)
        if self._timeline >= 0:
            os.close(self._timeline)


class StandInFence:
    """See the module. `answer` is what the ioctl does where it is not the status: an errno to fail with."""

    def __init__(self, patch: pytest.MonkeyPatch, answer: int = 0) -> None:
        self.descriptor, self._writer = os.pipe()
        self._status, self._answer = 0, answer
        self._inode = os.fstat(self.descriptor).st_ino
        readlink, ioctl = os.readlink, fcntl.ioctl

        def said_link(path: Any, **more: Any) -> Any:
            found = readlink(path, **more)
            return "anon_inode:sync_file" if found == f"pipe:[{self._inode}]" else found

        def said_ioctl(descriptor: Any, request: int, argument: Any = 0, *more: Any) -> Any:
            if request != _FILE_INFO:
                return ioctl(descriptor, request, argument, *more)
            if self._answer:
                raise OSError(self._answer, os.strerror(self._answer))
            memoryview(argument).cast("B")[:] = _INFO.pack(b"stand-in", self._status, 0, 1, 0, 0)
            return 0

        patch.setattr(os, "readlink", said_link)
        patch.setattr(fcntl, "ioctl", said_ioctl)

    def end(self, good: bool) -> None:
        self._status = 1 if good else -errno.EIO
        os.write(self._writer, b"\1")

    def close(self) -> None:
        os.close(self.descriptor)
        os.close(self._writer)


def make_fence(kind: str, patch: pytest.MonkeyPatch) -> SoftwareFence | StandInFence:
    """A fence of a kind: "kernel" or "stand-in". Skips where the kernel has no software timeline."""
    if kind == "stand-in":
        return StandInFence(patch)
    if not os.access(SW_SYNC, os.R_OK | os.W_OK):
        pytest.skip(f"{SW_SYNC} is missing: the kernel needs CONFIG_SW_SYNC, debugfs mounted, and a test run as root")
    return SoftwareFence()
