"""Which packet may come when: the one table of a session, for both parties and all three roles.

A session waits for at most one answer. Flat packets and CloseStream may also travel while it does. `docs/abi.md` shows
this table as a diagram.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Final

from abi.messages import Role
from abi.packet import Kind

__all__ = ["ALLOWED", "TRANSITIONS", "Party", "State", "Transition", "after"]


class Party(Enum):
    """The two ends of a session."""

    CLIENT = "client"
    DAEMON = "daemon"

    __hash__ = object.__hash__  # members are singletons: hash them without a call into Python


class State(Enum):
    """Where a session stands."""

    START = "nothing was said yet"
    GREETED = "Hello waits for Welcome"
    OPEN = "no request is waiting"
    OPENING = "OpenStream waits for StreamOpened"
    REGISTERING = "RegisterBuffers waits for BuffersRegistered"
    SUBSCRIBING = "Subscribe waits for Subscribed"
    COMMANDED = "Command waits for Reply"
    SETTING = "SetAux waits for AuxSet"
    TAPPING = "Tap waits for Tapped"
    CLOSED = "one party ended the session"

    __hash__ = object.__hash__


@dataclass(frozen=True, slots=True)
class Transition:
    """In `state`, `sender` may send `kind` and the state becomes `after`.

    For a Refusal `answers` is the kind it replies to, or None for one whose code ends the session.
    """

    state: State
    sender: Party
    kind: Kind
    roles: frozenset[Role]
    after: State
    answers: Kind | None = None


_CAMERA = frozenset({Role.CAMERA})
_CONSUMER = frozenset({Role.CONSUMER})
_CONTROL = frozenset({Role.CONTROL})
_ALL = _CAMERA | _CONSUMER | _CONTROL

# request, who asks, the state in which it waits, its answer
_REQUESTS = (
    (Kind.OPEN_STREAM, _CAMERA, State.OPENING, Kind.STREAM_OPENED),
    (Kind.REGISTER_BUFFERS, _CAMERA, State.REGISTERING, Kind.BUFFERS_REGISTERED),
    (Kind.SUBSCRIBE, _CONSUMER, State.SUBSCRIBING, Kind.SUBSCRIBED),
    (Kind.COMMAND, _CONTROL, State.COMMANDED, Kind.REPLY),
    (Kind.SET_AUX, _CAMERA | _CONTROL, State.SETTING, Kind.AUX_SET),
    (Kind.TAP, _CONSUMER, State.TAPPING, Kind.TAPPED),
)
# kinds that change no state, who sends them, in sessions of which role
_ONE_WAY = (
    (Kind.SUBMIT, Party.CLIENT, _CAMERA),
    (Kind.RELEASE, Party.DAEMON, _CAMERA),
    (Kind.RESULT, Party.DAEMON, _CONSUMER),
    (Kind.CLOSE_STREAM, Party.CLIENT, _CAMERA),
    (Kind.TAP_STREAM, Party.DAEMON, _CONSUMER),
    (Kind.TAP_FRAME, Party.DAEMON, _CONSUMER),
    (Kind.TAP_END, Party.DAEMON, _CONSUMER),
    (Kind.TAP_NOTE, Party.DAEMON, _CONSUMER),
)


def _rows() -> Iterator[Transition]:
    client, daemon = Party.CLIENT, Party.DAEMON
    yield Transition(State.START, client, Kind.HELLO, _ALL, State.GREETED)
    yield Transition(State.GREETED, daemon, Kind.WELCOME, _ALL, State.OPEN)
    yield Transition(State.GREETED, daemon, Kind.REFUSAL, _ALL, State.START, Kind.HELLO)
    for request, roles, waiting, answer in _REQUESTS:
        yield Transition(State.OPEN, client, request, roles, waiting)
        yield Transition(waiting, daemon, answer, roles, State.OPEN)
        yield Transition(waiting, daemon, Kind.REFUSAL, roles, State.OPEN, request)
    for kind, sender, one_way_roles in _ONE_WAY:
        waits = [(state, roles) for _, roles, state, _ in _REQUESTS]
        for state, state_roles in [(State.OPEN, _ALL), *waits]:
            roles = one_way_roles & state_roles
            if roles:
                yield Transition(state, sender, kind, roles, state)
                if kind is Kind.CLOSE_STREAM:
                    yield Transition(state, daemon, Kind.REFUSAL, roles, state, kind)
    for state in State:
        if state is not State.CLOSED:
            yield Transition(state, client, Kind.BYE, _ALL, State.CLOSED)
            yield Transition(state, daemon, Kind.BYE, _ALL, State.CLOSED)
            yield Transition(state, daemon, Kind.REFUSAL, _ALL, State.CLOSED)


TRANSITIONS: Final = tuple(_rows())
_AFTER: Final = {
    (row.state, row.sender, row.kind, row.answers, role): row.after for row in TRANSITIONS for role in row.roles
}
ALLOWED: Final = frozenset((row.state, row.sender, row.kind, role) for row in TRANSITIONS for role in row.roles)
"""What may be sent at all: (state, sender, kind, role). For packets that change no state, of which most are."""


def after(state: State, sender: Party, kind: Kind, answers: Kind | None, role: Role) -> State | None:
    """The state after a packet, or None when it may not be sent now."""
    return _AFTER.get((state, sender, kind, answers, role))


def expected(state: State, sender: Party, role: Role) -> str:
    """The kinds that may come instead, for an error's text."""
    kinds = {row.kind.name for row in TRANSITIONS if (row.state, row.sender) == (state, sender) and role in row.roles}
    return ", ".join(sorted(kinds)) or "nothing more"
