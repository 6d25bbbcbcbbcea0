"""The protocol machine: what requests and answers may say."""

from __future__ import annotations

import dataclasses

import pytest

from abi import messages as m
from abi.messages import Role
from abi.packet import Kind, RefusalCode, RemoteProtocolError
from abi.session import DaemonSession
from abi.transitions import State
from tests.support.link import (
    SUBSCRIBED,
    Link,
    camera,
    consumer,
    local,
    only,
    remote,
    stream_format,
    wire,
)  # fmt: skip
from tests.support.packets import MESSAGES


def test_a_stream_with_a_bad_format_is_refused_by_field() -> None:
    link = Link(Role.CAMERA).greet()
    bad = m.OpenStream("road", dataclasses.replace(stream_format(), buffer_bytes=1))
    refusal = only(link.daemon.receive(wire(bad)))
    assert refusal == m.Refusal(
        RefusalCode.BAD_FORMAT,
        Kind.OPEN_STREAM,
        "format.planes[0]",
        "offset + sizeBytes within the buffer's 1 bytes",
        "0 + 3072",
        "make the buffer hold all planes",
    )
    assert link.daemon.state is State.OPENING
    assert local(lambda: link.client.send(bad))[0] == "OPEN_STREAM format.planes[0]"
    assert link.client.state is State.OPEN
    link.daemon.send(refusal)
    assert link.daemon.state is State.OPEN


def test_a_stream_with_an_unknown_enum_value_is_refused_by_field() -> None:
    link = Link(Role.CAMERA).greet()
    packet = bytearray(wire(m.OpenStream("road", stream_format())))
    good = only(DaemonSession.receive(Link(Role.CAMERA).greet().daemon, bytes(packet)))
    assert isinstance(good, m.OpenStream)
    for at in range(8, len(packet) - 1):  # find the range field by what changing it does
        changed = bytearray(packet)
        changed[at : at + 2] = b"\x63\x00"
        try:
            event = only(Link(Role.CAMERA).greet().daemon.receive(bytes(changed)))
        except RemoteProtocolError:
            continue
        if isinstance(event, m.Refusal) and event.what == "format.range" and event.found == "99":
            break
    else:
        pytest.fail("no byte of the packet is the range")
    assert only(link.daemon.receive(bytes(changed))).code is RefusalCode.BAD_FORMAT
    assert link.daemon.state is State.OPENING


def test_a_refused_request_cannot_be_granted_after_all() -> None:
    link = Link(Role.CAMERA).greet()
    bad = m.OpenStream("road", dataclasses.replace(stream_format(), buffer_bytes=1))
    link.daemon.receive(wire(bad))
    expected = ("STREAM_OPENED answer", "the refusal of a request that was not taken", "STREAM_OPENED")
    assert local(lambda: link.daemon.send(m.StreamOpened(1, 4))) == expected


def test_a_stream_name_is_open_once() -> None:
    link = camera()
    again = m.OpenStream("road", stream_format())
    assert local(lambda: link.client.send(again)) == ("OPEN_STREAM stream", "a stream that is not open", "road")
    refusal = only(link.daemon.receive(wire(again)))
    assert (refusal.code, refusal.action) == (RefusalCode.STREAM_TAKEN, "close the stream before it is opened again")
    link.daemon.send(refusal)
    link.ask(m.OpenStream("side", stream_format()))
    link.answer(m.StreamOpened(2, 1))
    assert sorted(link.daemon.streams) == sorted(link.client.streams) == [1, 2]
    assert link.client.streams[2].name == link.daemon.streams[2].name == "side"


def test_the_number_of_streams_is_bounded() -> None:
    link = Link(Role.CAMERA).greet()
    for index in range(16):
        link.ask(m.OpenStream(f"s{index}", stream_format()))
        link.answer(m.StreamOpened(index, 1))
    more = m.OpenStream("more", stream_format())
    assert local(lambda: link.client.send(more)) == ("OPEN_STREAM streams", "at most 16", "17")
    assert only(link.daemon.receive(wire(more))).code is RefusalCode.LIMIT


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        (m.StreamOpened(1, 4), ("streamId", "a new one", "1")),
        (m.StreamOpened(2, 0), ("maxSlots", "1..16", "0")),
        (m.StreamOpened(2, 17), ("maxSlots", "1..16", "17")),
    ],
)
def test_an_opened_stream_has_its_own_id_and_some_slots(answer: m.Message, problem: tuple[str, str, str]) -> None:
    link = camera()
    link.ask(m.OpenStream("side", stream_format()))
    expected = (f"STREAM_OPENED {problem[0]}", *problem[1:])
    assert local(lambda: link.daemon.send(answer)) == expected
    assert remote(lambda: link.client.receive(wire(answer))) == expected
    link.answer(m.StreamOpened(2, 16))


