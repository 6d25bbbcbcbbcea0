"""What a peer does wrong ends that peer, by name, and nobody else."""

from __future__ import annotations

import contextlib
import os
import select
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from abi import messages as m
from abi.flat import RELEASE, SUBMIT, Release, Submit
from abi.messages import Role
from abi.packet import MAX_DESCRIPTORS, Kind, RefusalCode, encode_header
from client.connection import Connection
from client.errors import Refused
from daemon import server
from daemon.service import Service
from daemon.transport import Credentials, credentials
from hal.memory import FIXED_SIZE, add_seals, create_sealed
from lab.hil.faults.peers import MALFORMED
from tests.support.bundles import PIXELS, BundleMaker, TinyModel, frame_format
from tests.support.daemons import LIMIT_S, DaemonThread, ended, picture, run_one, submit
from tests.support.descriptors import open_descriptors
from tests.support.raw_peer import RawPeer, close_all, good_descriptors

CONNECT = """
import socket, sys
peer = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
peer.connect(sys.argv[1])
peer.send(b"?")
sys.stdout.buffer.write(peer.recv(4096))
"""


@pytest.fixture
def daemon(tmp_path: Path, maker: BundleMaker) -> Iterator[DaemonThread]:
    with DaemonThread(tmp_path, [maker.write(TinyModel())], maker) as running:
        yield running


def frame_mappings() -> int:
    return Path("/proc/self/maps").read_text().count("memfd:frame")


def until(holds: Callable[[], bool]) -> None:
    """The daemon closes its end in its own time."""
    deadline = time.monotonic() + LIMIT_S
    while not holds():
        assert time.monotonic() < deadline
        os.sched_yield()


@pytest.mark.parametrize("name", MALFORMED)
def test_a_malformed_packet_closes_its_peer_with_a_typed_error(daemon: DaemonThread, name: str) -> None:
    with daemon.camera("road") as camera, daemon.consumer() as consumer:
        for role in (Role.CONSUMER, Role.CONTROL, Role.CAMERA):
            with RawPeer(daemon, role, greet=False) as peer:
                peer.send(MALFORMED[name])
                refusal = peer.answer()
                assert isinstance(refusal, m.Refusal)
                assert refusal.code in (RefusalCode.PROTOCOL, RefusalCode.ABI_VERSION)
                assert peer.socket.recv(1) == b""
        run_one(camera, consumer, 1, picture(1))  # the others are served
    assert daemon.status()["faults"]["internal_errors"] == 0


@pytest.mark.parametrize("count", [1, MAX_DESCRIPTORS, MAX_DESCRIPTORS + 3, 200])
def test_descriptors_that_nobody_asked_for_are_closed(daemon: DaemonThread, count: int) -> None:
    reader, writer = os.pipe()
    with RawPeer(daemon) as peer:
        peer.send(encode_header(Kind.HELLO, min(count, MAX_DESCRIPTORS)) + bytes(16), (writer,) * count)
        refusal = peer.answer()
        assert isinstance(refusal, m.Refusal)
        assert refusal.code is RefusalCode.PROTOCOL
        assert (refusal.found == "more") == (count > MAX_DESCRIPTORS)
        os.close(writer)
        poll = select.poll()
        poll.register(reader, 0)
        assert poll.poll(LIMIT_S * 1000) == [(reader, select.POLLHUP)]  # nobody holds the other end
    os.close(reader)


def test_a_role_that_is_not_the_sockets_is_refused(daemon: DaemonThread) -> None:
    with RawPeer(daemon, Role.CONSUMER, greet=False) as peer:
        peer.session.role = Role.CAMERA
        refusal = peer.ask(m.Hello(Role.CAMERA, "raw"))
        assert isinstance(refusal, m.Refusal)
        assert refusal.code is RefusalCode.ROLE


def test_a_format_that_is_not_the_contracts_is_refused_by_field(daemon: DaemonThread) -> None:
    wider = replace(frame_format(), period_ns=1)
    daemon.camera(format=wider).close()  # the period is the camera's own
    other = replace(frame_format(), transfer=frame_format().transfer.__class__.SRGB)
    with pytest.raises(Refused) as refused:
        daemon.camera(format=other)
    assert refused.value.code is RefusalCode.FORMAT_MISMATCH
    assert refused.value.what == "format.transfer"


