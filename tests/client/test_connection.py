"""Connections: greeting, deadlines, descriptors, and every way in which a daemon can be gone."""

from __future__ import annotations

import contextlib
import os
import resource
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from abi import messages as m
from abi.messages import Role
from abi.packet import LocalProtocolError, RefusalCode
from client.connection import Connection
from client.errors import ConnectionLost, Refused
from tests.support.link import SUBSCRIBED, WELCOME
from tests.support.scripted import TIMEOUT_S, Peer, ScriptedDaemon, no_descriptor_leaks

STATUS = m.Command(m.CommandKind.STATUS)
LATE = m.Refusal(RefusalCode.UNKNOWN_STREAM, 11, "streamId", "an open stream", "9", "open it first")
REFUSAL = m.Refusal(RefusalCode.NOT_PERMITTED, 1, "uid", "1000", "1001", "ask the operator")


def connect(daemon: ScriptedDaemon, role: Role = Role.CONTROL, timeout_s: float = TIMEOUT_S) -> Connection:
    return Connection(os.fspath(daemon.path), role, "tester", timeout_s)


def test_a_connection_greets_with_role_and_name(tmp_path: Path) -> None:
    seen: list[object] = []

    def script(peer: Peer) -> None:
        seen.append(peer.greet())
        seen.extend(peer.until_end())

    with no_descriptor_leaks(), ScriptedDaemon(tmp_path, Role.CONTROL, script) as daemon, connect(daemon) as connection:
        assert connection.welcome == WELCOME
        assert connection.fileno() >= 0
        assert not connection.session.closed
    assert seen == [m.Hello(Role.CONTROL, "tester"), m.Bye("closed")]


def test_nobody_listening_is_an_os_error_that_names_the_socket(tmp_path: Path) -> None:
    with no_descriptor_leaks(), pytest.raises(FileNotFoundError, match=r"none\.sock"):
        Connection(os.fspath(tmp_path / "none.sock"), Role.CONTROL, "x", 1.0)


def test_a_refused_greeting_is_raised_with_its_code(tmp_path: Path) -> None:
    def script(peer: Peer) -> None:
        peer.receive()
        peer.say(REFUSAL)
        peer.until_end()

    with no_descriptor_leaks(), ScriptedDaemon(tmp_path, Role.CONTROL, script) as daemon:
        with pytest.raises(Refused) as caught:
            connect(daemon)
        error = caught.value
        assert (error.code, error.what, error.expected, error.found) == (
            RefusalCode.NOT_PERMITTED,
            "uid",
            "1000",
            "1001",
        )
        assert error.action == "ask the operator"
        assert str(error) == "NOT_PERMITTED: uid: expected 1000, found 1001; ask the operator"


def test_a_silent_daemon_is_a_timeout(tmp_path: Path) -> None:
    def script(peer: Peer) -> None:
        peer.until_end()

    with (
        no_descriptor_leaks(),
        ScriptedDaemon(tmp_path, Role.CONTROL, script) as daemon,
        pytest.raises(TimeoutError, match=r"^no Welcome within 0.05 s of Hello$"),
    ):
        connect(daemon, timeout_s=0.05)


def test_a_late_answer_does_not_extend_the_deadline(tmp_path: Path) -> None:
    """Other events that keep coming do not restart the timer."""
    stop = threading.Event()

    def script(peer: Peer) -> None:
        peer.greet()
        peer.receive()
        while not stop.is_set():
            peer.push(m.encode(LATE))

    with ScriptedDaemon(tmp_path, Role.CAMERA, script) as daemon:
        connection = connect(daemon, Role.CAMERA)
        try:
            with pytest.raises(TimeoutError):
                connection.request(m.SetAux("speed", 0, b""), m.AuxSet, 0.1)
        finally:
            stop.set()
        assert connection.fileno() == -1


def test_a_daemon_that_dies_is_seen(tmp_path: Path) -> None:
    def script(peer: Peer) -> None:
        peer.greet()
        peer.receive()

    with no_descriptor_leaks(), ScriptedDaemon(tmp_path, Role.CONTROL, script) as daemon:
        connection = connect(daemon)
        with pytest.raises(ConnectionLost, match="the daemon closed the connection"):
            connection.request(STATUS, m.Reply, TIMEOUT_S)
        with pytest.raises(ConnectionLost, match="the daemon is gone"):
            connection.send(b"x" * 8)
        connection.close()
        connection.close()


def test_a_bye_carries_its_reason(tmp_path: Path) -> None:
    def script(peer: Peer) -> None:
        peer.greet()
        peer.receive()
        peer.say(m.Bye("shutting down"))
        peer.until_end()

    with ScriptedDaemon(tmp_path, Role.CONTROL, script) as daemon, connect(daemon) as connection:
        with pytest.raises(ConnectionLost, match="ended the session: shutting down"):
            connection.request(STATUS, m.Reply, TIMEOUT_S)
        with pytest.raises(LocalProtocolError):
            connection.session.send(STATUS)


def test_a_bye_without_a_reason_says_so(tmp_path: Path) -> None:
    def script(peer: Peer) -> None:
        peer.greet()
        peer.say(m.Bye())
        peer.until_end()

    with (
        ScriptedDaemon(tmp_path, Role.CONTROL, script) as daemon,
        connect(daemon) as connection,
        pytest.raises(ConnectionLost, match="no reason given"),
    ):
        connection.next_event(time.monotonic() + TIMEOUT_S)


