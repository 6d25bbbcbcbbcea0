"""One open camera stream: its leases, its memory, and the frames the daemon holds of it. It may outlive its camera.

The pipeline takes frames from here and gives them back. However a frame ends, it ends in `end`, which moves the lease,
counts it in the ledger and sends the Release. A slot in flight ends only by its fence or a reset of the device.
"""

from __future__ import annotations

import time
from typing import Protocol

from abi.flat import Release, ReleaseStatus, Submit
from abi.format import StreamFormat
from abi.lease import LeaseEvent
from abi.ledger import Ledger
from abi.packet import RefusalCode
from abi.receipt import FrameReceipt
from abi.session import DaemonSession
from daemon.clocks import ClockMap
from daemon.config import Isolation, StreamPolicy
from daemon.in_fence import FenceOutcome, InFences
from daemon.scheduler import Waiting
from daemon.slots import Slots
from daemon.tap import Taps
from hal.accelerator import Accelerator, DeviceBuffer
from hal.dma_buf import DmaBuf
from hal.error import HalError


class FrameSink(Protocol):
    """Where a stream's frames go: one input of a pipeline."""

    def offer(self, frame: Waiting) -> None:
        """Takes a frame whose pixels are ready."""
        ...


class CameraEnd(Protocol):
    """The session that opened the stream."""

    session: DaemonSession

    def push(self, packet: bytes) -> None:
        """Sends a packet to the camera."""
        ...

    def bye(self, reason: str) -> None:
        """Ends the session."""
        ...


