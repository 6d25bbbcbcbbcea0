"""The protocol machine: frames that are submitted, accepted or refused."""

from __future__ import annotations

import pytest

from abi import messages as m
from abi.flat import Release, ReleaseStatus, Submit
from abi.lease import LeaseEvent, LeaseState
from abi.messages import Role
from abi.packet import Kind, RefusalCode, RemoteProtocolError, encode_header
from abi.session import ClientSession, DaemonSession
from abi.stream import TimeLimits
from tests.support.link import (
    Link,
    camera,
    local,
    only,
    raw_submit,
    refuse,
    remote,
    stream_format,
    wire,
)  # fmt: skip


def test_what_a_camera_leaves_out_is_unknown() -> None:
    assert camera().submit() == Submit(1, 0, 1, 1, 100, 100, 2, 0, 0)


def test_a_frame_goes_over_and_comes_back() -> None:
    link = camera()
    submit = link.submit(slot=2, sequence=7, sof_ns=100, eof_ns=130, control_word=4, exposure_ns=9)
    assert submit == Submit(1, 2, 1, 7, 100, 130, 4, 9, 0)
    for session in (link.client, link.daemon):
        assert session.streams[1].leases[2].state is LeaseState.SUBMITTED
        assert session.streams[1].held == 1
    link.daemon.start(1, 2)
    packet = link.daemon.release(1, 2, LeaseEvent.FENCE, ReleaseStatus.RUN, held_ns=55)
    assert packet is not None
    assert link.client.receive(packet) == [Release(1, 2, 1, 7, ReleaseStatus.RUN, RefusalCode.OK, 55)]
    for session in (link.client, link.daemon):
        assert session.streams[1].leases[2].state is LeaseState.RELEASED
        assert session.streams[1].ledger.as_dict()["run"] == 1
        assert session.streams[1].held == 0
    assert link.submit(slot=2, sequence=8, sof_ns=101).generation == 2


def test_receive_takes_submits_too_and_judges_their_age() -> None:
    link = camera()
    packet = link.client.submit(1, 0, sequence=1, sof_ns=100, eof_ns=100, control_word=2)
    assert isinstance(only(link.daemon.receive(packet)), Submit)
    late = link.client.submit(1, 1, sequence=2, sof_ns=101, eof_ns=101, control_word=2)
    assert only(link.daemon.receive(late, 0, now_ns=10**12)).code == RefusalCode.TIME_STALE


def test_an_in_fence_travels_as_the_one_descriptor() -> None:
    link = camera()
    assert link.submit(in_fence=True).flags == 1
    with_fence = link.client.submit(1, 1, sequence=2, sof_ns=101, eof_ns=101, control_word=2, in_fence=True)
    assert with_fence[:8] == encode_header(Kind.SUBMIT, 1)
    assert remote(lambda: link.daemon.receive_submit(with_fence, 0, None)) == (
        "descriptors",
        "1, as the header says",
        "0",
    )
    assert isinstance(link.daemon.receive(with_fence, 1)[0], Submit)


@pytest.mark.parametrize(("descriptors", "flags"), [(0, 1), (1, 0), (0, 2), (1, 3), (0, 1 << 31)])
def test_the_flags_say_whether_a_fence_comes_and_nothing_else(descriptors: int, flags: int) -> None:
    daemon = camera().daemon
    packet = raw_submit(descriptors, flags=flags)
    expected = ("SUBMIT flags", f"{descriptors}, as {descriptors} descriptors came", str(flags))
    assert remote(lambda: daemon.receive_submit(packet, descriptors, None)) == expected
    assert daemon.streams[1].ledger.submitted == 0


def test_a_submit_carries_at_most_one_descriptor() -> None:
    daemon = camera().daemon
    packet = encode_header(Kind.SUBMIT, 2) + raw_submit()[8:]
    expected = ("header", "a SUBMIT with at most 1 descriptor", "SUBMIT")
    assert remote(lambda: daemon.receive_submit(packet, 2, None)) == expected
    assert remote(lambda: daemon.receive(packet, 2)) == expected


def test_the_hot_path_takes_nothing_but_submits() -> None:
    daemon = camera().daemon
    expected = ("header", "a SUBMIT with at most 1 descriptor", "BYE")
    assert remote(lambda: daemon.receive_submit(wire(m.Bye()), 0, None)) == expected
    assert remote(lambda: daemon.receive_submit(b"", 0, None))[0] == "packet length"
    assert remote(lambda: daemon.receive_submit(raw_submit()[:-1], 0, None))[0] == "Submit length"
    with pytest.raises(RemoteProtocolError) as caught:
        daemon.receive_submit(raw_submit() + bytes(8), 0, None)
    assert (caught.value.in_reply_to, caught.value.expected, caught.value.found) == (
        Kind.SUBMIT,
        "80 bytes",
        "88 bytes",
    )
    assert daemon.streams[1].ledger.submitted == 0


def accept(daemon: DaemonSession, now_ns: int | None = None, **changes: int) -> Submit:
    submit = daemon.receive_submit(raw_submit(**changes), 0, now_ns)
    assert isinstance(submit, Submit), submit
    return submit


