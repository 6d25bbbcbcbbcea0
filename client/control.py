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
from hal.error import HalError
from hal.memory import CONSTANT, Mapping, file_bytes, seal_copy, seals

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

    def shadow(
        self, bundle: str | os.PathLike[str], frames: int = 0, timeout_s: float = ACTIVATION_TIMEOUT_S
    ) -> dict[str, Any]:
        """Let a bundle run on the same frames as the model of its name that serves, compared and not published.

        `frames`: how many sets to compare; 0: until `end_shadow`, an activation or a rollback. `status` has the result.
        """
        return self._json(CommandKind.SHADOW, os.fspath(bundle), timeout_s, frames=frames)

    def end_shadow(self) -> dict[str, Any]:
        """End the shadow; what it came to."""
        return self._json(CommandKind.SHADOW)

    def rollback(self, timeout_s: float = ACTIVATION_TIMEOUT_S, *, model: str = "") -> dict[str, Any]:
        """Back to the previous model. `model`: its name, needed where several were replaced."""
        return self._json(CommandKind.ROLLBACK, model, timeout_s)

    def drain(self) -> dict[str, Any]:
        """Refuse new frames and finish those in flight."""
        return self._json(CommandKind.DRAIN)

    def resume(self) -> dict[str, Any]:
        """Take frames again after `drain`."""
        return self._json(CommandKind.RESUME)

    def reset_state(self, model: str = "") -> dict[str, Any]:
        """Recurrent state to its initial value. `model`: its name, needed where several serve."""
        return self._json(CommandKind.RESET_STATE, model)

    def snapshot_state(self, model: str = "") -> bytes:
        """A model's recurrent state as it is between two runs, for `abi.snapshot.decode` and for `restore_state`.

        Its header names the last run that it holds (timeline and fence value, as in receipts).
        """
        self._command(CommandKind.SNAPSHOT_STATE, model)
        return self._take_memory()

    def restore_state(self, snapshot: bytes | bytearray | memoryview, model: str = "") -> dict[str, Any]:
        """Replaces a model's recurrent state by a snapshot of it; the frames that run from here see it.

        The state's epoch rises. Refused where it is not this model's, by its digest, or by a state's name, dtype or
        shape; see `daemon.state_keeper` for what another release may take over.
        """
        descriptor = seal_copy("fenced-state", snapshot)
        try:
            return self._json(CommandKind.RESTORE_STATE, model, descriptors=(descriptor,))
        finally:
            os.close(descriptor)

    def metrics(self) -> str:
        """All counters as OpenMetrics text."""
        return self._command(CommandKind.METRICS)

    def set_aux(self, name: str, time_ns: int, value: bytes) -> None:
        """Set an aux input for the frames that run from here; `time_ns`: when it was true, CLOCK_MONOTONIC."""
        self._connection.request(SetAux(name, time_ns, value), AuxSet)

    def close(self) -> None:
        """End the session."""
        self._connection.close()

    def _take_memory(self) -> bytes:
        """The bytes of the memory that came with the answer. Raises ConnectionLost where it could still change."""
        descriptors = self._connection.take_descriptors()
        try:
            size = file_bytes(descriptors[0])
            if seals(descriptors[0]) & CONSTANT != CONSTANT:
                raise ConnectionLost("the daemon's answer comes in memory that can still change")
            return bytes(Mapping.of(descriptors[0], size).view)
        except HalError as error:
            raise ConnectionLost(f"the daemon's answer comes in no memory: {error}") from error
        finally:
            for descriptor in descriptors:
                os.close(descriptor)

    def _command(
        self,
        command: CommandKind,
        argument: str = "",
        timeout_s: float | None = None,
        *,
        frames: int = 0,
        descriptors: tuple[int, ...] = (),
    ) -> str:
        wait_s = self._timeout_s if timeout_s is None else timeout_s
        return self._connection.request(Command(command, argument, frames), Reply, wait_s, descriptors).body

    def _json(
        self,
        command: CommandKind,
        argument: str = "",
        timeout_s: float | None = None,
        *,
        frames: int = 0,
        descriptors: tuple[int, ...] = (),
    ) -> dict[str, Any]:
        body = self._command(command, argument, timeout_s, frames=frames, descriptors=descriptors)
        try:
            answer = json.loads(body) if body else {}
        except ValueError as error:
            raise ConnectionLost(f"the daemon's answer to {command.name} is not JSON: {error}") from error
        if not isinstance(answer, dict):
            raise ConnectionLost(f"the daemon's answer to {command.name} is not a JSON object")
        return answer
