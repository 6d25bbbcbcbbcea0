"""The three listening sockets and the peers behind them: accepts within limits, sees silence, closes one at a time."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from typing import Protocol

from daemon.camera_peer import CameraHost, CameraPeer
from daemon.consumer_peer import ConsumerHost, ConsumerPeer
from daemon.control_peer import ControlHost, ControlPeer
from daemon.peer import Arrival, Peer, PeerContext
from daemon.sockets import Listeners
from daemon.transport import credentials

_ACCEPTS_PER_TURN = 16
_IDLE_SWEEPS = 4  # in one idle timeout
_MAKERS: dict[str, Callable[..., Peer]] = {"camera": CameraPeer, "consumer": ConsumerPeer, "control": ControlPeer}


class Host(CameraHost, ConsumerHost, ControlHost, Protocol):
    """Everything that the peers' sessions need."""


class Server:
    """Accepts for `host`. The control socket answers at once; cameras and consumers are accepted after `open_doors`,
    and wait in the sockets' backlog until then.
    """

    def __init__(self, listeners: Listeners, context: PeerContext, host: Host) -> None:
        self._listeners = listeners
        self._context = context
        self._host = host
        self._peers: set[Peer] = set()
        self._resting: set[str] = set()  # roles that accept nobody until the next sweep
        self._refused_full = 0
        self._refused_share = 0
        self._next_sweep_ns = 0
        self._sweep_ns = max(1, context.limits.idle_timeout_ns // _IDLE_SWEEPS)
        self._listen("control")
        context.loop.add_timer(lambda: self._next_sweep_ns if self._peers or self._resting else None, self._sweep)

    def open_doors(self) -> None:
        """Begins to accept cameras and consumers."""
        self._listen("camera")
        self._listen("consumer")

    def counts(self) -> dict[str, int]:
        """Peers by role; connections that were refused because the daemon was full, or their user's share was."""
        counts = {role: sum(peer.role.name.lower() == role for peer in self._peers) for role in _MAKERS}
        return counts | {"refused_full": self._refused_full, "refused_share": self._refused_share}

    def close(self, reason: str) -> None:
        """Ends every session and the sockets."""
        for listener in self._listeners.by_role.values():
            self._context.loop.forget(listener.fileno())
        for peer in list(self._peers):
            peer.bye(reason)
            peer.close()
        self._listeners.close()

    def _listen(self, role: str) -> None:
        listener = self._listeners.by_role[role]
        self._context.loop.watch(listener.fileno(), lambda events: self._accept(role, listener))

    def _accept(self, role: str, listener: socket.socket) -> None:
        for _ in range(_ACCEPTS_PER_TURN):
            try:
                connection, _ = listener.accept()
            except BlockingIOError:
                return
            except ConnectionAbortedError:
                continue
            except OSError as error:  # descriptors have run out, for instance: trying again at once would spin
                todo = "close what holds descriptors, or raise LimitNOFILE; it is tried again soon"
                self._context.log.error(f"{role}: a connection could not be accepted: {error.strerror}", todo=todo)
                self._context.loop.forget(listener.fileno())
                self._resting.add(role)
                return
            if self.counts()[role] >= self._context.limits.peers:
                self._refused_full += 1
                text = f"{role}: more than {self._context.limits.peers} peers; connection closed"
                self._context.log.warning(text, todo="end some, or raise limits.peers")
                connection.close()
                continue
            self._admit(role, connection)

    def _admit(self, role: str, connection: socket.socket) -> None:
        """Whatever is wrong with one connection ends that one."""
        try:
            connection.setblocking(False)
            arrival = Arrival(connection, credentials(connection), time.monotonic_ns())
            if self._has_its_share(role, arrival.who.uid):
                self._refused_share += 1
                connection.close()
                return
            self._peers.add(_MAKERS[role](arrival, self._context, self._peers.discard, self._host))
        except OSError as error:
            todo = "close what holds descriptors, or raise LimitNOFILE"
            self._context.log.error(f"{role}: a connection could not be taken: {error.strerror}", todo=todo)
            connection.close()

    def _has_its_share(self, role: str, uid: int) -> bool:
        """Whether one user holds all the places that it may: it must not lock the others out."""
        share = self._context.limits.peers_per_user
        if sum(peer.role.name.lower() == role and peer.who.uid == uid for peer in self._peers) < share:
            return False
        self._context.log.warning(
            f"{role}: uid {uid} has {share} connections, as many as limits.peers_per_user allows; connection closed",
            todo="stop that user's programs, or raise the limit",
        )
        return True

    def _sweep(self, now_ns: int) -> None:
        self._next_sweep_ns = now_ns + self._sweep_ns
        for peer in list(self._peers):
            peer.check_idle(now_ns)
        while self._resting:
            self._listen(self._resting.pop())
