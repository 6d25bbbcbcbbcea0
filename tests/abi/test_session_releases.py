"""The protocol machine: slots that come back, and results with their receipts."""

from __future__ import annotations

import pytest

from abi import flat
from abi import messages as m
from abi.flat import Release, ReleaseStatus, ResultFlag
from abi.lease import LeaseError, LeaseEvent, LeaseState
from abi.messages import Role
from abi.packet import Kind, LocalProtocolError, ProtocolError, RefusalCode, RemoteProtocolError, encode_header
from abi.receipt import FrameReceipt, Receipt
from abi.session import DaemonSession
from abi.transitions import State
from tests.support.link import (
    OUTPUT,
    camera,
    consumer,
    local,
    only,
    refuse,
    remote,
    stream_format,
    wire,
)  # fmt: skip
from tests.support.packets import EXAMPLES

BIG = (1 << 64) - 1


def release_packet(**changes: int) -> bytes:
    release = Release(1, 0, 1, 1, ReleaseStatus.SUPERSEDED, RefusalCode.OK, 0)._replace(**changes)
    return encode_header(Kind.RELEASE) + flat.RELEASE.pack(release)


@pytest.mark.parametrize(
    ("changes", "what", "expected", "found"),
    [
        ({"stream_id": 2}, "RELEASE streamId", "an open stream", "2"),
        ({"slot": 1}, "Release slot", "a slot that the daemon holds", "1"),
        ({"slot": 3}, "Release slot", "a slot that the daemon holds", "3"),
        ({"generation": 2}, "Release generation, sequence", "1, 1", "(2, 1)"),
        ({"generation": 0}, "Release generation, sequence", "1, 1", "(0, 1)"),
        ({"sequence": 2}, "Release generation, sequence", "1, 1", "(1, 2)"),
        ({"status": 6}, "Release status, code", "a known status and code", "6, 0"),
        ({"status": 4, "code": 26}, "Release status, code", "a known status and code", "4, 26"),
        ({"status": 4}, "Release status, code", "a code if and only if refused", "REFUSED, OK"),
        ({"code": 5}, "Release status, code", "a code if and only if refused", "SUPERSEDED, LIMIT"),
    ],
)
def test_a_release_that_no_daemon_sends_is_refused(
    changes: dict[str, int], what: str, expected: str, found: str
) -> None:
    link = camera()
    link.submit()
    with pytest.raises(RemoteProtocolError) as caught:
        link.client.receive(release_packet(**changes))
    assert (caught.value.what, caught.value.expected, caught.value.found) == (what, expected, found)
    assert caught.value.in_reply_to == Kind.RELEASE
    stream = link.client.streams[1]
    assert (stream.leases[0].state, stream.ledger.held) == (LeaseState.SUBMITTED, 1)
    link.client.receive(release_packet())
    assert stream.ledger.held == 0


def test_a_slot_comes_back_once() -> None:
    link = camera()
    link.submit()
    link.client.receive(release_packet())
    assert remote(lambda: link.client.receive(release_packet()))[0] == "Release slot"


@pytest.mark.parametrize("kind", [Kind.RELEASE, Kind.RESULT])
def test_flat_packets_to_a_client_are_strict(kind: Kind) -> None:
    link = camera() if kind is Kind.RELEASE else consumer()
    link.client.state = State.OPEN
    packet = EXAMPLES[kind]
    with pytest.raises(RemoteProtocolError) as caught:
        link.client.receive(packet[:4] + b"\1" + packet[5:], 1)
    assert (caught.value.what, caught.value.expected, caught.value.found) == (f"{kind.name} descriptors", "0", "1")
    assert caught.value.in_reply_to == kind
    with pytest.raises(RemoteProtocolError) as caught:
        link.client.receive(packet + bytes(8))
    assert (caught.value.what, caught.value.in_reply_to) == (f"{kind.name.capitalize()} length", kind)
    assert caught.value.expected == f"{len(packet) - 8} bytes"
    assert caught.value.found == f"{len(packet)} bytes"


ENDS = [
    (LeaseEvent.DROP, ReleaseStatus.SUPERSEDED, RefusalCode.OK),
    (LeaseEvent.DROP, ReleaseStatus.LATE, RefusalCode.OK),
    (LeaseEvent.DROP, ReleaseStatus.TORN, RefusalCode.OK),
    (LeaseEvent.DROP, ReleaseStatus.LOST, RefusalCode.OK),
    (LeaseEvent.DROP, ReleaseStatus.REFUSED, RefusalCode.NOT_READY),
    (LeaseEvent.FENCE, ReleaseStatus.RUN, RefusalCode.OK),
    (LeaseEvent.FENCE, ReleaseStatus.TORN, RefusalCode.OK),
    (LeaseEvent.RESET, ReleaseStatus.LOST, RefusalCode.OK),
]


