"""The recorder's side: see every frame of a running daemon, without holding any.

    with Tap.open("/run/fenced/consumer.sock") as tap:
        for event in tap.events(timeout_s=1.0):
            if isinstance(event, TapFrame):
                pixels = tap.copy(event, into)  # None: it was overwritten meanwhile

A slot may be copied from its TapFrame until its camera writes it again; the slot's control word, read before and after
the copy, says whether it was. Who is too slow loses frames, and neither the daemon nor the camera notices.
"""

from __future__ import annotations

import mmap
import os
import time
from collections.abc import Iterator
from types import TracebackType
from typing import Final, Self

import numpy as np
from numpy.typing import NDArray

from abi.messages import Role
from abi.packet import Kind
from abi.session import Event
from abi.tap import Tap as TapRequest
from abi.tap import TapEnd, TapFrame, TapNote, Tapped, TapStream, TapTopic
from client.barrier import Barrier
from client.connection import Connection
from client.errors import ConnectionLost

__all__ = ["Tap", "TapEvent", "TappedStream"]

LEASE_BYTES: Final = 64  # of the lease page, for each slot (session.capnp RegisterBuffers)
TapEvent = TapStream | TapFrame | TapEnd | TapNote


class TappedStream:
    """One stream and its memory, mapped read-only. `withheld`: why there is none; empty where there is or none was
    asked for.
    """

    def __init__(self, told: TapStream, descriptors: list[int]) -> None:
        """The descriptors stay the caller's. Raises ConnectionLost where they do not hold the format."""
        self.name, self.format, self.withheld = told.stream, told.format, told.withheld
        self._barrier = Barrier()
        self._words: NDArray[np.uint64] | None = None
        self._buffers: list[NDArray[np.uint8]] = []
        if descriptors:
            lease, *buffers = descriptors
            words = _map(lease, told.slots * LEASE_BYTES, "the lease page").view(np.uint64)
            self._words = words[:: LEASE_BYTES // words.itemsize]
            self._buffers = [_map(one, told.format.buffer_bytes, f"buffer {at}") for at, one in enumerate(buffers)]

    @property
    def has_pixels(self) -> bool:
        """Whether its memory is here."""
        return bool(self._buffers)

    def copy(self, frame: TapFrame, into: NDArray[np.uint8]) -> bool:
        """Copies a frame's whole buffer into `into` (uint8 [bufferBytes]); False where it was overwritten meanwhile."""
        if self._words is None or frame.slot >= len(self._buffers):
            return False
        if self._words[frame.slot] != frame.control_word:
            return False
        self._barrier()
        np.copyto(into, self._buffers[frame.slot])
        self._barrier()
        return bool(self._words[frame.slot] == frame.control_word)


class Tap:
    """A session with a tap. Not for use from two threads at once. `missed`: packets that did not come, in total."""

    def __init__(self, connection: Connection) -> None:
        """Use `open`."""
        self._connection = connection
        self.streams: dict[int, TappedStream] = {}
        self.missed = 0

    @classmethod
    def open(
        cls, path: str | os.PathLike[str], *, pixels: bool = True, name: str = "recorder", timeout_s: float = 5.0
    ) -> Tap:
        """Connect to the consumer socket and ask for a tap. `pixels`: whether frame memory is wanted.

        Raises Refused (NOT_PERMITTED: the configuration's [tap] does not list the user), ConnectionLost, TimeoutError,
        OSError.
        """
        connection = Connection(os.fspath(path), Role.CONSUMER, name, timeout_s)
        try:
            connection.request(TapRequest(pixels), Tapped, timeout_s)
        except BaseException:
            connection.close()
            raise
        return cls(connection)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def fileno(self) -> int:
        """Readable when something waits."""
        return self._connection.fileno()

    def next_event(self, timeout_s: float | None = 0.0) -> TapEvent | None:
        """The next thing the daemon tells, or None when there is none in time. Streams are mapped by then.

        Raises ConnectionLost, Refused.
        """
        deadline = None if timeout_s == 0.0 else float("inf") if timeout_s is None else time.monotonic() + timeout_s
        while (event := self._connection.next_event(deadline)) is not None:
            if isinstance(event, TapStream | TapFrame | TapEnd | TapNote):
                self._note(event)
                return event
        return None

    def events(self, timeout_s: float = 0.0) -> Iterator[TapEvent]:
        """What the daemon tells, until nothing comes for `timeout_s`."""
        while (event := self.next_event(timeout_s)) is not None:
            yield event

    def copy(self, frame: TapFrame, into: NDArray[np.uint8]) -> bool:
        """As `TappedStream.copy`; False also for a stream that is not known, or has no pixels here."""
        stream = self.streams.get(frame.stream_id)
        return stream is not None and stream.copy(frame, into)

    def close(self) -> None:
        """End the tap. Mapped memory goes with the streams."""
        self._connection.close()
        self.streams.clear()

    def _note(self, event: Event) -> None:
        if isinstance(event, TapFrame | TapEnd):
            self.missed = max(self.missed, event.missed)
        elif isinstance(event, TapStream):
            self._forget(event.stream)  # the note of its end may have been missed
            descriptors = self._connection.take_descriptors(event.slots + 1 if event.slots else 0)
            try:
                self.streams[event.stream_id] = TappedStream(event, descriptors)
            finally:
                for descriptor in descriptors:
                    os.close(descriptor)
        elif isinstance(event, TapNote) and event.topic is TapTopic.STREAM_CLOSED:
            self._forget(event.name)

    def _forget(self, name: str) -> None:
        for number in [number for number, stream in self.streams.items() if stream.name == name]:
            del self.streams[number]


def _map(descriptor: int, size_bytes: int, what: str) -> NDArray[np.uint8]:
    """Map shared memory read-only, once it is proved to be as long as was said. Raises ConnectionLost."""
    found = os.fstat(descriptor).st_size
    if found < size_bytes:
        raise ConnectionLost(f"{Kind.TAP_STREAM.name}: {what} has {found} bytes, {size_bytes} were said")
    mapped = mmap.mmap(descriptor, size_bytes, flags=mmap.MAP_SHARED, prot=mmap.PROT_READ)
    return np.frombuffer(mapped, np.uint8)
