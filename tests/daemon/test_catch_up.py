"""Frames kept for the state: in sets, in order, never more than there is room for, and each comes out exactly once."""

from hypothesis import given
from hypothesis import strategies as st

from daemon.catch_up import CatchUp
from daemon.scheduler import Drop, DropReason, Waiting


def dropped(sequence: int, sof_ns: int, stream: int = 0, reason: DropReason = DropReason.SUPERSEDED) -> Drop:
    return Drop(Waiting(stream, sequence % 4, 1, sequence, sof_ns), reason)


def test_a_single_stream_gives_its_frames_in_order() -> None:
    behind = CatchUp((0,), 0)
    for sequence in (2, 1):
        assert behind.offer(dropped(sequence, 10 * sequence), 4) == []
    assert behind.ready() == []
    assert [behind.take() for _ in range(3)] == [(dropped(1, 10),), (dropped(2, 20),), ()]


def test_frames_of_two_streams_are_paired_by_time_in_the_entrypoints_order() -> None:
    behind = CatchUp((1, 0), 5)
    behind.offer(dropped(1, 10, 0), 4)
    behind.offer(dropped(2, 20, 0, DropReason.LATE), 4)
    assert behind.take() == ()
    behind.offer(dropped(9, 23, 1, DropReason.SKEW), 4)
    assert behind.ready() == [dropped(1, 10, 0)]
    assert behind.take() == (dropped(9, 23, 1, DropReason.SKEW), dropped(2, 20, 0, DropReason.LATE))
    assert len(behind) == 0


def test_what_there_is_no_room_for_is_given_up_oldest_first() -> None:
    behind = CatchUp((0,), 0)
    behind.offer(dropped(1, 10), 2)
    behind.offer(dropped(2, 20), 2)
    assert behind.offer(dropped(3, 30), 2) == [dropped(1, 10)]
    assert behind.offer(dropped(4, 40), 0) == [dropped(2, 20), dropped(3, 30), dropped(4, 40)]
    assert behind.offer(dropped(5, 50), -1) == [dropped(5, 50)]


def test_a_stream_that_the_entrypoint_does_not_take_is_not_kept() -> None:
    assert CatchUp((), 0).offer(dropped(1, 10), 4) == [dropped(1, 10)]
    assert CatchUp((1,), 0).offer(dropped(1, 10), 4) == [dropped(1, 10)]
    assert CatchUp((), 0).ready() == []
    assert CatchUp((), 0).take() == ()


def test_state_never_goes_back_behind_a_frame_that_has_run() -> None:
    behind = CatchUp((0, 1), 0)
    for stream in (0, 1):
        behind.offer(dropped(1, 10, stream), 4)
        behind.offer(dropped(2, 20, stream), 4)
    assert behind.give_up_before(20) == [dropped(1, 10, 0), dropped(1, 10, 1)]
    assert behind.take() == (dropped(2, 20, 0), dropped(2, 20, 1))


@given(
    st.lists(st.tuples(st.sampled_from(["offer", "take", "before", "clear"]), st.integers(0, 2), st.integers(0, 30)),
             max_size=40),
    st.integers(0, 20), st.integers(0, 3),
)  # fmt: skip
def test_every_frame_comes_out_exactly_once(events: list[tuple[str, int, int]], skew_ns: int, most: int) -> None:
    behind = CatchUp((0, 2), skew_ns)
    offered, out, last_sof = [], [], -1
    for number, (event, stream, step) in enumerate(events):
        if event == "offer":
            offered.append(dropped(number, 10 * number, stream))
            out += behind.offer(offered[-1], most)
        elif event == "take":
            out += behind.ready()
            found = behind.take()
            out += found
            if found:
                times = [drop.frame.sof_ns for drop in found]
                assert [drop.frame.stream for drop in found] == [0, 2]
                assert max(times) - min(times) <= skew_ns
                assert min(times) > last_sof
                last_sof = min(times)
        elif event == "before":
            out += behind.give_up_before(10 * step)
        else:
            out += behind.clear()
    out += behind.clear()
    assert sorted(drop.frame for drop in out) == sorted(drop.frame for drop in offered)
    assert len(behind) == 0
