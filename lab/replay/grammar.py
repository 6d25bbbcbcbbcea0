"""What every message of a log must be before anything is made of it: a topic of the log's own, a body of its topic.

A log is a file from elsewhere. Its checksums tell damage, not sense: whoever wrote it may have meant anything. Readers
hold each message against this once, so that nobody behind them meets a result without a layout or pixels of another
size than their camera's.
"""

from __future__ import annotations

from typing import TypeVar

from abi import messages
from abi.flat import RESULT, SUBMIT, ReleaseStatus
from abi.messages import OpenStream, SetAux, Subscribed
from abi.packet import Kind, ProtocolError
from abi.receipt import MAX_FRAMES
from abi.schema import FlatError
from abi.stream_format import FormatError
from abi.tap import TAP_END
from lab.replay.refusal import LogRefusal, LogRefused

T = TypeVar("T")
_CAMERA, _MODEL = ("format", "submit", "pixels", "end"), ("layout", "result", "outputs", "state")
_TOPICS = "/camera/STREAM/…, /model/NAME/…, /aux/NAME, /audit or /note/…, as lab/replay/log.py lists them"


class _Unsound(Exception):
    """`what` of a message is wrong, what was `expected` there, what was `found`."""

    def __init__(self, what: str, expected: str, found: str) -> None:
        super().__init__(what)
        self.what, self.expected, self.found = what, expected, found


def kind_of(topic: str) -> str:
    """`note`, `aux`, or the last part of a topic: a key of the table of topics in `lab.replay.log`."""
    first = topic.split("/", 2)[1]
    return first if first in ("note", "aux") else topic.rsplit("/", 1)[-1]


class Grammar:
    """Holds the messages of one log, in their order, against what such a log is made of."""

    def __init__(self) -> None:
        self._buffer_bytes: dict[str, int] = {}
        self._models: set[str] = set()

    def require(self, topic: str, data: bytes, at: int) -> None:
        """Raise LogRefused (FORMAT) where the message with the number `at` (from 1) is none of a log's."""
        try:
            self._check(topic, data)
        except (_Unsound, FlatError, ProtocolError, FormatError) as error:
            what = error.field if isinstance(error, FormatError) else error.what
            raise LogRefused(
                LogRefusal.FORMAT, f"message {at}, {topic!r}: {what}", expected=error.expected, found=error.found,
                todo="do not use this log: it was not written by this version's recorder",
            ) from error  # fmt: skip

    def _check(self, topic: str, data: bytes) -> None:
        match topic.split("/"):
            case ["", "camera", stream, kind] if stream and kind in _CAMERA:
                self._camera(stream, kind, data)
            case ["", "model", model, kind] if model and kind in _MODEL:
                self._model(model, kind, data)
            case ["", "aux", name] if name:
                _decode(Kind.SET_AUX, data, SetAux)
            case ["", "audit"] | ["", "note", _, *_]:
                pass
            case _:
                raise _Unsound("the topic", _TOPICS, repr(topic))

    def _camera(self, stream: str, kind: str, data: bytes) -> None:
        if kind == "format":
            self._buffer_bytes[stream] = _decode(Kind.OPEN_STREAM, data, OpenStream).format.buffer_bytes
        elif stream not in self._buffer_bytes:
            raise _Unsound("what it belongs to", f"/camera/{stream}/format before it", "none")
        elif kind == "submit":
            SUBMIT.unpack(data)
        elif kind == "end":
            status = TAP_END.unpack(data).status
            if status not in set(ReleaseStatus):
                raise _Unsound("status", "one of ReleaseStatus", str(status))
        elif len(data) != self._buffer_bytes[stream]:
            raise _Unsound("its length", f"{self._buffer_bytes[stream]} bytes, by the format", f"{len(data)} bytes")

    def _model(self, model: str, kind: str, data: bytes) -> None:
        if kind == "layout":
            _decode(Kind.SUBSCRIBED, data, Subscribed)
            self._models.add(model)
        elif model not in self._models:
            raise _Unsound("what it belongs to", f"/model/{model}/layout before it", "none")
        elif kind == "result":
            count = RESULT.unpack(data).receipt_frame_count
            if not 1 <= count <= MAX_FRAMES:
                raise _Unsound("receipt.frameCount", f"1..{MAX_FRAMES}", str(count))


def _decode(kind: Kind, data: bytes, wanted: type[T]) -> T:
    message = messages.decode(kind, data)
    assert isinstance(message, wanted)  # `decode` gives the struct of its kind
    return message
