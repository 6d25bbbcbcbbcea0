"""How long runs take: an estimate that is never below the truth by much, forgets, and cannot lock itself in."""

import math

from hypothesis import given
from hypothesis import strategies as st

from daemon.run_times import PATIENCE_DROPS, WINDOW_RUNS, RunTimes

BUCKET = 2 ** (1 / 8)
MS = 1_000_000


def filled(*runs_ns: int) -> RunTimes:
    times = RunTimes()
    for run_ns in runs_ns:
        times.add(run_ns)
    return times


@given(st.lists(st.integers(1_000, 10_000 * MS), min_size=1, max_size=3 * WINDOW_RUNS), st.sampled_from([50, 99]))
def test_a_quantile_bounds_the_runs_of_the_window_within_a_bucket(runs_ns: list[int], percent: int) -> None:
    times = filled(*runs_ns)
    window = sorted(runs_ns[-WINDOW_RUNS:])
    exact = window[len(window) - len(window) * (100 - percent) // 100 - 1]
    assert exact <= times.quantile_ns(percent) <= exact * BUCKET + 1
    assert times.p99_ns == times.quantile_ns(99)
    assert times.runs == len(window)
    assert times.last_ns == runs_ns[-1]


def test_one_outlier_in_a_full_window_does_not_move_the_estimate() -> None:
    times = filled(*[5 * MS] * (WINDOW_RUNS - 1), 900 * MS)
    assert times.p99_ns < 6 * MS
    times.add(900 * MS)
    assert times.p99_ns > 900 * MS - MS


def test_what_has_left_the_window_is_forgotten() -> None:
    times = filled(*[900 * MS] * WINDOW_RUNS)
    for _ in range(WINDOW_RUNS - 1):
        times.add(MS)
    assert times.p99_ns < 2 * MS


def test_before_any_run_nothing_is_held_against_a_frame() -> None:
    assert RunTimes().p99_ns == RunTimes().quantile_ns(50) == 0
    assert 3 * MS <= RunTimes(3 * MS).p99_ns < 4 * MS


def test_runs_beyond_the_scale_are_counted_at_its_ends() -> None:
    assert filled(1).p99_ns == 1_000
    assert filled(10**18).p99_ns >= 3_600 * 10**9 * 0.9


def test_an_estimate_that_refuses_every_frame_gives_way_until_one_may_run() -> None:
    times = filled(*[1_000 * MS] * 3, MS)
    for _ in range(PATIENCE_DROPS):
        times.note_drop()
    assert times.p99_ns > 900 * MS
    for _ in range(3):
        times.note_drop()
    assert times.p99_ns < 2 * MS
    times.note_drop()
    times.note_drop()  # of an empty window
    assert (times.p99_ns, times.runs) == (0, 0)
    times.add(2 * MS)
    assert math.isclose(times.p99_ns, 2 * MS, rel_tol=BUCKET - 1)


def test_what_is_never_forgotten_is_the_fastest_run_that_was_measured() -> None:
    times = filled(900 * MS, 30 * MS, 50 * MS)
    for _ in range(PATIENCE_DROPS + 20):
        times.note_drop(keep_runs=1)
    assert 30 * MS <= times.p99_ns <= 30 * MS * BUCKET
    assert times.runs == 1


def test_a_run_between_two_drops_renews_the_patience() -> None:
    times = filled(*[50 * MS] * 10)
    for _ in range(20):
        for _ in range(PATIENCE_DROPS):
            times.note_drop()
        times.add(50 * MS)
    assert times.p99_ns >= 50 * MS