@pytest.mark.parametrize(("event", "status", "code"), ENDS)
def test_every_end_of_a_frame_reaches_the_camera(event: LeaseEvent, status: ReleaseStatus, code: RefusalCode) -> None:
    link = camera()
    link.submit()
    if event is not LeaseEvent.DROP:
        link.daemon.start(1, 0)
    packet = link.daemon.release(1, 0, event, status, code)
    assert packet is not None
    assert link.client.receive(packet) == [Release(1, 0, 1, 1, status, code, 0)]
    assert link.client.streams[1].ledger.as_dict() == link.daemon.streams[1].ledger.as_dict()
    assert link.client.streams[1].ledger.as_dict()[status.name.lower()] == 1


@pytest.mark.parametrize("started", [False, True])
def test_what_cannot_end_a_lease_changes_nothing(started: bool) -> None:
    link = camera()
    link.submit()
    if started:
        link.daemon.start(1, 0)
    release = link.daemon.release
    with pytest.raises(LeaseError):
        release(1, 0, LeaseEvent.DROP if started else LeaseEvent.FENCE, ReleaseStatus.TORN)
    with pytest.raises(RuntimeError, match=r"^SUBMIT does not end a lease; expected DROP, FENCE, RESET$"):
        release(1, 0, LeaseEvent.SUBMIT, ReleaseStatus.TORN)
    with pytest.raises(RuntimeError, match=r"^START does not end"):
        release(1, 0, LeaseEvent.START, ReleaseStatus.TORN)
    end = LeaseEvent.RESET if started else LeaseEvent.DROP
    with pytest.raises(RuntimeError, match=f"^only a signalled fence ends a run, not {end.name}$"):
        release(1, 0, end, ReleaseStatus.RUN)
    for held_ns in (-1, 1 << 64):
        with pytest.raises(RuntimeError, match="held_ns is a u64"):
            release(1, 0, end, ReleaseStatus.LOST, held_ns=held_ns)
    with pytest.raises(RuntimeError, match="status LOST cannot have code LIMIT"):
        release(1, 0, end, ReleaseStatus.LOST, RefusalCode.LIMIT)
    with pytest.raises(RuntimeError, match="status REFUSED cannot have code OK"):
        release(1, 0, end, ReleaseStatus.REFUSED)
    assert link.daemon.streams[1].ledger.held == 1
    assert release(1, 0, end, ReleaseStatus.LOST, held_ns=BIG) is not None


def test_a_slot_in_flight_outlives_its_camera() -> None:  # case 25
    link = camera()
    link.submit()
    link.daemon.start(1, 0)
    link.ask(m.Bye())
    stream = link.daemon.streams[1]
    assert stream.leases[0].state is LeaseState.IN_FLIGHT
    assert link.daemon.release(1, 0, LeaseEvent.FENCE, ReleaseStatus.RUN) is None
    assert (stream.held, stream.ledger.as_dict()["run"]) == (0, 1)


def test_a_stream_can_be_finished_without_its_session() -> None:
    link = camera()
    link.submit(slot=1, sequence=9)
    release = link.daemon.streams[1].finish(1, LeaseEvent.DROP, ReleaseStatus.LATE)
    assert release == Release(1, 1, 1, 9, ReleaseStatus.LATE, RefusalCode.OK, 0)


def test_a_release_is_packed_only_while_a_camera_listens() -> None:
    release = Release(1, 0, 1, 1, ReleaseStatus.LATE, RefusalCode.OK, 0)
    assert local(lambda: DaemonSession(Role.CAMERA).pack_release(release))[2] == "RELEASE"
    assert local(lambda: consumer().daemon.pack_release(release))[0] == "sending in state OPEN"
    assert local(lambda: camera().daemon.pack_release(release._replace(held_ns=-1)))[0] == "Release"


def test_a_closed_stream_ends_with_its_last_slot() -> None:
    link = camera()
    link.submit()
    link.daemon.start(1, 0)
    link.ask(m.CloseStream(1))
    assert refuse(link.daemon, slot=1, sequence=2) is RefusalCode.UNKNOWN_STREAM
    for session in (link.client, link.daemon):
        assert session.streams[1].closing
        assert local(lambda: link.client.send(m.CloseStream(1)))[0] == "CLOSE_STREAM streamId"
    link.ask(m.OpenStream("road", stream_format()))  # the name is free at once, the id is not
    assert local(lambda: link.daemon.send(m.StreamOpened(1, 4)))[0] == "STREAM_OPENED streamId"
    link.answer(m.StreamOpened(2, 4))
    packet = link.daemon.release(1, 0, LeaseEvent.FENCE, ReleaseStatus.RUN)
    assert packet is not None
    link.client.receive(packet)
    assert list(link.client.streams) == list(link.daemon.streams) == [2]


