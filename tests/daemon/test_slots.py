"""The sample of a frame by which a broken lease is seen, whatever the frame's size."""

from __future__ import annotations

import pytest

from daemon.slots import FrameSample
from hal.memory import Mapping


@pytest.mark.parametrize("lines", [1, 3, 256])
def test_every_line_of_a_small_frame_is_sampled(lines: int) -> None:
    memory = Mapping.anonymous(64 * lines)
    sample = FrameSample(memory)
    for line in range(lines):
        sample.take()
        assert sample.is_unchanged()
        memory.view[64 * line + 63] ^= 1
        assert not sample.is_unchanged()


def test_of_a_large_frame_each_part_is_sampled_at_one_place() -> None:
    memory = Mapping.anonymous(64 * 1000)
    sample = FrameSample(memory)
    sample.take()
    seen = 0
    for line in range(1000):
        memory.view[64 * line] ^= 1
        seen += not sample.is_unchanged()
        memory.view[64 * line] ^= 1
    assert seen == 256


def test_a_frame_of_less_than_a_line_has_no_sample() -> None:
    sample = FrameSample(Mapping.anonymous(12))
    sample.take()
    assert sample.is_unchanged()
