"""The way of a frame through one model: wait, bind, run, look at what came out, publish, give back.

One run is on the device at a time, so that the newest frame is the one that runs next; output memory rotates, so that
a run never writes what the one before it is still read from. Nothing is published unless the device's own timeline
says that the run is over, every output byte was written (canary), and no frame of it was overwritten meanwhile.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from abi.flat import ReleaseStatus, ResultFlag
from abi.graph import NanPolicy
from abi.lease import LeaseEvent
from abi.packet import RefusalCode
from abi.receipt import MAX_AUX_AGES, Receipt
from daemon.aux_inputs import AuxInputs, StaleAux
from daemon.camera_stream import CameraStream
from daemon.config import Config
from daemon.loop import Loop
from daemon.models import LoadedModel
from daemon.outputs import FiniteCheck
from daemon.ring import ResultRing
from daemon.scheduler import Drop, DropReason, Rule, Scheduler, Waiting
from hal.accelerator import Accelerator, DeviceBuffer
from hal.canary import Canary
from hal.error import HalError
from hal.fence import Fence, FenceStatus

_OUTPUT_SETS = 2
_DEVICE_INDEX = 0  # one device is open
_ENTRYPOINT = 0  # the one that frames run through
_DROPS = {
    DropReason.SUPERSEDED: (ReleaseStatus.SUPERSEDED, RefusalCode.OK),
    DropReason.LATE: (ReleaseStatus.LATE, RefusalCode.OK),
    DropReason.SKEW: (ReleaseStatus.REFUSED, RefusalCode.OUT_OF_SKEW),
    DropReason.CLOSED: (ReleaseStatus.LOST, RefusalCode.OK),
}

Publish = Callable[[Receipt, int, int], None]  # receipt, ring slot, slot sequence


@dataclass
class Counters:
    """What became of the runs of one pipeline."""

    published: int = 0
    torn: int = 0
    canary: int = 0
    not_finite: int = 0
    stale_aux: int = 0
    device_errors: int = 0
    deadline_missed: int = 0
    skew: int = 0
    last_run_ns: int = 0
    last_latency_ns: int = 0


@dataclass
class _Run:
    """What is on the device now."""

    frames: tuple[tuple[CameraStream, Waiting], ...]
    fence: Fence
    outputs: int
    aux_ages_ns: tuple[int, ...]
    reset_before: bool
    # State was reset since the run before.


@dataclass
class _OutputSet:
    """Device memory for one run's outputs, and views of the named ones in the entrypoint's order."""

    buffers: tuple[DeviceBuffer, ...]
    canaries: tuple[Canary, ...]
    views: tuple[memoryview, ...]


class Pipeline:
    """One active model with its waiting frames and its run. `sources` are the open streams by contract position."""

    def __init__(
        self, model: LoadedModel, accelerator: Accelerator, ring: ResultRing, config: Config, loop: Loop
    ) -> None:
        self.model = model
        self.ring = ring
        self.counters = Counters()
        self.state_epoch = 1
        self.on_publish: Publish = lambda receipt, slot, sequence: None
        self.on_device_error: Callable[[], None] = lambda: None
        graph = model.graph
        self.entry = graph.entrypoints[_ENTRYPOINT]
        self.inputs = tuple(graph.frames[index] for index in self.entry.frames)
        self.sources: list[CameraStream | None] = [None] * len(self.inputs)
        self._accelerator = accelerator
        self._loop = loop
        self._bindings = model.executable.bindings(_ENTRYPOINT)
        self.aux = AuxInputs(graph, self.entry, accelerator, self._bindings)
        self._sets = tuple(self._make_outputs() for _ in range(_OUTPUT_SETS))
        self._next_set = 0
        outputs = [graph.outputs[index] for index in self.entry.outputs]
        self._finite = tuple(FiniteCheck(output.view.dtype, output.view.size_bytes) for output in outputs)
        self._refuses_nan = tuple(output.view.nan is NanPolicy.REFUSE for output in outputs)
        queues = tuple(config.stream(one.stream).queue_frames for one in self.inputs)
        rule = Rule(len(self.inputs), queues, self.entry.max_skew_ns, self.entry.deadline_ns)
        self._scheduler = Scheduler(rule)
        self._run: _Run | None = None
        self._paused = False
        self._between: list[Callable[[], None]] = []
        self._was_reset = False
        self._expected_run_ns = model.report.fastest_run_ns[_ENTRYPOINT]
        loop.watch(model.executable.timeline.descriptor, self._on_fence)

    @property
    def busy(self) -> bool:
        """Whether a run is on the device."""
        return self._run is not None

    @property
    def waiting(self) -> int:
        """Frames that wait for their run."""
        return self._scheduler.waiting()

    def attach(self, source: CameraStream) -> None:
        """A camera has opened the stream at `source.position`."""
        self.sources[source.position] = source
        source.sink = self

    def detach(self, source: CameraStream) -> None:
        """The stream is closed; a frame of it that runs stays where it is until its fence."""
        if self.sources[source.position] is source:
            self._drop(self._scheduler.close(source.position))
            self.sources[source.position] = None
        source.sink = None
        if self._run is None:
            self._let_go()

    def _let_go(self) -> None:
        """Keeps no hold on frame memory: its camera may be gone."""
        self._bindings.clear()
        self.aux.bind(self._bindings)

    def offer(self, frame: Waiting) -> None:
        """Takes a frame whose pixels are ready. While paused it goes back at once: its in-fence outlasted the pause."""
        if self._paused:
            self._give_back(frame)
            return
        self._drop(self._scheduler.offer(frame))
        self._pump()

    def pause(self) -> None:
        """Starts no more runs; what waits is given back."""
        self._paused = True
        for frame, _ in self._scheduler.clear():
            self._give_back(frame)

    def _give_back(self, frame: Waiting) -> None:
        self._source(frame).end(frame, LeaseEvent.DROP, ReleaseStatus.REFUSED, RefusalCode.NOT_READY)

    def resume(self) -> None:
        """Starts runs again."""
        self._paused = False
        self._pump()

    def between_runs(self, call: Callable[[], None]) -> None:
        """Calls `call` when nothing of this model is on the device, before another run starts; now, if it can."""
        self._between.append(call)
        self._run_between()

    def retire(self) -> list[Waiting]:
        """Stops for good and hands over the frames that still wait. Only between runs."""
        if self._run is not None:
            raise RuntimeError("a pipeline is retired only between runs")
        self._paused = True
        self._loop.forget(self.model.executable.timeline.descriptor)
        self._bindings.clear()
        return [drop.frame for drop in self._scheduler.clear()]

    def due_ns(self) -> int | None:
        """When a waiting frame becomes late."""
        due_ns = self._scheduler.next_deadline_ns()
        return None if due_ns is None else due_ns - self._expected_run_ns + 1

    def expire(self, now_ns: int) -> None:
        """Drops the waiting frames that cannot meet their deadline any more."""
        self._drop(self._scheduler.expire(now_ns, self._expected_run_ns))

    def reset_state(self) -> None:
        """Recurrent state to its initial value. Only between runs."""
        self.model.executable.reset_state()
        self._note_reset()

    def after_device_reset(self) -> None:
        """The device was reset: what was in flight is lost, and its slots are the cameras' again."""
        run, self._run = self._run, None
        self._note_reset()
        if run is not None:
            self._end(run, LeaseEvent.RESET, ReleaseStatus.LOST)
        self._after_run()

    def continue_epoch(self, epoch: int, *, was_reset: bool) -> None:
        """Goes on counting state epochs from the model that served before."""
        self.state_epoch = epoch
        if was_reset:
            self._note_reset()

    def _note_reset(self) -> None:
        self.state_epoch += 1
        self._was_reset = True

    def _make_outputs(self) -> _OutputSet:
        graph, sizes = self.model.graph, self._bindings.output_bytes()
        buffers = tuple(self._accelerator.allocate("outputs", size) for size in sizes)
        by_number = dict(zip(self._bindings.output_buffers, buffers, strict=True))
        views = []
        for index in self.entry.outputs:
            output = graph.outputs[index]
            at = output.view.offset
            views.append(by_number[output.buffer].view[at : at + output.view.size_bytes])
        return _OutputSet(buffers, tuple(Canary(buffer.view) for buffer in buffers), tuple(views))

    def _pump(self) -> None:
        while self._run is None and not self._paused and not self._between:
            now_ns = time.monotonic_ns()
            frames, drops = self._scheduler.take(now_ns, self._expected_run_ns)
            taken = tuple((self._source(frame), frame) for frame in frames or ())
            self._drop(drops)  # may find that a camera has gone; what was taken runs all the same
            if not taken:
                return
            self._start(taken, now_ns)

    def _start(self, taken: tuple[tuple[CameraStream, Waiting], ...], now_ns: int) -> None:
        torn = set()
        for source, frame in taken:
            buffer = source.bind(frame)
            if buffer is None:
                torn.add(frame)
            else:
                self._bindings.bind_frame(frame.stream, buffer)
        if torn:
            self.counters.torn += 1
            for source, frame in taken:
                source.end(frame, LeaseEvent.DROP, ReleaseStatus.TORN if frame in torn else ReleaseStatus.LOST)
            return
        try:
            ages = self.aux.give(now_ns)
        except StaleAux as stale:
            self.counters.stale_aux += 1
            for source, frame in taken:
                source.count(f"stale aux {stale}")
                source.end(frame, LeaseEvent.DROP, ReleaseStatus.REFUSED, RefusalCode.BAD_AUX)
            return
        self._submit(taken, ages)

    def _submit(self, taken: tuple[tuple[CameraStream, Waiting], ...], ages: tuple[int, ...]) -> None:
        chosen = self._next_set
        self._next_set = (chosen + 1) % _OUTPUT_SETS
        outputs = self._sets[chosen]
        for position, (buffer, canary) in enumerate(zip(outputs.buffers, outputs.canaries, strict=True)):
            canary.poison()
            self._bindings.bind_output(position, buffer)
        try:
            fence = self._accelerator.submit(self.model.executable, self._bindings)
        except HalError:
            self.counters.device_errors += 1
            for source, frame in taken:
                source.end(frame, LeaseEvent.DROP, ReleaseStatus.LOST)
            self.on_device_error()
            return
        for source, frame in taken:
            source.start(frame)
        self._run = _Run(taken, fence, chosen, ages, self._was_reset)
        self._was_reset = False

    def _source(self, frame: Waiting) -> CameraStream:
        source = self.sources[frame.stream]
        assert source is not None  # `detach` took its frames out of the queue
        return source

    def _on_fence(self, events: int) -> None:
        self.model.executable.timeline.drain()
        self.look()

    def look(self) -> None:
        """Looks at the fence in flight and acts on its end."""
        run = self._run
        if run is None or run.fence.poll() is FenceStatus.ACTIVE:
            return
        if run.fence.status is FenceStatus.SIGNALED:
            self._run = None
            self._complete(run)
        elif run.fence.quiet:
            self._run = None
            self.counters.device_errors += 1
            self.reset_state()
            self._end(run, LeaseEvent.FENCE, ReleaseStatus.LOST)
        else:
            self.on_device_error()  # the slots stay the device's until it was reset
            return
        self._after_run()

    def _after_run(self) -> None:
        if any(source is None for source in self.sources):
            self._let_go()
        self._run_between()
        self._pump()

    def _run_between(self) -> None:
        while self._between and self._run is None:
            self._between.pop(0)()

    def _complete(self, run: _Run) -> None:
        torn = {frame for source, frame in run.frames if not source.is_intact(frame)}
        if torn:
            self.counters.torn += 1
            for source, frame in run.frames:
                status = ReleaseStatus.TORN if frame in torn else ReleaseStatus.LOST
                source.end(frame, LeaseEvent.FENCE, status)
            return
        outputs = self._sets[run.outputs]
        if not all(canary.written() for canary in outputs.canaries):
            self.counters.canary += 1
            self._end(run, LeaseEvent.FENCE, ReleaseStatus.LOST)
            return
        flags = ResultFlag.STATE_RESET if run.reset_before else ResultFlag(0)
        for view, finite, refuses in zip(outputs.views, self._finite, self._refuses_nan, strict=True):
            if not finite(view):
                if refuses:
                    self.counters.not_finite += 1
                    self._end(run, LeaseEvent.FENCE, ReleaseStatus.LOST)
                    return
                flags |= ResultFlag.NAN
        slot, sequence = self.ring.publish(outputs.views)
        self.on_publish(self._receipt(run, flags), slot, sequence)
        self._end(run, LeaseEvent.FENCE, ReleaseStatus.RUN)

    def _receipt(self, run: _Run, flags: ResultFlag) -> Receipt:
        fence, timeline = run.fence, run.fence.timeline
        published_ns = time.monotonic_ns()
        sof_ns = min(frame.sof_ns for _, frame in run.frames)
        deadline_ns = sof_ns + self.entry.deadline_ns if self.entry.deadline_ns else 0
        if not deadline_ns or published_ns <= deadline_ns:
            flags |= ResultFlag.DEADLINE_MET
        else:
            self.counters.deadline_missed += 1
        self.counters.published += 1
        self.counters.last_run_ns = fence.completed_ns - fence.started_ns
        self.counters.last_latency_ns = published_ns - sof_ns
        self._expected_run_ns = min(self._expected_run_ns, self.counters.last_run_ns)
        return Receipt(
            model_digest=self.model.digest,
            entrypoint=_ENTRYPOINT,
            device=_DEVICE_INDEX,
            timeline=timeline.identity,
            fence_value=fence.value,
            fence_status=int(fence.status),
            flags=flags,
            state_epoch=self.state_epoch,
            deadline_ns=deadline_ns,
            submitted_ns=fence.submitted_ns,
            started_ns=timeline.to_monotonic(fence.started_ns),
            completed_ns=timeline.to_monotonic(fence.completed_ns),
            device_started_ns=fence.started_ns,
            device_completed_ns=fence.completed_ns,
            published_ns=published_ns,
            clock_error_ns=timeline.clock_error_ns + max(source.clock_error_ns for source, _ in run.frames),
            aux_ages_ns=run.aux_ages_ns[:MAX_AUX_AGES],
            frames=tuple(source.receipt(frame) for source, frame in run.frames),
        )

    def _end(self, run: _Run, event: LeaseEvent, status: ReleaseStatus) -> None:
        for source, frame in run.frames:
            source.end(frame, event, status)

    def _drop(self, drops: list[Drop]) -> None:
        for source, frame, reason in [(self._source(frame), frame, reason) for frame, reason in drops]:
            status, code = _DROPS[reason]
            if reason is DropReason.SKEW:
                self.counters.skew += 1
            if reason is DropReason.CLOSED:
                source.count(reason.value)
            source.end(frame, LeaseEvent.DROP, status, code)
