"""What a message that came at the right time may say, given what the session knows. Pure.

`problem` is asked for every cold message, by its sender before it goes out and by its receiver when it comes in.
It answers with the Refusal that the message deserves, or None. The code PROTOCOL marks what no honest peer sends.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from abi import messages as m
from abi.format import FormatError, validate
from abi.messages import Message, Role
from abi.packet import MAX_SLOTS, Kind, RefusalCode
from abi.stream import CameraStream, DaemonStream

__all__ = ["MAX_QUEUE", "MAX_STREAMS", "MAX_SUBSCRIPTIONS", "Facts", "bad_format", "problem"]

MAX_STREAMS: Final = 16  # open at once in one session
MAX_SUBSCRIPTIONS: Final = 16  # in one session
MAX_QUEUE: Final = 64  # results that may wait for a consumer


@dataclass(frozen=True, slots=True)
class Facts:
    """What the session knows: its role, its streams and subscriptions by id, the request that has no answer yet,
    and whether it is tapped.
    """

    role: Role
    streams: Mapping[int, DaemonStream] | Mapping[int, CameraStream]
    subscriptions: Mapping[int, m.Subscribed]
    waiting: Message | None
    tapped: bool = False


def problem(message: Message, descriptors: int, facts: Facts) -> m.Refusal | None:
    """Why the message cannot be taken, or None. `descriptors`: how many travel with it."""
    wanted = _descriptors(message)
    if descriptors != wanted:
        return _refusal(message, RefusalCode.PROTOCOL, "descriptors", str(wanted), str(descriptors))
    rule = _RULES.get(type(message))
    return None if rule is None else rule(message, facts)


def bad_format(error: FormatError) -> m.Refusal:
    """The refusal of a stream whose format was refused."""
    field = f"format.{error.field}"
    return m.Refusal(RefusalCode.BAD_FORMAT, Kind.OPEN_STREAM, field, error.expected, error.found, error.action)


def _descriptors(message: Message) -> int:
    if isinstance(message, m.RegisterBuffers):
        return message.slots + 1
    if isinstance(message, m.TapStream):
        return message.slots + 1 if message.slots else 0
    if isinstance(message, m.Command):
        return int(message.command is m.CommandKind.RESTORE_STATE)
    if isinstance(message, m.Reply):
        return int(message.command is m.CommandKind.SNAPSHOT_STATE)
    return int(isinstance(message, m.Subscribed))


def _refusal(message: Message, code: RefusalCode, what: str, expected: str, found: str) -> m.Refusal:
    return m.Refusal(code, m.kind_of_message(message), what, expected, found, _ACTIONS[code])


_ACTIONS: Final = {
    RefusalCode.PROTOCOL: "send only what session.capnp describes",
    RefusalCode.ROLE: "connect to the socket of your role",
    RefusalCode.LIMIT: "stay within the limit",
    RefusalCode.UNKNOWN_STREAM: "open the stream first",
    RefusalCode.STREAM_TAKEN: "close the stream before it is opened again",
    RefusalCode.UNKNOWN_COMMAND: "use a command that session.capnp names",
}


def _hello(message: m.Hello, facts: Facts) -> m.Refusal | None:
    if message.role is not facts.role:
        return _refusal(message, RefusalCode.ROLE, "role", facts.role.name, message.role.name)
    return None


def _open_stream(message: m.OpenStream, facts: Facts) -> m.Refusal | None:
    if any(stream.name == message.stream and not stream.closing for stream in facts.streams.values()):
        return _refusal(message, RefusalCode.STREAM_TAKEN, "stream", "a stream that is not open", message.stream)
    if len(facts.streams) >= MAX_STREAMS:
        return _refusal(message, RefusalCode.LIMIT, "streams", f"at most {MAX_STREAMS}", str(MAX_STREAMS + 1))
    try:
        validate(message.format)
    except FormatError as error:
        return bad_format(error)
    return None


def _stream_opened(message: m.StreamOpened, facts: Facts) -> m.Refusal | None:
    if not isinstance(facts.waiting, m.OpenStream):
        return _unasked(message)
    if message.stream_id in facts.streams:
        return _refusal(message, RefusalCode.PROTOCOL, "streamId", "a new one", str(message.stream_id))
    if not 1 <= message.max_slots <= MAX_SLOTS:
        return _refusal(message, RefusalCode.PROTOCOL, "maxSlots", f"1..{MAX_SLOTS}", str(message.max_slots))
    return None


def _register_buffers(message: m.RegisterBuffers, facts: Facts) -> m.Refusal | None:
    stream = facts.streams.get(message.stream_id)
    if stream is None or stream.closing:
        return _unknown_stream(message, message.stream_id)
    if stream.leases:
        return _refusal(message, RefusalCode.LIMIT, "buffers", "registered once", "registered again")
    if not 1 <= message.slots <= stream.max_slots:
        return _refusal(message, RefusalCode.LIMIT, "slots", f"1..{stream.max_slots}", str(message.slots))
    return None


def _buffers_registered(message: m.BuffersRegistered, facts: Facts) -> m.Refusal | None:
    asked = facts.waiting
    if not isinstance(asked, m.RegisterBuffers):
        return _unasked(message)
    if (message.stream_id, message.slots) != (asked.stream_id, asked.slots):
        expected, found = f"{asked.stream_id}, {asked.slots}", f"{message.stream_id}, {message.slots}"
        return _refusal(message, RefusalCode.PROTOCOL, "streamId, slots", expected, found)
    return None


def _close_stream(message: m.CloseStream, facts: Facts) -> m.Refusal | None:
    stream = facts.streams.get(message.stream_id)
    return _unknown_stream(message, message.stream_id) if stream is None or stream.closing else None


def _aux_set(message: m.AuxSet, facts: Facts) -> m.Refusal | None:
    asked = facts.waiting
    if not isinstance(asked, m.SetAux) or message.name != asked.name:
        return _refusal(message, RefusalCode.PROTOCOL, "name", "that of the SetAux that waits", message.name)
    return None


def _subscribe(message: m.Subscribe, facts: Facts) -> m.Refusal | None:
    if not 1 <= message.queue <= MAX_QUEUE:
        return _refusal(message, RefusalCode.LIMIT, "queue", f"1..{MAX_QUEUE}", str(message.queue))
    if len(facts.subscriptions) >= MAX_SUBSCRIPTIONS:
        found = str(MAX_SUBSCRIPTIONS + 1)
        return _refusal(message, RefusalCode.LIMIT, "subscriptions", f"at most {MAX_SUBSCRIPTIONS}", found)
    return None


def _subscribed(message: m.Subscribed, facts: Facts) -> m.Refusal | None:
    if not isinstance(facts.waiting, m.Subscribe):
        return _unasked(message)
    if message.subscription_id in facts.subscriptions:
        return _refusal(message, RefusalCode.PROTOCOL, "subscriptionId", "a new one", str(message.subscription_id))
    if message.slots == 0:
        return _refusal(message, RefusalCode.PROTOCOL, "slots", "at least 1", "0")
    return None


def _command(message: m.Command, facts: Facts) -> m.Refusal | None:
    if message.command is m.CommandKind.UNSPECIFIED:
        known = ", ".join(kind.name for kind in m.CommandKind if kind)
        return _refusal(message, RefusalCode.UNKNOWN_COMMAND, "command", f"one of {known}", "an unknown one")
    return None


def _reply(message: m.Reply, facts: Facts) -> m.Refusal | None:
    asked = facts.waiting
    if not isinstance(asked, m.Command):
        return _unasked(message)
    if message.command is not asked.command:
        return _refusal(message, RefusalCode.PROTOCOL, "command", asked.command.name, message.command.name)
    return None


def _tap(message: m.Tap, facts: Facts) -> m.Refusal | None:
    return _refusal(message, RefusalCode.LIMIT, "tap", "one of a session", "another") if facts.tapped else None


def _tapped(message: m.Tapped, facts: Facts) -> m.Refusal | None:
    return None if isinstance(facts.waiting, m.Tap) else _unasked(message)


def _tap_stream(message: m.TapStream, facts: Facts) -> m.Refusal | None:
    if message.slots > MAX_SLOTS:
        return _refusal(message, RefusalCode.PROTOCOL, "slots", f"0..{MAX_SLOTS}", str(message.slots))
    return _untapped(message, facts)


def _tap_note(message: m.TapNote, facts: Facts) -> m.Refusal | None:
    if message.topic is m.TapTopic.UNSPECIFIED:
        known = ", ".join(topic.name for topic in m.TapTopic if topic)
        return _refusal(message, RefusalCode.PROTOCOL, "topic", f"one of {known}", "an unknown one")
    return _untapped(message, facts)


def _untapped(message: Message, facts: Facts) -> m.Refusal | None:
    if facts.tapped:
        return None
    return _refusal(message, RefusalCode.PROTOCOL, "session", "one with a tap", "one without")


def _unasked(message: Message) -> m.Refusal:
    kind = m.kind_of_message(message).name
    return _refusal(message, RefusalCode.PROTOCOL, "answer", "the refusal of a request that was not taken", kind)


def _unknown_stream(message: Message, stream_id: int) -> m.Refusal:
    return _refusal(message, RefusalCode.UNKNOWN_STREAM, "streamId", "an open stream", str(stream_id))


_RULES: Final[Mapping[type[Message], Callable[[Any, Facts], m.Refusal | None]]] = {
    m.Hello: _hello,
    m.OpenStream: _open_stream,
    m.StreamOpened: _stream_opened,
    m.RegisterBuffers: _register_buffers,
    m.BuffersRegistered: _buffers_registered,
    m.CloseStream: _close_stream,
    m.AuxSet: _aux_set,
    m.Subscribe: _subscribe,
    m.Subscribed: _subscribed,
    m.Command: _command,
    m.Reply: _reply,
    m.Tap: _tap,
    m.Tapped: _tapped,
    m.TapStream: _tap_stream,
    m.TapNote: _tap_note,
}
