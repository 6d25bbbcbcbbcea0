"""An operator's session: one command at a time, each answered by a Reply or a Refusal once it has been carried out.

Who is listed under [observe] and not under [control] may ask for status and metrics, and for nothing else: an exporter
that listens on a network must not be able to command.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from typing import Protocol

from abi import messages as m
from abi.messages import CommandKind, Role
from abi.packet import Kind, RefusalCode
from abi.session import Event
from daemon.command import Attached, Body, CommandRefused, Done, Outcome
from daemon.config import Config
from daemon.peer import Arrival, Peer, PeerContext
from daemon.state_keeper import StateKeeper
from daemon.status import status_text
from daemon.switching import Switching
from daemon.transport import Descriptors

_OBSERVING = frozenset({CommandKind.STATUS, CommandKind.METRICS})


class ControlHost(Protocol):
    """What an operator's session needs of the daemon. A long command calls `done` on the loop's thread later."""

    config: Config
    keeper: StateKeeper
    switching: Switching

    def status(self) -> dict[str, object]: ...

    def metrics(self) -> str: ...

    def drain(self, done: Done) -> None: ...

    def resume(self, done: Done) -> None: ...

    def set_aux(self, message: m.SetAux, now_ns: int) -> m.Refusal | None: ...


class ControlPeer(Peer):
    """See the module."""

    role = Role.CONTROL

    def __init__(
        self, arrival: Arrival, context: PeerContext, on_closed: Callable[[Peer], None], host: ControlHost
    ) -> None:
        self._host = host
        self._pending = False
        super().__init__(arrival, context, on_closed)

    @property
    def may_idle(self) -> bool:
        """While a command is carried out it is the daemon that is silent."""
        return self._pending

    def may_enter(self) -> bool:
        return self._may_command or self.permits(self._host.config.observe)

    @property
    def _may_command(self) -> bool:
        return self.permits(self._host.config.control)

    def handle(self, event: Event, descriptors: Descriptors, now_ns: int) -> None:
        match event:
            case m.Command() if event.command not in _OBSERVING and not self._may_command:
                self.refuse(_observes_only(Kind.COMMAND, event.command.name.lower()))
            case m.SetAux() if not self._may_command:
                self.refuse(_observes_only(Kind.SET_AUX, f"aux input {event.name}"))
            case m.Command():
                self._pending = True
                self._carry_out(event, descriptors)
            case m.SetAux():
                refusal = self._host.set_aux(event, now_ns)
                if refusal is None:
                    self._context.taps.aux(event, now_ns)
                    self.say(m.AuxSet(event.name))
                else:
                    self.refuse(refusal)
            case _:
                super().handle(event, descriptors, now_ns)

    def _carry_out(self, command: m.Command, descriptors: Descriptors) -> None:
        def done(outcome: Outcome) -> None:
            if isinstance(outcome, CommandRefused):
                self._pending = False
                self.refuse(outcome.refusal)
            elif isinstance(outcome, Attached):
                self._reply_with(command, outcome)
            else:
                self._reply(command, _json(outcome))

        host, argument = self._host, command.argument
        match command.command:
            case CommandKind.STATUS:
                self._reply(command, status_text(host.status()))
            case CommandKind.METRICS:
                self._reply(command, host.metrics())
            case CommandKind.ACTIVATE:
                host.switching.activate(argument, done)
            case CommandKind.ROLLBACK:
                host.switching.rollback(argument, done)
            case CommandKind.DRAIN:
                host.drain(done)
            case CommandKind.RESUME:
                host.resume(done)
            case CommandKind.RESET_STATE:
                host.keeper.reset(argument, done)
            case CommandKind.SNAPSHOT_STATE:
                host.keeper.snapshot(argument, done)
            case CommandKind.RESTORE_STATE:
                (descriptor,) = descriptors.held  # as many as the session machine has seen to
                host.keeper.restore(argument, descriptor, done)
            case CommandKind.SHADOW:
                host.switching.shadow(argument, command.frames, done)
            case CommandKind.UNSPECIFIED:  # the session machine has refused it already
                raise TypeError("an unspecified command")

    def _reply(self, command: m.Command, body: str, descriptors: tuple[int, ...] = ()) -> None:
        self._pending = False
        self.say(m.Reply(command.command, body), descriptors)

    def _reply_with(self, command: m.Command, answer: Attached) -> None:
        try:
            self._reply(command, _json(answer.body), (answer.descriptor,))
        finally:
            os.close(answer.descriptor)


def _observes_only(kind: Kind, found: str) -> m.Refusal:
    expected, action = "status or metrics, from a user listed under [observe] only", "list it under [control] instead"
    return m.Refusal(RefusalCode.NOT_PERMITTED, kind, "command", expected, found, action)


def _json(body: Body) -> str:
    return json.dumps(body, separators=(",", ":"))
