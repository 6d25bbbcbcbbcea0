"""A candidate that runs on the frames of the model that serves, after it, and publishes nothing.

Each set of frames whose result was published is kept until the candidate has run on it; its outputs are compared with
the served ones. The model that serves never waits: a run begins only where, by the measured p99, it makes nobody's next
frame late, and is cancelled when somebody's turn comes all the same. Such a set is skipped and counted. Recurrent state
begins as a copy of the serving model's, and is copied anew after a set was skipped, so that it stays in step.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass

from abi.flat import ReleaseStatus
from abi.lease import LeaseEvent
from daemon.aux_inputs import AuxInputs
from daemon.comparison import Comparison
from daemon.completion import Run
from daemon.config import Isolation
from daemon.dispatcher import Dispatcher
from daemon.entry import Entry, OutputSet
from daemon.models import LoadedModel
from daemon.pipeline import Pipeline
from daemon.turns import Claim
from hal.accelerator import Accelerator
from hal.error import HalError
from hal.fence import Fence, FenceStatus

_LOWEST = -(1 << 31)  # below every priority of the configuration
_NS_PER_US = 1_000

OnEnded = Callable[["Shadow", str], None]


@dataclass
class Skips:
    """Why sets of frames were not compared.

    no_time: the run would have made a frame late. preempted: it had begun, and a frame came. out_of_step: the
    candidate's state was not that of the frame; it is from the next one on. torn: a frame was not what was submitted
    any more. lighter: the lighter entrypoint served. device: the device did not finish. canary: output was not written.
    """

    no_time: int = 0
    preempted: int = 0
    out_of_step: int = 0
    torn: int = 0
    lighter: int = 0
    device: int = 0
    canary: int = 0


class Shadow:
    """One candidate beside one pipeline; a member of its dispatcher. `on_ended` is called once, between its runs."""

    def __init__(
        self,
        model: LoadedModel,
        pipeline: Pipeline,
        accelerator: Accelerator,
        dispatcher: Dispatcher,
        *,
        frames: int,
        on_ended: OnEnded,
    ) -> None:
        """Allocates everything. frames: how many sets to compare; 0: until `end`. Raises HalError."""
        self.model, self.pipeline = model, pipeline
        self.skips = Skips()
        self.late = 0
        # Runs after which the candidate's result would have missed its deadline, had it run in the other's place.
        self.on_device_error: Callable[[], None] = lambda: None
        graph = model.graph
        self.contract = graph.entrypoints[0]
        self.inputs = {graph.frames[index].stream: at for at, index in enumerate(self.contract.frames)}
        self.aux = AuxInputs(graph, self.contract, accelerator)
        self.claim = Claim(f"{model.name} (shadow)", _LOWEST, graph.threads)
        served = pipeline.model.graph
        self.comparison = Comparison(
            [graph.outputs[index] for index in self.contract.outputs],
            [served.outputs[index] for index in pipeline.entry.outputs],
        )
        self._accelerator, self._dispatcher = accelerator, dispatcher
        self._entry = Entry(model, 0, self.aux, accelerator)
        self._frames, self._on_ended = frames, on_ended
        self._served = [bytearray(served.outputs[index].view.size_bytes) for index in pipeline.entry.outputs]
        self._states = _shared_states(pipeline.model, model)
        self._step: tuple[int, int] | None = None  # fence value and epoch of the serving run that state stands after
        self._held: Run | None = None
        self._fence: Fence | None = None
        self._outputs: OutputSet | None = None
        self._ending = ""
        self._cancelled = False
        self._between: list[Callable[[], None]] = []

    def begin(self) -> None:
        """Starts to follow; to be called between two runs of the pipeline."""
        self._dispatcher.loop.watch(self.model.executable.timeline.descriptor, self._on_fence)
        self.model.executable.reset_state()
        self._copy_state()
        self.pipeline.on_published = self.take
        self._dispatcher.join(self)

    def between_runs(self, call: Callable[[], None]) -> None:
        """Calls `call` once it holds no frame; at once where it holds none. To be used while the model is paused."""
        if self._held is None:
            call()
        else:
            self._between.append(call)

    def end(self, reason: str) -> None:
        """Follows no more; what is on the device is cancelled and waited for."""
        if self._ending:
            return
        self._ending = reason
        self.pipeline.on_published = lambda run: False
        self._dispatcher.leave(self)
        if self._fence is None:
            self._release()
            self._finish()
        else:
            self._cancel()

    def report(self) -> dict[str, object]:
        """What was found so far, as JSON."""
        stated, times = self.model.bundle.statement.model, self._entry.times
        return {
            "version": stated.version,
            "release": stated.release,
            "digest": self.model.bundle.digest,
            "path": self.model.path,
            "ended": self._ending or None,
            "compared": self.comparison.compared,
            "within": self.comparison.within,
            "outside": self.comparison.outside,
            "late": self.late,
            "skipped": asdict(self.skips),
            "run_p50_us": times.quantile_ns(50) // _NS_PER_US,
            "run_p99_us": times.p99_ns // _NS_PER_US,
            "outputs": [{**asdict(tally), "worst": _finite(tally.worst)} for tally in self.comparison.outputs],
            "outputs_left_out": self.comparison.left_out,
            "states_copied": list(self._states),
        }

    # what the pipeline and the dispatcher call

    def take(self, run: Run) -> bool:
        """A result was published: keeps the frames of the run for a run of its own, or says no."""
        if self._held is not None:
            self.skips.no_time += 1
            self._step = None
            return False
        if run.entry is not self.pipeline.entries.primary or not self._is_in_step(run):
            self.skips.lighter += run.entry is not self.pipeline.entries.primary
            self.skips.out_of_step += run.entry is self.pipeline.entries.primary
            self._copy_state()
            return False
        for kept, view in zip(self._served, run.outputs.views, strict=True):
            kept[:] = view
        self.aux.copy_given(self.pipeline.aux)
        self._held = run
        self._step = (run.fence.value, self.pipeline.state_epoch)
        return True

    def refresh(self, now_ns: int) -> None:
        """Gives way to whoever's turn has come."""
        turns = self._dispatcher.turns
        if self._fence is not None and any(one.ready and not turns.has_room(one) for one in turns.claims):
            self._cancel()

    def start_next(self, now_ns: int) -> None:
        """Never its turn: it has no frames of its own."""

    def catch_up(self, now_ns: int) -> None:
        """The device is free: runs on what it holds, if that makes nothing late."""
        held = self._held
        if held is None or self._fence is not None:
            return
        if self._dispatcher.turns.fits_before(self.claim, self._entry.times.p99_ns, now_ns):
            self._start(held)
        else:
            self._entry.times.note_drop()
            self.skips.no_time += 1
            self._let_pass()

    def after_device_reset(self) -> None:
        """The device was reset: what was on it is over."""
        if self._fence is not None:
            self.skips.device += 1
            self._run_ended()

    # its own run

    def _start(self, held: Run) -> None:
        for source, frame in held.frames:
            position = self.inputs.get(source.name)
            if position is None:
                continue  # the candidate does without it
            buffer = source.bind(frame)
            if buffer is None:
                self.skips.torn += 1
                self._let_pass()
                return
            self._entry.bindings.bind_frame(position, buffer)
        self._outputs = self._entry.bind_outputs()
        try:
            self._fence = self._accelerator.submit(self.model.executable, self._entry.bindings)
        except HalError:
            self.skips.device += 1
            self._let_pass()
            self.on_device_error()
            return
        self._dispatcher.turns.began(self.claim, self._fence.submitted_ns, self._entry.times.p99_ns)

    def _cancel(self) -> None:
        if not self._cancelled:
            self._cancelled = True
            self.model.executable.cancel()

    def _on_fence(self, events: int) -> None:
        self.model.executable.timeline.drain()
        fence, held, outputs = self._fence, self._held, self._outputs
        if fence is None or held is None or outputs is None or fence.poll() is FenceStatus.ACTIVE:
            return
        if fence.status is FenceStatus.SIGNALED:
            self._look(held, fence, outputs)
        elif not fence.quiet:
            self.on_device_error()  # the frames stay the device's until it was reset
            return
        else:
            self.skips.preempted += self._cancelled
            self.skips.device += not self._cancelled
            self._step = None
        self._run_ended()

    def _look(self, held: Run, fence: Fence, outputs: OutputSet) -> None:
        if held.torn() or self._was_overtaken(held):
            self.skips.torn += 1
        elif not outputs.written():
            self.skips.canary += 1
            self._step = None
        else:
            served = [memoryview(kept) for kept in self._served]
            self.comparison.add(outputs.views, served, held.frames[0][1].sequence)
            run_ns = time.monotonic_ns() - fence.submitted_ns
            self._entry.times.add(run_ns)
            deadline_ns = self.contract.deadline_ns
            self.late += bool(deadline_ns) and held.fence.submitted_ns + run_ns > held.sof_ns + deadline_ns

    def _was_overtaken(self, held: Run) -> bool:
        """Whether a private copy that it read was written anew: by the next run of the model that serves."""
        overtaken = self.pipeline.model.executable.timeline.issued != held.fence.value
        return overtaken and any(source.policy.isolation is Isolation.COPY for source, _ in held.frames)

    def _run_ended(self) -> None:
        self._fence, self._cancelled = None, False
        self._dispatcher.turns.ended(self.claim)
        self._release()
        if self._ending:
            self._finish()
        elif self._step is None:
            self._copy_state()
        if self._frames and self.comparison.compared >= self._frames:
            self.end("complete")
        self._dispatcher.pump()

    def _let_pass(self) -> None:
        """The set does not run here: its frames go back, and state follows the model that serves."""
        self._release()
        self._copy_state()

    def _release(self) -> None:
        held, self._held = self._held, None
        self._entry.let_go()
        for source, frame in held.frames if held is not None else ():
            source.end(frame, LeaseEvent.FENCE, ReleaseStatus.RUN)
        waiting, self._between = self._between, []
        for call in waiting:
            call()

    def _finish(self) -> None:
        self._dispatcher.loop.forget(self.model.executable.timeline.descriptor)
        self._on_ended(self, self._ending)

    # state

    def _is_in_step(self, run: Run) -> bool:
        return not self._states or self._step == (run.fence.value - 1, self.pipeline.state_epoch)

    def _copy_state(self) -> None:
        """State as after the last run of the model that serves; where one is on the device, at the next chance."""
        self._step = None
        if self.pipeline.busy or self._fence is not None:
            return
        serving = self.pipeline.model.executable
        for name in self._states:
            self.model.executable.state(name)[:] = serving.state(name)
        self._step = (serving.timeline.issued, self.pipeline.state_epoch)


def _finite(worst: float) -> float | None:
    """A difference as JSON, which has no infinity: None where only one side was a number."""
    return worst if math.isfinite(worst) else None


def _shared_states(serving: LoadedModel, candidate: LoadedModel) -> tuple[str, ...]:
    """The names of the states that both have, in the same dtype, shape and size."""
    theirs = {(one.name, one.dtype, one.shape, _size(serving, one.buffer)) for one in serving.graph.states}
    return tuple(
        one.name
        for one in candidate.graph.states
        if (one.name, one.dtype, one.shape, _size(candidate, one.buffer)) in theirs
    )


def _size(model: LoadedModel, buffer: int) -> int:
    return model.graph.buffers[buffer].size_bytes
