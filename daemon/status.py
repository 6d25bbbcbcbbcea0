"""The daemon's state for people and machines: `fenced status` as JSON, `fenced metrics` as OpenMetrics text."""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from daemon import __version__, guard

if TYPE_CHECKING:
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
                "entrypoint": pipeline.entry.name,
                "streams": [one.stream for one in pipeline.inputs],
                "outputs": [view.name for view in pipeline.ring.views],
                "subscriptions": len(service.subscriptions(name)),
                "waiting": pipeline.waiting,
                "busy": pipeline.busy,
                "state_epoch": pipeline.state_epoch,
                "load_ms": model.load_ns // 1_000_000,
                "golden_vectors": model.report.vectors,
                "runs": dataclasses.asdict(pipeline.counters),
                "probation_frames_left": service.switching.probation.frames_left(name),
                "shadow": service.switching.shadowing.report(name),
                "probation_faults": dataclasses.asdict(service.switching.probation.faults(name)),
                "previous": None if previous is None else previous.label,
            }
        )
    return models


def _trust(service: Service) -> Tree:
    trust = service.trust.current
    floors = {name: floor.release for name, floor in trust.state.floors.items()}
    return {"root_version": trust.root.version, "trust_epoch": trust.state.trust_epoch, "rollback_floors": floors}


def _device(service: Service) -> Tree:
    properties, memory = service.device, service.accelerator.memory()
    return {
        "driver": properties.driver,
        "name": properties.device,
        "arch": properties.arch,
        "cores": properties.threads,
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
        ("canary", "Runs discarded because output bytes were not written."),
        ("not_finite", "Runs discarded for NaN or infinity."),
        ("stale_aux", "Runs refused for a stale or missing aux input."),
        ("device_errors", "Runs that the device did not finish."),
    ):
        samples = [({"model": name}, counters[key]) for name, counters in runs]
        out.family(f"fenced_{key}", "counter", text, samples)
    seconds = [({"model": name}, counters["last_latency_ns"] / 1e9) for name, counters in runs]
    out.family("fenced_latency_seconds", "gauge", "Start of frame to published, of the last result.", seconds)
    acts = [({"act": act}, count) for act, count in guard.counts().items()]
    out.family("fenced_forbidden_acts", "counter", "Acts that the guard refused.", acts)
    out.family("fenced_device_resets", "counter", "Resets of the device.", [({}, service.watch.resets)])
    out.family("fenced_ready", "gauge", "1 while models serve.", [({}, int(service.state == "serving"))])
    return out.text()


def _int(value: int | dict[str, int]) -> int:
    assert isinstance(value, int)
    return value
