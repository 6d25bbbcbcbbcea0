"""The packets of a recorder's tap as plain values; `session.capnp` says what each field means.

`Tap`, `Tapped`, `TapStream` and `TapNote` are cold and go through `abi.messages`; `TapFrame` and `TapEnd` are flat, one
of each a frame, and have their codecs here.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Final, NamedTuple

from abi import schema
from abi.stream_format import StreamFormat

__all__ = ["TAP_END", "TAP_FRAME", "Tap", "TapEnd", "TapFrame", "TapNote", "TapStream", "TapTopic", "Tapped"]


class TapTopic(IntEnum):
    """What a TapNote is about; equals `session.capnp` TapTopic."""

    UNSPECIFIED = 0
    MODEL = 1
    AUX = 2
    AUDIT = 3
    STREAM_CLOSED = 4


@dataclass(frozen=True, slots=True)
class Tap:
    pixels: bool


@dataclass(frozen=True, slots=True)
class Tapped:
    tap_id: int


@dataclass(frozen=True, slots=True)
class TapStream:
    stream_id: int
    stream: str
    format: StreamFormat
    slots: int
    withheld: str = ""


@dataclass(frozen=True, slots=True)
class TapNote:
    topic: TapTopic
    name: str
    time_ns: int
    seen_ns: int
    value: bytes


class TapFrame(NamedTuple):
    """Daemon to recorder: a frame whose pixels may be copied (`session.capnp` TapFrame)."""

    stream_id: int
    slot: int
    generation: int
    sequence: int
    sof_ns: int
    eof_ns: int
    control_word: int
    exposure_ns: int
    received_ns: int
    missed: int


class TapEnd(NamedTuple):
    """Daemon to recorder: how a frame ended (`session.capnp` TapEnd)."""

    stream_id: int
    slot: int
    generation: int
    sequence: int
    status: int
    code: int
    ended_ns: int
    missed: int


TAP_FRAME: Final = schema.FlatCodec(schema.session.TapFrame.schema, TapFrame)
TAP_END: Final = schema.FlatCodec(schema.session.TapEnd.schema, TapEnd)