def test_a_stream_without_held_slots_closes_at_once() -> None:
    link = camera()
    link.ask(m.CloseStream(1))
    assert link.client.streams == link.daemon.streams == {}
    assert local(lambda: link.client.send(m.CloseStream(1))) == ("CLOSE_STREAM streamId", "an open stream", "1")
    refusal = only(link.daemon.receive(wire(m.CloseStream(1))))
    assert (refusal.code, refusal.in_reply_to) == (RefusalCode.UNKNOWN_STREAM, Kind.CLOSE_STREAM)
    assert link.client.receive(link.daemon.send(refusal)) == [refusal]
    assert link.daemon.state is State.OPEN


def test_buffers_of_a_closing_stream_are_refused() -> None:
    link = camera()
    link.submit()
    link.ask(m.CloseStream(1))
    refusal = only(link.daemon.receive(wire(m.RegisterBuffers(1, 1), 2), 2))
    assert refusal.code is RefusalCode.UNKNOWN_STREAM


RECEIPT = Receipt(
    bytes(range(32)), 1, 2, 3, 4, 1, ResultFlag.DEADLINE_MET | ResultFlag.NAN, 5, 6, 7, 8, 9, 10, 11, 12, 13, (14, 0),
    (FrameReceipt(1, 2, 3, 4, -5, 6, 13, 14), FrameReceipt(7, 8, 9, 10, 11, -12, 15, 16)),
)  # fmt: skip


def test_a_result_reaches_the_consumer_with_its_receipt() -> None:
    link = consumer()
    result = RECEIPT.to_result(5, 3, 8, 2)
    packet = link.daemon.pack_result(result)
    assert link.client.receive(packet) == [result]
    assert Receipt.from_result(result) == RECEIPT
    assert (result.subscription_id, result.slot, result.slot_sequence, result.missed) == (5, 3, 8, 2)
    assert link.client.subscriptions[5].outputs == (OUTPUT,)


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"subscription_id": 6}, ("RESULT subscriptionId", "a subscription of this session", "6")),
        ({"slot": 4}, ("RESULT slot", "below 4", "4")),
        ({"slot_sequence": 5}, ("RESULT slotSequence", "even", "5")),
        ({"receipt_fence_status": 0}, ("RESULT receipt.fenceStatus", "1 (signaled)", "0")),
        ({"receipt_fence_status": 2}, ("RESULT receipt.fenceStatus", "1 (signaled)", "2")),
        ({"receipt_frame_count": 0}, ("RESULT receipt.frameCount", "1..8", "0")),
        ({"receipt_frame_count": 9}, ("RESULT receipt.frameCount", "1..8", "9")),
    ],
)
def test_a_result_without_a_signalled_fence_or_a_place_is_refused(
    changes: dict[str, int], problem: tuple[str, str, str]
) -> None:
    link = consumer()
    result = RECEIPT.to_result(5, 3, 8, 2)._replace(**changes)
    assert local(lambda: link.daemon.pack_result(result)) == problem
    with pytest.raises(RemoteProtocolError) as caught:
        link.client.receive(encode_header(Kind.RESULT) + flat.RESULT.pack(result))
    assert (caught.value.what, caught.value.expected, caught.value.found) == problem
    assert caught.value.in_reply_to == Kind.RESULT


def test_a_result_is_packed_only_for_a_consumer() -> None:
    result = RECEIPT.to_result(5, 3, 8, 2)
    assert local(lambda: camera().daemon.pack_result(result)) == (
        "sending in state OPEN",
        "BYE, REFUSAL, RELEASE",
        "RESULT",
    )
    assert local(lambda: consumer().daemon.pack_result(result._replace(missed=-1)))[0] == "Result"


@pytest.mark.parametrize("count", [1, 8])
def test_a_result_stands_on_one_to_eight_frames(count: int) -> None:
    link = consumer()
    result = RECEIPT._replace(frames=RECEIPT.frames[:1] * count).to_result(5, 0, 6, 0)
    assert link.client.receive(link.daemon.pack_result(result)) == [result]


def test_a_receipt_names_only_what_is_used() -> None:
    full = RECEIPT._replace(frames=RECEIPT.frames * 4, aux_ages_ns=(1, 2, 3, 4))
    assert Receipt.from_result(full.to_result(1, 0, 2, 0)) == full
    bare = RECEIPT._replace(frames=(), aux_ages_ns=(), flags=ResultFlag(0))
    assert Receipt.from_result(bare.to_result(1, 0, 2, 0)) == bare
    assert (RECEIPT.deadline_met, bare.deadline_met) == (True, False)
    assert bare.to_result(1, 0, 2, 0).receipt_aux_age0_ns == -1
    for too_many in ({"frames": RECEIPT.frames * 5}, {"aux_ages_ns": (1,) * 5}):
        with pytest.raises(ValueError, match="at most 8 frames and 4 aux ages"):
            RECEIPT._replace(**too_many).to_result(1, 0, 2, 0)  # type: ignore[arg-type]


def test_every_protocol_error_is_one_of_two_kinds() -> None:
    assert issubclass(LocalProtocolError, ProtocolError)
    assert issubclass(RemoteProtocolError, ProtocolError)
    assert not issubclass(LocalProtocolError, RemoteProtocolError)
