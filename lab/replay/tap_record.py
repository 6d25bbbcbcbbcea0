"""Recording a running daemon: its frames by a tap, its results by subscriptions, into one log.

The recorder looks and holds nothing: a frame that its camera wrote again before it was copied, or for which the writer
has no room, stands in the log without its pixels and with the reason (`/note/not-recorded`). Results that came too
fast are counted. Nothing of this is felt by the daemon or the cameras.
"""

from __future__ import annotations

import select
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from abi import messages
from abi.flat import RESULT, SUBMIT, Submit
from abi.messages import DeliveryPolicy, OpenStream, SetAux
from abi.packet import HEADER_BYTES
from abi.tap import TAP_END, TapEnd, TapFrame, TapNote, TapStream, TapTopic
from client.consumer import Consumer, Delivery
from client.errors import ConnectionLost, Refused
from client.tap import Tap, TapEvent
from lab.json_text import json_text
from lab.replay.drive import outputs_bytes
from lab.replay.log import LogWriter

_POLL_MS = 100
_DRAIN_S = 0.5
"""After the end was asked for, results of frames that were on their way are still taken for so long."""


@dataclass
class Recorded:
    """What a recording holds, for a person and for `--json`."""

    frames: Counter[str] = field(default_factory=Counter)
    """With pixels, by stream."""
    not_recorded: Counter[str] = field(default_factory=Counter)
    """Frames without pixels, by reason."""
    results: Counter[str] = field(default_factory=Counter)
    """By model."""
    results_missed: Counter[str] = field(default_factory=Counter)
    missed: int = 0
    """Packets of the tap that did not come: frames and ends of frames that the log knows nothing of."""
    notes: Counter[str] = field(default_factory=Counter)
    """Aux values, audit entries and so on, by topic."""
    ended: str = "asked to"

    def as_dict(self) -> dict[str, object]:
        """For JSON."""
        return {**self.__dict__, **{name: dict(one) for name, one in self.__dict__.items() if isinstance(one, Counter)}}

    def text(self) -> str:
        """One line."""
        parts = [f"{sum(self.frames.values())} frames", f"{sum(self.results.values())} results"]
        parts += [f"{count} frames without pixels ({reason})" for reason, count in sorted(self.not_recorded.items())]
        missed = self.missed + sum(self.results_missed.values())
        parts += [f"{missed} packets missed"] if missed else []
        return ", ".join(parts) + f"; ended: {self.ended}"


