"""What a fuzzer calls with any bytes: one function a target, each of which returns or finds a defect.

The invariant: any bytes at any point of a session give events or RemoteProtocolError, and a packet that was refused
left the session as it was. `make fuzz` drives these with coverage guidance; `make test` with hypothesis.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from typing import Any

from abi import canonical, flat, messages, tap
from abi.canonical import CanonicalError
from abi.format import (
    PIXEL_FORMATS,
    ChromaSite,
    ClockId,
    ColourModel,
    FormatError,
    Matrix,
    Primaries,
    Range,
    StreamFormat,
    TimeMark,
    Transfer,
    make_format,
    prove_bounds,
    validate,
)
from abi.messages import Role
from abi.packet import Kind, RemoteProtocolError
from abi.schema import FlatCodec, FlatError
from abi.session import ClientSession, DaemonSession
from abi.transitions import Party
from tests.fuzz import signing_targets
from tests.support.link import Link, stream_format, tapped
from tests.support.packets import EXAMPLES

NOW_NS = 1000


def _waiting(role: Role, request: messages.Message) -> Link:
    link = Link(role).greet()
    link.ask(request)
    return link


def _with_frames() -> Link:
    link = Link(Role.CAMERA).greet().open_stream()
    link.submit(slot=0, sequence=1, sof_ns=100)
    link.submit(slot=1, sequence=2, sof_ns=101)
    link.daemon.start(1, 1)
    return link


def _registering() -> Link:
    link = Link(Role.CAMERA).greet()
    link.ask(messages.OpenStream("road", stream_format()))
    link.answer(messages.StreamOpened(1, 4))
    link.ask(messages.RegisterBuffers(1, 3), 4)
    return link


def _greeting() -> Link:
    link = Link(Role.CAMERA)
    link.ask(messages.Hello(Role.CAMERA, "x"))
    return link


STARTS: tuple[Callable[[], Link], ...] = (
    lambda: Link(Role.CAMERA),
    lambda: Link(Role.CONSUMER),
    lambda: Link(Role.CONTROL),
    lambda: Link(Role.CAMERA).greet(),
    lambda: Link(Role.CONSUMER).greet(),
    lambda: Link(Role.CONTROL).greet(),
    lambda: Link(Role.CAMERA).greet().open_stream(),
    lambda: Link(Role.CONSUMER).greet().subscribe(),
    lambda: _waiting(Role.CAMERA, messages.OpenStream("road", stream_format())),
    lambda: _waiting(Role.CONSUMER, messages.Subscribe("lane")),
    lambda: _waiting(Role.CONTROL, messages.Command(messages.CommandKind.STATUS)),
    _greeting,
    _registering,
    _with_frames,
    lambda: _waiting(Role.CONTROL, messages.SetAux("a", 0, b"")),
    lambda: _waiting(Role.CONSUMER, messages.Tap(True)),
    tapped,
)
"""Sessions in every state and role, with and without streams, subscriptions and frames."""


@functools.cache
def _prepared(start: int) -> Link:
    return STARTS[start % len(STARTS)]()


def begin(start: int) -> Link:
    """A session of its own in one of the STARTS."""
    return copy.deepcopy(_prepared(start))


def facts(session: ClientSession | DaemonSession) -> Any:
    """All that a refused packet must leave alone."""
    streams = {
        number: (
            stream.closing, stream.last_sequence, stream.last_sof_ns, stream.ledger.as_dict(),
            [(lease.state, lease.generation, lease.sequence) for lease in stream.leases],
        )
        for number, stream in session.streams.items()
    }  # fmt: skip
    return session.state, session.closed_by, streams, sorted(session.subscriptions)


def hold(session: ClientSession | DaemonSession) -> None:
    """The ledger of every stream balances, and holds what the leases hold."""
    for stream in session.streams.values():
        columns = stream.ledger.as_dict()
        refusals = columns.pop("refusals")
        submitted, _ = columns.pop("submitted"), columns.pop("camera_dropped")
        assert submitted == sum(int(count) for count in columns.values() if isinstance(count, int))
        assert columns["held"] == stream.held
        assert isinstance(refusals, dict)
        assert sum(refusals.values()) == columns["refused"]


def feed(session: ClientSession | DaemonSession, packet: bytes, descriptors: int) -> bool:
    """Give a session one packet. Whether it was taken."""
    before = facts(session)
    refusal: RemoteProtocolError | None = None
    try:
        events = session.receive(packet, descriptors, NOW_NS)
    except RemoteProtocolError as error:
        refusal = error
    hold(session)
    if refusal is not None:
        assert facts(session) == before
        assert refusal.code.closes
        assert 0 <= refusal.in_reply_to <= 0xFFFF
        return False
    assert len(events) <= 1
    assert events or session.closed_by is session.party
    for event in events:
        if session.party is Party.DAEMON and isinstance(event, messages.Refusal):
            copy.deepcopy(session).send(event)  # what the machine asks for can be sent
    return True


def session_packets(data: bytes) -> None:
    """A session in some state, then packets: each is [descriptors, kind or raw, length (2), bytes]."""
    if len(data) < 2:
        return
    link = begin(data[0])
    session = link.daemon if data[1] & 1 else link.client
    at = 2
    while at + 4 <= len(data):
        descriptors, kind, size = data[at] % 20, data[at + 1], int.from_bytes(data[at + 2 : at + 4], "little")
        body = data[at + 4 : at + 4 + size]
        at += 4 + size
        if kind:  # a good header, so that the body is looked at
            body = bytes((kind % (max(Kind) + 1), 0, 1, 0, descriptors, 0, 0, 0)) + body
        feed(session, body, descriptors)


def changed_packet(start: int, kind: int, descriptors: int, changes: list[tuple[int, int]]) -> None:
    """A session in some state, then one good packet of some kind with some bytes changed, to both ends."""
    packet = bytearray(EXAMPLES[Kind(kind)])
    for place, value in changes:
        packet[place % len(packet)] = value
    for party in ("daemon", "client"):
        feed(getattr(begin(start), party), bytes(packet), descriptors)


def message_bodies(data: bytes) -> None:
    """Any bytes as the body of any cold message."""
    if not data:
        return
    flat_kinds = (Kind.INVALID, Kind.SUBMIT, Kind.RELEASE, Kind.RESULT, Kind.TAP_FRAME, Kind.TAP_END)
    kinds = [kind for kind in Kind if kind not in flat_kinds]
    kind = kinds[data[0] % len(kinds)]
    try:
        message = messages.decode(kind, data[1:])
    except (RemoteProtocolError, FormatError):
        return
    canonical.check(data[1:])
    assert messages.decode(kind, messages.encode(message)[8:]) == message


def canonical_check(data: bytes) -> None:
    """Any bytes as a Cap'n Proto message."""
    try:
        canonical.check(data)
    except CanonicalError:
        return


