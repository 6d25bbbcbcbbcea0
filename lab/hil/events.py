"""What each event of a scenario does: to the frames that come, to the camera and consumers, or by asking the daemon.

An answer of the daemon is part of the drive: a refusal is recorded with its words and the drive goes on.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Final, cast

import numpy as np

from client.control import Control
from client.errors import ConnectionLost, Refused
from lab.hil.daemon import DaemonProcess
from lab.hil.faults.peers import MALFORMED
from lab.hil.peer import peer_process
from lab.hil.raw_peer import RawPeer
from lab.hil.releases import tampered
from lab.hil.scenario import Event, EventKind, ScenarioRefusal, ScenarioRefused
from lab.hil.stage import Stage
from lab.hil.trace import RequestRecord

__all__ = ["Conductor"]

NS_PER_MS = 1e6


@dataclass
class Conductor:
    """Lets events happen on a stage. `daemon` and `bundles` are there where the harness started the daemon."""

    stage: Stage
    daemon: DaemonProcess | None
    bundles: tuple[Path, ...]

    def require(self, event: Event) -> None:
        """Raises ScenarioRefused for an event that cannot happen on this bench: asked before the drive begins."""
        if event.kind is EventKind.ACTIVATE:
            self.bundle(event)
        elif event.kind is EventKind.KILL_DAEMON and self.daemon is None:
            raise ScenarioRefused(
                ScenarioRefusal.NEEDS_OWN_DAEMON, event.kind.value, expected="a daemon that the harness started",
                found="one that served already", todo="play it without --sockets",
            )  # fmt: skip
        elif event.kind is EventKind.FAIL_FENCE and event.params["outcome"] not in ("error", "never"):
            raise ScenarioRefused(
                ScenarioRefusal.VALUE, "event.outcome", expected="error or never", found=str(event.params["outcome"]),
                todo="correct it",
            )  # fmt: skip

    def happen(self, event: Event) -> None:
        """Let `event` happen before the frame that is due."""
        name = event.kind.value
        try:
            _ACTS[event.kind](self, event)
        except Refused as refused:
            self.stage.trace.requests.append(RequestRecord(event.at_s, name, str(refused)))
        else:
            self.stage.trace.requests.append(RequestRecord(event.at_s, name))

    def ask(self, call: Callable[[Control], object]) -> None:
        """One request of an operator."""
        with self.stage.clients.control() as control:
            call(control)

    def bundle(self, event: Event) -> Path:
        """The bundle that an activation names."""
        path, release = str(event.params["path"]), int(cast(int, event.params["release"]))
        if path:
            return Path(path).resolve()
        if not 1 <= release <= len(self.bundles):
            raise ScenarioRefused(
                ScenarioRefusal.VALUE, "event.release", expected=f"1 to {len(self.bundles)}, or a path",
                found=str(release), todo="sign more (daemon.releases), or name a bundle's path",
            )  # fmt: skip
        return self.bundles[release - 1]


def _count(name: str) -> Callable[[Conductor, Event], None]:
    def act(conductor: Conductor, event: Event) -> None:
        due = conductor.stage.due
        setattr(due, name, getattr(due, name) + int(cast(int, event.params["count"])))

    return act


def _turn_back(conductor: Conductor, event: Event) -> None:
    conductor.stage.due.turn_back_ms = float(cast(float, event.params["by_ms"]))
    _count("turn_back")(conductor, event)


def _fail_fence(conductor: Conductor, event: Event) -> None:
    conductor.stage.due.fence_outcome = str(event.params["outcome"])
    _count("fence")(conductor, event)


def _until(name: str) -> Callable[[Conductor, Event], None]:
    def act(conductor: Conductor, event: Event) -> None:
        setattr(conductor.stage.due, name, event.at_s + float(cast(float, event.params["for_s"])))

    return act


def _kill_camera(conductor: Conductor, event: Event) -> None:
    """What a SIGKILL leaves: a socket that is closed without a word. The next frame opens the stream anew."""
    camera = conductor.stage.camera
    if camera is not None:
        camera._connection._abandon()
        conductor.stage.camera = None
        conductor.stage.clients.wait_for(lambda status: status["peers"]["camera"] == 0)


def _consumer(how: signal.Signals) -> Callable[[Conductor, Event], None]:
    def act(conductor: Conductor, event: Event) -> None:
        stage = conductor.stage
        context = peer_process("consumer", stage.clients.sockets, stage.model.name)
        process = stage.kept.enter_context(context)
        process.send_signal(how)

    return act


def _nonsense(conductor: Conductor, event: Event) -> None:
    for packet in MALFORMED.values():
        with RawPeer(conductor.stage.clients.sockets, greet=False) as peer:
            peer.send(packet)
            peer.refusal()


def _set_aux(conductor: Conductor, event: Event) -> None:
    values = np.array(cast("list[float]", event.params["values"]), np.float32).tobytes()
    time_ns = time.monotonic_ns() - round(float(cast(float, event.params["age_ms"])) * NS_PER_MS)
    conductor.ask(lambda control: control.set_aux(str(event.params["name"]), time_ns, values))


def _activate(conductor: Conductor, event: Event) -> None:
    bundle = conductor.bundle(event)
    if event.params["tampered"]:
        bundle = tampered(bundle)
    conductor.ask(lambda control: control.activate(bundle))


def _kill_daemon(conductor: Conductor, event: Event) -> None:
    daemon = conductor.daemon
    assert daemon is not None  # `require` saw to it
    daemon.kill()
    daemon.start()
    with suppress(ConnectionLost):
        conductor.stage.close()
    conductor.stage.camera = conductor.stage.consumer = None


def _asked(call: Callable[[Control], object]) -> Callable[[Conductor, Event], None]:
    return lambda conductor, event: conductor.ask(call)


_ACTS: Final[Mapping[EventKind, Callable[[Conductor, Event], None]]] = MappingProxyType(
    {
        EventKind.DROP_FRAMES: _count("drop"),
        EventKind.BURST: _count("burst"),
        EventKind.STALL_CAMERA: _until("stalled_until_s"),
        EventKind.BLIND_CAMERA: _until("blind_until_s"),
        EventKind.REPEAT_SEQUENCE: _count("repeat"),
        EventKind.TURN_BACK_CLOCK: _turn_back,
        EventKind.OVERWRITE_FRAME: _count("overwrite"),
        EventKind.FAIL_FENCE: _fail_fence,
        EventKind.KILL_CAMERA: _kill_camera,
        EventKind.KILL_CONSUMER: _consumer(signal.SIGKILL),
        EventKind.STOP_CONSUMER: _consumer(signal.SIGSTOP),
        EventKind.SEND_NONSENSE: _nonsense,
        EventKind.SET_AUX: _set_aux,
        EventKind.ACTIVATE: _activate,
        EventKind.ROLLBACK: _asked(Control.rollback),
        EventKind.DRAIN: _asked(Control.drain),
        EventKind.RESUME: _asked(Control.resume),
        EventKind.RESET_STATE: _asked(Control.reset_state),
        EventKind.KILL_DAEMON: _kill_daemon,
    }
)
