"""The protocol machine: a recorder's tap is asked for once, and nothing of it comes to a session without one."""

from __future__ import annotations

import pytest

from abi import messages as m
from abi.messages import Role
from abi.packet import Kind, RefusalCode, encode_header
from abi.session import DaemonSession
from abi.tap import TAP_FRAME, TapEnd, TapFrame
from tests.support.link import Link, consumer, local, only, remote, stream_format, tapped, wire
from tests.support.packets import EXAMPLE_DESCRIPTORS, EXAMPLES, MESSAGES

FRAME = TapFrame(1, 2, 5, 41, 100, 110, 8, 4, 120, 3)
END = TapEnd(1, 2, 5, 41, 4, int(RefusalCode.TIME_STALE), 130, 3)
STREAM = m.TapStream(1, "road", stream_format(), 3)
NOTE = m.TapNote(m.TapTopic.AUX, "gain", 5, 6, b"\0\0\x80\x3f")


def test_what_the_daemon_tells_a_tap_arrives_as_it_was() -> None:
    link = tapped()
    assert link.answer(STREAM, 4) == [STREAM]
    bare = m.TapStream(2, "left", stream_format(), 0, "its memory is a dma-buf")
    assert link.answer(bare) == [bare]
    assert link.answer(NOTE) == [NOTE]
    assert link.client.receive(link.daemon.pack_tap_frame(FRAME)) == [FRAME]
    assert link.client.receive(link.daemon.pack_tap_end(END)) == [END]


def test_a_session_has_one_tap_and_may_subscribe_beside_it() -> None:
    link = tapped().subscribe()
    refusal = only(link.daemon.receive(wire(m.Tap(False))))
    assert (refusal.code, refusal.what, refusal.expected) == (RefusalCode.LIMIT, "tap", "one of a session")
    assert local(lambda: link.client.send(m.Tap(False)))[0] == "TAP tap"
    link.daemon.send(refusal)
    assert link.client.receive(link.daemon.pack_tap_end(END)) == [END]


def test_only_a_consumer_has_a_tap() -> None:
    for role in (Role.CAMERA, Role.CONTROL):
        assert remote(lambda role=role: Link(role).greet().daemon.receive(wire(m.Tap(True))))[2] == "TAP"  # type: ignore[misc]


@pytest.mark.parametrize("kind", [Kind.TAP_STREAM, Kind.TAP_NOTE, Kind.TAP_FRAME, Kind.TAP_END])
def test_nothing_of_a_tap_comes_without_one(kind: Kind) -> None:
    link, count = consumer(), EXAMPLE_DESCRIPTORS.get(kind, 0)
    remote(lambda: link.client.receive(EXAMPLES[kind], count))
    if kind in MESSAGES:
        expected = (f"{kind.name} session", "one with a tap", "one without")
        assert local(lambda: link.daemon.send(MESSAGES[kind], count)) == expected
    assert tapped().client.receive(EXAMPLES[kind], count)


def test_a_daemon_does_not_tell_of_frames_without_a_tap() -> None:
    daemon = DaemonSession(Role.CONSUMER)
    assert local(lambda: daemon.pack_tap_frame(FRAME))[2] == "TAP_FRAME"
    assert local(lambda: daemon.pack_tap_end(END))[2] == "TAP_END"


def test_a_tap_is_granted_only_where_one_was_asked_for() -> None:
    link = Link(Role.CONSUMER).greet()
    assert local(lambda: link.daemon.send(m.Tapped(1)))[2] == "TAPPED"
    link.ask(m.Tap(True))
    link.daemon._waiting = m.Subscribe("lane")  # a fault of the daemon
    assert local(lambda: link.daemon.send(m.Tapped(1)))[0] == "TAPPED answer"


def test_a_stream_has_no_more_slots_than_a_packet_descriptors() -> None:
    link = tapped()
    many = m.TapStream(1, "road", stream_format(), 17)
    assert local(lambda: link.daemon.send(many, 18)) == ("TAP_STREAM slots", "0..16", "17")
    assert local(lambda: link.daemon.send(STREAM, 0)) == ("TAP_STREAM descriptors", "4", "0")
    assert local(lambda: link.daemon.send(m.TapStream(1, "road", stream_format(), 0), 1))[:2] == (
        "TAP_STREAM descriptors", "0")  # fmt: skip


def test_a_note_is_about_something() -> None:
    link = tapped()
    nothing = m.TapNote(m.TapTopic.UNSPECIFIED, "", 0, 0, b"")
    assert local(lambda: link.daemon.send(nothing))[0] == "TAP_NOTE topic"
    assert remote(lambda: link.client.receive(wire(nothing)))[0] == "TAP_NOTE topic"


def test_a_flat_packet_of_a_tap_brings_no_descriptor_and_has_one_encoding() -> None:
    link = tapped()
    packet = encode_header(Kind.TAP_FRAME, 1) + TAP_FRAME.pack(FRAME)
    assert remote(lambda: link.client.receive(packet, 1))[0] == "TAP_FRAME descriptors"
    assert remote(lambda: link.client.receive(link.daemon.pack_tap_frame(FRAME) + b"\0"))[0] == "TapFrame length"
