"""The camera's side: acquire a slot, write pixels, submit it, get it back.

    with Camera.open("/run/fenced/camera.sock", "road", format) as camera:
        frame = camera.acquire(timeout_s=0.1)
        frame.pixels[:] = ...                          # or frame.planes[0][:, :] = ...
        camera.submit(frame, sequence, sof_ns, eof_ns)  # the frame is the daemon's now

A Frame is the camera's from `acquire` to `submit` and cannot be used after. While it is, its slot's control word
in the shared lease page is odd, so that the daemon can tell a frame that was written while it held it.

Slots are sealed memfds made here, or memory of the caller's: dma-bufs that a driver exported, or sealed memfds.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import time
from collections import deque
from collections.abc import Sequence
from types import TracebackType
from typing import Final, Self

import numpy as np
from numpy.typing import NDArray

from abi.flat import Release
from abi.ledger import Ledger
from abi.messages import AuxSet, BuffersRegistered, CloseStream, OpenStream, RegisterBuffers, Role, SetAux, StreamOpened
from abi.packet import LocalProtocolError
from abi.stream_format import StreamFormat
from client.barrier import Barrier
from client.connection import Connection
from client.errors import ConnectionLost
from hal.dma_buf import DmaBuf, is_dma_buf
from hal.memory import create_sealed

__all__ = ["LEASE_BYTES", "Camera", "Frame"]

KEPT_RELEASES: Final = 1024  # older ones are only in the ledger
LEASE_BYTES: Final = 64  # of the lease page for each slot; its control word is the first u64 (session.capnp)


class Frame:
    """One slot that is being written. `slot`: its number. Made by `Camera.acquire`."""

    __slots__ = ("_pixels", "_planes", "slot")

    def __init__(self, slot: int, pixels: NDArray[np.uint8], planes: tuple[NDArray[np.uint8], ...]) -> None:
        self.slot = slot
        self._pixels: NDArray[np.uint8] | None = pixels
        self._planes = planes

    @property
    def pixels(self) -> NDArray[np.uint8]:
        """The whole buffer, uint8 [bufferBytes], in shared memory. Raises RuntimeError once submitted or discarded."""
        if self._pixels is None:
            raise RuntimeError(f"the frame in slot {self.slot} was given away; acquire another")
        return self._pixels

    @property
    def planes(self) -> tuple[NDArray[np.uint8], ...]:
        """Each plane's pixels without padding, uint8 [rows, bytes of a row], in the same memory. Raises as `pixels`."""
        _ = self.pixels
        return self._planes

    def _give_away(self) -> None:
        self._pixels, self._planes = None, ()


