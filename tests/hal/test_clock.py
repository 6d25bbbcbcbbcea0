"""The clock map: an interval that narrows with samples, widens with time, and never lies about its error."""

from hal.clock import DRIFT_PER_MILLION, ClockMap

SECOND_NS = 1_000_000_000


def test_one_sample_gives_its_midpoint_and_half_its_width() -> None:
    clock = ClockMap()
    clock.sample(100, 200, 0)
    assert (clock.offset_ns, clock.error_ns) == (150, 50)


def test_samples_are_intersected() -> None:
    clock = ClockMap()
    clock.sample(100, 200, 0)
    clock.sample(180, 400, 0)
    assert (clock.offset_ns, clock.error_ns) == (190, 11)  # 180..201: 1 ns of drift between them


def test_between_samples_the_interval_widens_by_what_clocks_can_drift() -> None:
    clock = ClockMap()
    clock.sample(100, 200, 0)
    clock.sample(-10 * SECOND_NS, 10 * SECOND_NS, SECOND_NS)  # says nothing new
    drift_ns = SECOND_NS * DRIFT_PER_MILLION // 1_000_000 + 1
    assert clock.error_ns == 50 + drift_ns
    assert clock.offset_ns == 150


def test_a_clock_that_jumped_replaces_what_was_known() -> None:
    clock = ClockMap()
    clock.sample(100, 200, 0)
    clock.sample(5 * SECOND_NS, 5 * SECOND_NS + 40, 10)
    assert (clock.offset_ns, clock.error_ns) == (5 * SECOND_NS + 20, 20)


def test_crossed_bounds_are_ignored() -> None:
    clock = ClockMap()
    clock.sample(100, 200, 0)
    clock.sample(300, 299, 10)
    assert (clock.offset_ns, clock.error_ns) == (150, 50)


def test_a_clock_read_backwards_in_host_time_does_not_narrow_by_it() -> None:
    clock = ClockMap()
    clock.sample(100, 200, SECOND_NS)
    clock.sample(0, 300, 0)
    assert clock.error_ns == 51
