"""Two protocol machines joined in memory: what one sends, the other receives, in order, when the test says so."""

from __future__ import annotations

from collections import deque
from typing import Any

from abi.colour import ChromaSite, ClockId, Matrix, Primaries, Range, TimeMark, Transfer
from abi.flat import Submit
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
    Welcome,
)  # fmt: skip
from abi.session import ClientSession, DaemonSession, Event
from abi.stream import TimeLimits
from abi.stream_format import Rect

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