def test_a_frame_of_no_open_stream_is_refused() -> None:
    link = camera()
    assert refuse(link.daemon, stream_id=2) is RefusalCode.UNKNOWN_STREAM
    assert refuse(Link(Role.CAMERA).greet().daemon) is RefusalCode.UNKNOWN_STREAM
    assert link.daemon.streams[1].ledger.submitted == 0


def test_a_frame_before_any_buffer_was_registered_is_refused() -> None:
    link = Link(Role.CAMERA).greet()
    link.ask(m.OpenStream("road", stream_format()))
    link.answer(m.StreamOpened(1, 4))
    assert refuse(link.daemon) is RefusalCode.UNKNOWN_SLOT
    assert local(link.submit)[0] == "slot"


def test_a_slot_beyond_the_registered_is_refused() -> None:
    daemon = camera().daemon
    for slot in (3, 2**32 - 1):
        assert refuse(daemon, slot=slot) is RefusalCode.UNKNOWN_SLOT
    accept(daemon, slot=2)
    assert daemon.streams[1].ledger.as_dict()["refusals"] == {"unknown_slot": 2}


@pytest.mark.parametrize("generation", [0, 2, (1 << 64) - 1])
def test_stale_and_foreign_generations_are_refused(generation: int) -> None:  # case 18
    daemon = camera().daemon
    assert refuse(daemon, generation=generation) is RefusalCode.BAD_GENERATION
    assert daemon.streams[1].leases[0].generation == 0
    accept(daemon, generation=1)


def test_a_duplicate_submit_is_refused_and_the_lease_stands() -> None:
    daemon = camera().daemon
    accept(daemon)
    assert refuse(daemon) is RefusalCode.BAD_GENERATION
    assert refuse(daemon, generation=2, sequence=2, sof_ns=200) is RefusalCode.BAD_GENERATION
    daemon.start(1, 0)
    assert refuse(daemon, generation=2, sequence=2, sof_ns=200) is RefusalCode.BAD_GENERATION
    assert daemon.streams[1].leases[0].state is LeaseState.IN_FLIGHT
    assert daemon.streams[1].ledger.held == 1


def test_a_slot_that_is_still_written_is_refused() -> None:
    daemon = camera().daemon
    assert refuse(daemon, control_word=3) is RefusalCode.BAD_GENERATION
    accept(daemon, control_word=4)


def test_a_repeated_sequence_is_refused_and_not_counted_as_lag() -> None:  # case 16
    daemon = camera().daemon
    accept(daemon, sequence=5)
    assert refuse(daemon, slot=1, sequence=5, sof_ns=200, eof_ns=200) is RefusalCode.SEQUENCE_REPEATED
    assert refuse(daemon, slot=2, sequence=4, sof_ns=200, eof_ns=200) is RefusalCode.SEQUENCE_REPEATED
    accept(daemon, slot=1, generation=2, sequence=6, sof_ns=200, eof_ns=200)
    ledger = daemon.streams[1].ledger
    assert (ledger.camera_dropped, ledger.held, ledger.submitted) == (0, 2, 4)


def test_gaps_in_the_sequence_are_counted_as_camera_drops() -> None:
    daemon = camera().daemon
    accept(daemon, sequence=1000)  # where a stream begins is no gap
    accept(daemon, slot=1, sequence=1004, sof_ns=101, eof_ns=101)
    accept(daemon, slot=2, sequence=1005, sof_ns=102, eof_ns=102)
    assert daemon.streams[1].ledger.camera_dropped == 3


def test_time_rises() -> None:  # cases 12, 13
    daemon = camera().daemon
    accept(daemon, sequence=1, sof_ns=100)
    assert refuse(daemon, slot=1, sequence=2, sof_ns=99) is RefusalCode.TIME_NOT_RISING
    assert refuse(daemon, slot=1, generation=2, sequence=3, sof_ns=100) is RefusalCode.TIME_NOT_RISING
    accept(daemon, slot=1, generation=3, sequence=4, sof_ns=101, eof_ns=101)
    assert daemon.streams[1].ledger.camera_dropped == 0


def test_a_frame_ends_no_sooner_than_it_starts() -> None:
    daemon = camera().daemon
    assert refuse(daemon, sof_ns=100, eof_ns=99) is RefusalCode.TIME_NOT_RISING
    accept(daemon, generation=2, sequence=2, sof_ns=100, eof_ns=100)


LIMITS = TimeLimits(max_age_ns=1000, future_tolerance_ns=10)


def aged(clock_offset_ns: int = 0) -> DaemonSession:
    daemon = camera(limits=LIMITS).daemon
    daemon.streams[1].clock_offset_ns = clock_offset_ns
    return daemon


