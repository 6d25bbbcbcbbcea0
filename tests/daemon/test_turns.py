"""Whose run goes next: by priority, then deadline; and no lower run makes a frame of a higher model late."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from daemon.turns import Claim, Ready, Turns


def claim(name: str, priority: int = 0, *, run_ns: int = 10, ready: Ready | None = None, **more: int) -> Claim:
    return Claim(name, priority, run_ns=run_ns, ready=ready, **more)


def device(*claims: Claim, places: int = 1) -> Turns:
    turns = Turns(places)
    for one in claims:
        turns.join(one)
    return turns


def test_the_highest_priority_goes_first_whatever_the_deadlines() -> None:
    low = claim("low", 1, ready=Ready(0, 20))
    high = claim("high", 2, ready=Ready(5, 900))
    turns = device(low, high)
    assert turns.pick(10) is high
    turns.began(high, 10)
    high.ready = None
    assert turns.pick(15) is None  # the one place is taken
    turns.ended(high)
    assert turns.pick(20) is low


def test_of_equal_priorities_the_earliest_deadline_goes_first_then_the_older_frame() -> None:
    none, late, early = claim("none"), claim("late"), claim("early")
    none.ready, late.ready, early.ready = Ready(0, None), Ready(1, 200), Ready(2, 100)
    turns = device(none, late, early)
    assert turns.pick(10) is early
    early.ready = Ready(3, 200)
    assert turns.pick(10) is late
    late.ready = early.ready = None
    assert turns.pick(10) is none


def test_a_run_of_lower_priority_waits_for_the_frame_that_is_expected() -> None:
    high = claim("high", 1, run_ns=20, deadline_ns=50, period_ns=100, last_sof_ns=0)
    low = claim("low", run_ns=40, ready=Ready(60, None))
    turns = device(high, low)
    assert turns.pick(90) is low  # ends at 130, high then at 150: just in time
    assert turns.pick(91) is None
    assert (low.held_back, turns.retry_ns) == (1, 131)  # from then on the frame of 100 could not be in time anyway
    assert turns.pick(100) is None
    assert low.held_back == 1  # the same set
    assert turns.pick(131) is low  # it has not come: the next one is due at 250
    assert turns.pick(191) is None
    assert turns.pick(391) is None  # three frames did not come, and the fourth still may
    assert turns.pick(431) is low  # it has fallen silent
    high.last_sof_ns = None  # its camera has gone
    assert turns.pick(91) is low


def test_a_model_without_a_deadline_is_waited_for_only_while_its_frame_waits() -> None:
    wide = claim("wide", 1, width=2, period_ns=100, last_sof_ns=0)
    low, other = claim("low", ready=Ready(0, None)), claim("other")
    turns = device(wide, low, other, places=2)
    assert turns.pick(95) is low
    turns.began(other, 95)
    wide.ready = Ready(100, None)
    assert turns.pick(100) is None  # a place is free, and would keep the wide one waiting still longer
    wide.ready = None
    assert turns.pick(100) is low


def test_a_run_that_needs_more_places_is_not_passed_by_for_ever() -> None:
    wide, one, other = claim("wide", width=2, ready=Ready(0, None)), claim("one"), claim("other", ready=Ready(5, None))
    turns = device(wide, one, other, places=2)
    turns.began(one, 0)
    assert turns.pick(5) is None  # it would start after `one`, and not after `other`
    wide.ready = Ready(0, 100)
    assert turns.pick(5) is other  # in time even so
    turns.ended(one)
    assert turns.pick(10) is wide


def test_a_frame_that_is_late_anyway_keeps_nobody_waiting() -> None:
    high = claim("high", 1, run_ns=60, deadline_ns=50, ready=Ready(0, 50))
    low = claim("low", run_ns=40, ready=Ready(0, None))
    turns = device(high, low, claim("third"))
    turns.began(high, 0)
    turns.ended(high)
    high.ready = None
    high.last_sof_ns, high.period_ns = 0, 100
    assert turns.pick(10) is low  # high can never be in time


def test_runs_side_by_side_where_the_device_has_places() -> None:
    one, two, three = (claim(name, ready=Ready(at, None)) for at, name in enumerate(("one", "two", "three")))
    turns = device(one, two, three, places=2)
    for expected in (one, two):
        assert turns.pick(5) is expected
        turns.began(expected, 5)
        expected.ready = None
    assert turns.pick(5) is None
    with pytest.raises(RuntimeError, match="no place for a run of three"):
        turns.began(three, 5)
    turns.ended(one)
    assert turns.pick(6) is three


def test_a_run_wider_than_the_device_takes_all_of_it() -> None:
    wide = claim("wide", width=8, ready=Ready(0, None))
    turns = device(wide, places=2)
    assert wide.width == 2
    assert turns.pick(0) is wide


def test_a_model_that_leaves_is_not_waited_for() -> None:
    high = claim("high", 1, ready=Ready(0, None))
    low = claim("low", ready=Ready(0, None))
    turns = device(high, low)
    turns.leave(high)
    turns.leave(high)
    assert turns.pick(0) is low
    assert turns.claims == (low,)


def test_an_extra_run_must_let_its_own_next_frame_and_higher_ones_be_in_time() -> None:
    high = claim("high", 1, run_ns=10, deadline_ns=30, period_ns=100, last_sof_ns=0)
    own = claim("own", run_ns=20, deadline_ns=50, period_ns=100, last_sof_ns=40)
    turns = device(high, own)
    assert turns.fits_before(own, 50, 60)  # until 110; high until 120 of 130; own until 160 of 190
    assert not turns.fits_before(own, 70, 60)  # high would end at 140
    high.last_sof_ns = None
    assert turns.fits_before(own, 110, 60)  # own until 190
    assert not turns.fits_before(own, 111, 60)
    own.deadline_ns = 0
    assert turns.fits_before(own, 1000, 60)  # nobody has a deadline to miss
    own.deadline_ns = 50
    wide = device(own, places=2)
    assert wide.fits_before(own, 110, 60)
    assert not wide.fits_before(own, 111, 60)  # a free place is of no use: a model runs once at a time
    turns.began(own, 60, 5)
    assert not turns.fits_before(own, 1, 60)


def test_the_load_is_what_runs_take_of_their_periods() -> None:
    one = claim("one", run_ns=25, period_ns=100, last_sof_ns=0)
    two = claim("two", run_ns=50, period_ns=100, last_sof_ns=0, width=2)
    idle = claim("idle", run_ns=50)  # without a camera
    turns = device(one, two, idle, places=4)
    assert turns.load(turns.claims) == pytest.approx((25 + 2 * 50) / 100 / 4)


@given(
    run_ns=st.integers(1, 40), deadline_ns=st.integers(40, 100), places=st.integers(1, 3), width=st.integers(1, 3),
    arrivals=st.lists(st.tuples(st.integers(0, 1000), st.integers(1, 150), st.integers(0, 2), st.integers(1, 3)),
                      max_size=12),
)  # fmt: skip
def test_no_run_of_lower_priority_ever_makes_the_highest_late(
    run_ns: int, deadline_ns: int, places: int, width: int, arrivals: list[tuple[int, int, int, int]]
) -> None:
    """A device simulated step by step: one periodic model, and any frames of others; runs take what their p99 says."""
    period_ns = 100
    high = claim("high", 9, run_ns=run_ns, deadline_ns=deadline_ns, period_ns=period_ns, width=width)
    lows = [(at, claim(f"low{index}", priority, run_ns=length, width=wide))
            for index, (at, length, priority, wide) in enumerate(arrivals)]  # fmt: skip
    turns = device(high, *(low for _, low in lows), places=places)
    ends: dict[Claim, int] = {}
    started: list[Claim] = []
    for now_ns in range(1500):
        for one in [one for one, end_ns in ends.items() if end_ns == now_ns]:
            turns.ended(one)
            if one is high:
                assert high.last_sof_ns is not None
                assert now_ns <= high.last_sof_ns + deadline_ns
            del ends[one]
        if now_ns % period_ns == 0:
            high.last_sof_ns = now_ns
            high.ready = Ready(now_ns, now_ns + deadline_ns)
        for at, low in lows:
            if at == now_ns:
                low.ready = Ready(at, None)
        while (chosen := turns.pick(now_ns)) is not None:
            chosen.ready = None
            turns.began(chosen, now_ns)
            ends[chosen] = now_ns + chosen.run_ns
            started.append(chosen)
            assert sum(one.width for one in ends) <= places
        if high.ready is not None:
            assert now_ns + run_ns <= now_ns // period_ns * period_ns + deadline_ns or high in ends
    assert started.count(high) == 15
    possible = [low for _, low in lows if low.run_ns + run_ns <= deadline_ns]
    assert all(low in started for low in possible)  # and nobody whose run fits waits for ever
