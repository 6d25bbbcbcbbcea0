"""A daemon of one peer whose every word a test scripts: a real socket, the daemon's protocol machine, one thread."""

from __future__ import annotations

import array
import contextlib
import os
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from abi import messages as m
from abi.messages import Message, Role
from abi.session import DaemonSession
from tests.support.descriptors import open_descriptors
from tests.support.link import WELCOME

TIMEOUT_S = 30.0
"""A test that waits this long has failed."""


class Peer:
    """The daemon's end of one connection. `descriptors` are those received, to be closed by the script or the end."""

    def __init__(self, connection: socket.socket, role: Role) -> None:
        self.connection = connection
        connection.settimeout(TIMEOUT_S)
        self.session = DaemonSession(role)
        self.descriptors: list[int] = []

    def receive(self) -> Any:
        """The next packet's one event. Raises EOFError at the end."""
        space = socket.CMSG_SPACE(32 * 4)
        packet, ancillary, _, _ = self.connection.recvmsg(1 << 17, space, socket.MSG_CMSG_CLOEXEC)
        if not packet:
            raise EOFError
        came = array.array("i")
        for _, _, data in ancillary:
            came.frombytes(data)
        self.descriptors += came
        (event,) = self.session.receive(packet, len(came))
        return event

    def say(self, message: Message, descriptors: tuple[int, ...] = ()) -> None:
        """Send a cold message."""
        self.push(self.session.send(message, len(descriptors)), descriptors)

    def push(self, packet: bytes | None, descriptors: tuple[int, ...] = ()) -> None:
        """Send any bytes. A client that left in the meantime is no failure, be it with packets that it had not read."""
        assert packet is not None
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))] if descriptors else []
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self.connection.sendmsg([packet], rights)

    def greet(self) -> m.Hello:
        """Through Hello and Welcome."""
        hello = self.receive()
        assert isinstance(hello, m.Hello)
        self.say(WELCOME)
        return hello

    def until_end(self) -> list[Any]:
        """Every event until the client is gone."""
        events = []
        try:
            while True:
                events.append(self.receive())
        except (EOFError, ConnectionError):
            return events

    def close(self) -> None:
        """Close the connection and what was received."""
        self.connection.close()
        for descriptor in self.descriptors:
            os.close(descriptor)
        self.descriptors = []


class ScriptedDaemon:
    """Listens at `path`, runs the script with the first peer, and passes its failure on at the end."""

    def __init__(self, folder: Path, role: Role, script: Callable[[Peer], object]) -> None:
        self.path = folder / f"{role.name.lower()}.sock"
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC)
        self._listener.bind(os.fspath(self.path))
        self._listener.listen(4)
        self._listener.settimeout(TIMEOUT_S)
        self._role, self._script = role, script
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._thread.join(TIMEOUT_S if error is None else 0.1)
        self._listener.close()
        if error is None:
            assert not self._thread.is_alive(), "the script still waits"
            if self._failure is not None:
                raise self._failure

    def _run(self) -> None:
        try:
            connection, _ = self._listener.accept()
            peer = Peer(connection, self._role)
            try:
                self._script(peer)
            finally:
                peer.close()
        except BaseException as failure:
            self._failure = failure


@contextlib.contextmanager
def no_descriptor_leaks() -> Iterator[None]:
    """Nothing is open after that was not open before."""
    before = open_descriptors()
    yield
    assert open_descriptors() <= before  # threads of earlier tests may have closed something meanwhile
