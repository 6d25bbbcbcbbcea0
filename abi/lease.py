"""The lease of one slot: who may touch its pixels, and what moves it on. One table, used on both sides.

    FREE --submit--> SUBMITTED --start--> IN_FLIGHT --fence | reset--> RELEASED --submit--> SUBMITTED ...
                     SUBMITTED --drop--> RELEASED

Each submit raises the generation by one, so that a stale or foreign packet about the slot can be told. A slot in
flight is freed by nothing but a signalled fence or a completed reset of the device; a peer's death does not.
"""

from __future__ import annotations

from enum import Enum
from typing import Final

__all__ = ["ENDINGS", "TRANSITIONS", "Lease", "LeaseError", "LeaseEvent", "LeaseState"]


class LeaseState(Enum):
    """FREE and RELEASED: the camera's. SUBMITTED and IN_FLIGHT: the daemon's."""

    FREE = "never submitted"
    SUBMITTED = "given to the daemon, not yet to the device"
    IN_FLIGHT = "the device may read it"
    RELEASED = "given back"

    __hash__ = object.__hash__  # members are singletons: hash them without a call into Python


class LeaseEvent(Enum):
    """What happens to a slot."""

    SUBMIT = "the camera gives it to the daemon"
    START = "the daemon gives it to the device"
    DROP = "the daemon gives it back unused"
    FENCE = "the fence of its run signalled"
    RESET = "the device was reset, or is gone"

    __hash__ = object.__hash__


TRANSITIONS: Final[dict[tuple[LeaseState, LeaseEvent], LeaseState]] = {
    (LeaseState.FREE, LeaseEvent.SUBMIT): LeaseState.SUBMITTED,
    (LeaseState.RELEASED, LeaseEvent.SUBMIT): LeaseState.SUBMITTED,
    (LeaseState.SUBMITTED, LeaseEvent.START): LeaseState.IN_FLIGHT,
    (LeaseState.SUBMITTED, LeaseEvent.DROP): LeaseState.RELEASED,
    (LeaseState.IN_FLIGHT, LeaseEvent.FENCE): LeaseState.RELEASED,
    (LeaseState.IN_FLIGHT, LeaseEvent.RESET): LeaseState.RELEASED,
}

_SUBMIT: Final = LeaseEvent.SUBMIT
_HELD: Final = (LeaseState.SUBMITTED, LeaseState.IN_FLIGHT)
ENDINGS: Final = (LeaseEvent.DROP, LeaseEvent.FENCE, LeaseEvent.RESET)  # the events that give a slot back


class LeaseError(RuntimeError):
    """The event is not possible in the lease's state. Nothing changed."""

    def __init__(self, state: LeaseState, event: LeaseEvent) -> None:
        possible = ", ".join(known.name for held, known in TRANSITIONS if held is state)
        super().__init__(f"a {state.name} slot takes {possible}, not {event.name}")
        self.state, self.event = state, event


class Lease:
    """State and generation of one slot (0: never submitted), and the sequence of the frame last submitted in it."""

    __slots__ = ("generation", "held", "sequence", "state")

    def __init__(self) -> None:
        self.state = LeaseState.FREE
        self.held = False  # whether the slot is the daemon's
        self.generation = 0
        self.sequence = 0

    def move(self, event: LeaseEvent) -> None:
        """Apply an event. Raises LeaseError, changing nothing, when the table has no such transition."""
        after = TRANSITIONS.get((self.state, event))
        if after is None:
            raise LeaseError(self.state, event)
        if event is _SUBMIT:
            self.generation += 1
        self.state = after
        self.held = after in _HELD
