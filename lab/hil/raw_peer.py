"""A peer that keeps no rules: a bare socket to the daemon, for packets that no client of ours would send."""

from __future__ import annotations

import array
import os
import socket
from pathlib import Path
from types import TracebackType

from abi import messages as m
from abi.messages import Role
from abi.session import ClientSession, Event
from abi.stream_format import StreamFormat
from hal.memory import create_sealed
from lab.hil.clients import LIMIT_S
from lab.hil.probe import PIXELS, frame_format
from lab.hil.verdict import WrongAnswer

__all__ = ["RawPeer", "close_all", "good_descriptors"]

_RECEIVED_BYTES, _ANCILLARY_BYTES = 1 << 16, 4096
_LEASE_BYTES = 64


class RawPeer:
    """A socket to the daemon whose sockets are in `sockets`, without a client that keeps the rules."""

    def __init__(self, sockets: Path, role: Role = Role.CAMERA, *, greet: bool = True) -> None:
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.socket.settimeout(LIMIT_S)
        self.socket.connect(str(sockets / f"{role.name.lower()}.sock"))
        self.session = ClientSession(role)
        if greet:
            self.ask(m.Hello(role, "raw"))

    def __enter__(self) -> RawPeer:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.socket.close()

    def send(self, packet: bytes, descriptors: tuple[int, ...] = ()) -> None:
        """Send any bytes with any descriptors."""
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))] if descriptors else []
        self.socket.sendmsg([packet], rights)

    def answer(self) -> Event | None:
        """The next event, or None when the daemon closed the connection."""
        packet, ancillary, _, _ = self.socket.recvmsg(_RECEIVED_BYTES, _ANCILLARY_BYTES)
        for _, _, data in ancillary:
            for descriptor in array.array("i", data):
                os.close(descriptor)
        return self.session.receive(packet, len(ancillary))[0] if packet else None

    def ask(self, message: m.Message, descriptors: tuple[int, ...] = ()) -> Event | None:
        """Send a message that the session allows, and read what comes back."""
        self.send(self.session.send(message, len(descriptors)), descriptors)
        return self.answer()

    def refusal(self) -> m.Refusal:
        """The next event, which must be a refusal. Raises WrongAnswer."""
        return as_refusal(self.answer())

    def open_stream(self, slots: int = 2, stream: str = "road", format: StreamFormat | None = None) -> int:
        """Opens a stream, of the probe models' format unless told, and registers good buffers; returns its id."""
        format = frame_format() if format is None else format
        opened = self.ask(m.OpenStream(stream, format))
        if not isinstance(opened, m.StreamOpened):
            raise WrongAnswer("answer to OpenStream", "StreamOpened", str(opened))
        descriptors = good_descriptors(slots, format.buffer_bytes)
        answer = self.ask(m.RegisterBuffers(opened.stream_id, slots), descriptors)
        close_all(descriptors)
        if not isinstance(answer, m.BuffersRegistered):
            raise WrongAnswer("answer to RegisterBuffers", "BuffersRegistered", str(answer))
        return opened.stream_id

    def open_unchecked(self, format: StreamFormat, stream: str = "road") -> Event | None:
        """Asks to open a stream with a format that our own machine would not send."""
        self.session.send(m.OpenStream(stream, frame_format()))  # what it believes that was sent
        self.send(m.encode(m.OpenStream(stream, format)))
        return self.answer()


def as_refusal(event: Event | None) -> m.Refusal:
    """The event as the refusal that it must be. Raises WrongAnswer."""
    if not isinstance(event, m.Refusal):
        raise WrongAnswer("the daemon's answer", "a refusal", str(event))
    return event


def good_descriptors(slots: int, size_bytes: int = PIXELS) -> tuple[int, ...]:
    """A lease page and `slots` buffers, sealed."""
    lease = create_sealed("lease", _LEASE_BYTES * slots)
    return (lease, *(create_sealed("frame", size_bytes) for _ in range(slots)))


def close_all(descriptors: tuple[int, ...]) -> None:
    """Closes our ends."""
    for descriptor in descriptors:
        os.close(descriptor)