@pytest.mark.parametrize("offset_ns", [0, 5_000_000, -5_000_000])
def test_age_is_judged_in_the_streams_clock(offset_ns: int) -> None:  # case 11
    sof = 10_000_000 + offset_ns
    for age in (-10, 0, 1000):
        accept(aged(offset_ns), now_ns=10_000_000 + age, sof_ns=sof, eof_ns=sof)
    for age, code in ((1001, RefusalCode.TIME_STALE), (-11, RefusalCode.TIME_IN_FUTURE)):
        daemon = aged(offset_ns)
        assert refuse(daemon, now_ns=10_000_000 + age, sof_ns=sof, eof_ns=sof) is code
        assert daemon.streams[1].refused_age_ns == age


def test_the_wrong_clock_shows_as_stale_or_future_with_the_amount() -> None:  # case 11
    daemon = aged(clock_offset_ns=0)  # declared monotonic, but stamped in a boottime that is 7 s ahead
    assert refuse(daemon, now_ns=10**9, sof_ns=8 * 10**9, eof_ns=8 * 10**9) is RefusalCode.TIME_IN_FUTURE
    assert daemon.streams[1].refused_age_ns == -7 * 10**9


def test_a_refused_time_does_not_hold_up_the_stream() -> None:
    daemon = aged()
    assert daemon.streams[1].refused_age_ns is None
    accept(daemon, now_ns=100)
    assert refuse(daemon, now_ns=101, slot=1, sequence=2, sof_ns=10**15, eof_ns=10**15) is RefusalCode.TIME_IN_FUTURE
    accept(daemon, now_ns=102, slot=1, generation=2, sequence=3, sof_ns=101, eof_ns=101)
    assert daemon.streams[1].ledger.camera_dropped == 0


def test_the_default_limits_are_a_second_of_age_and_5_ms_of_future() -> None:
    daemon = camera().daemon
    second = 10**9
    assert refuse(daemon, now_ns=second + 101) is RefusalCode.TIME_STALE
    accept(daemon, now_ns=second + 100, generation=2, sequence=2)
    future = second + 5_000_001
    assert refuse(daemon, now_ns=second, slot=1, sequence=3, sof_ns=future, eof_ns=future) is RefusalCode.TIME_IN_FUTURE
    accept(daemon, now_ns=second, slot=1, generation=2, sequence=4, sof_ns=future - 1, eof_ns=future)


def test_a_refused_frame_spends_its_generation_and_comes_back() -> None:
    link = camera()
    packet = link.client.submit(1, 0, sequence=1, sof_ns=100, eof_ns=100, control_word=2)
    refusal = link.daemon.receive_submit(packet, 0, 10**12)
    assert isinstance(refusal, Release)
    assert link.client.receive(link.daemon.pack_release(refusal)) == [refusal]
    assert link.submit(slot=0, sequence=2, sof_ns=200).generation == 2
    for session in (link.client, link.daemon):
        assert session.streams[1].ledger.as_dict()["refusals"] == {"time_stale": 1}


def test_a_camera_submits_only_what_is_its_own() -> None:
    link = camera()
    submit = link.client.submit

    def send(slot: int = 0, sequence: int = 1, stream_id: int = 1, **changes: int) -> bytes:
        return submit(
            stream_id, slot, sequence=sequence, **{"sof_ns": 100, "eof_ns": 100, "control_word": 2, **changes}
        )

    assert local(lambda: send(stream_id=2)) == ("streamId", "an open stream", "2")
    for slot in (-1, 3):
        assert local(lambda slot=slot: send(slot)) == ("slot", "0..2", str(slot))  # type: ignore[misc]
    assert local(lambda: send(eof_ns=99)) == ("eofNs", "at least sofNs (100)", "99")
    assert local(lambda: send(control_word=3)) == ("controlWord", "even: the slot is not being written", "3")
    what, expected, found = local(lambda: send(sequence=1 << 64))
    assert (what, expected) == ("Submit", "every field within its type")
    assert str(1 << 64) in found
    assert local(lambda: send(exposure_ns=-1))[0] == "Submit"
    stream = link.client.streams[1]
    assert (stream.ledger.submitted, stream.last_sequence, stream.leases[0].generation) == (0, None, 0)
    send(sequence=5)
    assert local(lambda: send(sequence=6)) == ("slot 0", "a slot that is the camera's", "one that the daemon holds")
    assert local(lambda: send(1, sequence=5)) == ("sequence", "above 5", "5")
    assert stream.ledger.submitted == 1
    send(1, sequence=8)
    assert stream.ledger.camera_dropped == 2
    link.ask(m.CloseStream(1))
    assert local(lambda: send(2, sequence=9)) == ("stream", "an open stream", "'road', which was closed")


def test_a_frame_cannot_be_submitted_before_the_greeting() -> None:
    client = ClientSession(Role.CAMERA)
    call = lambda: client.submit(1, 0, sequence=1, sof_ns=1, eof_ns=1, control_word=2)  # noqa: E731
    assert local(call) == ("sending in state START", "BYE, HELLO", "SUBMIT")
    prepared = Submit(1, 0, 1, 1, 1, 1, 2, 0, 0)
    assert local(lambda: client.pack_submit(prepared)) == ("sending in state START", "BYE, HELLO", "SUBMIT")
