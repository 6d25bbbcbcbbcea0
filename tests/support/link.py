"""Two protocol machines joined in memory: what one sends, the other receives, in order, when the test says so."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

import pytest

from abi import flat
from abi import messages as m
from abi.colour import ChromaSite, ClockId, Matrix, Primaries, Range, TimeMark, Transfer
from abi.flat import Release, ReleaseStatus, Submit
from abi.format import StreamFormat, make_format
from abi.graph_values import DType, NanPolicy, OutputView
from abi.messages import (
    BuffersRegistered,
    Hello,
    Message,
    OpenStream,
    RegisterBuffers,
    Role,
    StreamOpened,
    Subscribe,
    Subscribed,
    Tap,
    Tapped,
    Welcome,
)  # fmt: skip
from abi.packet import Kind, LocalProtocolError, RefusalCode, RemoteProtocolError, encode_header
from abi.session import ClientSession, DaemonSession, Event
from abi.stream import TimeLimits
from abi.stream_format import Rect
from abi.transitions import State

WELCOME = Welcome("1.2.3", 77, 65536, 17)
OUTPUT = OutputView("offset_m", DType.FLOAT32, (1, 2), "m", 64, 8, NanPolicy.FLAG)
SUBSCRIBED = Subscribed(5, 4, 4096, bytes(range(32)), (OUTPUT,))


def stream_format(**changes: Any) -> StreamFormat:
    """A good NV12 format of 64 x 48."""
    fields: dict[str, Any] = {
        "range": Range.LIMITED, "matrix": Matrix.BT709, "primaries": Primaries.BT709, "transfer": Transfer.BT709,
        "chroma_site": ChromaSite.LEFT, "clock": ClockId.MONOTONIC, "mark": TimeMark.READOUT_START,
        "period_ns": 50_000_000, "camera_name": "front", "crop": Rect(0, 0, 64, 48),
    }  # fmt: skip
    return make_format("NV12", 64, 48, **{**fields, **changes})


class Link:
    """A client and a daemon of one role. `up` and `down` hold packets that were sent and not yet delivered."""

    def __init__(self, role: Role, limits: TimeLimits | None = None) -> None:
        self.client = ClientSession(role)
        self.daemon = DaemonSession(role, limits)
        self.up: deque[tuple[bytes, int]] = deque()
        self.down: deque[tuple[bytes, int]] = deque()

    def ask(self, message: Message, descriptors: int = 0) -> list[Event]:
        """The client sends, the daemon receives."""
        return self.daemon.receive(self.client.send(message, descriptors), descriptors)

    def answer(self, message: Message, descriptors: int = 0) -> list[Event]:
        """The daemon sends, the client receives."""
        return self.client.receive(self.daemon.send(message, descriptors), descriptors)

    def greet(self) -> Link:
        """Through Hello and Welcome."""
        self.ask(Hello(self.client.role, "test"))
        self.answer(WELCOME)
        return self

    def open_stream(self, stream_id: int = 1, slots: int = 3, name: str = "road") -> Link:
        """Through OpenStream and RegisterBuffers, with slots of which none was used."""
        self.ask(OpenStream(name, stream_format()))
        self.answer(StreamOpened(stream_id, 4))
        self.ask(RegisterBuffers(stream_id, slots), slots + 1)
        self.answer(BuffersRegistered(stream_id, slots, True))
        return self

    def subscribe(self) -> Link:
        """Through Subscribe, with SUBSCRIBED."""
        self.ask(Subscribe("lane"))
        self.answer(SUBSCRIBED, 1)
        return self

    def submit(self, slot: int = 0, sequence: int = 1, sof_ns: int = 100, **changes: Any) -> Submit:
        """A frame goes over and is accepted."""
        now_ns = changes.pop("now_ns", None)
        fields = {"eof_ns": sof_ns, "control_word": 2, **changes}
        packet = self.client.submit(1, slot, sequence=sequence, sof_ns=sof_ns, **fields)
        event = self.daemon.receive_submit(packet, int(bool(fields.get("in_fence"))), now_ns)
        assert isinstance(event, Submit), event
        return event


def camera(**changes: Any) -> Link:
    """A camera with one open stream of three slots."""
    return Link(Role.CAMERA, **changes).greet().open_stream()


def consumer() -> Link:
    """A consumer with one subscription."""
    return Link(Role.CONSUMER).greet().subscribe()


def tapped() -> Link:
    """A consumer with a tap."""
    link = Link(Role.CONSUMER).greet()
    link.ask(Tap(True))
    link.answer(Tapped(1))
    return link


def remote(call: Callable[[], object]) -> tuple[str, str, str]:
    """What a call blames the peer for: what, expected, found."""
    with pytest.raises(RemoteProtocolError) as caught:
        call()
    assert caught.value.in_reply_to in set(Kind) or caught.value.what == "packet length"
    assert caught.value.in_reply_to != Kind.INVALID or caught.value.what == "packet length"
    return caught.value.what, caught.value.expected, caught.value.found


def local(call: Callable[[], object]) -> tuple[str, str, str]:
    """What a call blames us for: what, expected, found."""
    with pytest.raises(LocalProtocolError) as caught:
        call()
    return caught.value.what, caught.value.expected, caught.value.found


def only(events: list[Any]) -> Any:
    """The one event that there is."""
    assert len(events) == 1
    return events[0]


def wire(message: m.Message, descriptors: int = 0) -> bytes:
    """The packet of a message, whatever the session thinks of it."""
    return m.encode(message, descriptors)


def raw_submit(descriptors: int = 0, **changes: int) -> bytes:
    """A Submit as any client could send it."""
    fields = {
        "stream_id": 1, "slot": 0, "generation": 1, "sequence": 1, "sof_ns": 100, "eof_ns": 100, "control_word": 2,
        "exposure_ns": 0, "flags": descriptors, **changes,
    }  # fmt: skip
    return encode_header(Kind.SUBMIT, descriptors) + flat.SUBMIT.pack(Submit(**fields))


def refuse(daemon: DaemonSession, now_ns: int | None = None, **changes: int) -> RefusalCode:
    """Submit and expect a refusal, which names the very frame; the session goes on."""
    packet = raw_submit(**changes)
    release = daemon.receive_submit(packet, 0, now_ns)
    assert isinstance(release, Release), release
    submit = flat.SUBMIT.unpack(packet, 8)
    assert release[:4] == submit[:4]
    assert (release.status, release.held_ns) == (ReleaseStatus.REFUSED, 0)
    assert daemon.pack_release(release)[:8] == encode_header(Kind.RELEASE)
    assert daemon.state is State.OPEN
    return RefusalCode(release.code)
