"""The control socket: ask the daemon for its state, and change which model serves.

with Control("/run/fenced/control.sock") as control:
    print(control.status()["model"])
    control.activate("/var/lib/fenced/lane.fenced")
"""

from __future__ import annotations

import json
import os
from types import TracebackType
from typing import Any, Final, Self

from abi.messages import AuxSet, Command, CommandKind, Reply, Role, SetAux
from client.connection import Connection
from client.errors import ConnectionLost

__all__ = ["Control"]

ACTIVATION_TIMEOUT_S: Final = 60.0  # verification, golden vectors and warm-up come before the answer


class Control:
    """A control session. Each method raises Refused (with the code and the daemon's reason), ConnectionLost or
    TimeoutError. Not for use from two threads at once.
    """

    def __init__(self, path: str | os.PathLike[str], *, name: str = "control", timeout_s: float = 5.0) -> None:
        """Connect to the control socket. Raises also OSError where nobody listens."""
        self._timeout_s = timeout_s
        self._connection = Connection(os.fspath(path), Role.CONTROL, name, timeout_s)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def daemon_version(self) -> str:
        """Version of the daemon that answers."""
        return self._connection.welcome.daemon_version

    def status(self) -> dict[str, Any]:
        """The daemon's whole state."""
        return self._json(CommandKind.STATUS)

    def activate(self, bundle: str | os.PathLike[str], timeout_s: float = ACTIVATION_TIMEOUT_S) -> dict[str, Any]:
        """Verify, admit and switch to a bundle, by its path as the daemon sees it. Refused: the old one serves on."""
        return self._json(CommandKind.ACTIVATE, os.fspath(bundle), timeout_s)

    def rollback(self, timeout_s: float = ACTIVATION_TIMEOUT_S) -> dict[str, Any]:
        """Back to the previous model."""
        return self._json(CommandKind.ROLLBACK, timeout_s=timeout_s)

    def drain(self) -> dict[str, Any]:
        """Refuse new frames and finish those in flight."""
        return self._json(CommandKind.DRAIN)

    def resume(self) -> dict[str, Any]:
        """Take frames again after `drain`."""
        return self._json(CommandKind.RESUME)

    def reset_state(self) -> dict[str, Any]:
        """Recurrent state to its initial value."""
        return self._json(CommandKind.RESET_STATE)

    def metrics(self) -> str:
        """All counters as OpenMetrics text."""
        return self._command(CommandKind.METRICS)

    def set_aux(self, name: str, time_ns: int, value: bytes) -> None:
        """Set an aux input for the frames that run from here; `time_ns`: when it was true, CLOCK_MONOTONIC."""
        self._connection.request(SetAux(name, time_ns, value), AuxSet)

    def close(self) -> None:
        """End the session."""
        self._connection.close()

    def _command(self, command: CommandKind, argument: str = "", timeout_s: float | None = None) -> str:
        wait_s = self._timeout_s if timeout_s is None else timeout_s
        return self._connection.request(Command(command, argument), Reply, wait_s).body

    def _json(self, command: CommandKind, argument: str = "", timeout_s: float | None = None) -> dict[str, Any]:
        body = self._command(command, argument, timeout_s)
        try:
            answer = json.loads(body) if body else {}
        except ValueError as error:
            raise ConnectionLost(f"the daemon's answer to {command.name} is not JSON: {error}") from error
        if not isinstance(answer, dict):
            raise ConnectionLost(f"the daemon's answer to {command.name} is not a JSON object")
        return answer
