"""Playing a scenario: the daemon, the drive frame by frame with its events, and then what was expected against it.

`play` starts the daemon that the scenario describes, or takes one that serves already. What the daemon counted before
the drive is not counted as the drive's.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from daemon.audit import AuditBroken, verify
from lab.hil.clients import Sockets
from lab.hil.daemon import PATIENT, VEHICLE, DaemonProcess
from lab.hil.events import Conductor
from lab.hil.measure import Check, judge, measures
from lab.hil.releases import prepare
from lab.hil.scenario import Pace, Scenario, ScenarioRefusal, ScenarioRefused
from lab.hil.served import ServedModel, as_camera, read_model, served_models
from lab.hil.stage import Stage
from lab.hil.trace import FrameRecord, Trace
from lab.hil.view import make_view

__all__ = ["Attached", "Report", "play"]

OnFrame = Callable[[int, FrameRecord], object]


@dataclass(frozen=True)
class Attached:
    """A daemon that serves already: its sockets, and its audit log where it can be read."""

    sockets: Path
    audit: Path | None = None


@dataclass(frozen=True)
class Report:
    """What came of a scenario. `status`: the daemon's own words at the end; `measures`: by `section.key`."""

    scenario: Scenario
    model: ServedModel
    trace: Trace
    measures: Mapping[str, float]
    checks: tuple[Check, ...]
    status: Mapping[str, Any]
    seconds: float

    @property
    def passed(self) -> bool:
        """Whether every expectation was met."""
        return all(check.passed for check in self.checks)


@dataclass(frozen=True)
class _Venue:
    """Where it is played."""

    clients: Sockets
    daemon: DaemonProcess | None
    bundles: tuple[Path, ...]
    audit: Path | None


def play(scenario: Scenario, folder: Path, *, attached: Attached | None = None, vehicle: Path = VEHICLE,
         on_frame: OnFrame = lambda index, record: None) -> Report:  # fmt: skip
    """Play `scenario` with its files in `folder`, new or empty.

    Raises ScenarioRefused, CompileRefused, DaemonFailed; WrongAnswer where the daemon keeps a frame or a peer.
    """
    began_s = time.monotonic()
    with _venue(scenario, folder, attached, vehicle) as venue:
        before = venue.clients.status()
        audited = _entries(venue.audit)[0]
        stage = _stage(scenario, venue, before)
        conductor = Conductor(stage, venue.daemon, venue.bundles)
        for event in scenario.events:
            conductor.require(event)
        with contextlib.closing(stage):
            stage.open()
            _drive(scenario, stage, conductor, on_frame)
        status = venue.clients.wait_for(lambda status: status["streams"][stage.stream]["held"] == 0)
        entries, holds = _entries(venue.audit)
        events = [entry["event"] for entry in entries[len(audited) :]]
        found = measures(scenario, stage.trace, stage.stream, before, status)
        found |= {f"audit.{event}": float(events.count(event)) for event in set(events)}
        found["audit.chain_holds"] = float(holds)
    checks = judge(scenario.expectations, found, has_audit=venue.audit is not None)
    return Report(scenario, stage.model, stage.trace, found, checks, status, time.monotonic() - began_s)


@contextlib.contextmanager
def _venue(scenario: Scenario, folder: Path, attached: Attached | None, vehicle: Path) -> Iterator[_Venue]:
    if attached is not None:
        yield _Venue(Sockets(attached.sockets), None, (), attached.audit)
        return
    folder.mkdir(parents=True, exist_ok=True)
    bundles, root = prepare(scenario.daemon, folder)
    streams = list(read_model(bundles[0]).streams)
    limits = {**PATIENT, **(scenario.daemon.limits or {})}
    with DaemonProcess(folder / "daemon", bundles[:1], root, streams, limits=limits, vehicle=vehicle) as daemon:
        yield _Venue(Sockets(daemon.sockets), daemon, bundles, daemon.audit_path)


def _stage(scenario: Scenario, venue: _Venue, status: Mapping[str, Any]) -> Stage:
    models = [one for one in served_models(status) if scenario.model in (None, one.name)]
    if len(models) != 1 or len(models[0].streams) != 1:
        raise ScenarioRefused(
            ScenarioRefusal.MODEL, "scenario.model", expected="one model of one stream",
            found=", ".join(f"{one.name} of {len(one.streams)}" for one in models) or "none",
            todo="name a model of one stream that the daemon serves",
        )  # fmt: skip
    (model,) = models
    (contract,) = model.streams.values()
    view = make_view(scenario.camera, scenario.car, as_camera(contract), scenario.rate_hz)
    return Stage(venue.clients, model, view, scenario.camera.slots, 1.0 / scenario.rate_hz)


def _drive(scenario: Scenario, stage: Stage, conductor: Conductor, on_frame: OnFrame) -> None:
    waiting, start_s = list(scenario.events), time.monotonic()
    for index in range(scenario.frames):
        at_s = index / scenario.rate_hz
        while waiting and waiting[0].at_s <= at_s + 1e-9:
            conductor.happen(waiting.pop(0))
        if scenario.pace is Pace.REAL_TIME:
            time.sleep(max(0.0, start_s + at_s - time.monotonic()))
        on_frame(index, stage.step(index))


def _entries(path: Path | None) -> tuple[list[dict[str, Any]], bool]:
    """The audit log's entries, and whether its chain holds."""
    if path is None:
        return [], False
    try:
        verify(str(path))
        holds = True
    except AuditBroken:
        holds = False
    return [json.loads(line) for line in path.read_text().splitlines()], holds
