"""Any bytes at any point give events or RemoteProtocolError: the fuzz targets under hypothesis, bounded."""

from __future__ import annotations

import dataclasses
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from abi.packet import Kind
from abi.stream_format import Plane, Rect
from tests.fuzz import harness
from tests.support.link import stream_format
from tests.support.packets import EXAMPLES

WILD = st.one_of(st.integers(0, 80), st.sampled_from([-(2**63), -1, 2**15, 2**31, 2**32 - 1, 2**40, 2**63, 2**64 - 1]))


@settings(max_examples=200)
@given(data=st.binary(max_size=300))
@pytest.mark.parametrize("target", list(harness.TARGETS))
def test_any_bytes(target: str, data: bytes) -> None:
    harness.TARGETS[target](data)


@settings(max_examples=300)
@given(
    st.integers(0, len(harness.STARTS) - 1),
    st.sampled_from(list(EXAMPLES)),
    st.integers(0, 18),
    st.lists(st.tuples(st.integers(0, 600), st.integers(0, 255)), max_size=4),
)
def test_good_packets_with_changed_bytes(
    start: int, kind: Kind, descriptors: int, changes: list[tuple[int, int]]
) -> None:
    harness.changed_packet(start, kind, descriptors, changes)


@pytest.mark.parametrize("start", range(len(harness.STARTS)))
@pytest.mark.parametrize("kind", list(EXAMPLES))
def test_good_packets_at_every_point_of_a_session(start: int, kind: Kind) -> None:
    for descriptors in range(6):
        harness.changed_packet(start, kind, descriptors, [(4, descriptors)])


@settings(max_examples=300)
@given(
    st.tuples(*[WILD] * 3),
    st.tuples(*[st.integers(0, 80)] * 4),
    st.lists(st.tuples(*[WILD] * 4), min_size=1, max_size=3),
    WILD,
)
def test_any_format(
    size: tuple[int, ...], crop: tuple[int, ...], planes: list[tuple[int, ...]], descriptor: int
) -> None:
    width, height, buffer = size
    format = dataclasses.replace(
        stream_format(), width=width, height=height, buffer_bytes=buffer, crop=Rect(*crop),
        planes=tuple(Plane(*plane) for plane in planes),
    )  # fmt: skip
    harness.formats(format, descriptor)


def test_the_harness_reaches_accepted_and_refused_packets() -> None:
    """A fuzz target that never gets past the header would find nothing."""
    taken = {
        (start, kind, party)
        for start, make in enumerate(harness.STARTS)
        for kind, packet in EXAMPLES.items()
        for party in ("daemon", "client")
        if harness.feed(getattr(make(), party), packet, packet[4])
    }
    assert {kind for _, kind, _ in taken} == set(EXAMPLES)
    assert {start for start, _, _ in taken} == set(range(len(harness.STARTS)))


@pytest.mark.parametrize("target", list(harness.TARGETS))
def test_random_noise_at_length(target: str) -> None:
    """More, and longer, than hypothesis draws; seeded."""
    random_bytes = random.Random(20260).randbytes
    for size in range(0, 2000, 7):
        harness.TARGETS[target](random_bytes(size))
