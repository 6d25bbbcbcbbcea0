"""systemd hears what is so, from the loop's own turns."""

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from daemon.health import Notifier, Watchdog, from_environment, watchdog_interval_ns


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[socket.socket]:
    """The receiving end, as systemd holds it."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as end:
        end.bind(str(tmp_path / "notify"))
        yield end


def test_fields_go_in_one_datagram(manager: socket.socket) -> None:
    Notifier(manager.getsockname()).send(READY=1, STATUS="serving lane")
    assert manager.recv(4096) == b"READY=1\nSTATUS=serving lane"


def test_an_abstract_name_is_understood() -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as end:
        end.bind(f"\0fenced-test-{os.getpid()}")
        Notifier(f"@fenced-test-{os.getpid()}").send(READY=1)
        assert end.recv(100) == b"READY=1"


def test_without_systemd_nothing_happens() -> None:
    Notifier(None).send(READY=1)
    with pytest.raises(ValueError, match="NOTIFY_SOCKET"):
        Notifier("relative")


@pytest.mark.parametrize("address", ["/nowhere/notify", "@nobody listens here", "/" + "x" * 200])
def test_a_manager_that_cannot_be_reached_is_named(address: str) -> None:
    with pytest.raises(ValueError, match=r"NOTIFY_SOCKET '.* cannot be reached .*start under systemd"):
        Notifier(address)


def test_a_manager_that_does_not_read_never_blocks_the_loop(manager: socket.socket) -> None:
    notifier = Notifier(manager.getsockname())
    for _ in range(10_000):
        notifier.send(STATUS="x" * 1000)
        if notifier.dropped:
            break
    assert notifier.dropped


def test_the_watchdog_is_fed_at_half_its_interval_and_only_by_turns(manager: socket.socket) -> None:
    watchdog = Watchdog(Notifier(manager.getsockname()), interval_ns=100)
    for now_ns in (1000, 1049, 1050, 1051, 1200):
        watchdog.turn(now_ns)
    heard = []
    while True:
        try:
            heard.append(manager.recv(100))
        except BlockingIOError:
            break
    assert heard == [b"WATCHDOG=1"] * 3


def test_no_watchdog_is_fed_when_none_was_asked_for(manager: socket.socket) -> None:
    Watchdog(Notifier(manager.getsockname()), 0).turn(1)
    with pytest.raises(BlockingIOError):
        manager.recv(100)


def test_the_interval_counts_only_for_this_process() -> None:
    assert watchdog_interval_ns({"WATCHDOG_USEC": "2000000", "WATCHDOG_PID": "7"}, 7) == 2_000_000_000
    assert watchdog_interval_ns({"WATCHDOG_USEC": "2000000", "WATCHDOG_PID": "7"}, 8) == 0
    assert watchdog_interval_ns({"WATCHDOG_USEC": "x"}, 7) == 0
    assert watchdog_interval_ns({"WATCHDOG_USEC": "²"}, 7) == 0
    assert watchdog_interval_ns({}, 7) == 0


def test_the_environment_is_taken_and_emptied(manager: socket.socket, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NOTIFY_SOCKET", manager.getsockname())
    monkeypatch.setenv("WATCHDOG_USEC", "2000000")
    monkeypatch.setenv("WATCHDOG_PID", str(os.getpid()))
    notifier, watchdog = from_environment()
    notifier.send(READY=1)
    assert manager.recv(100) == b"READY=1"
    assert watchdog.period_ns == 1_000_000_000
    assert not {"NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"} & set(os.environ)
