"""Where a scenario is played: the daemon's clients, the frame that is due, and what is to go wrong with it.

A frame's faults (`Due`) are set by events and used up by the frames that follow. The camera of a scenario is honest but
for them. Everything goes through the public client; a result is waited for only where its frame ran.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace

import numpy as np

from abi.flat import Release, ReleaseStatus
from abi.messages import DeliveryPolicy
from abi.packet import RefusalCode
from client.camera import Camera, Frame
from client.consumer import Consumer, Delivery
from lab.hil.clients import LIMIT_S, Sockets
from lab.hil.faults.leases import raise_control_word
from lab.hil.served import ServedModel, as_camera
from lab.hil.trace import FrameRecord, Trace
from lab.hil.verdict import WrongAnswer
from lab.hil.view import Pixels, View

__all__ = ["Due", "Stage"]

QUEUE = 4
NS_PER_MS = 1e6


@dataclass
class Due:
    """What is to go wrong with the frames that come next: how many of them, and the scenario time up to which."""

    drop: int = 0
    burst: int = 0
    repeat: int = 0
    turn_back: int = 0
    turn_back_ms: float = 0.0
    overwrite: int = 0
    fence: int = 0
    fence_outcome: str = "error"
    stalled_until_s: float = 0.0
    blind_until_s: float = 0.0

    def take(self, name: str) -> bool:
        """Whether the frame that is due has this fault; it is used up."""
        left: int = getattr(self, name)
        if left:
            setattr(self, name, left - 1)
        return bool(left)


@contextmanager
def _written_as_it_goes(camera: Camera, slot: int) -> Iterator[None]:
    """The camera begins to write its slot anew while the Submit is on its way: in time, however quick the daemon is."""
    connection, send = camera._connection, camera._connection.send

    def send_and_write(packet: bytes, descriptors: Sequence[int] = ()) -> None:
        raise_control_word(camera, slot)
        send(packet, descriptors)

    connection.send = send_and_write  # type: ignore[method-assign]
    try:
        yield
    finally:
        connection.send = send  # type: ignore[method-assign]


@dataclass
class Stage:
    """The clients of one model of one stream, frame by frame. `sequence` is the next frame's."""

    clients: Sockets
    model: ServedModel
    view: View
    slots: int
    period_s: float
    trace: Trace = field(default_factory=Trace)
    due: Due = field(default_factory=Due)
    sequence: int = 1
    camera: Camera | None = None
    consumer: Consumer | None = None
    kept: ExitStack = field(default_factory=ExitStack)
    """What must be ended with the stage: processes of other peers."""
    _last_sof_ns: int = 0

    @property
    def stream(self) -> str:
        """The model's stream."""
        return next(iter(self.model.streams))

    def open(self) -> None:
        """Opens what is not open: the camera's stream and the subscription."""
        if self.consumer is None:
            self.consumer = self.clients.consumer(self.model.name, policy=DeliveryPolicy.EVERY, queue=QUEUE)
        if self.camera is None:
            format = as_camera(self.model.streams[self.stream], "scenario", round(self.period_s * 1e9))
            self.camera = self.clients.camera(self.stream, format=format, slots=self.slots)
            self._last_sof_ns = 0

    def close(self) -> None:
        """Ends both sessions in order."""
        for end in (self.camera, self.consumer):
            if end is not None:
                end.close()
        self.camera = self.consumer = None
        self.kept.close()

    def step(self, index: int) -> FrameRecord:
        """One frame period: the frame through the daemon, or what is to happen in its place."""
        at_s = index * self.period_s
        if at_s < self.due.stalled_until_s:
            record = FrameRecord(at_s, "stalled")
        elif self.due.take("drop"):
            self.sequence += 1
            record = FrameRecord(at_s, "dropped")
        else:
            record = self._frame(index, at_s)
        record = replace(record, left_m=self.view.advance(index, record.outputs or None))
        self.trace.frames.append(record)
        return record

    def _frame(self, index: int, at_s: float) -> FrameRecord:
        self.open()
        assert self.camera is not None
        while self.due.take("burst"):  # further frames at once: as many as slots are waited for by nobody
            self._rush(index, at_s)
        frame = self.camera.acquire(LIMIT_S)
        slot, pixels = frame.slot, frame.pixels
        truth = self._paint(pixels, index, at_s)
        sof_ns = time.monotonic_ns()
        if self.due.take("turn_back"):
            self.camera._stream.last_sequence = None  # an honest client would not send it
            sof_ns = self._last_sof_ns - round(self.due.turn_back_ms * NS_PER_MS)
        else:
            self._last_sof_ns = sof_ns
        if self.due.take("repeat") and self.sequence > 1:
            self.sequence -= 1
            self.camera._stream.last_sequence = None  # as above
        sequence, self.sequence = self.sequence, self.sequence + 1
        release = self._submit(frame, slot, sequence, sof_ns)
        delivery = self._result(sequence) if release.status == ReleaseStatus.RUN else None
        return self._record(at_s, release, delivery, truth)

    def _rush(self, index: int, at_s: float) -> None:
        assert self.camera is not None
        frame = self.camera.acquire(LIMIT_S)
        self._paint(frame.pixels, index, at_s)
        self._last_sof_ns = time.monotonic_ns()
        self.camera.submit(frame, self.sequence, self._last_sof_ns)
        self.sequence += 1

    def _paint(self, pixels: Pixels, index: int, at_s: float) -> Mapping[str, float]:
        truth = self.view.fill(pixels, index)
        if at_s < self.due.blind_until_s:
            pixels[:] = np.random.default_rng(index).integers(1, 255, pixels.size, dtype=np.uint8)
        return truth

    def _submit(self, frame: Frame, slot: int, sequence: int, sof_ns: int) -> Release:
        """Submits with the faults that are due, and waits for the slot."""
        camera = self.camera
        assert camera is not None
        if self.due.take("overwrite"):
            with _written_as_it_goes(camera, slot):
                camera.submit(frame, sequence, sof_ns)
            release = self._settled(sequence)
            raise_control_word(camera, slot)  # written: even again
            return release
        if self.due.take("fence"):
            reader, writer = os.pipe()
            try:
                if self.due.fence_outcome == "error":  # before it is sent: later it might be after the fence's time
                    os.close(writer)
                camera.submit(frame, sequence, sof_ns, in_fence=reader)
                return self._settled(sequence)
            finally:
                os.close(reader)
                if self.due.fence_outcome != "error":
                    os.close(writer)
        camera.submit(frame, sequence, sof_ns)
        return self._settled(sequence)

    def _settled(self, sequence: int) -> Release:
        assert self.camera is not None
        while True:
            if not self.camera.wait(LIMIT_S):
                raise WrongAnswer(f"frame {sequence}", f"given back within {LIMIT_S:g} s", "still held")
            for release in self.camera.releases():
                if release.sequence == sequence:
                    return release

    def _result(self, sequence: int) -> Delivery:
        assert self.consumer is not None
        while True:
            delivery = self.consumer.recv(LIMIT_S)
            if any(frame.sequence == sequence for frame in delivery.receipt.frames):
                return delivery

    def _record(
        self, at_s: float, release: Release, delivery: Delivery | None, truth: Mapping[str, float]
    ) -> FrameRecord:
        if delivery is None:
            status = ReleaseStatus(release.status)
            refused = status is ReleaseStatus.REFUSED
            word = RefusalCode(release.code).name if refused else status.name
            return FrameRecord(at_s, word.lower(), truth=truth)
        receipt = delivery.receipt
        self.trace.units.update(delivery.units)
        outputs = {name: float(array.reshape(-1)[0]) for name, array in delivery.outputs.items() if array.size == 1}
        return FrameRecord(
            at_s, "run", (receipt.published_ns - receipt.frames[0].sof_monotonic_ns) / NS_PER_MS,
            (receipt.completed_ns - receipt.started_ns) / NS_PER_MS, outputs, truth, digest=receipt.model_digest.hex(),
        )  # fmt: skip
