"""Which frame runs, and why the others do not."""

from hypothesis import given
from hypothesis import strategies as st

from daemon.scheduler import Drop, DropReason, Rule, Scheduler, Waiting

LATEST = Rule(streams=1, queue_frames=(1,), max_skew_ns=0, deadline_ns=100)
PAIR = Rule(streams=2, queue_frames=(4, 4), max_skew_ns=10, deadline_ns=0)


def frame(sequence: int, sof_ns: int, stream: int = 0) -> Waiting:
    return Waiting(stream, slot=sequence % 4, generation=1, sequence=sequence, sof_ns=sof_ns)


def test_a_newer_frame_supersedes_the_one_that_waits() -> None:
    scheduler = Scheduler(LATEST)
    assert scheduler.offer(frame(1, 10)) == []
    assert scheduler.offer(frame(2, 20)) == [Drop(frame(1, 10), DropReason.SUPERSEDED)]
    assert scheduler.take(30, 0) == ((frame(2, 20),), [])
    assert scheduler.take(30, 0) == (None, [])


def test_an_older_frame_that_becomes_ready_later_never_overtakes() -> None:
    scheduler = Scheduler(LATEST)
    scheduler.offer(frame(2, 20))
    assert scheduler.offer(frame(1, 10)) == [Drop(frame(1, 10), DropReason.SUPERSEDED)]
    assert scheduler.take(30, 0)[0] == (frame(2, 20),)


def test_a_fifo_keeps_order_and_drops_the_oldest_when_full() -> None:
    scheduler = Scheduler(Rule(1, (2,), 0, 0))
    scheduler.offer(frame(2, 20))
    scheduler.offer(frame(1, 10))
    assert scheduler.offer(frame(3, 30)) == [Drop(frame(1, 10), DropReason.SUPERSEDED)]
    assert scheduler.waiting() == 2
    assert [scheduler.take(40, 0)[0] for _ in range(2)] == [(frame(2, 20),), (frame(3, 30),)]


def test_a_frame_that_cannot_meet_its_deadline_is_late() -> None:
    scheduler = Scheduler(LATEST)
    scheduler.offer(frame(1, 10))
    assert scheduler.take(101, 10) == (None, [Drop(frame(1, 10), DropReason.LATE)])


def test_a_frame_that_just_meets_its_deadline_runs() -> None:
    scheduler = Scheduler(LATEST)
    scheduler.offer(frame(1, 10))
    assert scheduler.take(100, 10) == ((frame(1, 10),), [])


def test_without_a_deadline_nothing_is_late() -> None:
    scheduler = Scheduler(Rule(1, (1,), 0, 0))
    scheduler.offer(frame(1, 10))
    assert scheduler.expire(1 << 60, 0) == []
    assert scheduler.next_deadline_ns() is None
    assert scheduler.take(1 << 60, 1 << 60)[0] == (frame(1, 10),)


def test_a_waiting_frame_expires_while_the_device_is_busy() -> None:
    scheduler = Scheduler(LATEST)
    scheduler.offer(frame(1, 10))
    assert scheduler.next_deadline_ns() == 110
    assert scheduler.expire(110, 0) == []
    assert scheduler.expire(111, 0) == [Drop(frame(1, 10), DropReason.LATE)]
    assert scheduler.next_deadline_ns() is None


def test_frames_are_paired_by_time_and_not_by_sequence() -> None:
    scheduler = Scheduler(PAIR)
    scheduler.offer(frame(7, 100, 0))
    assert scheduler.take(0, 0) == (None, [])
    scheduler.offer(frame(1, 110, 1))
    assert scheduler.take(0, 0) == ((frame(7, 100, 0), frame(1, 110, 1)), [])


