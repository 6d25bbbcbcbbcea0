"""The protocol machine of a session, without I/O: `DaemonSession` and `ClientSession`, for all three roles.

Bytes in: `receive` returns events or raises RemoteProtocolError. Bytes out: `send` and the methods of the flat packets
return a packet or raise LocalProtocolError. What raises changes nothing. Which packet may come when stands in one
table (`abi.transitions`) that both parties obey, and what it may say in `abi.rules`. On the daemon's side a
Refusal, and a Release, among the events is the machine's own answer, for the daemon to send back.

    session = ClientSession(Role.CAMERA)
    socket.send(session.send(Hello(Role.CAMERA, "front")))
    events = session.receive(socket.recv(MAX_PACKET_BYTES))
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Final, Generic, NoReturn, TypeVar

from abi import messages as m
from abi import rules, transitions
from abi.flat import RELEASE, RESULT, SUBMIT, Release, ReleaseStatus, Result, Submit
from abi.format import FormatError
from abi.lease import LeaseEvent
from abi.messages import Message, Role
from abi.packet import (
    HEADER_BYTES,
    Kind,
    LocalProtocolError,
    RefusalCode,
    RemoteProtocolError,
    decode_header,
    encode_header,
)
from abi.schema import FlatCodec, FlatError
from abi.stream import CameraStream, DaemonStream, TimeLimits
from abi.tap import TAP_END, TAP_FRAME, TapEnd, TapFrame
from abi.transitions import ALLOWED, Party, State

__all__ = ["ClientSession", "DaemonSession", "Event"]

Event = Message | Submit | Release | Result | TapFrame | TapEnd
Buffer = bytes | bytearray | memoryview
S = TypeVar("S", DaemonStream, CameraStream)
T = TypeVar("T", bound=tuple[int, ...])

MAX_FRAMES: Final = 8  # input frames that a receipt names
FENCE_SIGNALED: Final = 1  # result.capnp FenceStatus
_SUBMIT_HEADERS: Final = (encode_header(Kind.SUBMIT, 0), encode_header(Kind.SUBMIT, 1))
_RELEASE_HEADER: Final = encode_header(Kind.RELEASE)
_RESULT_HEADER: Final = encode_header(Kind.RESULT)
_TAP_FRAME_HEADER: Final = encode_header(Kind.TAP_FRAME)
_TAP_END_HEADER: Final = encode_header(Kind.TAP_END)
_FLAT: Final = (Kind.SUBMIT, Kind.RELEASE, Kind.RESULT, Kind.TAP_FRAME, Kind.TAP_END)
_RESULT, _RELEASE, _SUBMIT = Kind.RESULT, Kind.RELEASE, Kind.SUBMIT  # an enum's member costs a call
_CLIENT, _DAEMON, _OK = Party.CLIENT, Party.DAEMON, RefusalCode.OK
_TAP_CODECS: Final[dict[Kind, FlatCodec[TapFrame] | FlatCodec[TapEnd]]] = {
    Kind.TAP_FRAME: TAP_FRAME,
    Kind.TAP_END: TAP_END,
}
_KINDS: Final = {int(kind): kind for kind in Kind}


class _Session(ABC, Generic[S]):
    """What both parties do alike: the state, and cold packets in and out.

    `streams` and `subscriptions` by their ids. `tapped`: the consumer has a tap. `closed_by` names the party that ended
    the session.
    """

    party: Party
    peer: Party

    def __init__(self, role: Role) -> None:
        self.role = role
        self.state = State.START
        self.closed_by: Party | None = None
        self.streams: dict[int, S] = {}
        self.subscriptions: dict[int, m.Subscribed] = {}
        self.tapped = False
        self._waiting: Message | None = None  # the request that was taken and has no answer yet

    @property
    def closed(self) -> bool:
        """Whether a party ended the session."""
        return self.state is State.CLOSED

    def send(self, message: Message, descriptors: int = 0) -> bytes:
        """The packet of a cold message that travels with this many descriptors. Raises LocalProtocolError."""
        kind = m.kind_of_message(message)
        after = self._after(self.party, kind, message)
        if after is None:
            self._not_now(kind)
        problem = rules.problem(message, descriptors, self._facts())
        if problem is not None:
            raise LocalProtocolError(f"{kind.name} {problem.what}", problem.expected, problem.found)
        packet = m.encode(message, descriptors)
        self._apply(message, after, self.party)
        return packet

    def receive(self, packet: Buffer, descriptor_count: int = 0, now_ns: int | None = None) -> list[Event]:
        """What a packet means that came with this many descriptors. Raises RemoteProtocolError.

        `now_ns`: CLOCK_MONOTONIC, to judge the age of a Submit by. Packets that were under way when we ended the
        session are dropped.
        """
        if self.closed_by is self.party:
            return []
        kind = decode_header(packet, descriptor_count)
        if kind in _FLAT:
            return [self._receive_flat(kind, packet, descriptor_count, now_ns)]
        if kind is not Kind.REFUSAL and self._after(self.peer, kind) is None:
            self._unexpected(kind)
        try:
            message = m.decode(kind, packet[HEADER_BYTES:])
        except FormatError as error:
            return [self._refuse(kind, rules.bad_format(error))]
        after = self._after(self.peer, kind, message)
        if after is None:
            self._unexpected(kind)
        problem = rules.problem(message, descriptor_count, self._facts())
        if problem is not None:
            return [self._refuse(kind, problem)]
        self._apply(message, after, self.peer)
        return [message]

    @abstractmethod
    def _receive_flat(self, kind: Kind, packet: Buffer, descriptor_count: int, now_ns: int | None) -> Event: ...

    @abstractmethod
    def _make_stream(self, opened: m.StreamOpened, request: m.OpenStream) -> S: ...

    def _facts(self) -> rules.Facts:
        return rules.Facts(self.role, self.streams, self.subscriptions, self._waiting, self.tapped)

    def _after(self, sender: Party, kind: Kind, message: Message | None = None) -> State | None:
        """The state after this packet, or None when the table has no such transition."""
        answers = None
        if isinstance(message, m.Refusal) and not message.code.closes:
            answers = _KINDS.get(message.in_reply_to, Kind.INVALID)
        return transitions.after(self.state, sender, kind, answers, self.role)

    def _may(self, sender: Party, kind: Kind) -> bool:
        """Whether this packet, which is no Refusal, may come now."""
        return (self.state, sender, kind, self.role) in ALLOWED

    def _not_now(self, kind: Kind) -> NoReturn:
        expected = transitions.expected(self.state, self.party, self.role)
        raise LocalProtocolError(f"sending in state {self.state.name}", expected, kind.name)

    def _unexpected(self, kind: Kind) -> NoReturn:
        expected = transitions.expected(self.state, self.peer, self.role)
        raise RemoteProtocolError(f"packet in state {self.state.name}", expected, kind.name, kind)

    def _refuse(self, kind: Kind, problem: m.Refusal) -> m.Refusal:
        """A packet came at the right time with wrong contents: the daemon answers it, unless nobody honest sends it."""
        after = self._after(self.peer, kind)
        if after is None or self.party is Party.CLIENT or problem.code is RefusalCode.PROTOCOL:
            raise RemoteProtocolError(f"{kind.name} {problem.what}", problem.expected, problem.found, kind)
        self.state = after
        return problem

    def _apply(self, message: Message, after: State, sender: Party) -> None:
        """Change the session by a good message, sent or received alike."""
        match message:
            case m.StreamOpened() if isinstance(self._waiting, m.OpenStream):
                self.streams[message.stream_id] = self._make_stream(message, self._waiting)
            case m.BuffersRegistered():
                self.streams[message.stream_id].register(message.slots)
            case m.CloseStream():
                self.streams[message.stream_id].closing = True
                self._tidy(message.stream_id)
            case m.Subscribed():
                self.subscriptions[message.subscription_id] = message
            case m.Tapped():
                self.tapped = True
        if after is not self.state:
            self._waiting = message if sender is Party.CLIENT else None
        self.state = after
        if after is State.CLOSED:
            self.closed_by = sender

    def _tidy(self, stream_id: int) -> None:
        """Forget a closed stream once the daemon holds none of its slots."""
        stream = self.streams[stream_id]
        if stream.closing and stream.held == 0:
            del self.streams[stream_id]


class DaemonSession(_Session[DaemonStream]):
    """The daemon's end of a session. `role` is the socket's; `limits` judge the age of frames."""

    party, peer = Party.DAEMON, Party.CLIENT

    def __init__(self, role: Role, limits: TimeLimits | None = None) -> None:
        super().__init__(role)
        self._limits = limits or TimeLimits()

    def receive_submit(self, packet: Buffer, descriptor_count: int, now_ns: int | None) -> Submit | Release:
        """The hot path of `receive` for a packet of kind SUBMIT.

        A Submit: the slot is ours. A Release (status REFUSED, with its code): it is not; send it with `pack_release`.
        Raises RemoteProtocolError.
        """
        if descriptor_count > 1 or packet[:HEADER_BYTES] != _SUBMIT_HEADERS[descriptor_count]:
            kind = decode_header(packet, descriptor_count)
            raise RemoteProtocolError("header", "a SUBMIT with at most 1 descriptor", kind.name, kind)
        if (self.state, _CLIENT, _SUBMIT, self.role) not in ALLOWED:
            self._unexpected(Kind.SUBMIT)
        try:
            submit = SUBMIT.unpack(packet, HEADER_BYTES)
        except FlatError as error:
            raise RemoteProtocolError(error.what, error.expected, error.found, Kind.SUBMIT) from None
        if submit.flags != descriptor_count:
            expected = f"{descriptor_count}, as {descriptor_count} descriptors came"
            raise RemoteProtocolError("SUBMIT flags", expected, str(submit.flags), Kind.SUBMIT)
        stream = self.streams.get(submit.stream_id)
        code = RefusalCode.UNKNOWN_STREAM if stream is None or stream.closing else stream.accept(submit, now_ns)
        if code is _OK:
            return submit
        stream_id, slot, generation, sequence = submit[:4]
        return Release(stream_id, slot, generation, sequence, ReleaseStatus.REFUSED, code, 0)

    def start(self, stream_id: int, slot: int) -> None:
        """The slot goes to the device. Raises LeaseError when it was not submitted."""
        self.streams[stream_id].start(slot)

    def release(
        self,
        stream_id: int,
        slot: int,
        event: LeaseEvent,
        status: ReleaseStatus,
        code: RefusalCode = RefusalCode.OK,
        *,
        held_ns: int = 0,
    ) -> bytes | None:
        """End a slot's lease, as `DaemonStream.finish` does and raises; the packet, or None when the camera is gone."""
        release = self.streams[stream_id].finish(slot, event, status, code, held_ns)
        self._tidy(stream_id)
        return None if self.closed else self.pack_release(release)

    def pack_release(self, release: Release) -> bytes:
        """The packet of a Release. Raises LocalProtocolError."""
        if not self._may(_DAEMON, _RELEASE):
            self._not_now(Kind.RELEASE)
        return _RELEASE_HEADER + _pack(RELEASE, release)

    def pack_result(self, result: Result) -> bytes:
        """The packet of a Result. Raises LocalProtocolError for one that no consumer could believe."""
        if (self.state, _DAEMON, _RESULT, self.role) not in ALLOWED:
            self._not_now(Kind.RESULT)
        problem = _result_problem(result, self.subscriptions)
        if problem is not None:
            raise LocalProtocolError(*problem)
        return _RESULT_HEADER + _pack(RESULT, result)

    def pack_tap_frame(self, frame: TapFrame) -> bytes:
        """The packet of a TapFrame. Raises LocalProtocolError, also in a session without a tap."""
        if not (self.tapped and self._may(Party.DAEMON, Kind.TAP_FRAME)):
            self._not_now(Kind.TAP_FRAME)
        return _TAP_FRAME_HEADER + _pack(TAP_FRAME, frame)

    def pack_tap_end(self, end: TapEnd) -> bytes:
        """The packet of a TapEnd. Raises LocalProtocolError, also in a session without a tap."""
        if not (self.tapped and self._may(Party.DAEMON, Kind.TAP_END)):
            self._not_now(Kind.TAP_END)
        return _TAP_END_HEADER + _pack(TAP_END, end)

    def _receive_flat(self, kind: Kind, packet: Buffer, descriptor_count: int, now_ns: int | None) -> Event:
        if kind is not Kind.SUBMIT:
            self._unexpected(kind)
        return self.receive_submit(packet, descriptor_count, now_ns)

    def _make_stream(self, opened: m.StreamOpened, request: m.OpenStream) -> DaemonStream:
        return DaemonStream(opened.stream_id, request.stream, request.format, opened.max_slots, self._limits)


