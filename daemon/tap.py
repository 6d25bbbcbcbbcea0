"""The taps of recorders: what every frame was and how it ended, told to whoever listens, waiting for nobody.

A tap is sent to without blocking and without a queue: what its socket does not take now is dropped and counted, and
the next packet that gets through says how many were (`missed`). Frame memory is opened read-only once, when a camera
registers it, and handed to each tap with the stream; nothing is copied here and no slot is held. Without taps a
frame costs one look at an empty tuple.
"""

from __future__ import annotations

import time
from typing import Protocol

from abi import messages as m
from abi.flat import Release, Submit
from abi.format import StreamFormat
from abi.packet import LocalProtocolError
from abi.session import DaemonSession
from abi.tap import TapEnd, TapFrame
from daemon.loop import Loop
from daemon.tap_memory import TapMemory

MAX_TAPS = 4  # each costs the loop two sends a frame
_AGAIN_NS = 100_000_000


class TapPeer(Protocol):
    """The session that asked for a tap."""

    session: DaemonSession

    def give(self, packet: bytes, descriptors: tuple[int, ...] = ()) -> bool:
        """Sends a packet if it is taken now; False: it was dropped."""
        ...


class _Stream:
    """An open stream, as taps are told of it. `memory` is there once its buffers are registered."""

    def __init__(self, stream_id: int, name: str, format: StreamFormat) -> None:
        self.stream_id, self.name, self.format = stream_id, name, format
        self.memory: TapMemory | None = None

    def message(self, tap: Tap) -> tuple[m.TapStream, tuple[int, ...]]:
        """What this tap is told, and the descriptors that go with it."""
        memory, withheld = self.memory, ""
        if memory is not None and tap.pixels:
            withheld = memory.withheld_from(tap.uid)
        shared = memory.descriptors if memory is not None and tap.pixels and not withheld else ()
        slots = max(0, len(shared) - 1)
        return m.TapStream(self.stream_id, self.name, self.format, slots, withheld), shared


class Tap:
    """One recorder. `missed`: packets that it did not take in time, in total; `frames`: frames it was told of."""

    def __init__(self, peer: TapPeer, identity: int, label: str, uid: int, *, pixels: bool) -> None:
        self.peer, self.identity, self.label, self.uid, self.pixels = peer, identity, label, uid, pixels
        self.missed = 0
        self.frames = 0
        self._told: set[int] = set()  # streams that it knows of
        self._again_ns = 0  # when a stream that it did not take is told of again: that is no packet for every frame

    def stream(self, stream: _Stream, now_ns: int) -> bool:
        """Tells of a stream, once; False: it does not know of it yet."""
        if stream.stream_id not in self._told:
            if now_ns < self._again_ns:
                return False
            message, shared = stream.message(self)
            if not self._give(self.peer.session.send(message, len(shared)), shared):
                self._again_ns = now_ns + _AGAIN_NS
                return False
            self._told.add(stream.stream_id)
        return True

    def frame(self, stream: _Stream, submit: Submit, received_ns: int) -> None:
        """Tells of a frame whose pixels are there."""
        if not self.stream(stream, received_ns):
            self.missed += 1
            return
        told = TapFrame(
            submit.stream_id, submit.slot, submit.generation, submit.sequence, submit.sof_ns, submit.eof_ns,
            submit.control_word, submit.exposure_ns, received_ns, self.missed,
        )  # fmt: skip
        self.frames += self._give(self.peer.session.pack_tap_frame(told))

    def end(self, stream: _Stream, release: Release, now_ns: int) -> None:
        """Tells how a frame ended."""
        if not self.stream(stream, now_ns):
            self.missed += 1
            return
        told = TapEnd(*release[:6], now_ns, self.missed)
        self._give(self.peer.session.pack_tap_end(told))

    def note(self, note: m.TapNote) -> None:
        """Tells of something that is no frame."""
        try:
            packet = self.peer.session.send(note)
        except LocalProtocolError:  # an aux value that fills a packet by itself
            self.missed += 1
            return
        self._give(packet)

    def forget(self, stream_id: int) -> None:
        """The stream is closed."""
        self._told.discard(stream_id)

    def _give(self, packet: bytes, descriptors: tuple[int, ...] = ()) -> bool:
        given = self.peer.give(packet, descriptors)
        self.missed += not given
        return given


