"""Which models serve: their pipelines by name, the one before each, and the switch between two frames.

A switch waits until the old model's run has ended, then moves streams, waiting frames, state and aux values over and
starts the new one; the old one stays loaded for a rollback. Consumers keep their ring where the outputs are the same.
"""

from __future__ import annotations

from collections.abc import Callable

from abi.flat import ReleaseStatus
from abi.format import mismatches
from abi.graph import OutputView
from abi.lease import LeaseEvent
from daemon.camera_stream import CameraStream
from daemon.config import Config
from daemon.dispatcher import Dispatcher, places
from daemon.loop import Loop
from daemon.models import LoadedModel
from daemon.pipeline import OnChange, Pipeline, Publish
from daemon.refusal import ModelCode, ModelRefused, Step, refused
from daemon.ring import ResultRing
from daemon.scheduler import Waiting
from daemon.turns import Turns
from hal.accelerator import Accelerator
from hal.error import HalError

OnSwitched = Callable[[Pipeline], None]
Check = Callable[[LoadedModel, "Pipeline | None"], None]
OnEnded = Callable[[str, str], None]  # model name, reason: its consumers must subscribe again


class Roster:
    """The active pipelines. `publisher` makes what a pipeline calls for each result, by model name."""

    def __init__(
        self, accelerator: Accelerator, config: Config, loop: Loop, publisher: Callable[[str], Publish]
    ) -> None:
        self.pipelines: dict[str, Pipeline] = {}
        self.previous: dict[str, LoadedModel] = {}
        self.on_device_error: Callable[[], None] = lambda: None
        self.on_outputs_changed: OnEnded = lambda model, reason: None
        self.check: Check = lambda model, old: None
        # Raises ModelRefused where a model may not take the place of what serves under its name.
        self.on_change: OnChange = lambda pipeline, change: None
        self.is_loading: Callable[[], bool] = lambda: False
        self.paused = False
        self._accelerator = accelerator
        self._config = config
        self._publisher = publisher
        device = accelerator.properties()
        self.dispatcher = Dispatcher(Turns(places(config.driver, device, config.device)), loop)
        self._switching: set[str] = set()
        loop.add_timer(self._due_ns, self._expire)

    def input_of(self, stream: str) -> tuple[Pipeline, int] | None:
        """The pipeline that takes a stream of this name, and the stream's position in its contract."""
        for pipeline in self.pipelines.values():
            for position, one in enumerate(pipeline.inputs):
                if one.stream == stream:
                    return pipeline, position
        return None

    def refuse_conflicts(self, model: LoadedModel) -> None:
        """Raises ModelRefused when the model takes a stream that another one takes, or one stream twice."""
        wanted = [model.graph.frames[index].stream for index in model.graph.entrypoints[0].frames]
        for stream in wanted:
            found = self.input_of(stream)
            if wanted.count(stream) > 1 or (found is not None and found[0].model.name != model.name):
                other = "the same model" if found is None else found[0].model.label
                raise ModelRefused(
                    Step.CONTRACT,
                    ModelCode.STREAM_TAKEN,
                    f"stream {stream} of {model.label}",
                    expected="a stream that no other model takes",
                    found=f"also taken by {other}",
                    todo="give the streams of the models different names",
                )

    def prepare(self, model: LoadedModel) -> Pipeline:
        """A pipeline for `model` with all its memory, for `switch`. Raises ModelRefused.

        It has the ring of the one that serves under its name, where the outputs are the same.
        """
        self.refuse_conflicts(model)
        old = self.pipelines.get(model.name)
        self.check(model, old)
        outputs = tuple(model.graph.outputs[index].view for index in model.graph.entrypoints[0].outputs)
        ring = old.ring if old is not None and old.ring.outputs == outputs else None
        try:
            if ring is not None:
                new = Pipeline(model, self._accelerator, ring, self._config, self.dispatcher)
            else:
                new = self._with_new_ring(model, outputs)
        except HalError as error:
            raise refused(error) from error
        new.on_publish = self._publisher(model.name)
        new.on_device_error = self.on_device_error
        new.on_change = self.on_change
        return new

    def _with_new_ring(self, model: LoadedModel, outputs: tuple[OutputView, ...]) -> Pipeline:
        ring = ResultRing(model.name, outputs, self._config.limits.ring_slots)
        try:
            return Pipeline(model, self._accelerator, ring, self._config, self.dispatcher)
        except BaseException:
            ring.close()
            raise

    def switch(self, new: Pipeline, on_switched: OnSwitched) -> None:
        """Lets a prepared pipeline serve in place of the one of its name, between two runs; then calls `on_switched`.

        The model that served before is kept in `previous`; the one before that is unloaded. Where `new` is the very
        bundle that serves, `previous` stays.
        """
        name = new.model.name
        if name in self._switching:
            raise RuntimeError(f"{name} is being switched already")
        old = self.pipelines.get(name)
        if old is None:
            self._start(new)
            on_switched(new)
            return
        self._switching.add(name)

        def idle() -> None:
            misfits = self._hand_over(old, new)
            self._start(new)
            for source in misfits:  # only now: their cameras may close streams that the new one has taken over
                source.camera.bye(f"{new.model.label} does not take this stream; open it anew")
            self._switching.discard(name)
            if old.ring is not new.ring:
                self.on_outputs_changed(name, f"the outputs of {name} changed; subscribe again")
                old.ring.close()
            on_switched(new)

        old.between_runs(idle)

    def drop_previous(self, name: str) -> None:
        """Forgets and unloads the model that served before, so that no rollback leads to it."""
        stale = self.previous.pop(name, None)
        if stale is not None:
            stale.unload(self._accelerator)

    def retire_older(self, name: str) -> None:
        """What serves is confirmed: an older one that served before it never will again, and gives its memory back.

        Between two runs soon, and not now, where a result is being published. While a bundle is being loaded it stays
        until the next switch: on some devices taking a module apart would wait for the one that is made.
        """
        serving = self.pipelines[name]

        def idle() -> None:
            previous = self.previous.get(name)
            if previous is None or self.pipelines.get(name) is not serving or self.is_loading():
                return
            if previous.release <= serving.model.release:
                self.drop_previous(name)

        self.dispatcher.loop.call_soon(lambda: serving.between_runs(idle))

    def pause(self) -> None:
        """Starts no more runs in any model; frames that wait are given back."""
        self.paused = True
        for pipeline in self.pipelines.values():
            pipeline.pause()

    def resume(self) -> None:
        """Starts runs again."""
        self.paused = False
        for pipeline in self.pipelines.values():
            pipeline.resume()

    @property
    def busy(self) -> bool:
        """Whether any run is on the device."""
        return any(pipeline.busy for pipeline in self.pipelines.values())

    @property
    def switching(self) -> bool:
        """Whether a model waits for the end of the run before it."""
        return bool(self._switching)

    def between_runs(self, call: Callable[[], None]) -> None:
        """Calls `call` once no model has a run on the device. To be used while paused."""
        busy = next((pipeline for pipeline in self.pipelines.values() if pipeline.busy), None)
        if busy is None:
            call()
        else:
            busy.between_runs(lambda: self.between_runs(call))

    def after_device_reset(self) -> None:
        """The device was reset: every run in flight is lost."""
        for pipeline in list(self.pipelines.values()):
            pipeline.after_device_reset()

    def close(self) -> None:
        """Forgets everything; for the end of the process."""
        for pipeline in self.pipelines.values():
            pipeline.ring.close()
        self.pipelines.clear()

    def _start(self, pipeline: Pipeline) -> None:
        self.pipelines[pipeline.model.name] = pipeline
        if self.paused:
            pipeline.pause()
        pipeline.begin()

    def _hand_over(self, old: Pipeline, new: Pipeline) -> list[CameraStream]:
        """Everything that outlives a switch; called between two runs. Returns the streams that the new one refuses."""
        waiting = old.retire()
        new.counters = old.counters  # they count for the model's name, whatever its release
        _hand_state_over(old, new)
        new.aux.take_over(old.aux)
        misfits = []
        for source in [source for source in old.sources if source is not None]:
            if not self._move(source, new, [frame for frame in waiting if frame.stream == source.position]):
                misfits.append(source)
        self._keep_for_rollback(old.model, new.model)
        return misfits

    def _keep_for_rollback(self, old: LoadedModel, new: LoadedModel) -> None:
        """The way back leads to another bundle: one that is named twice does not take its own place there."""
        if old.digest == new.digest:
            old.unload(self._accelerator)
            return
        stale = self.previous.pop(old.name, None)
        if stale is not None and stale is not new:
            stale.unload(self._accelerator)
        self.previous[old.name] = old

    def _move(self, source: CameraStream, new: Pipeline, waiting: list[Waiting]) -> bool:
        """Moves a stream with its frames; False, and the frames are lost, where the new model does not take it."""
        position = next((at for at, one in enumerate(new.inputs) if one.stream == source.name), None)
        if position is None or mismatches(new.inputs[position].format, source.format):
            for frame in waiting:
                source.count("model changed")
                source.end(frame, LeaseEvent.DROP, ReleaseStatus.LOST)
            source.sink = None
            return False
        source.position = position
        new.attach(source)
        for frame in waiting:
            new.offer(frame._replace(stream=position))
        return True

    def _due_ns(self) -> int | None:
        due = [at for at in (pipeline.due_ns for pipeline in self.pipelines.values()) if at is not None]
        return min(due, default=None)

    def _expire(self, now_ns: int) -> None:
        for pipeline in self.pipelines.values():
            pipeline.expire(now_ns)


def _hand_state_over(old: Pipeline, new: Pipeline) -> None:
    """State buffers of the same name, dtype and shape go over where both contracts say so; the others start anew."""
    new.model.executable.reset_state()
    before = {state.name: state for state in old.model.graph.states}
    moved = 0
    for state in new.model.graph.states:
        source = before.get(state.name)
        same = source is not None and (source.dtype, source.shape) == (state.dtype, state.shape)
        if state.hand_over and same:
            new.model.executable.state(state.name)[:] = old.model.executable.state(state.name)
            moved += 1
    new.continue_epoch(old.state_epoch, was_reset=moved < len(new.model.graph.states))
