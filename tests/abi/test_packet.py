"""Headers, limits and the errors of the protocol."""

from __future__ import annotations

import struct

import pytest

from abi import packet
from abi.packet import Kind, RefusalCode, RemoteProtocolError


def header(kind: int = 1, version: int = 1, descriptors: int = 0, flags: int = 0, reserved: int = 0) -> bytes:
    return struct.pack("<HHBBH", kind, version, descriptors, flags, reserved)


def refused(data: bytes, descriptors: int = 0) -> RemoteProtocolError:
    with pytest.raises(RemoteProtocolError) as caught:
        packet.decode_header(data, descriptors)
    return caught.value


def test_a_header_is_eight_little_endian_bytes() -> None:
    assert packet.encode_header(Kind.REPLY, 5) == b"\x11\x00\x01\x00\x05\x00\x00\x00"
    assert packet.encode_header(Kind.HELLO) == header()
    assert packet.HEADER_BYTES == 8
    assert packet.ABI_VERSION == 1


@pytest.mark.parametrize("kind", [kind for kind in Kind if kind])
@pytest.mark.parametrize("descriptors", [0, 1, 17])
def test_every_kind_comes_back(kind: Kind, descriptors: int) -> None:
    data = packet.encode_header(kind, descriptors) + b"body"
    for view in (data, bytearray(data), memoryview(data)):
        assert packet.decode_header(view, descriptors) is kind
        assert packet.kind_of(view) == kind


@pytest.mark.parametrize("size", [0, 1, 2, 7])
def test_a_truncated_packet_is_refused(size: int) -> None:  # case 24
    error = refused(header()[:size])
    assert (error.what, error.expected, error.found) == ("packet length", "8..65536 bytes", f"{size} bytes")
    assert error.code is RefusalCode.PROTOCOL
    assert error.in_reply_to == (Kind.HELLO if size >= 2 else Kind.INVALID)


def test_an_oversized_packet_is_refused() -> None:  # case 24
    packet.decode_header(header().ljust(65536, b"\0"), 0)
    assert refused(header().ljust(65537, b"\0")).found == "65537 bytes"


@pytest.mark.parametrize("version", [0, 2, 0x0100, 0xFFFF])
def test_another_abi_version_has_its_own_code(version: int) -> None:
    error = refused(header(version=version))
    assert (error.what, error.expected, error.found) == ("abiVersion", "1", str(version))
    assert (error.code, error.in_reply_to) == (RefusalCode.ABI_VERSION, Kind.HELLO)


@pytest.mark.parametrize("kind", [0, 25, 257, 0xFFFF])
def test_an_unknown_kind_is_refused(kind: int) -> None:
    error = refused(header(kind))
    assert (error.what, error.expected, error.found) == ("kind", "1..24", str(kind))
    assert (error.code, error.in_reply_to) == (RefusalCode.PROTOCOL, kind)


@pytest.mark.parametrize(("flags", "reserved"), [(1, 0), (0x80, 0), (0, 1), (0, 0x8000), (3, 4)])
def test_reserved_bits_are_zero(flags: int, reserved: int) -> None:
    error = refused(header(flags=flags, reserved=reserved))
    assert (error.what, error.expected) == ("header flags and reserved", "0, 0")
    assert (error.found, error.in_reply_to) == (f"{flags}, {reserved}", Kind.HELLO)


@pytest.mark.parametrize(("declared", "came"), [(0, 1), (1, 0), (2, 3)])
def test_the_header_states_how_many_descriptors_came(declared: int, came: int) -> None:  # case 24
    error = refused(header(descriptors=declared), came)
    assert (error.what, error.expected) == ("descriptors", f"{declared}, as the header says")
    assert (error.found, error.in_reply_to) == (str(came), Kind.HELLO)


def test_exactly_the_codes_marked_so_close_the_session() -> None:
    closing = {code.name for code in RefusalCode if code.closes}
    assert closing == {"PROTOCOL", "ABI_VERSION", "ROLE", "IDLE"}


def test_an_error_names_what_was_expected_and_found() -> None:
    error = packet.ProtocolError("slot", "0..3", "4")
    assert str(error) == "slot: expected 0..3, found 4"
    assert (error.what, error.expected, error.found) == ("slot", "0..3", "4")
    plain = RemoteProtocolError("slot", "0..3", "4")
    assert (plain.in_reply_to, plain.code) == (0, RefusalCode.PROTOCOL)
