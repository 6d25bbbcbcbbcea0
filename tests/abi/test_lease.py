"""Leases: the one table, and generations."""

from __future__ import annotations

import itertools

import pytest

from abi import lease
from abi.lease import Lease, LeaseError, LeaseEvent, LeaseState


def lease_in(state: LeaseState) -> Lease:
    made = Lease()
    path = {
        LeaseState.FREE: [],
        LeaseState.SUBMITTED: [LeaseEvent.SUBMIT],
        LeaseState.IN_FLIGHT: [LeaseEvent.SUBMIT, LeaseEvent.START],
        LeaseState.RELEASED: [LeaseEvent.SUBMIT, LeaseEvent.DROP],
    }[state]
    for event in path:
        made.move(event)
    assert made.state is state
    return made


def test_the_table_is_the_contract() -> None:
    table = {(before.name, event.name): after.name for (before, event), after in lease.TRANSITIONS.items()}
    assert table == {
        ("FREE", "SUBMIT"): "SUBMITTED",
        ("RELEASED", "SUBMIT"): "SUBMITTED",
        ("SUBMITTED", "START"): "IN_FLIGHT",
        ("SUBMITTED", "DROP"): "RELEASED",
        ("IN_FLIGHT", "FENCE"): "RELEASED",
        ("IN_FLIGHT", "RESET"): "RELEASED",
    }


def test_only_a_fence_or_a_reset_frees_a_slot_in_flight() -> None:
    freeing = {event for (state, event) in lease.TRANSITIONS if state is LeaseState.IN_FLIGHT}
    assert freeing == {LeaseEvent.FENCE, LeaseEvent.RESET}
    assert set(lease.ENDINGS) == {LeaseEvent.DROP, LeaseEvent.FENCE, LeaseEvent.RESET}


@pytest.mark.parametrize(("state", "event"), list(itertools.product(LeaseState, LeaseEvent)))
def test_every_event_moves_by_the_table_or_changes_nothing(state: LeaseState, event: LeaseEvent) -> None:
    held = lease_in(state)
    generation, after = held.generation, lease.TRANSITIONS.get((state, event))
    if after is None:
        with pytest.raises(LeaseError) as caught:
            held.move(event)
        assert (caught.value.state, caught.value.event) == (state, event)
        assert (held.state, held.generation) == (state, generation)
    else:
        held.move(event)
        assert (held.state, held.generation) == (after, generation + (event is LeaseEvent.SUBMIT))


def test_an_error_says_what_would_be_possible() -> None:
    with pytest.raises(LeaseError, match=r"^a IN_FLIGHT slot takes FENCE, RESET, not DROP$"):
        lease_in(LeaseState.IN_FLIGHT).move(LeaseEvent.DROP)


def test_the_daemon_holds_a_slot_from_submit_to_release() -> None:
    assert [state.name for state in LeaseState if lease_in(state).held] == ["SUBMITTED", "IN_FLIGHT"]


def test_a_generation_is_spent_by_each_submit() -> None:
    held = Lease()
    assert (held.generation, held.sequence) == (0, 0)
    for generation in range(1, 5):
        held.move(LeaseEvent.SUBMIT)
        assert held.generation == generation
        held.move(LeaseEvent.DROP)
