"""The way of a frame through one model: wait, bind, run, look at what came out, publish, give back.

One run of a model is on the device at a time, so that the newest frame is the one that runs next; whose turn it is
among several models the dispatcher says. Nothing is published unless the device's own timeline says that the run is
over and `daemon.completion` finds nothing wrong with it. State that a discarded run has written is reset at once.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from abi.flat import ReleaseStatus, ResultFlag
from abi.lease import LeaseEvent
from abi.packet import RefusalCode
from abi.receipt import Receipt
from daemon.aux_inputs import AuxInputs, StaleAux
from daemon.camera_stream import CameraStream
from daemon.completion import Inspection, Run, Verdict, make_receipt
from daemon.config import Config
from daemon.counters import Counters
from daemon.degradation import Change, Degradation, Mode
from daemon.dispatcher import Dispatcher
from daemon.entry import Entries, Entry, Taken
from daemon.intake import Intake, end_dropped
from daemon.models import LoadedModel
from daemon.ring import ResultRing
from daemon.scheduler import DropReason, Waiting
from daemon.turns import Claim
from hal.accelerator import Accelerator
from hal.error import HalError
from hal.fence import FenceStatus

Publish = Callable[[Receipt, int, int], None]  # receipt, ring slot, slot sequence
_SIGNALED, _ACTIVE = FenceStatus.SIGNALED, FenceStatus.ACTIVE  # an enum's member costs a call
_GOOD, _TORN, _STOPPED, _SERVING = Verdict.GOOD, Verdict.TORN, Mode.STOPPED, Mode.SERVING
OnChange = Callable[["Pipeline", Change], None]


class Pipeline:
    """One active model with its waiting frames and its run. `sources` are the open streams by contract position."""

    def __init__(
        self, model: LoadedModel, accelerator: Accelerator, ring: ResultRing, config: Config, dispatcher: Dispatcher
    ) -> None:
        self.model = model
        self._digest = model.digest
        self.ring = ring
        self.state_epoch = 1
        self.on_publish: Publish = lambda receipt, slot, sequence: None
        self.on_device_error: Callable[[], None] = lambda: None
        self.on_published: Callable[[Run], bool] = lambda run: False  # True: it ends the run's frames, later
        self.on_change: OnChange = lambda pipeline, change: None
        graph = model.graph
        self.entry = graph.entrypoints[0]
        self.inputs = tuple(graph.frames[index] for index in self.entry.frames)
        self.degradation = Degradation(graph.entrypoints)
        self._accelerator = accelerator
        self._dispatcher = dispatcher
        self.aux = AuxInputs(graph, self.entry, accelerator)
        self.entries = Entries(model, self.aux, accelerator)
        self._inspection = Inspection(graph, self.entry)
        self.claim = Claim(model.name, config.model(model.name).priority, graph.threads)
        queues = tuple(config.stream(one.stream).queue_frames for one in self.inputs)
        self._intake = Intake(self.entries, queues, self.claim)
        self._run: Run | None = None
        self._paused = False
        self._skip_next = False
        self._between: list[Callable[[], None]] = []
        self._was_reset = False
        dispatcher.loop.watch(model.executable.timeline.descriptor, self._on_fence)

    @property
    def sources(self) -> list[CameraStream | None]:
        """The open streams by contract position."""
        return self._intake.sources

    @property
    def counters(self) -> Counters:
        """What became of its frame sets."""
        return self._intake.counters

    @counters.setter
    def counters(self, counters: Counters) -> None:
        self._intake.counters = counters

    @property
    def busy(self) -> bool:
        """Whether a run is on the device."""
        return self._run is not None

    @property
    def waiting(self) -> int:
        """Frames that wait for their run."""
        return self._intake.waiting

    def begin(self) -> None:
        """Starts to serve."""
        self._dispatcher.join(self)

    def attach(self, source: CameraStream) -> None:
        """A camera has opened the stream at `source.position`."""
        source.sink = self
        self._intake.open(source)

    def detach(self, source: CameraStream) -> None:
        """The stream is closed; a frame of it that runs stays where it is until its fence."""
        if self.sources[source.position] is source:
            self._intake.close(source.position)
        source.sink = None
        if self._run is None:
            self.entries.let_go()
        self._dispatcher.pump()  # nobody waits for its next frame any more

    def offer(self, frame: Waiting) -> None:
        """Takes a frame whose pixels are ready. While paused it goes back at once: its in-fence outlasted the pause."""
        if self._paused or self.degradation.mode is _STOPPED:
            self._give_back(frame)
            return
        self._intake.offer(frame, time.monotonic_ns(), busy=self._run is not None)
        self._dispatcher.pump()

    def pause(self) -> None:
        """Starts no more runs; what waits is given back."""
        self._paused = True
        for frame in self._intake.clear():
            self._give_back(frame)

    def _give_back(self, frame: Waiting) -> None:
        source = self._intake.source(frame)
        if self.degradation.mode is Mode.STOPPED:
            source.count(Mode.STOPPED.value)
        source.end(frame, LeaseEvent.DROP, ReleaseStatus.REFUSED, RefusalCode.NOT_READY)

    def resume(self) -> None:
        """Starts runs again."""
        self._paused = False
        self._dispatcher.pump()

    def between_runs(self, call: Callable[[], None]) -> None:
        """Calls `call` when nothing of this model is on the device, before another run starts; now, if it can."""
        self._between.append(call)
        self._run_between()

    def retire(self) -> list[Waiting]:
        """Stops for good and hands over the frames that still wait. Only between runs."""
        if self._run is not None:
            raise RuntimeError("a pipeline is retired only between runs")
        self._paused = True
        self._dispatcher.leave(self)
        self._dispatcher.loop.forget(self.model.executable.timeline.descriptor)
        self.entries.unbind()
        return self._intake.clear()

    @property
    def due_ns(self) -> int | None:
        """When a waiting frame becomes late."""
        return self._intake.due_ns

    def expire(self, now_ns: int) -> None:
        """Drops the waiting frames that cannot meet their deadline any more."""
        self._note_missed(self._intake.expire(now_ns, busy=self.busy))
        self._dispatcher.pump()

    def reset_state(self) -> None:
        """Recurrent state to its initial value, and the whole model back where it was degraded. Only between runs."""
        self._reset()
        change = self.degradation.restore()
        if change is not None:
            self._changed(change)

    def after_device_reset(self) -> None:
        """The device was reset: what was in flight is lost, and its slots are the cameras' again."""
        run, self._run = self._run, None
        self._note_reset()
        if run is not None:
            self.counters.device_errors += 1
            self.counters.fences_failed += 1
            self._end(run, LeaseEvent.RESET, ReleaseStatus.LOST)
        self._after_run()

    def continue_epoch(self, epoch: int, *, was_reset: bool) -> None:
        """Goes on counting state epochs from the model that served before."""
        self.state_epoch = epoch
        if was_reset:
            self._note_reset()

    def _reset(self) -> None:
        self.model.executable.reset_state()
        self._note_reset()

    def _note_reset(self) -> None:
        self.state_epoch += 1
        self._was_reset = True

    # what runs next

    @property
    def _may_start(self) -> bool:
        return self._run is None and not self._paused and not self._between

    def refresh(self, now_ns: int) -> None:
        """Brings the claim up to date; drops what cannot run any more, where a run could start."""
        if self._may_start:
            missed = self._intake.refresh(now_ns)
            if missed:
                self._note_missed(missed)
        elif self._run is not None and not self._paused:
            self._intake.look()
        else:
            self._intake.rest()

    def start_next(self, now_ns: int) -> None:
        """It is this model's turn."""
        intake, mode = self._intake, self.degradation.mode
        if intake.keeps_behind and intake.behind and self._start_behind(now_ns):
            return
        taken = intake.take(now_ns)
        if not taken:
            return
        self._skip_next = mode is not _SERVING and mode.skips and not self._skip_next
        if self._skip_next:
            intake.skip(taken)
        else:
            if intake.keeps_behind:
                intake.give_up_behind(max([frame.sof_ns for _, frame in taken]))
            self._start(taken, self.entries.active, now_ns)

    def catch_up(self, now_ns: int) -> None:
        """Runs the stateOnly entrypoint on frames that were dropped, where that makes nothing late."""
        if self._intake.keeps_behind and self._intake.behind and self._may_start:
            self._start_behind(now_ns)

    def _start_behind(self, now_ns: int) -> bool:
        entry, turns = self.entries.state_only, self._dispatcher.turns
        assert entry is not None  # without it nothing is kept back
        if not turns.has_room(self.claim):
            return False
        if not turns.fits_before(self.claim, entry.times.p99_ns, now_ns):
            self._intake.give_up_behind()  # time is short, and will be shorter still
            return False
        drops = self._intake.take_behind()
        if not drops:
            return False
        taken = tuple((self._intake.source(frame), frame) for frame, _ in drops)
        return self._start(taken, entry, now_ns, tuple(reason for _, reason in drops))

    def _start(self, taken: tuple[Taken, ...], entry: Entry, now_ns: int, reasons: tuple[DropReason, ...] = ()) -> bool:
        """Binds and submits; False where the frames have ended instead."""
        torn = entry.bind_frames(taken)
        if torn:
            self.counters.torn += 1
            for source, frame in taken:
                source.end(frame, LeaseEvent.DROP, ReleaseStatus.TORN if frame in torn else ReleaseStatus.LOST)
            return False
        try:
            ages = entry.aux.give(now_ns)
        except StaleAux as stale:
            self.counters.stale_aux += 1
            for (source, frame), reason in zip(taken, reasons, strict=False):  # it is given up, for what it was dropped
                end_dropped(source, frame, reason, LeaseEvent.DROP)
            for source, frame in () if reasons else taken:
                source.count(f"stale aux {stale}")
                source.end(frame, LeaseEvent.DROP, ReleaseStatus.REFUSED, RefusalCode.BAD_AUX)
            return False
        return self._submit(taken, entry, ages, reasons)

    def _submit(
        self, taken: tuple[Taken, ...], entry: Entry, ages: tuple[int, ...], reasons: tuple[DropReason, ...]
    ) -> bool:
        outputs = entry.bind_outputs()
        try:
            fence = self._accelerator.submit(self.model.executable, entry.bindings)
        except HalError:
            self.counters.device_errors += 1
            for source, frame in taken:
                source.end(frame, LeaseEvent.DROP, ReleaseStatus.LOST)
            self.on_device_error()
            return False
        for source, frame in taken:
            source.start(frame)
        self._run = Run(taken, entry, fence, outputs, ages, self._was_reset, reasons)
        self._dispatcher.turns.began(self.claim, fence.submitted_ns, entry.times.p99_ns)
        if not reasons:
            self._was_reset = False
        return True

    # what has run

    def _on_fence(self, events: int) -> None:
        self.model.executable.timeline.drain()
        self.look()

    def look(self) -> None:
        """Looks at the fence in flight and acts on its end."""
        run = self._run
        if run is None or run.fence.poll() is _ACTIVE:
            return
        if run.fence.status is _SIGNALED:
            self._run = None
            self._intake.counters.fences_signaled += 1
            self._complete(run)
        elif run.fence.quiet:
            self._run = None
            self.counters.device_errors += 1
            self.counters.fences_failed += 1
            self._reset()
            self._end(run, LeaseEvent.FENCE, ReleaseStatus.LOST)
        else:
            self.on_device_error()  # the slots stay the device's until it was reset
            return
        self._after_run()

    def _after_run(self) -> None:
        self._dispatcher.turns.ended(self.claim)
        if any(source is None for source in self.sources):
            self.entries.let_go()
        self._run_between()
        self._dispatcher.pump()
        if self._run is None:
            self.entries.active.outputs.prepare()

    def _run_between(self) -> None:
        while self._between and self._run is None:
            self._between.pop(0)()

    def _complete(self, run: Run) -> None:
        torn = run.torn()
        verdict, flags = (_TORN, ResultFlag(0)) if torn else self._inspection.look(run.outputs)
        if verdict is not _GOOD:
            self._discard(run, verdict, torn)
        elif run.reasons:
            self.counters.state_only += 1
            for (source, frame), reason in zip(run.frames, run.reasons, strict=True):
                end_dropped(source, frame, reason, LeaseEvent.FENCE)
        else:
            self._publish(run, flags)
        run.entry.times.add(time.monotonic_ns() - run.fence.submitted_ns)
        self.claim.run_ns = self.entries.active.times.p99_ns

    def _discard(self, run: Run, verdict: Verdict, torn: set[Waiting]) -> None:
        """Nothing of the run is published, and nothing of it may live on in the state."""
        setattr(self.counters, verdict.value, getattr(self.counters, verdict.value) + 1)
        if run.entry.writes_state:
            self.counters.state_tainted += 1
            self._reset()
        for source, frame in run.frames:
            source.end(frame, LeaseEvent.FENCE, ReleaseStatus.TORN if frame in torn else ReleaseStatus.LOST)

    def _publish(self, run: Run, flags: ResultFlag) -> None:
        slot, sequence = self.ring.publish(run.outputs.views)
        published_ns = time.monotonic_ns()
        receipt = make_receipt(run, self._digest, self.state_epoch, flags, published_ns)
        counters, missed = self._intake.counters, not receipt.deadline_met
        counters.published += 1
        counters.deadline_missed += missed
        self.on_publish(receipt, slot, sequence)  # what nobody waits for comes after it
        if not self.on_published(run):
            self._end(run, LeaseEvent.FENCE, ReleaseStatus.RUN)
        counters.last_run_ns = run.fence.completed_ns - run.fence.started_ns
        counters.last_latency_ns = published_ns - run.sof_ns
        counters.stages.observe(run.sof_ns, receipt.submitted_ns, receipt.completed_ns, published_ns)
        self._note(missed=missed)

    def _end(self, run: Run, event: LeaseEvent, status: ReleaseStatus) -> None:
        for source, frame in run.frames:
            source.end(frame, event, status)

    # misses

    def _note_missed(self, sets: int) -> None:
        for _ in range(sets):
            self._note(missed=True)

    def _note(self, *, missed: bool) -> None:
        change = self.degradation.note(missed=missed)
        if change is not None:
            self._changed(change)

    def _changed(self, change: Change) -> None:
        self._intake.run_by(self.entries.choose(lighter=change.after.lighter))
        if change.after is Mode.STOPPED:
            for frame in self._intake.clear():
                self._give_back(frame)
        self.on_change(self, change)
