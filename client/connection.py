"""One session over an AF_UNIX SOCK_SEQPACKET socket: packets and descriptors in and out, deadlines that hold.

It owns the socket and a sans-I/O `ClientSession`; `camera`, `consumer` and `control` speak through it. Descriptors go
and come by SCM_RIGHTS; whatever was received and not taken is closed. Not for use from two threads at once.
"""

from __future__ import annotations

import array
import contextlib
import errno
import os
import select
import socket
import time
from collections import deque
from collections.abc import Sequence
from types import TracebackType
from typing import Final, Self, TypeVar

from abi.messages import Bye, Hello, Message, Refusal, Role, Welcome, kind_of_message
from abi.packet import MAX_DESCRIPTORS, MAX_PACKET_BYTES, RemoteProtocolError
from abi.session import ClientSession, Event
from client.errors import ConnectionLost, Refused

__all__ = ["Connection"]

A = TypeVar("A", bound=Message)

MAX_WAIT_S: Final = 3600.0  # in one poll(2); longer waits go round
_ENDS: Final = (Bye, Refusal)
_RECEIVE_FLAGS: Final = int(socket.MSG_CMSG_CLOEXEC)  # as plain numbers: arithmetic of enums costs as much as a packet
_CUT: Final = int(socket.MSG_TRUNC | socket.MSG_CTRUNC)
_ANCILLARY_BYTES: Final = socket.CMSG_SPACE(MAX_DESCRIPTORS * array.array("i").itemsize)


