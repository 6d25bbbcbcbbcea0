"""Placing results in the arena: what lives at one time never shares bytes, and what does not may."""

from hypothesis import given
from hypothesis import strategies as st

from lab.compile.placement import Lifetime, place

LIFETIMES = st.builds(
    lambda size, first, length: Lifetime(size, first, first + length),
    st.integers(1, 5000),
    st.integers(0, 30),
    st.integers(0, 10),
)


def test_results_that_follow_one_another_share_their_place() -> None:
    offsets, size = place([Lifetime(1000, 0, 1), Lifetime(1000, 2, 3)], 256)
    assert offsets == (0, 0)
    assert size == 1024


def test_results_that_meet_at_one_launch_are_apart() -> None:
    offsets, size = place([Lifetime(1000, 0, 1), Lifetime(1000, 1, 3)], 256)
    assert sorted(offsets) == [0, 1024]
    assert size == 2048


def test_a_gap_between_living_results_is_used() -> None:
    long = [Lifetime(512, 0, 9), Lifetime(512, 0, 2), Lifetime(512, 0, 9)]
    offsets, size = place([*long, Lifetime(256, 5, 6)], 256)
    assert offsets[3] == offsets[1]
    assert size == 3 * 512


def test_no_results_need_no_arena() -> None:
    assert place([], 256) == ((), 0)


@given(st.lists(LIFETIMES, max_size=30))
def test_living_results_never_overlap_and_stay_inside(lifetimes: list[Lifetime]) -> None:
    offsets, size = place(lifetimes, 64)
    assert place(lifetimes, 64) == (offsets, size)
    assert size <= sum(-(-one.size_bytes // 64) * 64 for one in lifetimes)
    for index, one in enumerate(lifetimes):
        assert offsets[index] % 64 == 0
        assert offsets[index] + one.size_bytes <= size
        for other in range(index):
            if one.meets(lifetimes[other]):
                first, second = sorted(((offsets[index], one), (offsets[other], lifetimes[other])), key=lambda x: x[0])
                assert first[0] + first[1].size_bytes <= second[0]
