"""Fixed-bucket histograms: what is counted where, and that counting keeps no memory."""

from daemon.histogram import BOUNDS_NS, Histogram, StageTimes


def test_a_time_at_a_bound_is_counted_below_it_and_a_longer_one_above_all() -> None:
    histogram = Histogram()
    for time_ns in (BOUNDS_NS[2], BOUNDS_NS[2] + 1, BOUNDS_NS[-1] + 1):
        histogram.observe(time_ns)
    counts = histogram.cumulative()
    assert counts[:4] == [0, 0, 1, 2]
    assert counts[-2:] == [2, 3]
    assert histogram.sum_ns == 2 * BOUNDS_NS[2] + BOUNDS_NS[-1] + 2


def test_a_negative_time_is_counted_as_none_at_all() -> None:
    histogram = Histogram()
    histogram.observe(-5)
    assert (histogram.cumulative()[0], histogram.sum_ns) == (1, 0)


def test_bounds_rise() -> None:
    assert list(BOUNDS_NS) == sorted(set(BOUNDS_NS))


def test_the_stages_of_a_result_add_up_to_its_latency() -> None:
    times = StageTimes()
    times.observe(sof_ns=1_000, submitted_ns=5_000, completed_ns=60_000, published_ns=61_000)
    parts = [one.sum_ns for one in (times.queue, times.run, times.publish)]
    assert (parts, times.latency.sum_ns) == ([4_000, 55_000, 1_000], sum(parts))
