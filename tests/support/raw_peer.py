"""The bench's bare peer, for a daemon that a test holds as an object."""

from __future__ import annotations

from abi.messages import Role
from lab.hil import raw_peer
from lab.hil.raw_peer import close_all, good_descriptors
from tests.support.daemons import Sockets

__all__ = ["RawPeer", "close_all", "good_descriptors"]


class RawPeer(raw_peer.RawPeer):
    """A socket to the daemon, without a client that keeps the rules."""

    def __init__(self, daemon: Sockets, role: Role = Role.CAMERA, *, greet: bool = True) -> None:
        super().__init__(daemon.sockets, role, greet=greet)