@pytest.mark.parametrize("garbage", [b"\1", b"x" * 40, b"\x02\0\2\0\0\0\0\0" + bytes(16), b"y" * 70000])
def test_what_no_daemon_sends_ends_the_connection(tmp_path: Path, garbage: bytes) -> None:
    def script(peer: Peer) -> None:
        peer.greet()
        read, write = os.pipe()
        peer.push(garbage, (read,))
        os.close(read)
        os.close(write)
        peer.until_end()

    with no_descriptor_leaks(), ScriptedDaemon(tmp_path, Role.CONTROL, script) as daemon:
        connection = connect(daemon)
        with pytest.raises(ConnectionLost, match="the daemon broke the protocol"):
            connection.next_event(time.monotonic() + TIMEOUT_S)
        with pytest.raises(ConnectionLost, match="gone"):
            connection.next_event(None)
        connection.close()


def test_more_descriptors_than_a_packet_may_carry_are_not_kept(tmp_path: Path) -> None:
    def script(peer: Peer) -> None:
        peer.greet()
        read, write = os.pipe()
        peer.push(m.encode(m.Bye(), 32), (read,) * 32)
        os.close(read)
        os.close(write)
        peer.until_end()

    with no_descriptor_leaks(), ScriptedDaemon(tmp_path, Role.CONTROL, script) as daemon:
        connection = connect(daemon)
        with pytest.raises(ConnectionLost, match="at most 65536 bytes and 17 descriptors"):
            connection.next_event(time.monotonic() + TIMEOUT_S)


def test_descriptors_that_nobody_took_are_closed(tmp_path: Path) -> None:
    def script(peer: Peer) -> None:
        peer.greet()
        peer.receive()
        read, write = os.pipe()
        peer.say(SUBSCRIBED, (read,))
        os.close(read)
        os.close(write)
        peer.until_end()

    with (
        no_descriptor_leaks(),
        ScriptedDaemon(tmp_path, Role.CONSUMER, script) as daemon,
        connect(daemon, Role.CONSUMER) as connection,
    ):
        assert connection.request(m.Subscribe("lane"), m.Subscribed, TIMEOUT_S) == SUBSCRIBED
        taken = connection.take_descriptors()
        assert len(taken) == 1
        assert not os.get_inheritable(taken[0])
        assert connection.take_descriptors() == []
        connection._descriptors += taken  # as if it had not been taken


def test_events_that_come_before_an_answer_are_kept(tmp_path: Path) -> None:
    """A refusal of something else is not taken for the answer of a request; it is raised when events are read."""

    def script(peer: Peer) -> None:
        peer.greet()
        peer.receive()
        peer.push(m.encode(LATE))
        peer.say(m.AuxSet("speed"))
        peer.until_end()

    with ScriptedDaemon(tmp_path, Role.CAMERA, script) as daemon, connect(daemon, Role.CAMERA) as connection:
        assert connection.request(m.SetAux("speed", 0, b""), m.AuxSet) == m.AuxSet("speed")
        with pytest.raises(Refused, match="UNKNOWN_STREAM"):
            connection.next_event(None)
        assert connection.next_event(None) is None


def test_a_refusal_that_ends_the_session_answers_any_request(tmp_path: Path) -> None:
    def script(peer: Peer) -> None:
        peer.greet()
        peer.receive()
        peer.say(m.Refusal(RefusalCode.IDLE, 0, "silence", "a packet", "none", ""))

    with ScriptedDaemon(tmp_path, Role.CONTROL, script) as daemon, connect(daemon) as connection:
        with pytest.raises(Refused) as caught:
            connection.request(STATUS, m.Reply, TIMEOUT_S)
        assert caught.value.code is RefusalCode.IDLE
        assert connection.session.closed


@contextlib.contextmanager
def many_descriptors(count: int) -> Iterator[None]:
    """So many descriptors more are open meanwhile. Skips the test where the process may not have them."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < count + 200:
        pytest.skip(f"the hard limit is {hard} descriptors")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, count + 200), hard))
    held = [os.open(os.devnull, os.O_RDONLY) for _ in range(count)]
    try:
        yield
    finally:
        for descriptor in held:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def send_many(connection: Connection, packet: bytes) -> None:
    """More than any socket holds."""
    for _ in range(1000):
        connection.send(packet)


@pytest.mark.parametrize("others", [0, 1100])
def test_a_daemon_that_reads_nothing_does_not_hold_us_for_ever(tmp_path: Path, others: int) -> None:
    """Also in a process with more descriptors than select(2) takes."""
    full = threading.Event()

    def script(peer: Peer) -> None:
        peer.greet()
        full.wait(TIMEOUT_S)

    with (
        many_descriptors(others),
        no_descriptor_leaks(),
        ScriptedDaemon(tmp_path, Role.CONTROL, script) as daemon,
    ):
        connection = connect(daemon)
        connection._timeout_s = 0.2  # only now: the greeting may take its time
        packet = connection.session.send(m.SetAux("speed", 0, bytes(60000)))
        with pytest.raises(ConnectionLost, match=r"the daemon read nothing for 0.2 s"):
            send_many(connection, packet)
        full.set()


def test_next_event_waits_no_longer_than_its_deadline(tmp_path: Path) -> None:
    def script(peer: Peer) -> None:
        peer.greet()
        peer.until_end()

    with ScriptedDaemon(tmp_path, Role.CONTROL, script) as daemon, connect(daemon) as connection:
        assert connection.next_event(None) is None
        assert connection.next_event(time.monotonic() - 1) is None
        assert connection.next_event(time.monotonic() + 0.01) is None
