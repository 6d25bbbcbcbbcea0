"""What was decided and still has to reach the disk: on threads of their own, so that no frame waits for it.

What the disk refuses is owed: it is tried again every few seconds, and once more at the end of the process, until it
is written. A chore writes all that is known under its name, so the latest of a name stands for those before it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from daemon.loop import Loop

RETRY_EVERY_NS = 5_000_000_000

Write = Callable[[], None]  # raises OSError when the disk refuses
OnRefused = Callable[[OSError], None]


class DiskChores:
    """See the module."""

    def __init__(self, loop: Loop) -> None:
        self._threads: list[tuple[str, threading.Thread]] = []
        self._owed: dict[str, tuple[Write, OnRefused]] = {}
        self._lock = threading.Lock()
        self._retry_at_ns = 0
        loop.add_timer(lambda: self._retry_at_ns if self._owed else None, self._retry)

    @property
    def owed(self) -> tuple[str, ...]:
        """The names of the chores that the disk refused so far."""
        return tuple(self._owed)

    def begin(self, name: str, write: Write, on_refused: OnRefused) -> None:
        """Writes on another thread; `on_refused` is called there when the disk begins to refuse."""
        chore = (name, write, on_refused)
        thread = threading.Thread(target=self._run, args=chore, name="fenced-disk", daemon=True)
        self._threads = [*self._alive(), (name, thread)]
        thread.start()

    def settle(self) -> None:
        """Waits until all that was begun is written, or was refused by the disk."""
        for _, thread in tuple(self._threads):
            thread.join()

    def close(self) -> None:
        """As `settle`, after one more attempt at what is owed."""
        self.settle()
        self._begin_owed()
        self.settle()

    def _run(self, name: str, write: Write, on_refused: OnRefused) -> None:
        try:
            write()
        except OSError as error:
            with self._lock:
                is_new = name not in self._owed
                self._owed[name] = write, on_refused
            self._retry_at_ns = time.monotonic_ns() + RETRY_EVERY_NS
            if is_new:
                on_refused(error)
        else:
            with self._lock:
                self._owed.pop(name, None)

    def _retry(self, now_ns: int) -> None:
        self._retry_at_ns = now_ns + RETRY_EVERY_NS
        self._begin_owed()

    def _alive(self) -> list[tuple[str, threading.Thread]]:
        return [one for one in self._threads if one[1].is_alive()]

    def _begin_owed(self) -> None:
        going = {name for name, _ in self._alive()}
        with self._lock:
            owed = [one for one in self._owed.items() if one[0] not in going]
        for name, (write, on_refused) in owed:
            self.begin(name, write, on_refused)
