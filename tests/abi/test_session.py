"""The protocol machine, its two parties joined in memory: greeting, ending, and what may come when."""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

import pytest

from abi import flat, transitions
from abi import messages as m
from abi.flat import Submit
from abi.messages import Role
from abi.packet import Kind, LocalProtocolError, RefusalCode, RemoteProtocolError, encode_header
from abi.session import ClientSession, DaemonSession
from abi.transitions import TRANSITIONS, Party, State
from tests.support.link import (
    SUBSCRIBED,
    WELCOME,
    Link,
    camera,
    local,
    only,
    remote,
    stream_format,
    wire,
)  # fmt: skip
from tests.support.packets import EXAMPLE_DESCRIPTORS, EXAMPLES, MESSAGES


@pytest.mark.parametrize("role", [Role.CAMERA, Role.CONSUMER, Role.CONTROL])
def test_a_session_opens_with_hello_and_welcome(role: Role) -> None:
    link = Link(role)
    assert link.ask(m.Hello(role, "front")) == [m.Hello(role, "front")]
    assert link.daemon.state is link.client.state is State.GREETED
    assert link.answer(WELCOME) == [WELCOME]
    assert link.daemon.state is link.client.state is State.OPEN
    assert not link.daemon.closed
    assert link.client.closed_by is None


@pytest.mark.parametrize("role", [Role.UNSPECIFIED, Role.CONTROL, Role.CONSUMER])
def test_a_role_that_is_not_the_sockets_is_refused_and_ends_the_session(role: Role) -> None:
    daemon = DaemonSession(Role.CAMERA)
    refusal = only(daemon.receive(wire(m.Hello(role, "x"))))
    assert refusal == m.Refusal(
        RefusalCode.ROLE, Kind.HELLO, "role", "CAMERA", role.name, "connect to the socket of your role"
    )
    daemon.send(refusal)
    assert daemon.closed_by is Party.DAEMON


def test_a_client_greets_with_its_own_role() -> None:
    client = ClientSession(Role.CAMERA)
    assert local(lambda: client.send(m.Hello(Role.CONTROL, "x"))) == ("HELLO role", "CAMERA", "CONTROL")
    assert client.state is State.START


def test_a_refused_greeting_may_be_tried_again() -> None:
    link = Link(Role.CAMERA)
    link.ask(m.Hello(Role.CAMERA, "x"))
    refusal = m.Refusal(RefusalCode.NOT_PERMITTED, Kind.HELLO, "uid", "1000", "1001", "ask")
    assert link.answer(refusal) == [refusal]
    assert link.client.state is link.daemon.state is State.START
    link.greet()
    assert link.client.state is State.OPEN


@pytest.mark.parametrize("sender", list(Party))
def test_either_party_may_say_bye(sender: Party) -> None:
    link = Link(Role.CONTROL).greet()
    events = link.ask(m.Bye("done")) if sender is Party.CLIENT else link.answer(m.Bye("done"))
    assert events == [m.Bye("done")]
    for session in (link.client, link.daemon):
        assert session.closed
        assert session.closed_by is sender
        with pytest.raises(LocalProtocolError, match="sending in state CLOSED: expected nothing more, found BYE"):
            session.send(m.Bye())


def test_what_crosses_our_own_end_is_dropped() -> None:
    link = camera()
    late = link.client.submit(1, 0, sequence=1, sof_ns=1, eof_ns=1, control_word=2)
    link.daemon.send(m.Bye("shutting down"))
    assert link.daemon.receive(late) == []
    assert link.daemon.receive(b"anything", 3) == []
    assert link.daemon.streams[1].ledger.submitted == 0


def test_nothing_may_follow_the_peers_end() -> None:
    link = camera()
    link.ask(m.Bye())
    late = encode_header(Kind.SUBMIT) + flat.SUBMIT.pack(Submit(1, 0, 1, 1, 0, 0, 0, 0, 0))
    for call in (
        lambda: link.daemon.receive(late),
        lambda: link.daemon.receive_submit(late, 0, None),
        lambda: link.daemon.receive(wire(m.Bye())),
    ):
        assert remote(call)[:2] == ("packet in state CLOSED", "nothing more")


