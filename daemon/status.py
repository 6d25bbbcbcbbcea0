"""The daemon's state for people and scripts: `fenced status` as JSON, in one packet whatever there is to say."""

from __future__ import annotations

import dataclasses
import json
import os
import time
from typing import TYPE_CHECKING

from abi.packet import MAX_PACKET_BYTES
from daemon import __version__, guard
from signing.utc import to_rfc3339

if TYPE_CHECKING:
    from daemon.entry import Entry
    from daemon.pipeline import Pipeline
    from daemon.service import Service

Tree = dict[str, object]
TEXT_LIMIT_BYTES = MAX_PACKET_BYTES - 1024
# What is left out where everything would not fit, this first.
_SPARE = (
    "models.shadow.outputs",
    "models.outputs",
    "trust.rollback_floors",
    "models.entrypoints",
    "models.runs",
    "streams",
)


def status_text(body: Tree, limit_bytes: int = TEXT_LIMIT_BYTES) -> str:
    """The state as JSON of at most `limit_bytes`: what does not fit is empty, and named in `left_out`."""
    left_out: list[str] = []
    body["left_out"] = left_out
    text = _json(body)
    for path in _SPARE:
        if len(text) <= limit_bytes:
            break
        _empty(body, path.split("."))
        left_out.append(path)
        text = _json(body)
    return text


def _json(body: Tree) -> str:
    return json.dumps(body, separators=(",", ":"), allow_nan=False)


def _empty(part: object, path: list[str]) -> None:
    """Empties the list or tree at `path`, in each item of a list on the way."""
    if isinstance(part, list):
        for item in part:
            _empty(item, path)
    elif isinstance(part, dict) and path[0] in part:
        found = part[path[0]]
        if path[1:]:
            _empty(found, path[1:])
        elif isinstance(found, list | dict):
            part[path[0]] = type(found)()


def status_body(service: Service) -> Tree:
    """The whole state. Every value is JSON."""
    return {
        "version": __version__,
        "epoch": service.context.epoch,
        "state": service.state,
        "pid": os.getpid(),
        "uptime_ms": (time.monotonic_ns() - service.started_ns) // 1_000_000,
        "models": _models(service),
        "streams": {**service.ledgers.columns()},
        "peers": service.server.counts(),
        "taps": service.context.taps.status(),
        "device": _device(service),
        "realtime": dataclasses.asdict(service.config.realtime),
        "trust": _trust(service),
        "audit": {"entries": service.audit.head.entries, "sha256": service.audit.head.sha256},
        "guard": {"sealed": guard.is_sealed(), "refused": guard.counts()},
        "faults": {
            "internal_errors": service.context.internal_errors,
            "log_lines_dropped": service.context.log.dropped,
            "audit_entries_lost": service.audit.lost,
            "state_writes_owed": len(service.switching.chores.owed),
            "device_resets": service.watch.resets,
        },
    }


def _models(service: Service) -> list[Tree]:
    models: list[Tree] = []
    for name, pipeline in service.roster.pipelines.items():
        model, statement = pipeline.model, pipeline.model.bundle.statement
        stated, expires = statement.model, statement.expires_unix_s
        previous = service.roster.previous.get(name)
        models.append(
            {
                "name": name,
                "version": stated.version,
                "release": stated.release,
                "digest": model.bundle.digest,
                "expires": None if expires is None else to_rfc3339(expires),
                "path": model.path,
                "mode": pipeline.degradation.mode.value,
                "priority": pipeline.claim.priority,
                "entrypoint": pipeline.entries.active.contract.name,
                "entrypoints": [_entry(entry) for entry in pipeline.entries.all],
                "deadline_misses": _misses(pipeline),
                "streams": [one.stream for one in pipeline.inputs],
                "outputs": [view.name for view in pipeline.ring.views],
                "subscriptions": len(service.subscriptions(name)),
                "waiting": pipeline.waiting,
                "busy": pipeline.busy,
                "state_epoch": pipeline.state_epoch,
                "load_ms": model.load_ns // 1_000_000,
                "golden_vectors": model.report.vectors,
                "runs": {**pipeline.counters.numbers(), "held_back": pipeline.claim.held_back},
                "probation_frames_left": service.switching.probation.frames_left(name),
                "shadow": service.switching.shadowing.report(name),
                "probation_faults": dataclasses.asdict(service.switching.probation.faults(name)),
                "previous": None if previous is None else previous.label,
            }
        )
    return models


def _entry(entry: Entry) -> Tree:
    """Times from submitted to dealt with, over the last runs (`window_runs` of them)."""
    return {
        "name": entry.contract.name,
        "role": entry.contract.role.name.lower(),
        "window_runs": entry.times.runs,
        "p50_ns": entry.times.quantile_ns(50),
        "p99_ns": entry.times.p99_ns,
    }


def _misses(pipeline: Pipeline) -> Tree:
    """Of the last `window_runs` runs, by the contract of the entrypoint in force; 0: it has no limit."""
    found = pipeline.degradation
    return {
        "in_window": found.misses,
        "window_runs": found.window_runs,
        "limit": found.limit,
        "clean_windows_to_recover": found.clean_windows,
        "mode_changes": found.changes,
    }


def _trust(service: Service) -> Tree:
    trust = service.trust.current
    floors = {name: floor.release for name, floor in trust.state.floors.items()}
    return {
        "root_version": trust.root.version,
        "trust_epoch": trust.state.trust_epoch,
        "rollback_floors": floors,
        "refused_releases": service.switching.trials.lost(),
    }


def _device(service: Service) -> Tree:
    properties, memory = service.device, service.accelerator.memory()
    dispatcher = service.roster.dispatcher
    return {
        "driver": properties.driver,
        "name": properties.device,
        "arch": properties.arch,
        "cores": properties.threads,
        "places": dispatcher.turns.places,
        "load_percent": round(dispatcher.load_percent(), 1),
        "load_limit_percent": service.config.limits.device_load_percent,
        "memory": {field.name: getattr(memory, field.name) for field in dataclasses.fields(memory)},
    }
