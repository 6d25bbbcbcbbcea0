"""The daemon's state for people and machines: `fenced status` as JSON, `fenced metrics` as OpenMetrics text."""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from daemon import __version__, guard
from daemon.degradation import Mode

if TYPE_CHECKING:
    from daemon.entry import Entry
    from daemon.pipeline import Pipeline
    from daemon.service import Service

Tree = dict[str, object]
Samples = Sequence[tuple[dict[str, str], int | float]]


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
        "trust": _trust(service),
        "audit": {"entries": service.audit.head.entries, "sha256": service.audit.head.sha256},
        "guard": {"sealed": guard.is_sealed(), "refused": guard.counts()},
        "faults": {
            "internal_errors": service.context.internal_errors,
            "log_lines_dropped": service.context.log.dropped,
            "audit_entries_lost": service.audit.lost,
            "device_resets": service.watch.resets,
        },
    }


def _models(service: Service) -> list[Tree]:
    models: list[Tree] = []
    for name, pipeline in service.roster.pipelines.items():
        model, stated = pipeline.model, pipeline.model.bundle.statement.model
        previous = service.roster.previous.get(name)
        models.append(
            {
                "name": name,
                "version": stated.version,
                "release": stated.release,
                "digest": model.bundle.digest,
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
                "runs": {**dataclasses.asdict(pipeline.counters), "held_back": pipeline.claim.held_back},
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


class _Metrics:
    """Builds OpenMetrics text (openmetrics.io, 1.0): families in order, each with its samples."""

    def __init__(self) -> None:
        self._lines: list[str] = []

    def family(self, name: str, kind: str, text: str, samples: Samples) -> None:
        suffix = "_total" if kind == "counter" else ""
        self._lines += [f"# TYPE {name} {kind}", f"# HELP {name} {text}"]
        for labels, value in samples:
            shown = ",".join(f'{key}="{_escaped(text)}"' for key, text in labels.items())
            self._lines.append(f"{name}{suffix}{{{shown}}} {value}" if shown else f"{name}{suffix} {value}")

    def text(self) -> str:
        return "\n".join([*self._lines, "# EOF", ""])


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def metrics_text(service: Service) -> str:
    """The counters that matter to a dashboard, as OpenMetrics text."""
    out = _Metrics()
    ledgers = service.ledgers.columns()
    ends = ("run", "superseded", "late", "torn", "refused", "lost")
    frames = [({"stream": name, "end": end}, _int(columns[end])) for name, columns in ledgers.items() for end in ends]
    submitted = [({"stream": name}, _int(columns["submitted"])) for name, columns in ledgers.items()]
    held = [({"stream": name}, _int(columns["held"])) for name, columns in ledgers.items()]
    dropped = [({"stream": name}, _int(columns["camera_dropped"])) for name, columns in ledgers.items()]
    out.family("fenced_frames_submitted", "counter", "Frames that cameras gave to the daemon.", submitted)
    out.family("fenced_frames_ended", "counter", "Frames given back, by how they ended.", frames)
    out.family("fenced_frames_held", "gauge", "Frames that the daemon holds now.", held)
    out.family("fenced_camera_dropped", "counter", "Frames that cameras never submitted (sequence gaps).", dropped)
    runs = [(name, dataclasses.asdict(pipeline.counters)) for name, pipeline in service.roster.pipelines.items()]
    for key, text in (
        ("published", "Results published."),
        ("deadline_missed", "Results published after their deadline."),
        ("late_sets", "Frame sets that could not run before their deadline."),
        ("skipped_sets", "Frame sets skipped by contract, because misses persist."),
        ("state_only", "Runs that only kept recurrent state in step with frames that did not run."),
        ("state_tainted", "Discarded runs whose recurrent state was reset."),
        ("canary", "Runs discarded because output bytes were not written."),
        ("not_finite", "Runs discarded for NaN or infinity."),
        ("stale_aux", "Runs refused for a stale or missing aux input."),
        ("device_errors", "Runs that the device did not finish."),
    ):
        samples = [({"model": name}, counters[key]) for name, counters in runs]
        out.family(f"fenced_{key}", "counter", text, samples)
    seconds = [({"model": name}, counters["last_latency_ns"] / 1e9) for name, counters in runs]
    out.family("fenced_latency_seconds", "gauge", "Start of frame to published, of the last result.", seconds)
    _model_metrics(out, service)
    acts = [({"act": act}, count) for act, count in guard.counts().items()]
    out.family("fenced_forbidden_acts", "counter", "Acts that the guard refused.", acts)
    out.family("fenced_device_resets", "counter", "Resets of the device.", [({}, service.watch.resets)])
    ready = service.state == "serving" and service.standing.is_whole
    out.family("fenced_ready", "gauge", "1 while every model serves.", [({}, int(ready))])
    return out.text()


def _model_metrics(out: _Metrics, service: Service) -> None:
    """How models serve, and what they ask of the device."""
    pipelines = service.roster.pipelines
    modes = [
        ({"model": name, "mode": mode.value}, int(pipeline.degradation.mode is mode))
        for name, pipeline in pipelines.items()
        for mode in Mode
    ]
    out.family("fenced_mode", "gauge", "1 for the mode that a model serves in.", modes)
    held = [({"model": name}, pipeline.claim.held_back) for name, pipeline in pipelines.items()]
    out.family("fenced_held_back", "counter", "Frame sets that waited for a model of higher priority.", held)
    p99 = [
        ({"model": name, "entrypoint": entry.contract.name}, entry.times.p99_ns / 1e9)
        for name, pipeline in pipelines.items()
        for entry in pipeline.entries.all
    ]
    out.family("fenced_run_p99_seconds", "gauge", "Submitted to dealt with, p99 of the last runs.", p99)
    left = [({"model": name}, service.switching.probation.frames_left(name)) for name in pipelines]
    out.family("fenced_probation_frames_left", "gauge", "Good results until the release is confirmed.", left)
    reports = [(name, service.switching.shadowing.report(name)) for name in pipelines]
    keys = ("compared", "outside", "late")
    sets = [({"model": name, "sets": key}, _int(one[key])) for name, one in reports if one is not None for key in keys]
    out.family("fenced_shadow_sets", "gauge", "Frame sets of the latest shadow: compared, and of these.", sets)
    load = service.roster.dispatcher.load_percent() / 100
    out.family("fenced_device_load_ratio", "gauge", "What the models ask of the device (p99 / period).", [({}, load)])


def _int(value: object) -> int:
    assert isinstance(value, int)
    return value