class Recorder:
    """Records the daemon behind `sockets` into `log`. Use `run`; not for use from two threads at once."""

    def __init__(self, sockets: Path, log: LogWriter, tap: Tap, *, pixels: bool = True) -> None:
        """The tap is the recorder's from here. `pixels`: whether it was opened for them."""
        self._sockets, self._log = sockets, log
        self.recorded = Recorded()
        self._consumers: dict[str, Consumer] = {}
        self._models: dict[str, bytes] = {}  # that serve: their digests
        self._missed: dict[str, int] = {}  # of the present subscription, and of those before it
        self._missed_before: Counter[str] = Counter()
        self._resubscribe: list[str] = []
        self._buffers: dict[int, str] = {}
        self._tap, self._pixels = tap, pixels

    def run(self, until: Callable[[Recorded], bool]) -> Recorded:
        """Record until `until` says so (asked at least ten times a second), or the daemon ends."""
        poll = select.poll()
        try:
            while not until(self.recorded):
                self._turn(poll)
            self._drain(poll)
        except ConnectionLost as lost:
            self.recorded.ended = str(lost)
        finally:
            self.close()
        self._note("recorded", self.recorded.as_dict())
        return self.recorded

    def close(self) -> None:
        """End all sessions."""
        for consumer in self._consumers.values():
            consumer.close()
        self._consumers.clear()
        self._tap.close()

    def _drain(self, poll: select.poll) -> None:
        """Takes what was under way."""
        end_s = time.monotonic() + _DRAIN_S
        while time.monotonic() < end_s and self._turn(poll):
            pass

    def _turn(self, poll: select.poll) -> bool:
        """Waits for the next thing and takes everything that is there; whether there was any."""
        watched = {self._tap.fileno(), *(one.fileno() for one in self._consumers.values())}
        for descriptor in watched:
            poll.register(descriptor, select.POLLIN)
        ready = poll.poll(_POLL_MS)
        for descriptor in watched:
            poll.unregister(descriptor)
        delivered = [(model, self._read_results(model)) for model in list(self._consumers)]
        while (event := self._tap.next_event()) is not None:  # only now: a frame is told of before its result
            self._take(event)
        self.recorded.missed = self._tap.missed
        for model, deliveries in delivered:
            for delivery in deliveries:
                self._take_result(model, delivery)
        while self._resubscribe:
            model = self._resubscribe.pop()
            if model not in self._consumers:  # the note of the new bundle may have come before
                self._try_to_subscribe(model)
        return bool(ready)

    def _take(self, event: TapEvent) -> None:
        match event:
            case TapFrame():
                self._take_frame(event)
            case TapEnd():
                name = self._buffers.get(event.stream_id)
                if name is not None:
                    self._log.write(f"/camera/{name}/end", TAP_END.pack(event), event.ended_ns)
            case TapStream():
                self._buffers[event.stream_id] = event.stream
                opened = messages.encode(OpenStream(event.stream, event.format))[HEADER_BYTES:]
                self._log.write(f"/camera/{event.stream}/format", opened, time.monotonic_ns())
            case TapNote():
                self._take_note(event)

    def _take_frame(self, frame: TapFrame) -> None:
        stream = self._tap.streams.get(frame.stream_id)
        if stream is None:  # its end was told already
            return
        submit = Submit(*frame[:8], 0)
        reason = "not asked for" if not self._pixels else stream.withheld
        pixels = None
        if not reason:
            if not self._log.has_room(stream.format.buffer_bytes):
                reason = "the writer is behind"
            else:
                pixels = np.empty(stream.format.buffer_bytes, np.uint8)
                reason = "" if stream.copy(frame, pixels) else "overwritten before it was copied"
        self._log.write(f"/camera/{stream.name}/submit", SUBMIT.pack(submit), frame.received_ns)
        if reason or pixels is None:
            self.recorded.not_recorded[reason] += 1
            self._note("not-recorded", {"stream": stream.name, "sequence": frame.sequence, "reason": reason})
        else:
            self.recorded.frames[stream.name] += 1
            self._log.write_owned(f"/camera/{stream.name}/pixels", pixels.data, frame.received_ns)

    def _take_note(self, note: TapNote) -> None:
        match note.topic:
            case TapTopic.AUX:
                value = messages.encode(SetAux(note.name, note.time_ns, note.value))[HEADER_BYTES:]
                self._log.write(f"/aux/{note.name}", value, note.seen_ns)
            case TapTopic.AUDIT:
                self._log.write("/audit", note.value, note.seen_ns)
            case TapTopic.MODEL:
                self._models[note.name] = note.value
                self._note("model", {"name": note.name, "digest": note.value.hex()}, note.seen_ns)
                if note.name not in self._consumers:
                    self._try_to_subscribe(note.name)
            case _:
                self._note("stream-closed", {"stream": note.name}, note.seen_ns)
        self.recorded.notes[note.topic.name.lower()] += 1

    def _try_to_subscribe(self, model: str) -> None:
        try:
            self._subscribe(model)
        except (Refused, ConnectionLost, OSError) as error:
            self._note("unsubscribed", {"model": model, "reason": str(error)})

    def _subscribe(self, model: str) -> None:
        """Asks for as long a queue as the ring allows."""
        path, name = self._sockets / "consumer.sock", "recorder"
        with Consumer.subscribe(path, model, name=name) as consumer:
            slots = consumer.subscribed.slots
        consumer = Consumer.subscribe(path, model, DeliveryPolicy.EVERY, max(1, slots - 1), name=name)
        self._consumers[model] = consumer
        self._missed[model] = 0
        layout = messages.encode(consumer.subscribed, descriptors=1)[HEADER_BYTES:]
        self._log.write(f"/model/{model}/layout", layout, time.monotonic_ns())

    def _read_results(self, model: str) -> list[Delivery]:
        """Everything that waits; subscribes anew where the subscription has ended."""
        consumer, read = self._consumers[model], list[Delivery]()
        try:
            while True:
                read.append(consumer.recv())
        except TimeoutError:
            pass
        except (ConnectionLost, Refused):  # its outputs changed with another bundle, or the daemon ends
            self._consumers.pop(model).close()
        self._missed[model] = read[-1].missed if read else self._missed[model]
        missed = self._missed_before[model] + self._missed[model] + consumer.torn
        self.recorded.results_missed[model] = missed
        if model not in self._consumers:
            self._missed_before[model] = missed
            self._resubscribe.append(model)
        return read

    def _take_result(self, model: str, delivery: Delivery) -> None:
        self.recorded.results[model] += 1
        published_ns = delivery.receipt.published_ns
        self._log.write(f"/model/{model}/result", RESULT.pack(delivery.result), published_ns)
        self._log.write(f"/model/{model}/outputs", outputs_bytes(delivery), published_ns)

    def _note(self, topic: str, values: dict[str, object], seen_ns: int | None = None) -> None:
        self._log.write(f"/note/{topic}", json_text(values).encode(), seen_ns or time.monotonic_ns())
