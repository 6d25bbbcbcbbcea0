"""In-fences: a frame whose pixels are still being made comes with a descriptor that says when they are done.

Accepted are a sync_file (signalled with its status, linux/sync_file.h), an eventfd (signalled when readable) and a pipe
(a byte signals; a writer that goes away without one is an error). Nothing is ever read from them. One that ends in an
error or outlasts the limit is reported as such, and its frame never runs.
"""

import array
import fcntl
import os
from collections import Counter
from collections.abc import Callable
from enum import Enum

from daemon.loop import BROKEN, READABLE, Loop

_SYNC_IOC_FILE_INFO = 0xC0383E04  # linux/sync_file.h: _IOWR('>', 4, struct sync_file_info), 56 bytes
_INFO_BYTES, _STATUS_WORD = 56, 8  # s32 status stands behind char name[32]
_KINDS = ("anon_inode:sync_file", "anon_inode:[eventfd]", "pipe:")


class FenceOutcome(Enum):
    """How an in-fence ended."""

    SIGNALED = "signaled"
    ERROR = "fence-error"
    TIMEOUT = "fence-timeout"
    UNSUITABLE = "not-a-fence"


OnOutcome = Callable[[FenceOutcome], None]


class InFences:
    """The in-fences that are waited for, on one loop."""

    def __init__(self, loop: Loop, timeout_ns: int) -> None:
        self._loop = loop
        self._timeout_ns = timeout_ns
        self.ended: Counter[FenceOutcome] = Counter()
        self._waiting: dict[int, tuple[int, OnOutcome]] = {}  # descriptor -> (due_ns, whom to tell)
        loop.add_timer(self._due_ns, self._expire)

    def __len__(self) -> int:
        return len(self._waiting)

    def wait(self, descriptor: int, now_ns: int, on_outcome: OnOutcome) -> None:
        """Owns the descriptor from here; calls `on_outcome` once, at once when it can be told at once."""
        if not _kind(descriptor).startswith(_KINDS):
            os.close(descriptor)
            self.ended[FenceOutcome.UNSUITABLE] += 1
            on_outcome(FenceOutcome.UNSUITABLE)
            return
        self.wait_readable(descriptor, now_ns, on_outcome)

    def wait_readable(self, descriptor: int, now_ns: int, on_outcome: OnOutcome) -> None:
        """As `wait`, for a descriptor that is known to be one that can be waited for (a dma-buf's own)."""
        self._waiting[descriptor] = (now_ns + self._timeout_ns, on_outcome)
        self._loop.watch(descriptor, lambda events: self._end(descriptor, _outcome(descriptor, events)))

    def _end(self, descriptor: int, outcome: FenceOutcome) -> None:
        self.ended[outcome] += 1
        self._release(descriptor)(outcome)

    def _release(self, descriptor: int) -> OnOutcome:
        _, on_outcome = self._waiting.pop(descriptor)
        self._loop.forget(descriptor)
        os.close(descriptor)
        return on_outcome

    def _due_ns(self) -> int | None:
        return min((due_ns for due_ns, _ in self._waiting.values()), default=None)

    def _expire(self, now_ns: int) -> None:
        for descriptor in [fd for fd, (due_ns, _) in self._waiting.items() if due_ns <= now_ns]:
            self._end(descriptor, FenceOutcome.TIMEOUT)


def _kind(descriptor: int) -> str:
    return os.readlink(f"/proc/self/fd/{descriptor}")


def _outcome(descriptor: int, events: int) -> FenceOutcome:
    """What a ready fence says. A sync_file is readable in either case and must be asked."""
    if _kind(descriptor) == _KINDS[0]:
        info = array.array("i", bytes(_INFO_BYTES))
        try:
            fcntl.ioctl(descriptor, _SYNC_IOC_FILE_INFO, info)
        except OSError:
            return FenceOutcome.ERROR
        return FenceOutcome.SIGNALED if info[_STATUS_WORD] == 1 else FenceOutcome.ERROR
    if events & READABLE:
        return FenceOutcome.SIGNALED
    return FenceOutcome.ERROR if events & BROKEN else FenceOutcome.TIMEOUT