class ClientSession(_Session[CameraStream]):
    """The client's end of a session."""

    party, peer = Party.CLIENT, Party.DAEMON

    def submit(
        self,
        stream_id: int,
        slot: int,
        *,
        sequence: int,
        sof_ns: int,
        eof_ns: int,
        control_word: int,
        exposure_ns: int = 0,
        in_fence: bool = False,
    ) -> bytes:
        """The packet that gives a slot to the daemon; with `in_fence` one descriptor travels with it.

        Raises LocalProtocolError.
        """
        if not self._may(_CLIENT, _SUBMIT):
            self._not_now(Kind.SUBMIT)
        stream = self.streams.get(stream_id)
        if stream is None:
            raise LocalProtocolError("streamId", "an open stream", str(stream_id))
        submit = stream.prepare(
            slot,
            sequence=sequence,
            sof_ns=sof_ns,
            eof_ns=eof_ns,
            control_word=control_word,
            exposure_ns=exposure_ns,
            flags=int(in_fence),
        )
        packet = self.pack_submit(submit)
        stream.give(submit)
        return packet

    def pack_submit(self, submit: Submit) -> bytes:
        """The packet of a Submit that its stream has prepared, and that is to be given. Raises LocalProtocolError."""
        if (self.state, _CLIENT, _SUBMIT, self.role) not in ALLOWED:
            self._not_now(Kind.SUBMIT)
        return _SUBMIT_HEADERS[submit.flags] + _pack(SUBMIT, submit)

    def _receive_flat(self, kind: Kind, packet: Buffer, descriptor_count: int, now_ns: int | None) -> Event:
        if (self.state, _DAEMON, kind, self.role) not in ALLOWED:
            self._unexpected(kind)
        if descriptor_count:
            raise RemoteProtocolError(f"{kind.name} descriptors", "0", str(descriptor_count), kind)
        try:
            if kind is _RESULT:
                return self._receive_result(packet)
            if kind is _RELEASE:
                return self._receive_release(packet)
            if not self.tapped:
                self._unexpected(kind)
            return _TAP_CODECS[kind].unpack(packet, HEADER_BYTES)
        except FlatError as error:
            raise RemoteProtocolError(error.what, error.expected, error.found, kind) from None

    def _receive_release(self, packet: Buffer) -> Release:
        release = RELEASE.unpack(packet, HEADER_BYTES)
        stream = self.streams.get(release.stream_id)
        if stream is None:
            raise RemoteProtocolError("RELEASE streamId", "an open stream", str(release.stream_id), Kind.RELEASE)
        stream.take_back(release)
        self._tidy(release.stream_id)
        return release

    def _receive_result(self, packet: Buffer) -> Result:
        result = RESULT.unpack(packet, HEADER_BYTES)
        problem = _result_problem(result, self.subscriptions)
        if problem is not None:
            raise RemoteProtocolError(*problem, Kind.RESULT)
        return result

    def _make_stream(self, opened: m.StreamOpened, request: m.OpenStream) -> CameraStream:
        return CameraStream(opened.stream_id, request.stream, request.format, opened.max_slots)


def _pack(codec: FlatCodec[T], value: T) -> bytes:
    try:
        return codec.pack(value)
    except FlatError as error:
        raise LocalProtocolError(error.what, error.expected, error.found) from None


def _result_problem(result: Result, subscriptions: dict[int, m.Subscribed]) -> tuple[str, str, str] | None:
    """What is wrong with a Result, what was expected, what was found."""
    subscribed = subscriptions.get(result.subscription_id)
    if subscribed is None:
        return "RESULT subscriptionId", "a subscription of this session", str(result.subscription_id)
    if result.slot >= subscribed.slots:
        return "RESULT slot", f"below {subscribed.slots}", str(result.slot)
    if result.slot_sequence & 1:
        return "RESULT slotSequence", "even", str(result.slot_sequence)
    if result.receipt_fence_status != FENCE_SIGNALED:
        return "RESULT receipt.fenceStatus", f"{FENCE_SIGNALED} (signaled)", str(result.receipt_fence_status)
    if not 1 <= result.receipt_frame_count <= MAX_FRAMES:
        return "RESULT receipt.frameCount", f"1..{MAX_FRAMES}", str(result.receipt_frame_count)
    return None