def test_a_set_out_of_skew_loses_its_oldest_frame_and_recovers() -> None:
    scheduler = Scheduler(PAIR)
    scheduler.offer(frame(1, 100, 0))
    scheduler.offer(frame(1, 111, 1))
    assert scheduler.take(0, 0) == (None, [Drop(frame(1, 100, 0), DropReason.SKEW)])
    scheduler.offer(frame(2, 112, 0))
    assert scheduler.take(0, 0) == ((frame(2, 112, 0), frame(1, 111, 1)), [])


def test_a_closed_stream_gives_its_frames_back() -> None:
    scheduler = Scheduler(PAIR)
    scheduler.offer(frame(1, 100, 0))
    scheduler.offer(frame(1, 100, 1))
    assert scheduler.close(0) == [Drop(frame(1, 100, 0), DropReason.CLOSED)]
    assert scheduler.clear() == [Drop(frame(1, 100, 1), DropReason.CLOSED)]
    assert scheduler.waiting() == 0


@given(
    st.lists(st.tuples(st.sampled_from(["offer", "take", "expire", "close"]), st.integers(0, 1), st.integers(0, 60))),
    st.integers(1, 3),
    st.integers(0, 20),
    st.integers(0, 50),
)
def test_every_frame_comes_out_exactly_once(
    events: list[tuple[str, int, int]], queue: int, skew_ns: int, deadline_ns: int
) -> None:
    scheduler = Scheduler(Rule(2, (queue, queue), skew_ns, deadline_ns))
    offered, out = [], []
    for number, (event, stream, step) in enumerate(events):
        now = number * 10
        if event == "offer":
            offered.append(frame(number, now - step, stream))
            out += [drop.frame for drop in scheduler.offer(offered[-1])]
        elif event == "take":
            run, drops = scheduler.take(now, step)
            out += [drop.frame for drop in drops] + list(run or ())
            assert run is None or max(f.sof_ns for f in run) - min(f.sof_ns for f in run) <= skew_ns
        elif event == "expire":
            out += [drop.frame for drop in scheduler.expire(now, 0)]
        else:
            out += [drop.frame for drop in scheduler.close(stream)]
    out += [drop.frame for drop in scheduler.clear()]
    assert sorted(out) == sorted(offered)


def test_a_set_that_is_late_is_missed_once_however_many_cameras_it_has() -> None:
    scheduler = Scheduler(Rule(2, (4, 4), max_skew_ns=10, deadline_ns=100))
    for sequence, sof_ns in enumerate((0, 50)):
        scheduler.offer(frame(sequence, sof_ns, 0))
        scheduler.offer(frame(sequence, sof_ns + 3, 1))
    assert len(scheduler.ready(120, 0)[1]) == 2
    assert scheduler.missed_sets == 1
    scheduler.offer(frame(9, 100, 0))
    assert [drop.frame.sof_ns for drop in scheduler.expire(1000, 0)] == [50, 100, 53]
    assert scheduler.missed_sets == 2


def test_a_frame_without_its_partner_is_late_and_no_missed_set() -> None:
    scheduler = Scheduler(Rule(2, (4, 4), max_skew_ns=10, deadline_ns=100))
    scheduler.offer(frame(1, 0, 0))
    assert len(scheduler.expire(200, 0)) == 1
    assert scheduler.missed_sets == 0


def test_another_deadline_holds_for_frames_that_wait_already() -> None:
    scheduler = Scheduler(LATEST)
    scheduler.offer(frame(1, 10))
    scheduler.set_deadline(50)
    assert scheduler.next_deadline_ns() == 60
    assert scheduler.expire(61, 0) == [Drop(frame(1, 10), DropReason.LATE)]


def test_a_look_at_what_waits_drops_nothing() -> None:
    scheduler = Scheduler(PAIR)
    scheduler.offer(frame(1, 100, 0))
    assert scheduler.oldest_sof_ns() is None
    scheduler.offer(frame(1, 500, 1))
    assert scheduler.oldest_sof_ns() == 100
    assert scheduler.waiting() == 2
    assert scheduler.ready(0, 0) == (None, [Drop(frame(1, 100, 0), DropReason.SKEW)])
