"""The daemon as a whole: opens what it needs in order, loads the models, serves, and ends in good order.

Order of opening: locks, audit log, trust, device, sockets; then the models load while the control socket answers, and
READY is said when all of them serve. `run` returns the exit status; a device that is lost for good ends the process.
"""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable, Mapping

from abi import messages as m
from abi.packet import Kind, RefusalCode
from abi.receipt import Receipt
from daemon import __version__, guard
from daemon.audit import AuditLog
from daemon.camera_stream import CameraStream
from daemon.command import CommandRefused, Done
from daemon.config import Config
from daemon.consumer_peer import Subscription
from daemon.device_watch import DeviceWatch
from daemon.health import Notifier, Watchdog
from daemon.in_fence import InFences
from daemon.journal import MessageId
from daemon.ledgers import Ledgers
from daemon.log import Log
from daemon.loop import Loop
from daemon.metrics import metrics_text
from daemon.models import LoadedModel
from daemon.peer import PeerContext
from daemon.pipeline import Pipeline, Publish
from daemon.reload import Reload
from daemon.roster import Roster
from daemon.server import Server
from daemon.sockets import lock_folder, open_listeners
from daemon.standing import Standing
from daemon.state_keeper import StateKeeper
from daemon.status import status_body
from daemon.switching import Switching
from daemon.trust_store import VehicleTrust
from hal.accelerator import LIBRARIES, open_accelerator
from hal.error import HalError

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
        self.config, self.started_ns = config, time.monotonic_ns()
        self.state = "loading"
        self._on_ready, self._on_lost = on_ready, on_lost
        self._notifier, watchdog = health
        os.makedirs(config.state_directory, mode=0o700, exist_ok=True)
        self._state_lock = lock_folder(config.state_directory, "lock")
        self.loop = Loop()
        self.audit = AuditLog(os.path.join(config.state_directory, AUDIT_NAME))
        self.audit.on_lost = self._audit_lost
        self.trust = VehicleTrust(config.root_paths, config.state_directory, self.audit)
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
        self.standing = Standing(
            self.roster, self.audit, log, self._notifier, load_limit_percent=config.limits.device_load_percent
        )
        self.keeper = StateKeeper(self.roster, self.audit)
        self.watch = DeviceWatch(self.accelerator, self.loop, self._device_reset, self._device_lost)
        self.switching = Switching(
            config, self.loop, self.roster, self.accelerator, log=log, audit=self.audit, trust=self.trust
        )
        self.switching.shadowing.on_device_error = self._device_error
        self.switching.on_serving = self._model_serves
        self._reload = Reload(self, self._notifier, log)
        self._subscriptions: dict[str, list[Subscription]] = {}
        self._ids = itertools.count(1)
        self._exit_status = EXIT_DONE
        self.server = Server(listeners, self.context, self)
        self._keep_time(watchdog)
        self.audit.append("daemon.started", {"version": __version__, "pid": os.getpid(), "config": config.path[:1024]})

    def _keep_time(self, watchdog: Watchdog) -> None:
        self._stop_by_ns: int | None = None
        self._extend_at_ns: int | None = 0
        self.loop.add_timer(watchdog.due_ns, watchdog.turn)
        self.loop.add_timer(lambda: self._extend_at_ns, self._extend)
        self.loop.add_timer(lambda: self._stop_by_ns, self._stop_now)

    def run(self) -> int:
        """Loads the models and serves until stopped; returns the exit status."""
        self.switching.load_all(list(self.config.bundle_paths), self._loaded)
        try:
            self.loop.run()
        except BaseException:
            self._exit_status = EXIT_FAULT  # no stop in order: neither for the audit log nor for a release on trial
            raise
        finally:
            self._close()
        return self._exit_status

    def request_stop(self) -> None:
        """Drains, then ends `run`. May be called from any thread and from a signal handler."""
        self.loop.call_soon(self._begin_stop)

    def request_reload(self) -> None:
        """Reads the configuration again (`daemon.reload`). May be called from any thread and from a signal handler."""
        self.loop.call_soon(self._reload.begin)

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
        self.standing.look_at_load()

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

    def status(self) -> dict[str, object]:
        return status_body(self)

    def metrics(self) -> str:
        return metrics_text(self)

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
        shadowing = self.switching.shadowing
        self.roster.between_runs(lambda: shadowing.between_runs(lambda: done({"state": self.state})))

    def resume(self, done: Done) -> None:
        """Takes frames again."""
        if self.state == "draining":
            self.state = "serving"
            self.standing.tell()
            self.roster.resume()
        done({"state": self.state})

    # the start

    def _model_serves(self, model: LoadedModel) -> None:
        self.context.taps.model(model.name, model.digest)
        if self.state == "serving":  # at the start READY says it
            self.standing.tell()

    def _loaded(self, failed: str | None) -> None:
        """Every model of the configuration serves, or the one at `failed` cannot."""
        if failed is not None:
            todo = "the line before says why: mend it, or name another bundle in bundle_paths"
            self.context.log.error(f"{failed} must serve and cannot: the daemon ends", todo=todo)
            self._exit_status = EXIT_REFUSED
            self.loop.stop()
            return
        self._extend_at_ns = None
        self.state = "serving"
        self.server.open_doors()
        self._on_ready()
        self.context.log.notice(self.standing.text())
        self._notifier.send(READY=1, STATUS=self.standing.text())

    def _audit_lost(self, event: str, error: Exception) -> None:
        todo = "free the disk; nothing new is activated until it takes entries again"
        self.context.log.error(f"audit log: {event} is not written: {error}", todo=todo)

    # results

    def _publisher(self, model: str) -> Publish:
        def publish(receipt: Receipt, slot: int, sequence: int) -> None:
            for subscription in tuple(self._subscriptions.get(model, ())):  # it may end by what it is sent
                subscription.deliver(receipt, slot, sequence)
            self.switching.probation.count(model, receipt.flags)

        return publish

    def _end_subscriptions(self, model: str, reason: str) -> None:
        for subscription in self.subscriptions(model):
            subscription.peer.bye(reason)

    # the device

    def _device_error(self) -> None:
        self.watch.look(time.monotonic_ns())

    def _device_reset(self, cause: HalError) -> None:
        self.audit.note("device.reset", {"cause": str(cause)[:1024]})
        text = f"the device was reset, frames in flight are lost: {cause}"
        todo = cause.todo or "look at the kernel's log for the device; if it comes again recompile with a truer budget"
        self.context.log.error(text, MessageId.DEVICE_RESET, todo=todo, FAULT=cause.code.value)
        self.roster.after_device_reset()
        self.switching.shadowing.after_device_reset()

    def _device_lost(self, cause: HalError) -> None:
        self.audit.note("device.lost", {"cause": str(cause)[:1024]})
        text = f"the device is lost and cannot be reset; the daemon ends to be restarted: {cause}"
        todo = cause.todo or "leave it to the service manager; if it comes again recompile with a truer budget"
        self.context.log.error(text, MessageId.DEVICE_LOST, todo=todo, FAULT=cause.code.value)
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
        self.switching.stop()
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
        self._reload.join(_DRAIN_LIMIT_NS)
        self.switching.close(_DRAIN_LIMIT_NS, in_order=self._exit_status != EXIT_FAULT)
        self.roster.close()
        try:
            self.accelerator.close()
        except HalError as error:
            todo = error.todo or "nothing now; if the next start fails, look at the kernel's log for the device"
            self.context.log.error(f"the device does not let go: {error}", todo=todo)
            self._exit_status = EXIT_FAULT
        self.audit.note("daemon.stopped", {"exit_status": self._exit_status})
        self.audit.close()
        self.loop.close()
        os.close(self._state_lock)
