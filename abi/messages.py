"""The cold packets as plain values: everything of a session but the flat ones of `abi.flat` and `abi.tap`.

One frozen dataclass for each struct of `session.capnp`, where the meaning of each field stands. `encode` makes a whole
packet; `decode` reads a body and bounds every text and list in it. An ordinal that this version does not know is
UNSPECIFIED where the enum has that, so that it can be refused by name, and a protocol error elsewhere.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Final, TypeVar

import capnp

from abi import canonical, schema
from abi.graph_values import DType, NanPolicy, OutputView
from abi.packet import (
    HEADER_BYTES,
    MAX_PACKET_BYTES,
    Kind,
    LocalProtocolError,
    RefusalCode,
    RemoteProtocolError,
    encode_header,
)  # fmt: skip
from abi.stream_format import StreamFormat
from abi.tap import Tap, TapNote, Tapped, TapStream, TapTopic

__all__ = [
    "AuxSet", "BuffersRegistered", "Bye", "CloseStream", "Command", "CommandKind", "DeliveryPolicy", "Hello", "Message",
    "OpenStream", "Refusal", "RegisterBuffers", "Reply", "Role", "SetAux", "StreamOpened", "Subscribe", "Subscribed",
    "Tap", "TapNote", "TapStream", "TapTopic", "Tapped", "Welcome", "decode", "encode", "is_name", "kind_of_message",
]  # fmt: skip

MAX_NAME_BYTES: Final = 64
MAX_TEXT_BYTES: Final = 4096  # sentences and paths; Reply.body is bounded by the packet
MAX_CLIPPED_BYTES: Final = 1024
MAX_OUTPUTS: Final = 64
MAX_DIMENSIONS: Final = 8
_NAME = re.compile(rf"[a-z0-9_.-]{{1,{MAX_NAME_BYTES}}}")

E = TypeVar("E", bound=IntEnum)


class Role(IntEnum):
    """Which of the three sockets a session belongs to; equals `session.capnp` Role."""

    UNSPECIFIED = 0
    CAMERA = 1
    CONSUMER = 2
    CONTROL = 3

    __hash__ = int.__hash__  # as a number's, without a call into Python


class DeliveryPolicy(IntEnum):
    """Which results wait for a slow consumer; equals `session.capnp` DeliveryPolicy."""

    LATEST = 0
    EVERY = 1


class CommandKind(IntEnum):
    """What a control client asks for; equals `session.capnp` CommandKind."""

    UNSPECIFIED = 0
    STATUS = 1
    ACTIVATE = 2
    ROLLBACK = 3
    DRAIN = 4
    RESUME = 5
    RESET_STATE = 6
    METRICS = 7
    SNAPSHOT_STATE = 8
    RESTORE_STATE = 9
    SHADOW = 10


@dataclass(frozen=True, slots=True)
class Hello:
    role: Role
    name: str


@dataclass(frozen=True, slots=True)
class Welcome:
    daemon_version: str
    epoch: int
    max_packet_bytes: int
    max_descriptors: int


@dataclass(frozen=True, slots=True)
class Refusal:
    code: RefusalCode
    in_reply_to: int
    what: str
    expected: str
    found: str
    action: str


@dataclass(frozen=True, slots=True)
class Bye:
    reason: str = ""


@dataclass(frozen=True, slots=True)
class OpenStream:
    stream: str
    format: StreamFormat


@dataclass(frozen=True, slots=True)
class StreamOpened:
    stream_id: int
    max_slots: int


@dataclass(frozen=True, slots=True)
class RegisterBuffers:
    stream_id: int
    slots: int


@dataclass(frozen=True, slots=True)
class BuffersRegistered:
    stream_id: int
    slots: int
    zero_copy: bool


@dataclass(frozen=True, slots=True)
class CloseStream:
    stream_id: int


@dataclass(frozen=True, slots=True)
class SetAux:
    name: str
    time_ns: int
    value: bytes


@dataclass(frozen=True, slots=True)
class AuxSet:
    name: str


@dataclass(frozen=True, slots=True)
class Subscribe:
    model: str
    policy: DeliveryPolicy = DeliveryPolicy.LATEST
    queue: int = 1


@dataclass(frozen=True, slots=True)
class Subscribed:
    subscription_id: int
    slots: int
    slot_bytes: int
    model_digest: bytes
    outputs: tuple[OutputView, ...]


@dataclass(frozen=True, slots=True)
class Command:
    command: CommandKind
    argument: str = ""
    frames: int = 0


@dataclass(frozen=True, slots=True)
class Reply:
    command: CommandKind
    body: str


Message = (
    Hello | Welcome | Refusal | Bye | OpenStream | StreamOpened | RegisterBuffers | BuffersRegistered | CloseStream
    | SetAux | AuxSet | Subscribe | Subscribed | Command | Reply | Tap | Tapped | TapStream | TapNote
)  # fmt: skip


def is_name(text: str) -> bool:
    """Whether `text` may name a stream, a model or an aux input: 1..64 of [a-z0-9_.-]."""
    return _NAME.fullmatch(text) is not None


class _Malformed(ValueError):
    """A field of a message breaks its rule. Turned into a Local- or RemoteProtocolError."""


def _text(value: str, field: str, least: int = 0, most: int = MAX_TEXT_BYTES) -> str:
    size = len(value.encode())
    if not least <= size <= most:
        raise _Malformed(f"{field} of {least}..{most} bytes", f"{size} bytes")
    return value


def _name(value: str, field: str) -> str:
    if not is_name(value):
        raise _Malformed(f"{field} of 1..{MAX_NAME_BYTES} characters [a-z0-9_.-]", ascii(value[:MAX_NAME_BYTES]))
    return value


def _enum(kind: type[E], raw: int, field: str) -> E:
    known = {int(member): member for member in kind}
    member = known.get(raw) or (known[0] if known[0].name == "UNSPECIFIED" else known.get(raw))
    if member is None:
        raise _Malformed(f"{field} of 0..{max(known)}", str(raw))
    return member


def _read_hello(m: Any) -> Hello:
    name = _text(m.name, "name", 1, MAX_NAME_BYTES)
    if not name.isprintable():
        raise _Malformed("name of printable characters", ascii(name))
    return Hello(_enum(Role, m.role.raw, "role"), name)


def _read_refusal(m: Any) -> Refusal:
    code = _enum(RefusalCode, m.code.raw, "code")
    if code is RefusalCode.OK:
        raise _Malformed("code other than ok", "ok")
    texts = [_text(value, "text") for value in (m.what, m.expected, m.found, m.action)]
    return Refusal(code, m.inReplyTo, *texts)


def _read_subscribed(m: Any) -> Subscribed:
    digest = bytes(m.modelDigest)
    if len(digest) != 32:
        raise _Malformed("modelDigest of 32 bytes", f"{len(digest)} bytes")
    if len(m.outputs) > MAX_OUTPUTS:
        raise _Malformed(f"at most {MAX_OUTPUTS} outputs", f"{len(m.outputs)} outputs")
    outputs = tuple(_read_output(output) for output in m.outputs)
    return Subscribed(m.subscriptionId, m.slots, m.slotBytes, digest, outputs)


def _read_output(m: Any) -> OutputView:
    if len(m.shape) > MAX_DIMENSIONS:
        raise _Malformed(f"at most {MAX_DIMENSIONS} dimensions", f"{len(m.shape)} dimensions")
    dtype, nan = _enum(DType, m.dtype.raw, "dtype"), _enum(NanPolicy, m.nan.raw, "nan")
    name, unit = _text(m.name, "name", 1, MAX_NAME_BYTES), _text(m.unit, "unit", 0, MAX_NAME_BYTES)
    return OutputView(name, dtype, tuple(m.shape), unit, m.offset, m.sizeBytes, nan)


def _read_tap_stream(m: Any) -> TapStream:
    stream, format = _name(m.stream, "stream"), StreamFormat.from_message(m.format)
    return TapStream(m.streamId, stream, format, m.slots, _text(m.withheld, "withheld"))


def _read_tap_note(m: Any) -> TapNote:
    topic, name = _enum(TapTopic, m.topic.raw, "topic"), _text(m.name, "name", 0, MAX_NAME_BYTES)
    return TapNote(topic, name, m.timeNs, m.seenNs, bytes(m.value))


def _write_subscribed(m: Any, message: Subscribed) -> None:
    m.subscriptionId, m.slots, m.slotBytes = message.subscription_id, message.slots, message.slot_bytes
    m.modelDigest = message.model_digest
    outputs = m.init("outputs", len(message.outputs))
    for builder, output in zip(outputs, message.outputs, strict=True):
        builder.name, builder.dtype, builder.unit = output.name, int(output.dtype), output.unit
        builder.shape = list(output.shape)
        builder.offset, builder.sizeBytes, builder.nan = output.offset, output.size_bytes, int(output.nan)


def _write_refusal(m: Any, message: Refusal) -> None:
    m.code, m.inReplyTo = int(message.code), int(message.in_reply_to)  # pycapnp takes no IntEnum for a number
    m.what, m.expected = _clip(message.what), _clip(message.expected)
    m.found, m.action = _clip(message.found), _clip(message.action)


def _clip(text: str) -> str:
    """A sentence may quote a peer: cut it to what a refusal can always carry."""
    return text.encode("utf-8", "replace")[:MAX_CLIPPED_BYTES].decode("utf-8", "ignore")


def _write_fields(m: Any, message: Message) -> None:
    """Write a message whose fields are all scalars, enums, text, data or a StreamFormat."""
    for field in m.schema.fields_list:
        name = field.proto.name
        value = getattr(message, schema.snake_case(name))
        if isinstance(value, StreamFormat):
            value.to_message(m.init(name))
            continue
        setattr(m, name, int(value) if isinstance(value, IntEnum) else value)


_S = schema.session
_STRUCTS: Final[dict[Kind, tuple[type[Message], Any, Callable[[Any], Message]]]] = {
    Kind.HELLO: (Hello, _S.Hello, _read_hello),
    Kind.WELCOME: (
        Welcome,
        _S.Welcome,
        lambda m: Welcome(_text(m.daemonVersion, "daemonVersion"), m.epoch, m.maxPacketBytes, m.maxDescriptors),
    ),
    Kind.REFUSAL: (Refusal, _S.Refusal, _read_refusal),
    Kind.BYE: (Bye, _S.Bye, lambda m: Bye(_text(m.reason, "reason"))),
    Kind.OPEN_STREAM: (
        OpenStream,
        _S.OpenStream,
        lambda m: OpenStream(_name(m.stream, "stream"), StreamFormat.from_message(m.format)),
    ),
    Kind.STREAM_OPENED: (StreamOpened, _S.StreamOpened, lambda m: StreamOpened(m.streamId, m.maxSlots)),
    Kind.REGISTER_BUFFERS: (RegisterBuffers, _S.RegisterBuffers, lambda m: RegisterBuffers(m.streamId, m.slots)),
    Kind.BUFFERS_REGISTERED: (
        BuffersRegistered,
        _S.BuffersRegistered,
        lambda m: BuffersRegistered(m.streamId, m.slots, m.zeroCopy),
    ),
    Kind.CLOSE_STREAM: (CloseStream, _S.CloseStream, lambda m: CloseStream(m.streamId)),
    Kind.SET_AUX: (SetAux, _S.SetAux, lambda m: SetAux(_name(m.name, "name"), m.timeNs, bytes(m.value))),
    Kind.AUX_SET: (AuxSet, _S.AuxSet, lambda m: AuxSet(_name(m.name, "name"))),
    Kind.SUBSCRIBE: (
        Subscribe,
        _S.Subscribe,
        lambda m: Subscribe(_name(m.model, "model"), _enum(DeliveryPolicy, m.policy.raw, "policy"), m.queue),
    ),
    Kind.SUBSCRIBED: (Subscribed, _S.Subscribed, _read_subscribed),
    Kind.COMMAND: (
        Command,
        _S.Command,
        lambda m: Command(_enum(CommandKind, m.command.raw, "command"), _text(m.argument, "argument"), m.frames),
    ),
    Kind.REPLY: (Reply, _S.Reply, lambda m: Reply(_enum(CommandKind, m.command.raw, "command"), str(m.body))),
    Kind.TAP: (Tap, _S.Tap, lambda m: Tap(m.pixels)),
    Kind.TAPPED: (Tapped, _S.Tapped, lambda m: Tapped(m.tapId)),
    Kind.TAP_STREAM: (TapStream, _S.TapStream, _read_tap_stream),
    Kind.TAP_NOTE: (TapNote, _S.TapNote, _read_tap_note),
}
_KINDS: Final = {entry[0]: kind for kind, entry in _STRUCTS.items()}


def kind_of_message(message: Message) -> Kind:
    """The packet kind that carries this message."""
    return _KINDS[type(message)]


def encode(message: Message, descriptors: int = 0) -> bytes:
    """The whole packet. Raises LocalProtocolError for a value that the schema or the packet's limit cannot hold."""
    kind = _KINDS[type(message)]
    builder = _STRUCTS[kind][1].new_message(num_first_segment_words=MAX_PACKET_BYTES // 8)  # so that one will do
    try:
        if isinstance(message, Refusal):
            _write_refusal(builder, message)
        elif isinstance(message, Subscribed):
            _write_subscribed(builder, message)
        else:
            _write_fields(builder, message)
        packet = encode_header(kind, descriptors) + bytes(builder.to_bytes())
        if len(packet) > MAX_PACKET_BYTES:
            raise LocalProtocolError(kind.name, f"at most {MAX_PACKET_BYTES} bytes", f"{len(packet)} bytes")
        decode(kind, memoryview(packet)[HEADER_BYTES:])
    except (capnp.KjException, OverflowError, TypeError, ValueError) as error:
        raise LocalProtocolError(kind.name, "values that the schema can hold", _first_line(error)) from None
    except RemoteProtocolError as error:
        raise LocalProtocolError(error.what, error.expected, error.found) from None
    return packet


def decode(kind: Kind, body: bytes | bytearray | memoryview) -> Message:
    """The message in a packet's body. Raises RemoteProtocolError for any bytes that are not one such message, and
    FormatError for an OpenStream whose format has values that no enum knows, for these may be refused by name.
    """
    _, struct_schema, read = _STRUCTS[kind]
    try:
        canonical.check(body)
        words = len(body) // 2 + 64  # every word up to four times: a list counts anew for each look at its length
        with struct_schema.from_bytes(bytes(body), traversal_limit_in_words=words, nesting_limit=8) as reader:
            return read(reader)
    except _Malformed as error:
        raise RemoteProtocolError(kind.name, error.args[0], error.args[1], kind) from None
    except canonical.CanonicalError as error:
        raise RemoteProtocolError(kind.name, "one canonical message", str(error), kind) from None
    except (capnp.KjException, UnicodeDecodeError) as error:
        raise RemoteProtocolError(kind.name, "a message of its struct", _first_line(error), kind) from None


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:200]
