"""Telling systemd how we are: sd_notify(3) over AF_UNIX datagrams, and a watchdog fed from the loop's own progress.

The watchdog is no timer: `Watchdog.turn()` is called by the loop after each turn in which it did its work, so a loop
that hangs goes silent and systemd restarts us. A datagram that cannot be sent at once is dropped, never waited for.
"""

import os
import socket
from collections.abc import Mapping


class Notifier:
    """One NOTIFY_SOCKET; does nothing when there is none. Never blocks and never raises after construction."""

    def __init__(self, address: str | None) -> None:
        self._socket: socket.socket | None = None
        self.dropped = 0
        if not address:
            return
        if address[0] not in "/@":
            raise ValueError(f"NOTIFY_SOCKET is {address!r}, expected a path or an abstract name; start under systemd")
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
        try:
            self._socket.connect("\0" + address[1:] if address[0] == "@" else address)
        except OSError as error:
            self.close()
            action = "start under systemd, or without NOTIFY_SOCKET"
            raise ValueError(f"NOTIFY_SOCKET {address!r} cannot be reached ({error}); {action}") from error

    def send(self, **fields: str | int) -> None:
        """Sends `KEY=value` lines in one datagram, for instance READY=1, STATUS="serving lane 1.0.0"."""
        if self._socket is None:
            return
        try:
            self._socket.send("\n".join(f"{key}={value}" for key, value in fields.items()).encode())
        except OSError:
            self.dropped += 1

    def close(self) -> None:
        """Closes the socket."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None


class Watchdog:
    """Sends WATCHDOG=1 at half the interval that systemd asked for, and only from `turn()`."""

    def __init__(self, notifier: Notifier, interval_ns: int) -> None:
        self._notifier = notifier
        self.period_ns = interval_ns // 2
        # 0: systemd asked for no watchdog.
        self._next_ns = 0

    def due_ns(self) -> int | None:
        """When the next one is due; None when systemd asked for none."""
        return self._next_ns if self.period_ns else None

    def turn(self, now_ns: int) -> None:
        """The loop has done one turn of its work; `now_ns` is CLOCK_MONOTONIC."""
        if self.period_ns and now_ns >= self._next_ns:
            self._next_ns = now_ns + self.period_ns
            self._notifier.send(WATCHDOG=1)


def watchdog_interval_ns(environment: Mapping[str, str], pid: int) -> int:
    """The interval from WATCHDOG_USEC when it is meant for this process (sd_watchdog_enabled(3)); else 0."""
    owner = environment.get("WATCHDOG_PID")
    if owner is not None and owner != str(pid):
        return 0
    text = environment.get("WATCHDOG_USEC", "")
    return int(text) * 1000 if text.isascii() and text.isdigit() else 0


def from_environment() -> tuple[Notifier, Watchdog]:
    """Notifier and watchdog as systemd's environment asks for them; takes the variables out of the environment."""
    environment = {key: os.environ.pop(key, "") for key in ("NOTIFY_SOCKET", "WATCHDOG_USEC")}
    owner = os.environ.pop("WATCHDOG_PID", None)
    if owner is not None:
        environment["WATCHDOG_PID"] = owner
    notifier = Notifier(environment["NOTIFY_SOCKET"])
    return notifier, Watchdog(notifier, watchdog_interval_ns(environment, os.getpid()))