@pytest.mark.parametrize(
    ("message", "code", "problem"),
    [
        (m.RegisterBuffers(9, 1), RefusalCode.UNKNOWN_STREAM, ("streamId", "an open stream", "9")),
        (m.RegisterBuffers(1, 0), RefusalCode.LIMIT, ("slots", "1..4", "0")),
        (m.RegisterBuffers(1, 5), RefusalCode.LIMIT, ("slots", "1..4", "5")),
    ],
)
def test_buffers_are_registered_within_limits(
    message: m.RegisterBuffers, code: RefusalCode, problem: tuple[str, str, str]
) -> None:
    link = Link(Role.CAMERA).greet()
    link.ask(m.OpenStream("road", stream_format()))
    link.answer(m.StreamOpened(1, 4))
    count = message.slots + 1
    assert local(lambda: link.client.send(message, count)) == (f"REGISTER_BUFFERS {problem[0]}", *problem[1:])
    refusal = only(link.daemon.receive(wire(message, count), count))
    assert (refusal.code, refusal.what, refusal.expected, refusal.found) == (code, *problem)
    assert refusal.in_reply_to == Kind.REGISTER_BUFFERS
    link.daemon.send(refusal)
    link.ask(m.RegisterBuffers(1, 4), 5)
    link.answer(m.BuffersRegistered(1, 4, False))
    assert link.client.streams[1].format == link.daemon.streams[1].format == stream_format()
    assert len(link.client.streams[1].leases) == len(link.daemon.streams[1].leases) == 4


def test_one_buffer_will_do() -> None:
    link = Link(Role.CAMERA).greet().open_stream(slots=1)
    assert len(link.daemon.streams[1].leases) == 1


def test_buffers_are_registered_once() -> None:
    link = camera()
    again = m.RegisterBuffers(1, 1)
    assert local(lambda: link.client.send(again, 2)) == (
        "REGISTER_BUFFERS buffers",
        "registered once",
        "registered again",
    )
    assert only(link.daemon.receive(wire(again, 2), 2)).code is RefusalCode.LIMIT


@pytest.mark.parametrize("count", [0, 1, 3, 17])
def test_each_buffer_and_the_lease_page_has_a_descriptor(count: int) -> None:  # case 24
    link = Link(Role.CAMERA).greet()
    link.ask(m.OpenStream("road", stream_format()))
    link.answer(m.StreamOpened(1, 4))
    message = m.RegisterBuffers(1, 1)
    expected = ("REGISTER_BUFFERS descriptors", "2", str(count))
    assert local(lambda: link.client.send(message, count)) == expected
    assert remote(lambda: link.daemon.receive(wire(message, count), count)) == expected
    assert link.daemon.state is State.OPEN


@pytest.mark.parametrize("kind", [Kind.HELLO, Kind.BYE])
def test_descriptors_that_nobody_asked_for_are_refused(kind: Kind) -> None:  # case 24
    daemon = DaemonSession(Role.CAMERA)
    packet = wire(MESSAGES[kind], 1)
    assert remote(lambda: daemon.receive(packet, 1)) == (f"{kind.name} descriptors", "0", "1")
    assert daemon.state is State.START


@pytest.mark.parametrize("answer", [m.BuffersRegistered(2, 3, True), m.BuffersRegistered(1, 2, True)])
def test_registered_buffers_are_those_that_were_offered(answer: m.BuffersRegistered) -> None:
    link = Link(Role.CAMERA).greet()
    link.ask(m.OpenStream("road", stream_format()))
    link.answer(m.StreamOpened(1, 4))
    link.ask(m.RegisterBuffers(1, 3), 4)
    expected = ("BUFFERS_REGISTERED streamId, slots", "1, 3", f"{answer.stream_id}, {answer.slots}")
    assert local(lambda: link.daemon.send(answer)) == expected
    assert remote(lambda: link.client.receive(wire(answer))) == expected


def test_a_subscription_is_bounded_and_named() -> None:
    link = consumer()
    for queue in (0, 65):
        ask = m.Subscribe("lane", m.DeliveryPolicy.EVERY, queue)
        assert local(lambda ask=ask: link.client.send(ask)) == ("SUBSCRIBE queue", "1..64", str(queue))  # type: ignore[misc]
        refusal = only(link.daemon.receive(wire(ask)))
        assert (refusal.code, refusal.what, refusal.found) == (RefusalCode.LIMIT, "queue", str(queue))
        link.daemon.send(refusal)
    link.ask(m.Subscribe("lane", m.DeliveryPolicy.EVERY, 64))
    for answer, problem in (
        (SUBSCRIBED, ("SUBSCRIBED subscriptionId", "a new one", "5")),
        (dataclasses.replace(SUBSCRIBED, subscription_id=6, slots=0), ("SUBSCRIBED slots", "at least 1", "0")),
    ):
        assert local(lambda a=answer: link.daemon.send(a, 1)) == problem  # type: ignore[misc]
        assert remote(lambda a=answer: link.client.receive(wire(a, 1), 1)) == problem  # type: ignore[misc]
    assert local(lambda: link.daemon.send(SUBSCRIBED))[:2] == ("SUBSCRIBED descriptors", "1")
    link.answer(dataclasses.replace(SUBSCRIBED, subscription_id=6, slots=1), 1)
    assert sorted(link.client.subscriptions) == sorted(link.daemon.subscriptions) == [5, 6]


