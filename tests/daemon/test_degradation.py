"""Misses that persist change how a model serves, as its contract says, and only a clean window brings it back."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from abi.graph import Entrypoint, EntryRole, MissPolicy
from daemon.degradation import MOST_CLEAN_WINDOWS, TRANSITIONS, Cause, Degradation, Mode

LIMIT, WINDOW = 2, 6


def entry(
    policy: MissPolicy, role: EntryRole = EntryRole.PRIMARY, limit: int = LIMIT, window: int = WINDOW
) -> Entrypoint:
    return Entrypoint(role.name.lower(), 0, 1, (0,), (), (0,), 1_000, deadline_ns=1_000, role=role,
                      miss_limit=limit, miss_window=window, on_misses=policy)  # fmt: skip


def model(primary: MissPolicy, lighter: MissPolicy | None = None) -> Degradation:
    entries = [entry(primary)]
    if lighter is not None:
        entries.append(entry(lighter, EntryRole.LIGHTER))
    return Degradation(tuple(entries))


def feed(degradation: Degradation, runs: str) -> list[Mode]:
    """Notes the runs, `x` missed and `.` met; returns the modes after those that changed it."""
    changes = [degradation.note(missed=run == "x") for run in runs]
    return [change.after for change in changes if change is not None]


@pytest.mark.parametrize(
    ("policy", "mode"),
    [(MissPolicy.NONE, Mode.MISSING), (MissPolicy.SKIP, Mode.SKIPPING), (MissPolicy.LIGHTER, Mode.LIGHTER),
     (MissPolicy.STOP, Mode.STOPPED)],
)  # fmt: skip
def test_more_misses_than_the_limit_within_the_window_lead_where_the_contract_says(
    policy: MissPolicy, mode: Mode
) -> None:
    degradation = model(policy)
    assert feed(degradation, "xx") == []  # as many as are allowed
    assert feed(degradation, "....xx") == []  # the first two have left the window
    assert feed(degradation, "x") == [mode]
    assert (degradation.mode, degradation.changes, degradation.misses) == (mode, 1, 0)


def test_a_change_says_what_caused_it() -> None:
    degradation = model(MissPolicy.SKIP)
    feed(degradation, "x.x")
    change = degradation.note(missed=True)
    assert change is not None
    assert (change.before, change.after, change.misses, change.window_runs) == (Mode.SERVING, Mode.SKIPPING, 3, WINDOW)
    assert change.is_worse
    back = [degradation.note(missed=False) for _ in range(WINDOW)][-1]
    assert back is not None
    assert not back.is_worse


@pytest.mark.parametrize("policy", [MissPolicy.NONE, MissPolicy.SKIP, MissPolicy.LIGHTER])
def test_a_window_without_a_miss_brings_it_back(policy: MissPolicy) -> None:
    degradation = model(policy)
    feed(degradation, "xxx")
    assert feed(degradation, ".....x.....") == []  # a miss begins the window anew
    assert feed(degradation, ".") == [Mode.SERVING]


def test_a_stopped_model_stays_stopped_until_a_person_restores_it() -> None:
    degradation = model(MissPolicy.STOP)
    feed(degradation, "xxx")
    assert feed(degradation, "." * 100) == []
    change = degradation.restore()
    assert change is not None
    assert (change.before, change.after) == (Mode.STOPPED, Mode.SERVING)
    assert degradation.restore() is None
    assert feed(degradation, "xxx") == [Mode.STOPPED]


def test_a_lighter_entrypoint_that_misses_too_has_an_answer_of_its_own() -> None:
    degradation = model(MissPolicy.LIGHTER, MissPolicy.SKIP)
    assert feed(degradation, "xxx" + "xxx") == [Mode.LIGHTER, Mode.LIGHTER_SKIPPING]
    assert degradation.mode.lighter
    assert degradation.mode.skips
    assert feed(degradation, "." * WINDOW * 2) == [Mode.LIGHTER, Mode.SERVING]
    assert feed(model(MissPolicy.LIGHTER, MissPolicy.STOP), "xxx" + "xxx") == [Mode.LIGHTER, Mode.STOPPED]
    assert feed(model(MissPolicy.LIGHTER, MissPolicy.NONE), "xxx" + "xxx") == [Mode.LIGHTER, Mode.LIGHTER_MISSING]
    assert feed(model(MissPolicy.LIGHTER), "xxx" + "x" * 20) == [Mode.LIGHTER]  # it has none


def test_a_model_that_fails_again_after_each_recovery_tries_ever_more_rarely() -> None:
    degradation = model(MissPolicy.LIGHTER)
    feed(degradation, "xxx")
    waited = []
    for _ in range(6):
        runs = 0
        while degradation.mode is not Mode.SERVING:
            degradation.note(missed=False)
            runs += 1
        waited.append(runs // WINDOW)
        feed(degradation, "xxx")
    assert waited == [1, 2, 4, 8, 16, MOST_CLEAN_WINDOWS]


def test_a_recovery_that_lasts_a_window_is_a_recovery() -> None:
    degradation = model(MissPolicy.SKIP)
    for _ in range(5):
        assert feed(degradation, "xxx" + "." * WINDOW) == [Mode.SKIPPING, Mode.SERVING]
        feed(degradation, "." * WINDOW)
        assert degradation.clean_windows == 1


def test_without_a_window_nothing_is_ever_held_against_it() -> None:
    degradation = Degradation((entry(MissPolicy.NONE, limit=0, window=0),))
    assert feed(degradation, "x" * 100) == []
    assert (degradation.misses, degradation.window_runs) == (0, 0)


def test_every_mode_is_reached_and_left_by_the_table() -> None:
    assert set(TRANSITIONS.values()) == set(Mode)
    assert {mode for mode, _ in TRANSITIONS} == set(Mode)
    assert all((mode, Cause.RESTORED) in TRANSITIONS for mode in Mode if mode is not Mode.SERVING)
    assert (Mode.STOPPED, Cause.CLEAN) not in TRANSITIONS


@given(
    st.sampled_from(list(MissPolicy)[1:]), st.sampled_from([None, *MissPolicy]), st.integers(0, 3), st.integers(1, 5),
    st.lists(st.booleans(), max_size=80),
)  # fmt: skip
def test_the_mode_follows_from_the_runs_and_only_by_the_table(
    primary: MissPolicy, lighter: MissPolicy | None, limit: int, more: int, runs: list[bool]
) -> None:
    entries = [entry(primary, limit=limit, window=limit + more)]
    if lighter in (MissPolicy.NONE, MissPolicy.SKIP, MissPolicy.STOP):
        entries.append(entry(lighter, EntryRole.LIGHTER, limit, limit + more))
    degradation = Degradation(tuple(entries))
    since: list[bool] = []
    for missed in runs:
        before = degradation.mode
        change = degradation.note(missed=missed)
        since.append(missed)
        if change is None:
            assert degradation.mode is before
            if before is Mode.SERVING:
                assert sum(since[-(limit + more) :]) <= limit
        else:
            assert change.after in {after for (mode, _), after in TRANSITIONS.items() if mode is change.before}
            assert sum(since[-(limit + more) :]) > limit if change.is_worse else not any(since[-(limit + more) :])
            since = []
