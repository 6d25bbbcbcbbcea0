"""The event loop: what is ready, what is due, and what other threads ask for."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator

import pytest

from daemon.loop import BROKEN, READABLE, WRITABLE, Loop


@pytest.fixture
def loop() -> Iterator[Loop]:
    made = Loop()
    yield made
    made.close()


def test_a_ready_descriptor_is_told_with_its_events(loop: Loop) -> None:
    reader, writer = os.pipe()
    seen: list[int] = []
    loop.watch(reader, seen.append)
    loop.turn(0)
    assert seen == []
    os.write(writer, b"x")
    loop.turn()
    assert seen == [READABLE]
    os.close(writer)
    loop.turn()
    assert seen[-1] & BROKEN


def test_a_forgotten_descriptor_is_not_told_even_in_the_same_turn(loop: Loop) -> None:
    pipes = [os.pipe() for _ in range(2)]
    told: list[int] = []

    def on_event(which: int) -> None:
        told.append(which)
        loop.forget(pipes[0][0])
        loop.forget(pipes[1][0])

    for which, (reader, writer) in enumerate(pipes):
        loop.watch(reader, lambda events, which=which: on_event(which))
        os.write(writer, b"x")
    loop.turn()
    loop.turn(0)
    assert len(told) == 1
    loop.forget(12345)  # harmless


def test_other_events_can_be_asked_for(loop: Loop) -> None:
    seen: list[int] = []
    reader, writer = os.pipe()
    loop.watch(writer, seen.append, events=0)
    loop.turn(0)
    assert seen == []
    loop.change(writer, WRITABLE)
    loop.turn()
    assert seen == [WRITABLE]
    os.close(reader)


def test_a_timer_acts_when_it_is_due_and_not_before(loop: Loop) -> None:
    due = [time.monotonic_ns() + 20_000_000]
    acted: list[int] = []

    def act(now_ns: int) -> None:
        acted.append(now_ns)
        due.clear()

    loop.add_timer(lambda: due[0] if due else None, act)
    expected = due[0]
    loop.turn(0)
    assert acted == []
    while not acted:
        loop.turn()
    assert acted[0] >= expected


def test_calls_from_other_threads_run_on_the_loops_thread_in_order(loop: Loop) -> None:
    ran: list[tuple[int, int]] = []
    caller = threading.Thread(
        target=lambda: [loop.call_soon(lambda n=n: ran.append((n, threading.get_ident()))) for n in range(5)]
    )
    caller.start()
    while len(ran) < 5:
        loop.turn()
    caller.join()
    assert ran == [(n, threading.get_ident()) for n in range(5)]


def test_stop_ends_the_run_from_any_thread(loop: Loop) -> None:
    stopper = threading.Thread(target=loop.stop)
    loop.call_soon(stopper.start)
    loop.run()
    stopper.join()
    loop.run()  # and it stays ended
