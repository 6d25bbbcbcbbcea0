"""The barrier between what the host wrote for a GPU and the doorbell, in the place of libatomic's.

tinygrad looks libatomic up by starting `ldconfig`, which a vehicle process must not. On x86-64 a locked instruction is
a full barrier and empties write-combining buffers (Intel SDM vol. 3A, "Memory Ordering" and "Buffering of Write
Combining Memory Locations"), and taking a lock is one. On other machines membarrier(2) makes every thread of the
process, the caller included, pass one.
"""

from __future__ import annotations

import ctypes
import platform
import threading

from hal.error import HalCode, HalError

_MEMBARRIER = {"x86_64": 324, "aarch64": 283}  # asm/unistd.h
_PRIVATE_EXPEDITED, _REGISTER_PRIVATE_EXPEDITED = 1 << 3, 1 << 4  # linux/membarrier.h


class Barrier:
    """What tinygrad calls as libatomic. Raises HalError DRIVER_UNAVAILABLE where the machine offers no barrier."""

    def __init__(self, arch: str = "") -> None:
        self._arch = arch or platform.machine()
        self._lock = threading.Lock()
        if self._arch != "x86_64":
            self._syscall = ctypes.CDLL(None, use_errno=True).syscall
            self._command(_REGISTER_PRIVATE_EXPEDITED)

    def atomic_thread_fence(self, order: int) -> None:
        """A full barrier, whatever the order that is asked for."""
        if self._arch == "x86_64":
            with self._lock:
                return
        self._command(_PRIVATE_EXPEDITED)

    def _command(self, command: int) -> None:
        number = _MEMBARRIER.get(platform.machine(), -1)
        if number < 0 or self._syscall(number, command, 0, 0):
            raise HalError(HalCode.DRIVER_UNAVAILABLE, "no memory barrier before a doorbell",
                           expected="x86-64, or membarrier(2), Linux 4.14", found=platform.machine(),
                           todo="allow the system call")  # fmt: skip
