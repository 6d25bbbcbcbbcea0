"""The one event loop: descriptors by epoll, times by asking who is due, and a wake-up from other threads.

Everything that serves runs on this loop's thread; nothing it calls may block. Timers are not queued: each source says
when it is next due, and is asked to act once that time has come. `now_ns` is CLOCK_MONOTONIC everywhere.
"""

import os
import select
import time
from collections import deque
from collections.abc import Callable

READABLE, WRITABLE, BROKEN = select.EPOLLIN, select.EPOLLOUT, select.EPOLLERR | select.EPOLLHUP
_MAX_EVENTS = 64
_NS_PER_S = 1_000_000_000

OnEvent = Callable[[int], None]  # is given the epoll event mask
Due = Callable[[], int | None]
Act = Callable[[int], None]  # is given now_ns


class Loop:
    """One epoll set. `run` returns after `stop`."""

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._watched: dict[int, OnEvent] = {}
        self._timers: list[tuple[Due, Act]] = []
        self._calls: deque[Callable[[], None]] = deque()
        self._wakeup = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._stopping = False
        self.watch(self._wakeup, self._run_calls)

    def watch(self, descriptor: int, on_event: OnEvent, events: int = READABLE) -> None:
        """Calls `on_event` when the descriptor is ready. OSError for descriptors that cannot be polled."""
        self._epoll.register(descriptor, events)
        self._watched[descriptor] = on_event

    def change(self, descriptor: int, events: int) -> None:
        """Waits for other events on a watched descriptor."""
        self._epoll.modify(descriptor, events)

    def forget(self, descriptor: int) -> None:
        """Stops watching; must come before the descriptor is closed. Harmless when it is not watched."""
        if self._watched.pop(descriptor, None) is not None:
            self._epoll.unregister(descriptor)

    def add_timer(self, due: Due, act: Act) -> None:
        """From now on `act(now_ns)` is called in each turn in which `due()` lies at or before now."""
        self._timers.append((due, act))

    def call_soon(self, call: Callable[[], None]) -> None:
        """Runs `call` on the loop's thread; may be used from any thread."""
        self._calls.append(call)
        os.eventfd_write(self._wakeup, 1)

    def stop(self) -> None:
        """Ends `run` after the present turn; may be used from any thread."""
        self._stopping = True
        os.eventfd_write(self._wakeup, 1)

    def run(self) -> None:
        """Turns until `stop`."""
        while not self._stopping:
            self.turn()

    def turn(self, at_most_ns: int = _NS_PER_S) -> None:
        """Waits for the next thing to do, at most `at_most_ns`, and does it."""
        wait_ns = min(at_most_ns, self._until_due(time.monotonic_ns()))
        for descriptor, events in self._epoll.poll(max(0, wait_ns) / _NS_PER_S, _MAX_EVENTS):
            on_event = self._watched.get(descriptor)
            if on_event is not None:  # an earlier event of this turn may have closed it
                on_event(events)
        now_ns = time.monotonic_ns()
        for due, act in self._timers:
            due_ns = due()
            if due_ns is not None and due_ns <= now_ns:
                act(now_ns)

    def close(self) -> None:
        """Frees the epoll set. What was watched stays open."""
        self._epoll.close()
        os.close(self._wakeup)

    def _until_due(self, now_ns: int) -> int:
        earliest = min((due_ns for due, _ in self._timers if (due_ns := due()) is not None), default=now_ns + _NS_PER_S)
        return earliest - now_ns

    def _run_calls(self, events: int) -> None:
        os.eventfd_read(self._wakeup)
        for _ in range(len(self._calls)):
            self._calls.popleft()()
