"""The daemon as a whole: opens what it needs in order, loads the models, serves, and ends in good order.

Order of opening: locks, audit log, trust, device, sockets; then the models load while the control socket answers, and
READY is said when all of them serve. `run` returns the exit status; a device that is lost for good ends the process.
"""

from __future__ import annotations

import itertools
import os
import threading
import time
from collections.abc import Callable, Mapping

from abi import messages as m
from abi.packet import Kind, RefusalCode
from abi.receipt import Receipt
from daemon import __version__, guard
from daemon.activation import Activator
from daemon.audit import AuditLog
from daemon.camera_stream import CameraStream
from daemon.command import Body, CommandRefused, Done, Outcome
from daemon.config import Config
from daemon.consumer_peer import Subscription
from daemon.device_watch import DeviceWatch
from daemon.health import Notifier, Watchdog
from daemon.in_fence import InFences
from daemon.ledgers import Ledgers
from daemon.log import Log
from daemon.loop import Loop
from daemon.models import LoadedModel, ModelLoader, describe_machine
from daemon.peer import PeerContext
from daemon.pipeline import Pipeline, Publish
from daemon.probation import Probation
from daemon.refusal import ModelRefused, refused
from daemon.roster import Roster
from daemon.server import Server
from daemon.sockets import lock_folder, open_listeners
from daemon.state_keeper import StateKeeper
from daemon.status import metrics_text, status_body
from daemon.trust_store import VehicleTrust
from hal.accelerator import LIBRARIES, open_accelerator
from hal.error import HalError
from signing.refusal import Refused

EXIT_DONE, EXIT_FAULT, EXIT_REFUSED = 0, 1, 3
AUDIT_NAME = "audit.jsonl"
_EXTEND_EVERY_NS = 2_000_000_000
_EXTEND_BY_US = 10_000_000
_DRAIN_LIMIT_NS = 2_000_000_000


