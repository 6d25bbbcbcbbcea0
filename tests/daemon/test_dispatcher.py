"""The device goes round: every run whose turn has come is started, once, whoever asks and however deep."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from daemon.dispatcher import Dispatcher, places
from daemon.loop import Loop
from daemon.turns import Claim, Ready, Turns
from hal.accelerator import DeviceOptions, Properties


class Member:
    """Runs `sets` one after the other; each ends when the test says so. `catches_up` counts the pauses it was given."""

    def __init__(self, dispatcher: Dispatcher, name: str, priority: int = 0, sets: int = 0) -> None:
        self.claim = Claim(name, priority)
        self.sets, self.started, self.catches_up, self.running = sets, 0, 0, False
        self.refuses = False  # its set turns out to be torn
        self._dispatcher = dispatcher
        dispatcher.join(self)

    def refresh(self, now_ns: int) -> None:
        self.claim.ready = Ready(self.started, None) if self.sets and not self.running else None

    def start_next(self, now_ns: int) -> None:
        self.sets -= 1
        if self.refuses:
            self._dispatcher.pump()  # as a frame's end may lead to
            return
        self.started += 1
        self.running = True
        self._dispatcher.turns.began(self.claim, now_ns)
        self._dispatcher.pump()

    def catch_up(self, now_ns: int) -> None:
        self.catches_up += 1

    def end(self) -> None:
        self.running = False
        self._dispatcher.turns.ended(self.claim)
        self._dispatcher.pump()


@pytest.fixture
def loop() -> Iterator[Loop]:
    made = Loop()
    yield made
    made.close()


def test_every_run_is_started_once_and_in_the_order_of_priority(loop: Loop) -> None:
    dispatcher = Dispatcher(Turns(1), loop)
    low, high = Member(dispatcher, "low"), Member(dispatcher, "high", 1)
    low.sets = high.sets = 2
    dispatcher.pump()
    seen = []
    while low.running or high.running:
        running = high if high.running else low
        assert not (high.running and low.running)
        seen.append(running.claim.name)
        running.end()
    assert seen == ["high", "high", "low", "low"]


def test_sets_that_end_instead_of_running_do_not_stop_the_round(loop: Loop) -> None:
    dispatcher = Dispatcher(Turns(1), loop)
    torn, other = Member(dispatcher, "torn", 1), Member(dispatcher, "other")
    torn.refuses, torn.sets, other.sets = True, 50, 1
    dispatcher.pump()
    assert (torn.sets, torn.started, other.started) == (0, 0, 1)


def test_a_pause_is_offered_to_whoever_is_behind(loop: Loop) -> None:
    dispatcher = Dispatcher(Turns(1), loop)
    one, other = Member(dispatcher, "one"), Member(dispatcher, "other")
    before = (one.catches_up, other.catches_up)
    dispatcher.pump()
    assert (one.catches_up, other.catches_up) == (before[0] + 1, before[1] + 1)


def test_a_fault_of_one_member_does_not_leave_the_round_standing(loop: Loop, monkeypatch: pytest.MonkeyPatch) -> None:
    dispatcher = Dispatcher(Turns(1), loop)
    member = Member(dispatcher, "one")
    member.sets = 1
    with monkeypatch.context() as patched:
        patched.setattr(member, "refresh", lambda now_ns: 1 // 0)
        with pytest.raises(ZeroDivisionError):
            dispatcher.pump()
    dispatcher.pump()
    assert member.started == 1


def test_a_run_that_was_held_back_is_tried_again_in_time(loop: Loop) -> None:
    turns = Turns(1)
    dispatcher = Dispatcher(turns, loop)
    member = Member(dispatcher, "one")
    member.sets = 1
    turns.retry_ns = 0  # long since
    loop.turn(0)
    assert member.started == 1


def test_a_member_that_left_is_asked_no_more(loop: Loop) -> None:
    dispatcher = Dispatcher(Turns(1), loop)
    member = Member(dispatcher, "one")
    dispatcher.leave(member)
    dispatcher.leave(member)
    member.sets = 1
    dispatcher.pump()
    assert member.started == 0


@pytest.mark.parametrize(
    ("driver", "pinned", "expected"), [("cpu", (), 6), ("cpu", (2, 3), 1), ("opencl", (), 1), ("cuda", (), 1)]
)
def test_a_core_is_a_place_unless_models_share_pinned_ones(driver: str, pinned: tuple[int, ...], expected: int) -> None:
    device = Properties(driver, "a device", "x86_64", (), 1, 6, "CLOCK_MONOTONIC")
    assert places(driver, device, DeviceOptions(pin_cores=pinned)) == expected