class CameraStream:
    """A stream between OpenStream and the end of its last frame.

    `clock`: converts its times. `position`: its place in the entrypoint's contract.
    `counters`: why frames were lost, beyond the ledger's columns.
    """

    def __init__(self, camera: CameraEnd, stream_id: int, policy: StreamPolicy, position: int, taps: Taps) -> None:
        contract = camera.session.streams[stream_id]
        self.stream_id = stream_id
        self.name = contract.name
        self.format: StreamFormat = contract.format
        self.ledger: Ledger = contract.ledger
        self.policy = policy
        self.position = position
        self.closed = False
        self.counters: dict[str, int] = {}
        self.sink: FrameSink | None = None
        self.camera = camera
        self._session = camera.session
        self._contract = contract
        self._push = camera.push
        self._taps = taps
        self.clock = ClockMap(contract.format.clock)
        self._slots: Slots | None = None
        self._private: DeviceBuffer | None = None
        self._submits: list[Submit | None] = []
        self._received_ns: list[int] = []
        self._reading: set[int] = set()  # slots whose dma-buf the CPU is reading

    def register(self, slots: Slots, accelerator: Accelerator) -> None:
        """The camera's buffers are here."""
        self._slots = slots
        self._submits = [None] * len(slots.buffers)
        self._received_ns = [0] * len(slots.buffers)
        if self.policy.isolation is Isolation.COPY:
            self._private = accelerator.allocate(f"private copy of {self.name}", self.format.buffer_bytes)

    @property
    def slot_count(self) -> int:
        """How many slots the camera has registered."""
        return len(self._submits)

    def sample_clock(self, now_ns: int) -> None:
        """Tells the session machine the clock's present offset, before it judges a frame's age."""
        self._contract.clock_offset_ns = -self.clock.to_monotonic(0, now_ns)

    @property
    def refused_age_ns(self) -> int | None:
        """Age of the last frame refused for its age, negative when it lay in the future; None: there was none."""
        return self._contract.refused_age_ns

    def receive(self, submit: Submit, now_ns: int) -> Waiting:
        """The session machine has taken the frame over; it is the daemon's from here."""
        self._submits[submit.slot] = submit
        self._received_ns[submit.slot] = now_ns
        sof_ns = self.clock.to_monotonic(submit.sof_ns, now_ns) if self.clock.moves else submit.sof_ns
        return Waiting(self.position, submit.slot, submit.generation, submit.sequence, sof_ns)

    def forward(self, frame: Waiting, now_ns: int, fences: InFences, descriptor: int | None) -> None:
        """Lets the frame run once its pixels are ready; `descriptor` is its in-fence, owned from here."""
        assert self._slots is not None
        if descriptor is None and self._slots.dma_bufs[frame.slot] is None:
            self._ready(frame)
        elif descriptor is None:
            self._written(frame, fences)
        else:
            fences.wait(descriptor, now_ns, lambda outcome: self._fenced(frame, outcome, fences))

    def _fenced(self, frame: Waiting, outcome: FenceOutcome, fences: InFences) -> None:
        if self.closed or outcome is not FenceOutcome.SIGNALED:
            self.count("closed" if self.closed else outcome.value)
            self.end(frame, LeaseEvent.DROP, ReleaseStatus.LOST)
            return
        self._written(frame, fences)

    def _written(self, frame: Waiting, fences: InFences) -> None:
        """A dma-buf's writers that the kernel knows of are waited for too, then caches are brought in line."""
        dma_buf = self._dma_buf(frame.slot)
        if dma_buf is None:
            self._ready(frame)
        elif not dma_buf.is_written():
            descriptor, now_ns = dma_buf.duplicate(), time.monotonic_ns()
            fences.wait_readable(descriptor, now_ns, lambda outcome: self._fenced(frame, outcome, fences))
        else:
            self._read(frame, dma_buf)

    def _read(self, frame: Waiting, dma_buf: DmaBuf) -> None:
        try:
            dma_buf.begin_read()
        except HalError:
            self.count("dma-buf-sync")
            self.end(frame, LeaseEvent.DROP, ReleaseStatus.LOST)
            return
        self._reading.add(frame.slot)
        self._ready(frame)

    def _dma_buf(self, slot: int) -> DmaBuf | None:
        assert self._slots is not None
        return self._slots.dma_bufs[slot]

    def _ready(self, frame: Waiting) -> None:
        if self.sink is None:
            self.end(frame, LeaseEvent.DROP, ReleaseStatus.REFUSED, RefusalCode.NOT_READY)
        else:
            if frame.stream != self.position:  # another model serves since it was submitted
                frame = frame._replace(stream=self.position)
            self.sink.offer(frame)
            submit = self._submits[frame.slot] if self._taps.listening else None
            if submit is not None and submit.generation == frame.generation:  # else it has ended already
                self._taps.frame(submit, self._received_ns[frame.slot])

    def count(self, reason: str) -> None:
        """One more frame for this reason."""
        self.counters[reason] = self.counters.get(reason, 0) + 1

    def bind(self, frame: Waiting) -> DeviceBuffer | None:
        """The frame's memory for the device, or None when it was overwritten since it was submitted (torn)."""
        assert self._slots is not None
        shared = self._slots.buffers[frame.slot]
        if self._private is None:
            self._slots.samples[frame.slot].take()
            return shared if self._word_holds(frame.slot) else None
        self._private.view[:] = shared.view[: self.format.buffer_bytes]
        return self._private if self._word_holds(frame.slot) else None

    def is_intact(self, frame: Waiting) -> bool:
        """Whether the device read what was submitted: asked once the fence has signalled."""
        assert self._slots is not None
        if self._private is not None:
            return True
        return self._word_holds(frame.slot) and self._slots.samples[frame.slot].is_unchanged()

    def _word_holds(self, slot: int) -> bool:
        assert self._slots is not None
        submit = self._submits[slot]
        return submit is not None and self._slots.control_words[slot] == submit.control_word

    def start(self, frame: Waiting) -> None:
        """The device has the frame."""
        self._session.start(self.stream_id, frame.slot)

    def end(self, frame: Waiting, event: LeaseEvent, status: ReleaseStatus, code: RefusalCode = RefusalCode.OK) -> None:
        """The frame's end: lease, ledger, and a Release for a camera that is still there."""
        held_ns = max(0, time.monotonic_ns() - self._received_ns[frame.slot])
        if frame.slot in self._reading:
            self._end_read(frame.slot)
        self._submits[frame.slot] = None
        packet = self._session.release(self.stream_id, frame.slot, event, status, code, held_ns=held_ns)
        if self._taps.listening:
            told = Release(self.stream_id, frame.slot, frame.generation, frame.sequence, status, code, held_ns)
            self._taps.end(told)
        if packet is not None:
            self._push(packet)

    def _end_read(self, slot: int) -> None:
        self._reading.discard(slot)
        dma_buf = self._dma_buf(slot)
        assert dma_buf is not None
        try:
            dma_buf.end_read()
        except HalError:
            self.count("dma-buf-sync")  # what was read is not in doubt

    def receipt(self, frame: Waiting) -> FrameReceipt:
        """What a result says of the frame."""
        submit = self._submits[frame.slot]
        assert submit is not None
        return FrameReceipt(
            self.position, frame.slot, frame.sequence, frame.generation, submit.sof_ns, frame.sof_ns,
            self.ledger.not_run, self.ledger.camera_dropped,
        )  # fmt: skip
