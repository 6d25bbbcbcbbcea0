"""One log through one bundle, and where asked for through a second beside it: the unit of work of every replay.

A single replay runs one unit here; many run the same units one after another (`lab.replay.batch`) or on a Ray cluster
(`lab.replay.ray_cluster`). A unit starts the daemons that it needs and ends them.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path

from lab.replay.drive import sockets_of
from lab.replay.log import LogReader
from lab.replay.played import owner
from lab.replay.realtime import replay_in_real_time
from lab.replay.replay import Against, Options, ReplayReport, replay
from lab.replay.served import served, streams_of
from lab.sign.pack import open_checked

__all__ = ["Unit", "run_unit"]


@dataclass(frozen=True)
class Unit:
    """What is to be played. Either `bundle`, which is served for it, or `sockets` of a daemon that serves.

    `options.against` is set here, from the bundle `against`; bundles need the `root` that trusts them.
    """

    log: Path
    bundle: Path | None = None
    sockets: Path | None = None
    against: Path | None = None
    root: Path | None = None
    options: Options = field(default_factory=Options)
    real_time: bool = False

    @property
    def key(self) -> tuple[Path, Path | None]:
        """What tells it from the other units of a batch."""
        return self.log, self.bundle

    @property
    def name(self) -> str:
        """For a person: the log and the bundle."""
        return f"{self.log.name} × {self.bundle.name if self.bundle else self.sockets}"


def run_unit(unit: Unit, on_frame: Callable[[int], None] | None = None) -> ReplayReport:
    """Play it. Raises LogRefused, Refused, DaemonFailed, OSError, TimeoutError, ConnectionLost."""
    with ExitStack() as stack:
        streams = streams_of(unit.log)

        def serve(bundle: Path) -> Path:
            assert unit.root is not None
            return stack.enter_context(served(bundle, unit.root, streams))

        if unit.bundle is not None:
            sockets = serve(unit.bundle)
        else:
            assert unit.sockets is not None
            sockets = sockets_of(unit.sockets)
        options = unit.options
        if unit.against is not None:
            options = replace(options, against=Against(serve(unit.against), _rename(unit.log, unit.against)))
        play = replay_in_real_time if unit.real_time else replay
        return play(sockets, unit.log, options=options, on_frame=on_frame)


def _rename(log: Path, against: Path) -> dict[str, str]:
    """The other bundle may have another name, where the log has one model."""
    with open_checked(against) as (_, _, stated):
        name = stated.model.name
    logged = {owner(message) for message in LogReader(log).messages() if message.kind == "layout"}
    return {next(iter(logged)): name} if len(logged) == 1 else {}
