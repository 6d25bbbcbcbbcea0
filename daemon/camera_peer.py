"""A camera's session: it opens streams, registers their buffers, submits frames.

The submit packet is the hot path: one flat record and no pycapnp. Whatever a camera does wrong ends at most its own
session; when it is gone, what the device still reads stays mapped until its fence.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from abi import messages as m
from abi.flat import Release, ReleaseStatus
from abi.format import mismatches
from abi.lease import LeaseEvent
from abi.messages import Role
from abi.packet import Kind, RefusalCode
from abi.session import Event
from daemon.camera_stream import CameraStream
from daemon.config import Config
from daemon.in_fence import InFences
from daemon.peer import Arrival, Peer, PeerContext
from daemon.pipeline import Pipeline
from daemon.slots import BufferRefused, Slots
from daemon.transport import Descriptors
from hal.accelerator import Accelerator

_SUBMIT = int(Kind.SUBMIT)


class CameraHost(Protocol):
    """What a camera's session needs of the daemon."""

    config: Config
    accelerator: Accelerator
    in_fences: InFences

    @property
    def draining(self) -> bool: ...

    def next_id(self) -> int: ...

    def input_of(self, stream: str) -> tuple[Pipeline, int] | None:
        """The pipeline that takes a stream of this name, and the stream's position in its contract."""
        ...

    def stream_opened(self, stream: CameraStream) -> None: ...

    def stream_closed(self, stream: CameraStream) -> None: ...

    def aux_takers(self, name: str) -> list[Pipeline]: ...

    def set_aux(self, message: m.SetAux, now_ns: int) -> m.Refusal | None: ...


class CameraPeer(Peer):
    """See the module."""

    role = Role.CAMERA

    def __init__(
        self, arrival: Arrival, context: PeerContext, on_closed: Callable[[Peer], None], host: CameraHost
    ) -> None:
        self._host = host
        self._streams: dict[int, CameraStream] = {}
        super().__init__(arrival, context, on_closed)

    @property
    def may_idle(self) -> bool:
        """A camera with an open stream may pause; one without has nothing to be here for."""
        return bool(self._streams)

    def receive_flat(self, packet: memoryview, descriptors: Descriptors, now_ns: int) -> bool:
        if not packet or packet[0] != _SUBMIT:  # the whole header is looked at below
            return False
        for stream in self._streams.values():
            if stream.clock.moves:
                stream.sample_clock(now_ns)
        taken = self.session.receive_submit(packet, len(descriptors), now_ns)
        if isinstance(taken, Release):
            self.note_refused()
            self._context.taps.end(taken)
            self.push(self.session.pack_release(taken))
            return True
        stream = self._streams[taken.stream_id]
        frame = stream.receive(taken, now_ns)
        if self._host.draining:
            stream.end(frame, LeaseEvent.DROP, ReleaseStatus.REFUSED, RefusalCode.NOT_READY)
        else:
            fence = descriptors.take(0) if taken.flags else None
            stream.forward(frame, now_ns, self._host.in_fences, fence)
        return True

    def handle(self, event: Event, descriptors: Descriptors, now_ns: int) -> None:
        match event:
            case m.OpenStream():
                self._open(event)
            case m.RegisterBuffers():
                self._register(event, descriptors)
            case m.CloseStream():
                self._close_stream(self._streams.pop(event.stream_id))
            case m.SetAux():
                refusal = self._not_permitted(event) or self._host.set_aux(event, now_ns)
                if refusal is None:
                    self._context.taps.aux(event, now_ns)
                    self.say(m.AuxSet(event.name))
                else:
                    self.refuse(refusal)
            case _:
                super().handle(event, descriptors, now_ns)

    def _not_permitted(self, message: m.SetAux) -> m.Refusal | None:
        """Who may open a stream of a model may set its aux inputs."""
        for pipeline in self._host.aux_takers(message.name):
            streams = [one.stream for one in pipeline.inputs]
            if not any(self.permits(self._host.config.stream(name).peers) for name in streams):
                expected, found = f"one that may open a stream of {streams}", f"uid {self.who.uid}"
                action = "list it under one of these streams in the configuration"
                return m.Refusal(RefusalCode.NOT_PERMITTED, Kind.SET_AUX, "user", expected, found, action)
        return None

    def before_close(self) -> None:
        while self._streams:
            self._close_stream(self._streams.popitem()[1])

    def _close_stream(self, stream: CameraStream) -> None:
        stream.closed = True
        self._context.taps.closed(stream.stream_id)
        self._host.stream_closed(stream)

    def _open(self, message: m.OpenStream) -> None:
        self.about = {"STREAM": message.stream}
        policy = self._host.config.stream(message.stream)
        found = self._host.input_of(message.stream)
        if not self.permits(policy.peers):
            code, what, expected = RefusalCode.NOT_PERMITTED, "user", "one that the stream's policy lists"
            self._refuse_open(code, what, expected, f"uid {self.who.uid}", "list it in the configuration")
        elif found is None:
            action = "open a stream that an active model takes: `fenced status` shows them"
            self._refuse_open(RefusalCode.UNKNOWN_STREAM, "stream", "one that a model takes", message.stream, action)
        elif found[0].sources[found[1]] is not None:
            action = "close the other camera first"
            self._refuse_open(RefusalCode.STREAM_TAKEN, "stream", "one without a camera", message.stream, action)
        else:
            pipeline, position = found
            differing = mismatches(pipeline.inputs[position].format, message.format)
            if differing:
                field, expected, offered = differing[0]
                action = "send what the model was compiled for, or compile it for this camera"
                self._refuse_open(RefusalCode.FORMAT_MISMATCH, f"format.{field}", expected, offered, action)
                return
            stream_id = self._host.next_id()
            self.say(m.StreamOpened(stream_id, self._host.config.limits.slots))
            if not self.closed:
                stream = CameraStream(self, stream_id, policy, position, self._context.taps)
                self._streams[stream_id] = stream
                pipeline.attach(stream)
                self._context.taps.opened(stream_id, stream.name, stream.format)
                self._host.stream_opened(stream)

    def _refuse_open(self, code: RefusalCode, what: str, expected: str, *rest: str) -> None:
        found, action = rest
        self.refuse(m.Refusal(code, Kind.OPEN_STREAM, what, expected, found, action))

    def _register(self, message: m.RegisterBuffers, descriptors: Descriptors) -> None:
        stream = self._streams[message.stream_id]
        lease_page, *buffers = descriptors.held
        try:
            slots = Slots(stream.format, lease_page, tuple(buffers), self._host.accelerator)
        except BufferRefused as refused:
            self.refuse(refused.refusal)
            return
        stream.register(slots, self._host.accelerator)
        self._context.taps.registered(message.stream_id, lease_page, tuple(buffers))
        self.say(m.BuffersRegistered(message.stream_id, message.slots, slots.zero_copy))