class Camera:
    """A stream that is open, with its slots registered. Not for use from two threads at once."""

    def __init__(
        self, connection: Connection, stream_id: int, format: StreamFormat, slots: int, buffers: Sequence[int] = ()
    ) -> None:
        """Allocates the lease page and, without `buffers`, `slots` sealed memfds. Use `open`."""
        self._connection = connection
        self._stream_id = stream_id
        self.stream_format = format
        self.zero_copy = False  # whether the accelerator reads the buffers in place
        self._releases: deque[Release] = deque(maxlen=KEPT_RELEASES)
        self._barrier = Barrier()
        self._free = deque(range(slots))
        self._writing: dict[int, Frame] = {}
        self._stream = connection.session.streams[stream_id]
        self._lease_descriptor = create_sealed("fenced-lease", slots * LEASE_BYTES)
        self._descriptors = [self._lease_descriptor]
        try:
            self._control = memoryview(_map(self._lease_descriptor, slots * LEASE_BYTES)).cast("Q")[:: LEASE_BYTES // 8]
            for descriptor in buffers:
                self._descriptors.append(os.dup(descriptor))
            for slot in range(len(buffers), slots):
                self._descriptors.append(create_sealed(f"fenced-frame-{slot}", format.buffer_bytes))
            memory = self._descriptors[1:]
            self._dma_bufs = [DmaBuf(descriptor) if is_dma_buf(descriptor) else None for descriptor in memory]
            self._buffers = [np.frombuffer(_map(descriptor, format.buffer_bytes), np.uint8) for descriptor in memory]
            self._planes = [_planes(format, buffer) for buffer in self._buffers]
        except BaseException:
            self._close_descriptors()
            raise

    @classmethod
    def open(
        cls,
        path: str | os.PathLike[str],
        stream: str,
        format: StreamFormat,
        slots: int = 4,
        *,
        buffers: Sequence[int] = (),
        name: str = "camera",
        timeout_s: float = 5.0,
    ) -> Camera:
        """Connect to the camera socket, open a stream of this format and register `slots` buffers for it.

        `buffers`: descriptors of the caller's own memory, one for each slot in place of `slots`: dma-bufs or memfds
        sealed against shrinking, each at least bufferBytes long and mappable for writing. They stay the caller's.
        Raises Refused, ConnectionLost, TimeoutError, OSError, LocalProtocolError (a format that is not valid, or more
        `buffers` than the daemon takes).
        """
        connection = Connection(os.fspath(path), Role.CAMERA, name, timeout_s)
        try:
            opened = connection.request(OpenStream(stream, format), StreamOpened, timeout_s)
            if len(buffers) > opened.max_slots:
                raise LocalProtocolError("buffers", f"at most {opened.max_slots}", str(len(buffers)))
            slots = len(buffers) or min(slots, opened.max_slots)
            camera = cls(connection, opened.stream_id, format, slots, buffers)
            try:
                camera._register(timeout_s)
            finally:
                camera._close_descriptors()
        except BaseException:
            connection.close()
            raise
        return camera

    def _register(self, timeout_s: float) -> None:
        message = RegisterBuffers(self._stream_id, len(self._buffers))
        answer = self._connection.request(message, BuffersRegistered, timeout_s, self._descriptors)
        self.zero_copy = answer.zero_copy

    def _close_descriptors(self) -> None:
        for descriptor in self._descriptors:
            os.close(descriptor)
        self._descriptors = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def ledger(self) -> Ledger:
        """What became of every submitted frame, as this side knows it."""
        return self._stream.ledger

    @property
    def slots(self) -> int:
        """Registered buffers."""
        return len(self._buffers)

    @property
    def free(self) -> int:
        """Slots that `acquire` can give at once, as far as releases were read."""
        return len(self._free)

    def fileno(self) -> int:
        """Readable when the daemon gave slots back."""
        return self._connection.fileno()

    def acquire(self, timeout_s: float = 0.0) -> Frame:
        """A slot to write. The one that was free longest comes first.

        Raises TimeoutError when the daemon holds all of them for `timeout_s`, ConnectionLost, Refused.
        """
        deadline = time.monotonic() + timeout_s
        self.poll()
        while not self._free:
            if not self._take(deadline):
                raise TimeoutError(f"the daemon holds all {self.slots} slots; submit less often or open more slots")
        slot = self._free.popleft()
        self._control[slot] += 1  # odd: being written
        self._barrier()
        dma_buf = self._dma_bufs[slot]
        if dma_buf is not None:
            dma_buf.begin_write()
        frame = self._writing[slot] = Frame(slot, self._buffers[slot], self._planes[slot])
        return frame

    def submit(
        self,
        frame: Frame,
        sequence: int,
        sof_ns: int,
        eof_ns: int | None = None,
        *,
        in_fence: int | None = None,
        exposure_ns: int = 0,
    ) -> bytes:
        """Give a written frame to the daemon. Times are in the stream's clock; `eof_ns` defaults to `sof_ns`.

        Returns the packet that was sent, for logs.

        `in_fence`: a descriptor that becomes readable when the pixels are there; it stays the caller's. Raises
        LocalProtocolError (the frame stays the camera's), ConnectionLost.
        """
        slot = frame.slot
        if self._writing.get(slot) is not frame:
            raise self._foreign(frame)
        word = self._control[slot] + 1
        submit = self._stream.prepare(
            slot,
            sequence=sequence,
            sof_ns=sof_ns,
            eof_ns=sof_ns if eof_ns is None else eof_ns,
            control_word=word,
            exposure_ns=exposure_ns,
            flags=0 if in_fence is None else 1,
        )
        packet = self._connection.session.pack_submit(submit)
        self._settle(slot, word)
        try:
            self._connection.send(packet, () if in_fence is None else (in_fence,))
        finally:  # the daemon does not wait for what we note
            self._stream.give(submit)
            self._give_away(frame)
        return packet

    def discard(self, frame: Frame) -> None:
        """Keep an acquired frame from the daemon; its slot is free again."""
        slot = frame.slot
        if self._writing.get(slot) is not frame:
            raise self._foreign(frame)
        self._settle(slot, self._control[slot] + 1)
        self._give_away(frame)
        self._free.append(slot)

    @staticmethod
    def _foreign(frame: Frame) -> LocalProtocolError:
        return LocalProtocolError("frame", "one that this camera acquired and still has", f"slot {frame.slot}")

    def _settle(self, slot: int, word: int) -> None:
        dma_buf = self._dma_bufs[slot]
        if dma_buf is not None:
            dma_buf.end_write()
        self._barrier()
        self._control[slot] = word  # even: written

    def _give_away(self, frame: Frame) -> None:
        del self._writing[frame.slot]
        frame._give_away()

    def poll(self) -> int:
        """Read what the daemon sent, without waiting; how many slots came back. Raises ConnectionLost, Refused."""
        count = 0
        while self._take(None):
            count += 1
        return count

    def wait(self, timeout_s: float) -> int:
        """Wait until at least one slot comes back; how many did. Raises ConnectionLost, Refused."""
        return self._take(time.monotonic() + timeout_s) + self.poll()

    def releases(self) -> list[Release]:
        """The Releases since the last call (the newest 1024), oldest first; reads what waits.

        Raises ConnectionLost, Refused.
        """
        self.poll()
        taken = list(self._releases)
        self._releases.clear()
        return taken

    def set_aux(self, name: str, time_ns: int, value: bytes) -> None:
        """Set an aux input for the frames that run from here; `time_ns`: when it was true, CLOCK_MONOTONIC.

        Raises Refused, ConnectionLost, TimeoutError, LocalProtocolError.
        """
        self._connection.request(SetAux(name, time_ns, value), AuxSet)

    def close(self) -> None:
        """Close the stream and the session."""
        session = self._connection.session
        if not session.closed and not self._stream.closing:
            with contextlib.suppress(ConnectionLost):  # the stream ends with the connection
                self._connection.send(session.send(CloseStream(self._stream_id)))
        self._connection.close()

    def _take(self, deadline: float | None) -> bool:
        event = self._connection.next_event(deadline)
        if isinstance(event, Release):
            self._free.append(event.slot)
            self._releases.append(event)
        return event is not None


def _map(descriptor: int, size: int) -> mmap.mmap:
    return mmap.mmap(descriptor, size, flags=mmap.MAP_SHARED, prot=mmap.PROT_READ | mmap.PROT_WRITE)


def _planes(format: StreamFormat, buffer: NDArray[np.uint8]) -> tuple[NDArray[np.uint8], ...]:
    shapes: Sequence[tuple[int, int, int, int]] = [
        (plane.offset, plane.rows, plane.stride, shape.row_bytes(format.width))
        for plane, shape in zip(format.planes, format.pixel.planes, strict=True)
    ]
    return tuple(
        np.lib.stride_tricks.as_strided(buffer[offset:], (rows, row_bytes), (stride, 1))
        for offset, rows, stride, row_bytes in shapes
    )