class Service:
    """One daemon. `on_ready` is called once, when every configured model serves; `on_lost` must end the process."""

    def __init__(
        self,
        config: Config,
        log: Log,
        health: tuple[Notifier, Watchdog],
        *,
        environment: Mapping[str, str],
        on_ready: Callable[[], None] = lambda: None,
        on_lost: Callable[[], None] = lambda: os._exit(EXIT_FAULT),
    ) -> None:
        """Opens everything. Raises SocketsTaken, signing's Refused, AuditBroken, HalError, OSError."""
        self.config = config
        self.started_ns = time.monotonic_ns()
        self.state = "loading"
        self._on_ready, self._on_lost = on_ready, on_lost
        self._notifier, watchdog = health
        os.makedirs(config.state_directory, mode=0o700, exist_ok=True)
        self._state_lock = lock_folder(config.state_directory, "lock")
        self.loop = Loop()
        self.audit = AuditLog(os.path.join(config.state_directory, AUDIT_NAME))
        self.audit.on_lost = lambda event, error: log.error(f"audit log: {event} is not written: {error}")
        self.trust = VehicleTrust(config.root_paths, config.state_directory, self.audit)
        self.probation = Probation(config.limits.probation_frames, self._confirm)
        self._confirmations: list[threading.Thread] = []
        with guard.opening(LIBRARIES.get(config.driver)):
            self.accelerator = open_accelerator(config.driver, config.device)
        self.device = self.accelerator.properties()  # read once: it comes from files that the seal closes
        listeners = open_listeners(config.socket_directory, config.sockets, environment)
        epoch = int.from_bytes(os.urandom(8), "little") | 1
        self.context = PeerContext(self.loop, log, config.limits, __version__, epoch)
        self.audit.on_written = self.context.taps.audit
        self.ledgers = Ledgers()
        self.in_fences = InFences(self.loop, config.limits.in_fence_timeout_ns)
        self.roster = Roster(self.accelerator, config, self.loop, self._publisher)
        self.roster.on_outputs_changed = self._end_subscriptions
        self.roster.on_device_error = self._device_error
        self.keeper = StateKeeper(self.roster, self.audit)
        self.watch = DeviceWatch(self.accelerator, self.loop, self._device_reset, self._device_lost)
        machine = describe_machine(self.accelerator, config.limits.model_memory_bytes)
        loader = ModelLoader(self.accelerator, self.trust, machine, self.audit, config.limits.bundle_bytes)
        self._activator = Activator(loader, self.loop)
        self._subscriptions: dict[str, list[Subscription]] = {}
        self._ids = itertools.count(1)
        self._to_load = list(config.bundle_paths)
        self._exit_status = EXIT_DONE
        self._stop_by_ns: int | None = None
        self._extend_at_ns: int | None = 0
        self.server = Server(listeners, self.context, self)
        self.loop.add_timer(watchdog.due_ns, watchdog.turn)
        self.loop.add_timer(lambda: self._extend_at_ns, self._extend)
        self.loop.add_timer(lambda: self._stop_by_ns, self._stop_now)
        self.audit.append("daemon.started", {"version": __version__, "pid": os.getpid(), "config": config.path[:1024]})

    def run(self) -> int:
        """Loads the models and serves until stopped; returns the exit status."""
        self._load_next()
        try:
            self.loop.run()
        finally:
            self._close()
        return self._exit_status

    def request_stop(self) -> None:
        """Drains, then ends `run`. May be called from any thread and from a signal handler."""
        self.loop.call_soon(self._begin_stop)

    @property
    def draining(self) -> bool:
        """Whether new frames are refused."""
        return self.state in ("draining", "stopping")

    def next_id(self) -> int:
        """A number for a stream or a subscription, never given twice."""
        return next(self._ids)

    def input_of(self, stream: str) -> tuple[Pipeline, int] | None:
        return self.roster.input_of(stream)

    def pipeline_of(self, model: str) -> Pipeline | None:
        return self.roster.pipelines.get(model)

    def stream_opened(self, stream: CameraStream) -> None:
        self.ledgers.open(stream)

    def stream_closed(self, stream: CameraStream) -> None:
        found = self.roster.input_of(stream.name)
        if found is not None:
            found[0].detach(stream)

    def subscribed(self, subscription: Subscription) -> None:
        self._subscriptions.setdefault(subscription.model, []).append(subscription)

    def unsubscribed(self, subscription: Subscription) -> None:
        self._subscriptions[subscription.model].remove(subscription)

    def subscriptions(self, model: str) -> tuple[Subscription, ...]:
        """Who is subscribed to a model."""
        return tuple(self._subscriptions.get(model, ()))

    def aux_takers(self, name: str) -> list[Pipeline]:
        """The pipelines of the models that take an aux input of this name."""
        return [pipeline for pipeline in self.roster.pipelines.values() if name in pipeline.aux.names]

    def set_aux(self, message: m.SetAux, now_ns: int) -> m.Refusal | None:
        takers = self.aux_takers(message.name)
        for pipeline in takers:
            refusal = pipeline.aux.set(message, now_ns)
            if refusal is not None:
                return refusal
        if takers:
            return None
        known = [name for pipeline in self.roster.pipelines.values() for name in pipeline.aux.names]
        action = "send what the active model's contract names"
        return m.Refusal(RefusalCode.UNKNOWN_AUX, Kind.SET_AUX, "name", f"one of {known}", message.name, action)

    # commands

    def status(self) -> Body:
        return status_body(self)

    def metrics(self) -> str:
        return metrics_text(self)

    def activate(self, path: str, done: Done) -> None:
        """Loads a bundle and lets it serve. Refused: what served before goes on."""
        folders = self.config.bundle_directories
        if os.path.dirname(path) not in folders:
            expected, action = f"a file in one of {list(folders)}", "install the bundle there (bundle_directories)"
            self.audit.note("activation.refused", {"path": path[:1024], "expected": expected[:1024]})
            done(CommandRefused(RefusalCode.NOT_PERMITTED, "path", expected, path[:256], action))
        elif self._is_changing or self.state == "stopping":
            action = "wait for it to end, then try again"
            done(CommandRefused(RefusalCode.LIMIT, "activation", "one at a time", "another is under way", action))
        else:
            self._activator.load(path, lambda outcome: self._loaded(outcome, done))

    def rollback(self, model: str, done: Done) -> None:
        """Back to the model that served before."""
        names = [model] if model else list(self.roster.previous)
        previous = self.roster.previous.get(names[0]) if len(names) == 1 else None
        if previous is None or self._is_changing:
            done(self._no_rollback(model))
            return
        try:
            pipeline = self._prepare(previous)
        except ModelRefused as refusal:
            self._answer_refused(refusal, done)
            return
        self.audit.note("model.rollback", {"model": previous.name, "digest": previous.bundle.digest})
        self._switch(pipeline, done)

    @property
    def _is_changing(self) -> bool:
        """Whether a bundle is being loaded, or one that is waits for the run before it to end."""
        return self._activator.busy or self.roster.switching

    def _no_rollback(self, model: str) -> CommandRefused:
        if self._is_changing:
            action, found = "wait for it to end, then try again", "another is under way"
            return CommandRefused(RefusalCode.LIMIT, "activation", "one at a time", found, action)
        known, found = list(self.roster.previous), model or "none named"
        if known:
            action = "name one of them"
            return CommandRefused(RefusalCode.NOT_READY, "model", f"one of {', '.join(known)}", found, action)
        action, expected = "activate the bundle that should serve", "a model that replaced another since the start"
        return CommandRefused(RefusalCode.NOT_READY, "model", expected, "none", action)

    def drain(self, done: Done) -> None:
        """Refuses new frames; done when nothing is in flight."""
        if self.state == "loading":
            action = "wait until it serves, then drain"
            done(CommandRefused(RefusalCode.NOT_READY, "state", "serving", self.state, action))
            return
        if self.state == "serving":
            self.state = "draining"
            self._notifier.send(STATUS="draining")
        self.roster.pause()
        self.roster.between_runs(lambda: done({"state": self.state}))

    def resume(self, done: Done) -> None:
        """Takes frames again."""
        if self.state == "draining":
            self.state = "serving"
            self._notifier.send(STATUS="serving")
            self.roster.resume()
        done({"state": self.state})

    # loading and switching

    def _load_next(self) -> None:
        if self._to_load:
            path = self._to_load.pop(0)
            self._activator.load(path, lambda outcome: self._loaded_at_start(path, outcome), at_start=True)
            return
        self._extend_at_ns = None
        self.state = "serving"
        self.server.open_doors()
        self._on_ready()
        served = ", ".join(pipeline.model.label for pipeline in self.roster.pipelines.values())
        self.context.log.notice(f"serving {served}")
        self._notifier.send(READY=1, STATUS=f"serving {served}")

    def _loaded_at_start(self, path: str, outcome: LoadedModel | ModelRefused) -> None:
        def done(answer: Outcome) -> None:
            if isinstance(answer, CommandRefused):
                self.context.log.error(f"{path} must serve and cannot: the daemon ends")
                self._exit_status = EXIT_REFUSED
                self.loop.stop()
            else:
                self._load_next()

        self._loaded(outcome, done)

    def _loaded(self, outcome: LoadedModel | ModelRefused, done: Done) -> None:
        if isinstance(outcome, LoadedModel):
            try:
                self._switch(self._prepare(outcome), done)
                return
            except ModelRefused as refusal:
                outcome.unload(self.accelerator)
                outcome = refusal
        self._answer_refused(outcome, done)

    def _prepare(self, model: LoadedModel) -> Pipeline:
        """Raises ModelRefused, noted, where trust or another model has moved past it since, or memory is short."""
        try:
            self.trust.current.require_fresh(model.bundle)
            return self.roster.prepare(model)
        except (Refused, ModelRefused) as error:
            refusal = refused(error) if isinstance(error, Refused) else error
            self.audit.note("model.refused", refusal.as_dict())
            raise refusal from None

    def _answer_refused(self, refusal: ModelRefused, done: Done) -> None:
        self.context.log.error(f"bundle refused: {refusal}")
        what = f"{refusal.code}: {refusal.what}"
        done(CommandRefused(RefusalCode.MODEL_REFUSED, what, refusal.expected, refusal.found, refusal.todo))

    def _switch(self, pipeline: Pipeline, done: Done) -> None:
        model = pipeline.model

        def switched(pipeline: Pipeline) -> None:
            self.audit.note("model.serving", model.identity(), durable=False)
            self.context.taps.model(model.name, model.digest)
            self.context.log.notice(f"{model.label} serves now, digest {model.bundle.digest}")
            self.probation.begin(model)
            done({**model.identity(), "load_ms": model.load_ns // 1_000_000})

        self.probation.stop(model.name)
        self.roster.switch(pipeline, switched)

    def _confirm(self, model: LoadedModel) -> None:
        """The model came through its probation: the floor rises now; the disk is waited for on another thread."""
        if self.trust.confirm(model.bundle, model.path):
            thread = threading.Thread(target=self._make_durable, args=(model,), name="fenced-confirm", daemon=True)
            self._confirmations = [one for one in self._confirmations if one.is_alive()] + [thread]
            thread.start()

    def _make_durable(self, model: LoadedModel) -> None:
        try:
            self.trust.persist()
        except OSError as error:
            self.audit.note("model.not-confirmed", {**model.identity(), "cause": str(error)[:1024]})
            self.context.log.error(f"{model.label} cannot be confirmed on the disk: {error}")
            return
        self.audit.note("model.confirmed", model.identity())
        self.context.log.notice(f"{model.label} is confirmed: nothing older will serve again")

    # results

    def _publisher(self, model: str) -> Publish:
        def publish(receipt: Receipt, slot: int, sequence: int) -> None:
            for subscription in self.subscriptions(model):
                subscription.deliver(receipt, slot, sequence)
            self.probation.count(model, receipt.flags)

        return publish

    def _end_subscriptions(self, model: str, reason: str) -> None:
        for subscription in self.subscriptions(model):
            subscription.peer.bye(reason)

    # the device

    def _device_error(self) -> None:
        self.watch.look(time.monotonic_ns())

    def _device_reset(self, cause: HalError) -> None:
        self.audit.note("device.reset", {"cause": str(cause)[:1024]})
        self.context.log.error(f"the device was reset, frames in flight are lost: {cause}")
        self.roster.after_device_reset()

    def _device_lost(self, cause: HalError) -> None:
        self.audit.note("device.lost", {"cause": str(cause)[:1024]})
        self.context.log.error(f"the device is lost and cannot be reset; the daemon ends to be restarted: {cause}")
        self._notifier.send(STATUS=f"device lost: {cause.code.value}", STOPPING=1)
        self._exit_status = EXIT_FAULT
        self._on_lost()
        self.loop.stop()

    # the end

    def _begin_stop(self) -> None:
        if self.state == "stopping":
            return
        self.state = "stopping"
        self._notifier.send(STOPPING=1, STATUS="stopping")
        self._stop_by_ns = time.monotonic_ns() + _DRAIN_LIMIT_NS
        self.roster.pause()
        self.roster.between_runs(self.loop.stop)

    def _stop_now(self, now_ns: int) -> None:
        self.loop.stop()

    def _extend(self, now_ns: int) -> None:
        """A load may take longer than the service manager waits: say that it goes on."""
        self._extend_at_ns = now_ns + _EXTEND_EVERY_NS
        self._notifier.send(EXTEND_TIMEOUT_USEC=_EXTEND_BY_US)

    def _close(self) -> None:
        self.server.close("the daemon stops")
        self._activator.join(_DRAIN_LIMIT_NS)
        for thread in self._confirmations:
            thread.join()
        self.roster.close()
        try:
            self.accelerator.close()
        except HalError as error:
            self.context.log.error(f"the device does not let go: {error}")
            self._exit_status = EXIT_FAULT
        self.audit.note("daemon.stopped", {"exit_status": self._exit_status})
        self.audit.close()
        self.loop.close()
        os.close(self._state_lock)