class Connection:
    """A greeted session. `welcome` is the daemon's answer to Hello; `session` the protocol machine."""

    def __init__(self, path: str, role: Role, name: str, timeout_s: float) -> None:
        """Connect and greet. Raises Refused, ConnectionLost, TimeoutError, or OSError where nobody listens."""
        self.session = ClientSession(role)
        self._timeout_s = timeout_s
        self._events: deque[Event] = deque()
        self._descriptors: list[int] = []
        self._packet = memoryview(bytearray(MAX_PACKET_BYTES))
        self._buffers = [self._packet]
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC)
        self._poll = select.poll()
        try:
            self._socket.settimeout(timeout_s)
            self._connect(path)
            self._socket.setblocking(False)
            self._poll.register(self._socket, select.POLLIN)
            self.welcome = self.request(Hello(role, name), Welcome, timeout_s)
        except BaseException:
            self._abandon()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _connect(self, path: str) -> None:
        try:
            self._socket.connect(path)
        except OSError as error:
            if error.errno is None:  # Python's own refusal, of a path that no address holds
                raise OSError(errno.ENAMETOOLONG, os.strerror(errno.ENAMETOOLONG), path) from None
            error.filename = path  # connect(2) has no file in its errors; who reads them asks which socket
            raise

    def fileno(self) -> int:
        """The socket's descriptor, readable when events wait; for the caller's own loop."""
        return self._socket.fileno()

    def send(self, packet: bytes, descriptors: Sequence[int] = ()) -> None:
        """Send one packet. The descriptors stay the caller's. Waits while the daemon's queue is full.

        Raises ConnectionLost, also when the daemon reads nothing for the connection's timeout.
        """
        while True:
            try:
                if descriptors:
                    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))]
                    self._socket.sendmsg([packet], rights)
                else:
                    self._socket.send(packet)
                return
            except BlockingIOError:
                if not self._is_writable_within(self._timeout_s):
                    self._abandon()
                    raise ConnectionLost(f"the daemon read nothing for {self._timeout_s} s") from None
            except OSError as error:
                raise ConnectionLost(f"the daemon is gone: {error.strerror}") from error

    def _is_writable_within(self, timeout_s: float) -> bool:
        poll = select.poll()  # select(2) takes no descriptor beyond 1023
        poll.register(self._socket, select.POLLOUT)
        return bool(poll.poll(timeout_s * 1000))

    def request(self, message: Message, answer: type[A], timeout_s: float | None = None,
                descriptors: Sequence[int] = ()) -> A:  # fmt: skip
        """Send a request and wait for its answer; other events are kept for `next_event`.

        `timeout_s`: None for the connection's own.

        Raises Refused, ConnectionLost, LocalProtocolError, and TimeoutError, after which the session is closed: its
        answer could no longer be told from that of a later request.
        """
        self.send(self.session.send(message, len(descriptors)), descriptors)
        timeout_s = self._timeout_s if timeout_s is None else timeout_s
        deadline = time.monotonic() + timeout_s
        kind, others = kind_of_message(message), deque[Event]()
        try:
            while True:
                event = self._pop(deadline)
                if isinstance(event, answer):
                    return event
                if event is None:
                    self._abandon()
                    raise TimeoutError(f"no {answer.__name__} within {timeout_s} s of {type(message).__name__}")
                if isinstance(event, Bye):
                    raise _ended(event)
                if isinstance(event, Refusal) and (event.code.closes or event.in_reply_to == kind):
                    raise _ended(event)
                others.append(event)
        finally:
            self._events.extendleft(reversed(others))

    def next_event(self, deadline: float | None) -> Event | None:
        """The next event, or None when there is none by `deadline` (time.monotonic; None: not waiting at all).

        Raises Refused for a refusal, and ConnectionLost when the session has ended.
        """
        event = self._pop(deadline)
        if isinstance(event, _ENDS):
            raise _ended(event)
        return event

    def _pop(self, deadline: float | None) -> Event | None:
        while not self._events:
            if not self._receive():
                wait_s = 0.0 if deadline is None else min(deadline - time.monotonic(), MAX_WAIT_S)
                if wait_s <= 0:
                    return None
                self._poll.poll(wait_s * 1000)
        return self._events.popleft()

    def take_descriptors(self, count: int | None = None) -> list[int]:
        """The oldest `count` descriptors that were received and not taken yet, or all; the caller owns them now."""
        count = len(self._descriptors) if count is None else count
        taken, self._descriptors = self._descriptors[:count], self._descriptors[count:]
        return taken

    def close(self) -> None:
        """End the session and close the socket. Slots that the daemon holds stay mapped there until they are done."""
        if self._socket.fileno() >= 0 and not self.session.closed:
            with contextlib.suppress(ConnectionLost):  # if it is gone already, so much the better
                self.send(self.session.send(Bye("closed")))
        self._abandon()

    def _abandon(self) -> None:
        self._socket.close()
        for descriptor in self.take_descriptors():
            os.close(descriptor)

    def _receive(self) -> bool:
        """Read one packet if one waits. Raises ConnectionLost at the stream's end or for what no daemon sends."""
        try:
            size, ancillary, flags, _ = self._socket.recvmsg_into(self._buffers, _ANCILLARY_BYTES, _RECEIVE_FLAGS)
        except BlockingIOError:
            return False
        except OSError as error:
            raise ConnectionLost(f"the daemon is gone: {error.strerror}") from error
        descriptors = _rights(ancillary) if ancillary else []
        self._descriptors += descriptors
        if not size:
            raise ConnectionLost("the daemon closed the connection")
        try:
            if flags & _CUT:
                expected = f"{MAX_PACKET_BYTES} bytes and {MAX_DESCRIPTORS} descriptors"
                raise RemoteProtocolError("packet", f"at most {expected}", "more")
            self._events += self.session.receive(self._packet[:size], len(descriptors))
        except RemoteProtocolError as error:
            self._abandon()
            raise ConnectionLost(f"the daemon broke the protocol: {error}") from error
        return True


def _rights(ancillary: Sequence[tuple[int, int, bytes]]) -> list[int]:
    """The descriptors that came with a packet."""
    descriptors = array.array("i")
    for level, kind, data in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            descriptors.frombytes(data[: len(data) - len(data) % descriptors.itemsize])
    return list(descriptors)


def _ended(event: Bye | Refusal) -> Exception:
    if isinstance(event, Refusal):
        return Refused.by(event)
    return ConnectionLost(f"the daemon ended the session: {event.reason or 'no reason given'}")
