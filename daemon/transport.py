"""Packets and descriptors over one connected SOCK_SEQPACKET socket, without ever blocking.

A received descriptor is owned by its `Descriptors` until it is taken; whatever is left is closed, whatever goes wrong,
so that no packet can leak one. A packet longer than the buffer, or with more descriptors than a packet may carry, is
told from one that fits.
"""

import array
import errno
import os
import socket
from collections.abc import Sequence
from typing import NamedTuple

from abi.packet import MAX_DESCRIPTORS

_DESCRIPTOR_BYTES = array.array("i").itemsize
_ANCILLARY_BYTES = socket.CMSG_SPACE(MAX_DESCRIPTORS * _DESCRIPTOR_BYTES)
# as plain numbers: arithmetic of the socket module's enums costs as much as a packet
_RECEIVE_FLAGS = int(socket.MSG_CMSG_CLOEXEC | socket.MSG_DONTWAIT)
_SEND_FLAGS = int(socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
_CUT = int(socket.MSG_TRUNC | socket.MSG_CTRUNC)
_SO_PEERGROUPS = 59  # asm-generic/socket.h
_GROUPS_LIMIT_BYTES = 1024  # the most that socket.getsockopt takes


class Credentials(NamedTuple):
    """Who is at the other end, as the kernel says (SO_PEERCRED, SO_PEERGROUPS), taken when it connected."""

    pid: int
    uid: int
    gids: frozenset[int]


class Descriptors(list[int]):
    """The descriptors that came with one packet."""

    __slots__ = ()

    @property
    def held(self) -> tuple[int, ...]:
        """The descriptors; they stay owned by this object."""
        return tuple(self)

    def take(self, index: int) -> int:
        """Hands one descriptor over to the caller. The others move up."""
        return self.pop(index)

    def close(self) -> None:
        """Closes what was not taken."""
        while self:
            os.close(self.pop())


Received = tuple[memoryview, Descriptors, bool]
"""One packet, its descriptors, and whether it or they were more than fits."""


class Receiver:
    """A reusable receive buffer of `packet_bytes`. The data of a packet is valid until the next `receive`."""

    def __init__(self, packet_bytes: int) -> None:
        self._view = memoryview(bytearray(packet_bytes))
        self._buffers = [self._view]

    def receive(self, connection: socket.socket) -> Received | None:
        """The next packet, or None when none waits. OSError when the connection is broken.

        A closed connection reads as a packet without data: the caller's poll tells the two apart.
        """
        try:
            size, ancillary, flags, _ = connection.recvmsg_into(self._buffers, _ANCILLARY_BYTES, _RECEIVE_FLAGS)
        except BlockingIOError:
            return None
        held = Descriptors()
        for level, kind, data in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                whole = len(data) - len(data) % _DESCRIPTOR_BYTES
                held.extend(array.array("i", data[:whole]))
        return self._view[:size], held, bool(flags & _CUT)


def send(connection: socket.socket, packet: bytes, descriptors: Sequence[int] = ()) -> bool:
    """Sends one packet; False when the peer's queue is full. OSError when the connection is broken."""
    try:
        if descriptors:
            rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))]
            connection.sendmsg([packet], rights, _SEND_FLAGS)
        else:
            connection.send(packet, _SEND_FLAGS)
    except BlockingIOError:
        return False
    return True


def credentials(connection: socket.socket) -> Credentials:
    """Who connected. Raises OSError for a socket that is not connected.

    Of a peer with more groups than can be asked for (256) only the primary one counts.
    """
    found = array.array("i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 3 * _DESCRIPTOR_BYTES))
    pid, uid, gid = found
    try:
        groups = array.array("I", connection.getsockopt(socket.SOL_SOCKET, _SO_PEERGROUPS, _GROUPS_LIMIT_BYTES))
    except OSError as error:
        if error.errno != errno.ERANGE:
            raise
        groups = array.array("I")
    return Credentials(pid, uid & 0xFFFFFFFF, frozenset({gid & 0xFFFFFFFF, *groups}))
