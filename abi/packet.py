"""The frame of every packet: an 8-byte header, limits, and the errors of the protocol.

A packet is one SOCK_SEQPACKET datagram: {kind u16, abiVersion u16, descriptors u8, flags u8, reserved u16},
little endian, then one Cap'n Proto message of the kind's struct (`session.capnp`). Descriptors travel beside it by
SCM_RIGHTS. A LocalProtocolError is our own mistake; a RemoteProtocolError is the peer's and ends its session.
"""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import Final

from abi import schema

__all__ = [
    "ABI_VERSION", "HEADER_BYTES", "MAX_DESCRIPTORS", "MAX_PACKET_BYTES", "MAX_SLOTS", "Kind", "LocalProtocolError",
    "ProtocolError", "RefusalCode", "RemoteProtocolError", "decode_header", "encode_header", "kind_of",
]  # fmt: skip

ABI_VERSION: Final = int(schema.session.abiVersion)
HEADER: Final = struct.Struct("<HHBBH")
HEADER_BYTES: Final = HEADER.size
MAX_PACKET_BYTES: Final = 1 << 16  # half of what Linux lets an AF_UNIX datagram hold by default (net.core.wmem_default)
MAX_SLOTS: Final = 16  # buffers of one stream
MAX_DESCRIPTORS: Final = MAX_SLOTS + 1  # the lease page goes with them


class Kind(IntEnum):
    """What a packet is; equals `session.capnp` Kind."""

    INVALID = 0
    HELLO = 1
    WELCOME = 2
    REFUSAL = 3
    BYE = 4
    OPEN_STREAM = 5
    STREAM_OPENED = 6
    REGISTER_BUFFERS = 7
    BUFFERS_REGISTERED = 8
    SUBMIT = 9
    RELEASE = 10
    CLOSE_STREAM = 11
    SET_AUX = 12
    SUBSCRIBE = 13
    SUBSCRIBED = 14
    RESULT = 15
    COMMAND = 16
    REPLY = 17
    AUX_SET = 18
    TAP = 19
    TAPPED = 20
    TAP_STREAM = 21
    TAP_FRAME = 22
    TAP_END = 23
    TAP_NOTE = 24

    __hash__ = int.__hash__  # as a number's, without a call into Python


_KINDS: Final = tuple(Kind)  # numbered without a gap


class RefusalCode(IntEnum):
    """Why the daemon said no; equals `session.capnp` RefusalCode, where each is explained."""

    OK = 0
    PROTOCOL = 1
    ABI_VERSION = 2
    ROLE = 3
    NOT_PERMITTED = 4
    LIMIT = 5
    BAD_FORMAT = 6
    FORMAT_MISMATCH = 7
    UNKNOWN_STREAM = 8
    STREAM_TAKEN = 9
    BAD_BUFFER = 10
    UNKNOWN_SLOT = 11
    BAD_GENERATION = 12
    SEQUENCE_REPEATED = 13
    TIME_NOT_RISING = 14
    TIME_IN_FUTURE = 15
    TIME_STALE = 16
    NOT_READY = 17
    UNKNOWN_COMMAND = 18
    MODEL_REFUSED = 19
    DEVICE_ERROR = 20
    IDLE = 21
    UNKNOWN_AUX = 22
    BAD_AUX = 23
    SHUTTING_DOWN = 24
    OUT_OF_SKEW = 25

    __hash__ = int.__hash__

    @property
    def closes(self) -> bool:
        """Whether a refusal with this code ends the session."""
        return self in (RefusalCode.PROTOCOL, RefusalCode.ABI_VERSION, RefusalCode.ROLE, RefusalCode.IDLE)


class ProtocolError(Exception):
    """Something that the session's rules do not allow: `what` was wrong, what was `expected`, what was `found`."""

    def __init__(self, what: str, expected: str, found: str) -> None:
        super().__init__(f"{what}: expected {expected}, found {found}")
        self.what, self.expected, self.found = what, expected, found


class LocalProtocolError(ProtocolError):
    """We tried to send what the session does not allow now. Nothing was sent and nothing changed."""


class RemoteProtocolError(ProtocolError):
    """The peer sent what the session does not allow. Nothing changed, but the peer cannot be believed any more.

    `code` is PROTOCOL or ABI_VERSION, both of which end the session; `in_reply_to` the kind of the packet.
    """

    def __init__(
        self, what: str, expected: str, found: str, in_reply_to: int = 0, code: RefusalCode = RefusalCode.PROTOCOL
    ) -> None:
        super().__init__(what, expected, found)
        self.in_reply_to, self.code = in_reply_to, code


def encode_header(kind: Kind, descriptors: int = 0) -> bytes:
    """The header of a packet of this kind that travels with this many descriptors."""
    return HEADER.pack(kind, ABI_VERSION, descriptors, 0, 0)


def kind_of(packet: bytes | bytearray | memoryview) -> int:
    """The kind field of a packet that may be anything; 0 (INVALID) where there is none. For dispatch and logs."""
    return packet[0] | packet[1] << 8 if len(packet) >= 2 else 0


def decode_header(packet: bytes | bytearray | memoryview, descriptor_count: int) -> Kind:
    """The kind of a packet that came with `descriptor_count` descriptors. Raises RemoteProtocolError."""
    if not HEADER_BYTES <= len(packet) <= MAX_PACKET_BYTES:
        expected = f"{HEADER_BYTES}..{MAX_PACKET_BYTES} bytes"
        raise RemoteProtocolError("packet length", expected, f"{len(packet)} bytes", kind_of(packet))
    kind: int
    kind, version, descriptors, flags, reserved = HEADER.unpack_from(packet)
    if version != ABI_VERSION:
        raise RemoteProtocolError("abiVersion", str(ABI_VERSION), str(version), kind, RefusalCode.ABI_VERSION)
    if not 0 < kind < len(_KINDS):
        raise RemoteProtocolError("kind", f"{Kind.HELLO:d}..{Kind.TAP_NOTE:d}", str(kind), kind)
    if flags or reserved:
        raise RemoteProtocolError("header flags and reserved", "0, 0", f"{flags}, {reserved}", kind)
    if descriptors != descriptor_count:
        raise RemoteProtocolError("descriptors", f"{descriptors}, as the header says", str(descriptor_count), kind)
    return _KINDS[kind]