@pytest.mark.parametrize("code", [code for code in RefusalCode if code.closes])
def test_a_closing_refusal_ends_the_session_in_any_state(code: RefusalCode) -> None:
    for prepare in (lambda: Link(Role.CAMERA), lambda: Link(Role.CAMERA).greet(), camera):
        link = prepare()
        refusal = m.Refusal(code, 999, "x", "y", "z", "")
        assert link.answer(refusal) == [refusal]
        assert link.client.closed_by is link.daemon.closed_by is Party.DAEMON


def test_the_table_by_hand() -> None:
    """What a reader of session.capnp would write down, for what is not one-way and does not end the session."""
    rows = {
        (row.state.name, row.sender.name, row.kind.name, row.answers and row.answers.name, row.after.name)
        for row in TRANSITIONS
        if row.state is not row.after and row.after is not State.CLOSED
    }
    expected = {
        ("START", "CLIENT", "HELLO", None, "GREETED"),
        ("GREETED", "DAEMON", "WELCOME", None, "OPEN"),
        ("GREETED", "DAEMON", "REFUSAL", "HELLO", "START"),
    }
    for request, waiting, answer in (
        ("OPEN_STREAM", "OPENING", "STREAM_OPENED"),
        ("REGISTER_BUFFERS", "REGISTERING", "BUFFERS_REGISTERED"),
        ("SUBSCRIBE", "SUBSCRIBING", "SUBSCRIBED"),
        ("COMMAND", "COMMANDED", "REPLY"),
        ("SET_AUX", "SETTING", "AUX_SET"),
        ("TAP", "TAPPING", "TAPPED"),
    ):
        expected |= {
            ("OPEN", "CLIENT", request, None, waiting),
            (waiting, "DAEMON", answer, None, "OPEN"),
            (waiting, "DAEMON", "REFUSAL", request, "OPEN"),
        }
    assert rows == expected


def test_one_way_packets_by_hand() -> None:
    rows = {
        (row.sender.name, row.kind.name, row.answers and row.answers.name, role.name): set[str]()
        for row in TRANSITIONS
        if row.state is row.after
        for role in row.roles
    }
    for row in TRANSITIONS:
        if row.state is row.after:
            for role in row.roles:
                rows[row.sender.name, row.kind.name, row.answers and row.answers.name, role.name].add(row.state.name)
    on_camera = {"OPEN", "OPENING", "REGISTERING", "SETTING"}
    assert rows == {
        ("CLIENT", "SUBMIT", None, "CAMERA"): on_camera,
        ("DAEMON", "RELEASE", None, "CAMERA"): on_camera,
        ("CLIENT", "CLOSE_STREAM", None, "CAMERA"): on_camera,
        ("DAEMON", "REFUSAL", "CLOSE_STREAM", "CAMERA"): on_camera,
        **{
            ("DAEMON", kind, None, "CONSUMER"): {"OPEN", "SUBSCRIBING", "TAPPING"}
            for kind in ("RESULT", "TAP_STREAM", "TAP_FRAME", "TAP_END", "TAP_NOTE")
        },
    }


def test_a_session_can_be_ended_from_every_state_but_closed() -> None:
    ends = {(row.state, row.sender, row.kind) for row in TRANSITIONS if row.after is State.CLOSED}
    assert ends == {
        (state, sender, kind)
        for state in State
        if state is not State.CLOSED
        for sender, kind in ((Party.CLIENT, Kind.BYE), (Party.DAEMON, Kind.BYE), (Party.DAEMON, Kind.REFUSAL))
    }


class Exchange(NamedTuple):
    """A request, its answer with so many descriptors, and the state between them."""

    role: Role
    request: m.Message
    answer: m.Message
    down: int
    waiting: State


EXCHANGES = [
    Exchange(Role.CAMERA, m.OpenStream("road", stream_format()), m.StreamOpened(1, 4), 0, State.OPENING),
    Exchange(Role.CONSUMER, m.Subscribe("lane"), SUBSCRIBED, 1, State.SUBSCRIBING),
    Exchange(Role.CONTROL, m.Command(m.CommandKind.STATUS), m.Reply(m.CommandKind.STATUS, "{}"), 0, State.COMMANDED),
    Exchange(Role.CAMERA, m.SetAux("speed", 5, b"x"), m.AuxSet("speed"), 0, State.SETTING),
    Exchange(Role.CONTROL, m.SetAux("speed", 5, b"x"), m.AuxSet("speed"), 0, State.SETTING),
    Exchange(Role.CONSUMER, m.Tap(True), m.Tapped(1), 0, State.TAPPING),
]