def test_a_format_that_is_not_complete_is_refused_by_field(daemon: DaemonThread) -> None:
    with RawPeer(daemon) as peer:
        good = frame_format()
        bad = replace(good, planes=(replace(good.planes[0], stride=-64),))
        peer.session.send(m.OpenStream("road", good))  # what the machine believes that was sent
        peer.send(m.encode(m.OpenStream("road", bad)))
        refusal = peer.answer()
        assert isinstance(refusal, m.Refusal)
        assert refusal.code is RefusalCode.BAD_FORMAT
        assert "stride" in refusal.what


def test_an_unknown_stream_and_a_taken_one_are_refused(daemon: DaemonThread) -> None:
    with pytest.raises(Refused) as refused:
        daemon.camera("wide")
    assert refused.value.code is RefusalCode.UNKNOWN_STREAM
    with daemon.camera():
        with pytest.raises(Refused) as refused:
            daemon.camera()
        assert refused.value.code is RefusalCode.STREAM_TAKEN
    daemon.wait_for(lambda status: status["peers"]["camera"] == 0)
    daemon.camera().close()


def spoiled(case: str) -> tuple[int, ...]:
    """Descriptors of which one is not what it must be."""
    lease, first, second = good_descriptors(2)
    if case == "small buffer":
        bad = (lease, first, create_sealed("small", PIXELS - 1))
    elif case == "small lease page":
        bad = (create_sealed("small", 64), first, second)
    elif case == "not sealed":
        unsealed = os.memfd_create("unsealed", os.MFD_ALLOW_SEALING)
        os.ftruncate(unsealed, PIXELS)
        bad = (lease, first, unsealed)
    elif case == "huge pages":
        try:
            huge = os.memfd_create("huge", os.MFD_ALLOW_SEALING | os.MFD_HUGETLB)
        except OSError as error:
            pytest.skip(f"this kernel makes no memfd in huge pages: {error.strerror}")
        os.ftruncate(huge, os.fstatvfs(huge).f_bsize)
        add_seals(huge, FIXED_SIZE)
        bad = (lease, first, huge)
    elif case == "not memory":
        bad = (lease, first, os.pipe()[0])
    elif case == "a file":
        bad = (lease, first, os.open(__file__, os.O_RDONLY))
    else:
        bad = (lease, first, os.dup(first))
    close_all(tuple({lease, first, second} - set(bad)))
    return bad


@pytest.mark.parametrize(
    "case", ["small buffer", "small lease page", "not sealed", "huge pages", "not memory", "a file", "one memory twice"]
)
def test_a_bad_buffer_is_refused_at_registration(daemon: DaemonThread, case: str) -> None:
    with RawPeer(daemon) as peer:
        opened = peer.ask(m.OpenStream("road", frame_format()))
        assert isinstance(opened, m.StreamOpened)
        descriptors = spoiled(case)
        refusal = peer.ask(m.RegisterBuffers(opened.stream_id, 2), descriptors)
        assert isinstance(refusal, m.Refusal)
        assert refusal.code is RefusalCode.BAD_BUFFER
        assert ("hugetlb" in refusal.found) == (case == "huge pages")
        close_all(descriptors)
        good = good_descriptors(2)  # the session goes on
        assert isinstance(peer.ask(m.RegisterBuffers(opened.stream_id, 2), good), m.BuffersRegistered)
        close_all(good)


def test_a_buffer_cannot_be_shrunk_after_registration(daemon: DaemonThread) -> None:
    buffer = create_sealed("frame", PIXELS)
    with pytest.raises(PermissionError):
        os.ftruncate(buffer, 0)
    os.close(buffer)


def test_a_submit_beyond_the_slots_is_released_as_refused(daemon: DaemonThread) -> None:
    with RawPeer(daemon) as peer:
        stream_id = peer.open_stream(slots=2)
        submit_ = Submit(stream_id, 2, 1, 1, time.monotonic_ns(), time.monotonic_ns(), 2, 0, 0)
        peer.send(encode_header(Kind.SUBMIT) + SUBMIT.pack(submit_))
        packet = peer.socket.recv(1 << 16)
        release: Release = RELEASE.unpack(packet, 8)
        assert (release.slot, release.code) == (2, RefusalCode.UNKNOWN_SLOT)


def test_a_silent_peer_is_closed_and_others_are_served(tmp_path: Path, maker: BundleMaker) -> None:
    with (
        DaemonThread(tmp_path, [maker.write(TinyModel())], maker) as daemon,
        daemon.camera() as camera,
        daemon.consumer() as consumer,
        RawPeer(daemon, greet=False) as silent,
        RawPeer(daemon, Role.CONTROL) as lazy,
    ):
        run_one(camera, consumer, 1, picture(1))
        daemon.allow_silence(50)
        for peer in (silent, lazy):
            refusal = peer.answer()
            assert isinstance(refusal, m.Refusal)
            assert refusal.code is RefusalCode.IDLE
            assert peer.socket.recv(1) == b""
        run_one(camera, consumer, 2, picture(2))  # an open stream and a subscription may wait


