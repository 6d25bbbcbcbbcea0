"""A peer that keeps no rules: a bare socket to the daemon, for packets that no client of ours would send."""

from __future__ import annotations

import array
import os
import socket

from abi import messages as m
from abi.messages import Role
from abi.session import ClientSession, Event
from abi.stream_format import StreamFormat
from hal.memory import create_sealed
from tests.support.bundles import PIXELS, frame_format
from tests.support.daemons import LIMIT_S, Sockets


class RawPeer:
    """A socket to the daemon, without a client that keeps the rules."""

    def __init__(self, daemon: Sockets, role: Role = Role.CAMERA, *, greet: bool = True) -> None:
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.socket.settimeout(LIMIT_S)
        self.socket.connect(str(daemon.sockets / f"{role.name.lower()}.sock"))
        self.session = ClientSession(role)
        if greet:
            self.ask(m.Hello(role, "raw"))

    def __enter__(self) -> RawPeer:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def send(self, packet: bytes, descriptors: tuple[int, ...] = ()) -> None:
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))] if descriptors else []
        self.socket.sendmsg([packet], rights)

    def answer(self) -> Event | None:
        """The next event, or None when the daemon closed the connection."""
        packet, ancillary, _, _ = self.socket.recvmsg(1 << 16, 4096)
        for _, _, data in ancillary:
            for descriptor in array.array("i", data):
                os.close(descriptor)
        return self.session.receive(packet, len(ancillary))[0] if packet else None

    def ask(self, message: m.Message, descriptors: tuple[int, ...] = ()) -> Event | None:
        self.send(self.session.send(message, len(descriptors)), descriptors)
        return self.answer()

    def open_stream(self, slots: int = 2) -> int:
        """Opens `road` and registers good buffers."""
        opened = self.ask(m.OpenStream("road", frame_format()))
        assert isinstance(opened, m.StreamOpened)
        descriptors = good_descriptors(slots)
        answer = self.ask(m.RegisterBuffers(opened.stream_id, slots), descriptors)
        close_all(descriptors)
        assert isinstance(answer, m.BuffersRegistered)
        return opened.stream_id

    def open_unchecked(self, format: StreamFormat) -> Event | None:
        """Asks to open `road` with a format that our own machine would not send."""
        self.session.send(m.OpenStream("road", frame_format()))  # what it believes that was sent
        self.send(m.encode(m.OpenStream("road", format)))
        return self.answer()


def good_descriptors(slots: int, size_bytes: int = PIXELS) -> tuple[int, ...]:
    """A lease page and `slots` buffers, sealed."""
    return (create_sealed("lease", 64 * slots), *(create_sealed("frame", size_bytes) for _ in range(slots)))


def close_all(descriptors: tuple[int, ...]) -> None:
    """Closes our ends."""
    for descriptor in descriptors:
        os.close(descriptor)