@pytest.mark.parametrize("exchange", EXCHANGES)
def test_a_request_waits_for_its_answer(exchange: Exchange) -> None:
    role, request, answer, down, waiting = exchange
    link = Link(role).greet()
    assert link.ask(request) == [request]
    assert link.client.state is link.daemon.state is waiting
    assert local(lambda: link.client.send(request))[0] == f"sending in state {waiting.name}"
    assert link.answer(answer, down) == [answer]
    assert link.client.state is link.daemon.state is State.OPEN


@pytest.mark.parametrize("exchange", EXCHANGES)
def test_a_refused_request_takes_no_effect(exchange: Exchange) -> None:
    role, request, answer, down, _ = exchange
    link = Link(role).greet()
    link.ask(request)
    refusal = m.Refusal(RefusalCode.NOT_READY, m.kind_of_message(request), "model", "one", "none", "activate one")
    assert link.answer(refusal) == [refusal]
    assert link.client.state is link.daemon.state is State.OPEN
    assert (link.client.streams, link.daemon.streams, link.client.subscriptions) == ({}, {}, {})
    link.ask(request)
    link.answer(answer, down)


@pytest.mark.parametrize("exchange", EXCHANGES)
def test_an_answer_comes_only_to_its_request(exchange: Exchange) -> None:
    role, request, answer, down, waiting = exchange
    link = Link(role).greet()
    kind = m.kind_of_message(answer).name
    assert remote(lambda: link.client.receive(wire(answer, down), down))[2] == kind
    assert local(lambda: link.daemon.send(answer, down))[2] == kind
    link.ask(request)
    other = m.Refusal(RefusalCode.LIMIT, Kind.HELLO, "x", "y", "z", "")
    assert remote(lambda: link.client.receive(wire(other)))[2] == "REFUSAL"
    assert local(lambda: link.daemon.send(other))[2] == "REFUSAL"
    unknown = dataclasses.replace(other, in_reply_to=999)
    assert remote(lambda: link.client.receive(wire(unknown)))[0] == f"packet in state {waiting.name}"


def test_an_error_says_what_could_have_come_instead() -> None:
    link = Link(Role.CONSUMER).greet()
    what, expected, found = remote(lambda: link.daemon.receive(wire(m.Command(m.CommandKind.STATUS))))
    assert (what, expected, found) == ("packet in state OPEN", "BYE, SUBSCRIBE, TAP", "COMMAND")
    what, expected, found = local(lambda: link.client.send(m.CloseStream(1)))
    assert (what, expected, found) == ("sending in state OPEN", "BYE, SUBSCRIBE, TAP", "CLOSE_STREAM")
    sent = "BYE, REFUSAL, RESULT, TAP_END, TAP_FRAME, TAP_NOTE, TAP_STREAM"
    assert transitions.expected(State.OPEN, Party.DAEMON, Role.CONSUMER) == sent


@pytest.mark.parametrize("role", [Role.CAMERA, Role.CONSUMER, Role.CONTROL])
@pytest.mark.parametrize("state", list(State))
@pytest.mark.parametrize("sender", list(Party))
def test_both_parties_judge_a_kind_alike(role: Role, state: State, sender: Party) -> None:
    """A packet that its sender may not send is refused by its receiver, and the session stays where it was."""
    allowed = {row.kind for row in TRANSITIONS if (row.state, row.sender) == (state, sender) and role in row.roles}
    for kind in Kind:
        if kind and kind not in allowed:
            judge(role, state, sender, kind)


def judge(role: Role, state: State, sender: Party, kind: Kind) -> None:
    sending, receiving = (ClientSession(role), DaemonSession(role))
    if sender is Party.DAEMON:
        sending, receiving = receiving, sending  # type: ignore[assignment]
    sending.state = receiving.state = state
    receiving.closed_by = sender if state is State.CLOSED else None
    with pytest.raises(RemoteProtocolError) as caught:
        receiving.receive(EXAMPLES[kind], EXAMPLE_DESCRIPTORS.get(kind, 0))
    assert caught.value.in_reply_to == kind
    assert caught.value.found == kind.name
    assert receiving.state is state
    if kind in MESSAGES:
        with pytest.raises(LocalProtocolError) as told:
            sending.send(MESSAGES[kind], EXAMPLE_DESCRIPTORS.get(kind, 0))
        assert told.value.found == kind.name
        assert sending.state is state