class Taps:
    """All taps of the daemon, and what a new one has to be told first."""

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self._taps: tuple[Tap, ...] = ()  # replaced, not changed: a tap may end while all are told
        self._streams: dict[int, _Stream] = {}
        self._models: dict[str, m.TapNote] = {}
        self._aux: dict[str, m.TapNote] = {}
        self._next_id = 1

    @property
    def listening(self) -> bool:
        """Whether there is a tap."""
        return bool(self._taps)

    @property
    def full(self) -> bool:
        """Whether no more taps are taken."""
        return len(self._taps) >= MAX_TAPS

    def next_id(self) -> int:
        """A number for a tap, never given twice."""
        self._next_id += 1
        return self._next_id - 1

    def add(self, tap: Tap) -> None:
        """Begins to tell, with what is so already."""
        self._taps += (tap,)
        for note in (*self._models.values(), *self._aux.values()):
            tap.note(note)
        now_ns = time.monotonic_ns()
        for stream in self._streams.values():
            if stream.memory is not None:
                tap.stream(stream, now_ns)

    def remove(self, tap: Tap) -> None:
        """The recorder is gone."""
        self._taps = tuple(one for one in self._taps if one is not tap)

    def status(self) -> list[dict[str, object]]:
        """For `fenced status`."""
        return [
            {"tap": tap.identity, "peer": tap.label, "pixels": tap.pixels, "frames": tap.frames, "missed": tap.missed}
            for tap in self._taps
        ]

    # cameras

    def opened(self, stream_id: int, name: str, format: StreamFormat) -> None:
        """A camera has opened a stream. Taps are told when its buffers are there."""
        self._streams[stream_id] = _Stream(stream_id, name, format)

    def registered(self, stream_id: int, lease_page: int, buffers: tuple[int, ...]) -> None:
        """Its buffers are here. The descriptors stay the caller's."""
        stream = self._streams[stream_id]
        stream.memory = TapMemory(lease_page, buffers)
        now_ns = time.monotonic_ns()
        for tap in self._taps:
            tap.stream(stream, now_ns)

    def closed(self, stream_id: int) -> None:
        """The stream is closed; what a tap has mapped of it stays its own."""
        stream = self._streams.pop(stream_id)
        if stream.memory is not None:
            stream.memory.close()
        self._note(m.TapNote(m.TapTopic.STREAM_CLOSED, stream.name, 0, time.monotonic_ns(), b""))
        for tap in self._taps:
            tap.forget(stream_id)

    def frame(self, submit: Submit, received_ns: int) -> None:
        """A frame's pixels are there."""
        if self._taps and (stream := self._streams.get(submit.stream_id)) is not None:
            for tap in self._taps:
                tap.frame(stream, submit, received_ns)

    def end(self, release: Release) -> None:
        """A frame has ended."""
        if self._taps and (stream := self._streams.get(release.stream_id)) is not None:
            now_ns = time.monotonic_ns()
            for tap in self._taps:
                tap.end(stream, release, now_ns)

    # everything else

    def model(self, name: str, digest: bytes) -> None:
        """A model of this name serves from now."""
        note = self._models[name] = m.TapNote(m.TapTopic.MODEL, name, 0, time.monotonic_ns(), digest)
        self._note(note)

    def aux(self, message: m.SetAux, now_ns: int) -> None:
        """An aux input was set."""
        note = m.TapNote(m.TapTopic.AUX, message.name, message.time_ns, now_ns, message.value)
        self._aux[message.name] = note
        self._note(note)

    def audit(self, line: bytes) -> None:
        """An entry of the audit log was written. From any thread."""
        if self._taps:
            note = m.TapNote(m.TapTopic.AUDIT, "", 0, time.monotonic_ns(), line.rstrip(b"\n"))
            self._loop.call_soon(lambda: self._note(note))

    def _note(self, note: m.TapNote) -> None:
        for tap in self._taps:
            tap.note(note)