def test_the_number_of_subscriptions_is_bounded() -> None:
    link = Link(Role.CONSUMER).greet()
    for index in range(16):
        link.ask(m.Subscribe("lane"))
        link.answer(dataclasses.replace(SUBSCRIBED, subscription_id=index), 1)
    assert local(lambda: link.client.send(m.Subscribe("lane"))) == ("SUBSCRIBE subscriptions", "at most 16", "17")
    assert only(link.daemon.receive(wire(m.Subscribe("lane")))).code is RefusalCode.LIMIT


def test_an_unknown_command_is_refused_by_name() -> None:
    link = Link(Role.CONTROL).greet()
    unknown = m.Command(m.CommandKind.UNSPECIFIED)
    refusal = only(link.daemon.receive(wire(unknown)))
    assert refusal.code is RefusalCode.UNKNOWN_COMMAND
    assert (refusal.what, refusal.found) == ("command", "an unknown one")
    assert refusal.expected == (
        "one of STATUS, ACTIVATE, ROLLBACK, DRAIN, RESUME, RESET_STATE, METRICS, SNAPSHOT_STATE, RESTORE_STATE, SHADOW"
    )
    assert local(lambda: link.client.send(unknown))[0] == "COMMAND command"


def test_a_reply_is_to_the_command_that_was_given() -> None:
    link = Link(Role.CONTROL).greet()
    link.ask(m.Command(m.CommandKind.DRAIN))
    wrong = m.Reply(m.CommandKind.STATUS, "{}")
    expected = ("REPLY command", "DRAIN", "STATUS")
    assert local(lambda: link.daemon.send(wrong)) == expected
    assert remote(lambda: link.client.receive(wire(wrong))) == expected
    link.answer(m.Reply(m.CommandKind.DRAIN, "{}"))


def test_answers_to_requests_that_were_refused_are_refused() -> None:
    cases: list[tuple[Role, m.Message, m.Message, int]] = [
        (Role.CONSUMER, m.Subscribe("lane", queue=0), SUBSCRIBED, 1),
        (Role.CONTROL, m.Command(m.CommandKind.UNSPECIFIED), m.Reply(m.CommandKind.STATUS, ""), 0),
    ]
    for role, request, answer, count in cases:
        link = Link(role).greet()
        link.daemon.receive(wire(request))
        assert local(lambda link=link, a=answer, n=count: link.daemon.send(a, n))[0].endswith(" answer")  # type: ignore[misc]
    link = camera()
    link.daemon.receive(wire(m.RegisterBuffers(1, 1), 2), 2)
    assert local(lambda: link.daemon.send(m.BuffersRegistered(1, 1, True)))[0] == "BUFFERS_REGISTERED answer"


def test_an_aux_input_may_be_refused_and_set_again_while_frames_go_on() -> None:
    link = camera()
    aux = m.SetAux("speed", 5, b"\0\0\x80?")
    assert link.ask(aux) == [aux]
    refusal = m.Refusal(RefusalCode.BAD_AUX, Kind.SET_AUX, "value", "8 bytes", "4 bytes", "send a float64")
    assert link.answer(refusal) == [refusal]
    link.ask(aux)
    assert link.client.state is State.SETTING
    link.submit()
    assert link.answer(m.AuxSet("speed")) == [m.AuxSet("speed")]
    assert link.client.state is link.daemon.state is State.OPEN


def test_an_aux_input_is_answered_by_its_name() -> None:
    link = camera()
    assert local(lambda: link.daemon.send(m.AuxSet("speed")))[0] == "sending in state OPEN"
    link.ask(m.SetAux("speed", 5, b""))
    expected = ("AUX_SET name", "that of the SetAux that waits", "mass")
    assert local(lambda: link.daemon.send(m.AuxSet("mass"))) == expected
    assert remote(lambda: link.client.receive(wire(m.AuxSet("mass"))))[:3] == expected


@pytest.mark.parametrize("kind", [kind for kind in m.CommandKind if kind])
def test_only_a_snapshot_travels_with_a_descriptor(kind: m.CommandKind) -> None:
    link = Link(Role.CONTROL).greet()
    there, back = int(kind is m.CommandKind.RESTORE_STATE), int(kind is m.CommandKind.SNAPSHOT_STATE)
    for wrong in {0, 1, 2} - {there}:
        assert local(lambda n=wrong: link.client.send(m.Command(kind), n))[1:] == (str(there), str(wrong))  # type: ignore[misc]
    assert only(link.ask(m.Command(kind), there)) == m.Command(kind)
    for wrong in {0, 1, 2} - {back}:
        assert local(lambda n=wrong: link.daemon.send(m.Reply(kind, "{}"), n))[1:] == (str(back), str(wrong))  # type: ignore[misc]
    assert only(link.answer(m.Reply(kind, "{}"), back)) == m.Reply(kind, "{}")
