"""Real-time replay: every logged frame, also those that did not run, at the pace at which the cameras gave them.

The daemon schedules them anew, so a frame that ran may be late now and the other way round: both are counted, and only
what ran both times is compared. With recurrent state that makes values go another way too; lock-step replay is for
equal bits. A frame that finds no free slot is left out, as a camera would leave it out (`not_run`, "no-slot").
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from abi import messages
from abi.colour import ClockId
from abi.flat import RESULT, SUBMIT
from abi.messages import SetAux
from abi.packet import Kind
from abi.receipt import Receipt
from client.consumer import Delivery
from lab.replay.compare import arrays_of
from lab.replay.log import LogReader
from lab.replay.played import LoggedFrame, Plan, owner, read_plan
from lab.replay.replay import Options, ReplayReport, begin_report, begin_state, end_report
from lab.replay.rig import Rig

SLOTS, QUEUE = 8, 4
_SETTLE_S = 10.0
Key = tuple[str, tuple[int, ...]]
"""A result: its model, and the sequences of its frames as they are now, rising: no two frames have the same."""


def replay_in_real_time(
    sockets: Path, log: Path, options: Options, *, on_frame: Callable[[int], None] | None = None
) -> ReplayReport:
    """Play `log` into the daemon behind `sockets` by its own clock, and compare what ran both times.

    Raises as `lab.replay.replay.replay`.
    """
    reader = LogReader(log)
    plan = read_plan(reader, options.start, partial=options.partial)
    with Rig(sockets, plan.opened, list(plan.models), slots=SLOTS, queue=QUEUE) as rig:
        report = begin_report(plan, [rig], options)
        report.mode = "real-time"
        for name in plan.models:
            begin_state(plan, [rig], report, name)
        _RealTime(plan, rig, report).run(reader, options, on_frame)
        end_report(plan, [rig], report)
    return report


class _RealTime:
    """Plays messages when they are due; results are matched by the numbers that their frames have now."""

    def __init__(self, plan: Plan, rig: Rig, report: ReplayReport) -> None:
        self._plan, self._rig, self._report = plan, rig, report
        self._numbers: dict[tuple[str, int, int], int] = {}
        """(stream, logged sequence, logged SOF) of a frame to the sequence that it has now."""
        self._ours: dict[Key, Delivery] = {}
        self._logged: dict[Key, tuple[Receipt, bytes]] = {}
        self._offset_ns: int | None = None
        self._next = 0

    def run(self, reader: LogReader, options: Options, on_frame: Callable[[int], None] | None) -> None:
        """Plays the log from the start that was asked for."""
        frame: LoggedFrame | None = None
        pending: tuple[str, Receipt] | None = None
        for message in reader.messages():
            kind = message.kind
            if kind == "submit":
                frame = LoggedFrame(owner(message), SUBMIT.unpack(message.data), None, message.log_time_ns)
            elif kind == "pixels" and frame is not None:
                since_ns = frame.logged_ns - (self._plan.first_ns or 0)
                if self._offset_ns is not None or options.start.reached(frame.submit.sequence, since_ns):
                    self._play(LoggedFrame(frame.stream, frame.submit, message.data, frame.logged_ns))
                    if on_frame is not None:
                        on_frame(self._report.frames)
            elif kind == "aux":
                self._set_aux(message.data, message.log_time_ns)
            elif kind == "result":
                pending = owner(message), Receipt.from_result(RESULT.unpack(message.data))
            elif kind == "outputs" and pending is not None:
                self._note_logged(*pending, message.data)
            self._read()
        end_s = time.monotonic() + _SETTLE_S
        while any(camera.ledger.held for camera in self._rig.cameras.values()) and time.monotonic() < end_s:
            for camera in self._rig.cameras.values():
                camera.wait(0.05)
            self._read()
        self._read()
        self._report.not_logged = len(self._ours)
        for _ in self._logged:
            self._count("not run now")

    def _play(self, frame: LoggedFrame) -> None:
        if self._offset_ns is None:
            self._offset_ns = time.monotonic_ns() - frame.logged_ns
        left_s = (frame.logged_ns + self._offset_ns - time.monotonic_ns()) / 1e9
        while left_s > 0:  # results are read meanwhile: their ring is short
            time.sleep(min(left_s, 0.005))
            self._read()
            left_s = (frame.logged_ns + self._offset_ns - time.monotonic_ns()) / 1e9
        camera = self._rig.cameras[frame.stream]
        camera.poll()
        if not camera.free:
            self._count("no-slot")
            return
        self._next += 1
        self._numbers[frame.stream, frame.submit.sequence, frame.submit.sof_ns] = self._next
        begin_ns = self._begin_ns(frame) + self._offset_ns
        self._rig.submit([(0, frame)], self._next, age_ns=time.monotonic_ns(), not_before_ns=begin_ns)
        self._report.frames += 1

    def _begin_ns(self, frame: LoggedFrame) -> int:
        """When the frame began by the log's clock, where the camera's clock tells: frames begin as far apart as they
        did, however late this machine is with one of them.
        """
        monotonic = self._plan.opened[frame.stream].format.clock is ClockId.MONOTONIC
        return min(frame.submit.sof_ns, frame.logged_ns) if monotonic else frame.logged_ns

    def _set_aux(self, data: bytes, logged_ns: int) -> None:
        value = messages.decode(Kind.SET_AUX, data)
        assert isinstance(value, SetAux)
        self._rig.set_aux(value, logged_ns - value.time_ns)

    def _note_logged(self, model: str, receipt: Receipt, outputs: bytes) -> None:
        streams = list(self._plan.opened)
        numbers = []
        for frame in receipt.frames:
            found = (self._numbers.pop((stream, frame.sequence, frame.sof_ns), None) for stream in streams)
            numbers.append(next((number for number in found if number is not None), None))
        known = tuple(sorted(number for number in numbers if number is not None))
        if known and len(known) == len(numbers):
            self._logged[model, known] = receipt, outputs
            self._match((model, known))

    def _read(self) -> None:
        for model, consumer in self._rig.consumers.items():
            while True:
                try:
                    delivery = consumer.recv()
                except TimeoutError:
                    break
                key = model, tuple(sorted(frame.sequence for frame in delivery.receipt.frames))
                self._ours[key] = delivery
                self._match(key)

    def _match(self, key: Key) -> None:
        if key not in self._ours or key not in self._logged:
            return
        (receipt, outputs), now = self._logged.pop(key), self._ours.pop(key)
        model, layout = key[0], self._plan.models[key[0]].layout
        found, wanted = self._rig.outputs(model, now), arrays_of(layout.outputs, outputs)
        self._report.compared.add(receipt.frames[0].sequence, found, wanted, model)
        self._report.times["logged"].add(receipt)
        self._report.times["now"].add(now.receipt)

    def _count(self, reason: str) -> None:
        self._report.not_run[reason] = self._report.not_run.get(reason, 0) + 1