def test_more_peers_than_the_limit_are_closed_at_the_door(tmp_path: Path, maker: BundleMaker) -> None:
    with DaemonThread(
        tmp_path, [maker.write(TinyModel())], maker, more="[limits]\npeers = 2\npeers_per_user = 2\n"
    ) as daemon:
        with RawPeer(daemon), RawPeer(daemon), RawPeer(daemon, greet=False) as third:
            assert third.socket.recv(1) == b""
            assert daemon.status()["peers"]["refused_full"] == 1
        daemon.wait_for(lambda status: status["peers"]["camera"] == 0)
        daemon.camera().close()


def test_one_user_holds_only_its_share_of_the_places(
    tmp_path: Path, maker: BundleMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    strangers: list[int] = []  # the uids that the next connections come from; then our own

    def as_told(connection: socket.socket) -> Credentials:
        who = credentials(connection)
        return who._replace(uid=strangers.pop()) if strangers else who

    monkeypatch.setattr(server, "credentials", as_told)
    with DaemonThread(tmp_path, [maker.write(TinyModel())], maker, more="[limits]\npeers = 5\n") as daemon:
        strangers += [4_000_000] * 3
        with RawPeer(daemon), RawPeer(daemon), RawPeer(daemon, greet=False) as third:
            assert third.socket.recv(1) == b""
            daemon.camera().close()  # the others have theirs
            with daemon.consumer():  # and each socket is counted by itself
                counts = daemon.status()["peers"]
        assert (counts["refused_share"], counts["refused_full"]) == (1, 0)
    assert any("uid 4000000 has 2 connections" in line for line in daemon.log.lines)


@pytest.mark.parametrize("kind", ["a refused request", "a refused submit"])
def test_a_peer_that_says_only_what_is_refused_is_closed_as_silent(
    tmp_path: Path, maker: BundleMaker, kind: str
) -> None:
    with DaemonThread(tmp_path, [maker.write(TinyModel())], maker) as daemon, RawPeer(daemon) as peer:
        packet = m.encode(m.OpenStream("unknown", frame_format()))
        if kind == "a refused submit":
            stream_id = peer.open_stream()
            peer.send(peer.session.send(m.CloseStream(stream_id)))
            packet = encode_header(Kind.SUBMIT) + SUBMIT.pack(Submit(stream_id, 0, 1, 1, 0, 0, 0, 0, 0))
        daemon.allow_silence(200)
        deadline = time.monotonic() + LIMIT_S
        with contextlib.suppress(ConnectionError):  # it may be closed as we send
            peer.send(packet)
            while peer.socket.recv(1 << 16):
                assert time.monotonic() < deadline
                peer.send(packet)
        daemon.allow_silence(60_000)
        daemon.wait_for(lambda status: status["peers"]["camera"] == 0)
        assert any("refused idle" in line for line in daemon.log.lines)


def test_a_user_that_the_policy_does_not_list_is_refused(tmp_path: Path, maker: BundleMaker) -> None:
    more = "[stream.road]\nuids = [4000000]\n[subscribe]\nuids = [4000000]\n"
    with DaemonThread(tmp_path, [maker.write(TinyModel())], maker, more=more) as daemon:
        for attempt in (daemon.camera, daemon.consumer):
            with pytest.raises(Refused) as refused:
                attempt()
            assert refused.value.code is RefusalCode.NOT_PERMITTED


def test_aux_inputs_of_a_model_are_set_only_by_who_may_open_one_of_its_streams(
    tmp_path: Path, maker: BundleMaker
) -> None:
    policy = f"[stream.road]\nuids = [{os.geteuid() + 1}]\n"
    message = m.SetAux("gain", time.monotonic_ns(), bytes(4))
    with DaemonThread(tmp_path, [maker.write(TinyModel("scale"))], maker, more=policy) as daemon:
        with Connection(str(daemon.sockets / "camera.sock"), Role.CAMERA, "stranger", LIMIT_S) as stranger:
            with pytest.raises(Refused) as refused:
                stranger.request(message, m.AuxSet)
            assert (refused.value.code, refused.value.what) == (RefusalCode.NOT_PERMITTED, "user")
        with daemon.control() as control:
            control.set_aux(message.name, message.time_ns, message.value)


def test_a_group_suffices(tmp_path: Path, maker: BundleMaker) -> None:
    more = f"[stream.road]\nuids = [4000000]\ngids = [{os.getegid()}]\n"
    with DaemonThread(tmp_path, [maker.write(TinyModel())], maker, more=more) as daemon, daemon.camera():
        assert list(daemon.status()["streams"]) == ["road"]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives a process groups")
def test_a_peer_with_more_groups_than_can_be_asked_for_has_its_primary_one(daemon: DaemonThread) -> None:
    words = [sys.executable, "-c", CONNECT, str(daemon.sockets / "camera.sock")]
    child = subprocess.run(words, extra_groups=range(2000, 2300), capture_output=True, timeout=LIMIT_S, check=True)
    assert child.stdout  # it was heard, and refused for what it said
    with daemon.camera() as camera, daemon.consumer() as consumer:
        run_one(camera, consumer, 1, picture(1))


def test_control_by_another_user_is_refused_at_the_greeting(tmp_path: Path, maker: BundleMaker) -> None:
    with DaemonThread(tmp_path, [maker.write(TinyModel())], maker, more="[control]\nuids = [4000000]\n") as daemon:
        with pytest.raises(Refused) as refused:
            daemon.control()
        assert refused.value.code is RefusalCode.NOT_PERMITTED


def test_connections_leave_no_descriptor_and_no_mapping_behind(daemon: DaemonThread) -> None:
    for cycle in range(520):
        with RawPeer(daemon) as peer:
            stream_id = peer.open_stream()
            if cycle % 3 == 0:
                now_ns = time.monotonic_ns()
                packet = SUBMIT.pack(Submit(stream_id, 0, 1, 1, now_ns, now_ns, 0, 0, 0))
                peer.send(encode_header(Kind.SUBMIT) + packet)
        daemon.wait_for(lambda status: status["peers"]["camera"] == 0 and not status["streams"]["road"]["held"])
        if cycle == 20:
            before = len(open_descriptors()), frame_mappings()
    until(lambda: len(open_descriptors()) <= before[0] and frame_mappings() <= before[1])


def test_a_peer_that_does_not_read_its_answers_is_closed(daemon: DaemonThread) -> None:
    with RawPeer(daemon) as peer:
        stream_id = peer.open_stream()
        packet = encode_header(Kind.SUBMIT) + SUBMIT.pack(Submit(stream_id, 9, 1, 1, 0, 0, 0, 0, 0))
        poll = select.poll()
        poll.register(peer.socket, select.POLLHUP)
        peer.socket.setblocking(False)
        deadline, is_closed = time.monotonic() + LIMIT_S, False
        while not is_closed and time.monotonic() < deadline:
            try:
                peer.socket.send(packet)
                is_closed = bool(poll.poll(0))
            except BlockingIOError:
                is_closed = bool(poll.poll(1))
            except (BrokenPipeError, ConnectionResetError):
                is_closed = True
        assert is_closed
        daemon.wait_for(lambda status: status["peers"]["camera"] == 0)


def test_a_fault_that_one_peer_reaches_closes_that_peer(daemon: DaemonThread, monkeypatch: pytest.MonkeyPatch) -> None:
    def fault(self: Service, message: m.SetAux, now_ns: int) -> m.Refusal | None:
        raise ZeroDivisionError("planted")

    monkeypatch.setattr(Service, "set_aux", fault)
    with daemon.camera() as camera, daemon.consumer() as consumer, RawPeer(daemon, Role.CONTROL) as peer:
        peer.send(peer.session.send(m.SetAux("gain", 1, b"")))
        assert isinstance(peer.answer(), m.Bye | None)
        run_one(camera, consumer, 1, picture(1))
    assert daemon.status()["faults"]["internal_errors"] == 1
    assert any("ZeroDivisionError: planted" in line for line in daemon.log.lines)


def test_the_ledger_balances_whatever_the_camera_sends(daemon: DaemonThread) -> None:
    with daemon.camera(slots=4) as camera:
        now_ns = time.monotonic_ns()
        for sequence in range(30):
            submit(camera, sequence, picture(sequence), sof_ns=now_ns + (sequence - 10) * 1_000_000)
        here = ended(camera)
    there = daemon.wait_for(lambda status: status["peers"]["camera"] == 0)["streams"]["road"]
    ends = ("run", "superseded", "late", "torn", "refused", "lost")
    for ledger in (here, there):
        assert ledger["submitted"] == 30 == sum(ledger[end] for end in ends)
    assert {end: here[end] for end in ends} == {end: there[end] for end in ends}