def flat_records(data: bytes) -> None:
    """Any bytes as a flat record: refused, or the one encoding of what is read."""
    codecs: tuple[FlatCodec[Any], ...] = (flat.SUBMIT, flat.RELEASE, flat.RESULT, tap.TAP_FRAME, tap.TAP_END)
    for codec in codecs:
        try:
            record = codec.unpack(data)
        except FlatError:
            continue
        assert codec.pack(record) == data


def formats(format: StreamFormat, descriptor_bytes: int) -> None:
    """Any values as a format: refused, or every row of every plane lies in the descriptor."""
    try:
        validate(format)
        prove_bounds(format, descriptor_bytes, None)
    except FormatError:
        return
    for plane, shape in zip(format.planes, format.pixel.planes, strict=True):
        assert plane.offset >= 0
        end = plane.offset + plane.stride * (plane.rows - 1) + shape.row_bytes(format.width)
        assert end <= descriptor_bytes


def format_messages(data: bytes) -> None:
    """A descriptor's size (u32), then any bytes as an OpenStream: its format is refused, or lies in the descriptor."""
    try:
        message = messages.decode(Kind.OPEN_STREAM, data[4:])
    except (RemoteProtocolError, FormatError):
        return
    assert isinstance(message, messages.OpenStream)
    formats(message.format, int.from_bytes(data[:4], "little"))


TARGETS: dict[str, Callable[[bytes], None]] = {
    "session": session_packets,
    "messages": message_bodies,
    "canonical": canonical_check,
    "flat": flat_records,
    "formats": format_messages,
    **signing_targets.TARGETS,
}


def example_format(name: str) -> StreamFormat:
    """A good format of this name, of an odd size."""
    is_yuv = PIXEL_FORMATS[name].model is ColourModel.YUV
    return make_format(
        name, 33, 17, range=Range.FULL, matrix=Matrix.BT709 if is_yuv else Matrix.IDENTITY, primaries=Primaries.BT709,
        transfer=Transfer.BT709, chroma_site=ChromaSite.LEFT if is_yuv else ChromaSite.NOT_SUBSAMPLED,
        clock=ClockId.TAI, mark=TimeMark.EXPOSURE_END, period_ns=1, camera_name="seed",
    )  # fmt: skip


def seeds(target: str) -> list[bytes]:
    """Good inputs to begin with."""
    if target in signing_targets.TARGETS:
        return list(signing_targets.seeds(target))
    bodies = [packet[8:] for packet in EXAMPLES.values()]
    if target == "session":
        return [
            bytes((start, party, packet[4], kind)) + (len(packet) - 8).to_bytes(2, "little") + packet[8:]
            for start in range(len(STARTS))
            for party in (0, 1)
            for kind, packet in EXAMPLES.items()
        ]
    if target == "formats":
        made = [(example_format(name), spare) for name in PIXEL_FORMATS for spare in (0, -1)]
        return [(one.buffer_bytes + spare).to_bytes(4, "little") + messages.encode(messages.OpenStream("road", one))[8:]
                for one, spare in made]  # fmt: skip
    if target == "messages":
        return [bytes((index,)) + body for index in range(15) for body in bodies]
    return bodies
