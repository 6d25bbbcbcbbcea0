"""What `fenced metrics` answers: every family of the daemon in one closed table, read when it is asked for.

Nothing here counts: the parts of the daemon do, in memory that does not grow with frames. docs/metrics.md says what
each family means. A text too long for a packet loses histograms first, which stand last.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

from abi.packet import MAX_PACKET_BYTES
from daemon import __version__, guard
from daemon.degradation import Mode
from daemon.histogram import Histogram
from daemon.openmetrics import Family, Kind, Labels, Sample, render

if TYPE_CHECKING:
    from daemon.pipeline import Pipeline
    from daemon.service import Service

TEXT_LIMIT_BYTES = MAX_PACKET_BYTES - 1024
LEFT_OUT = "fenced_families_left_out"
ENDS = ("run", "superseded", "late", "torn", "refused", "lost")
STATES = ("loading", "serving", "draining", "stopping")
_SHADOW_SETS = ("compared", "outside", "late")
_PER_MODEL = ("model",)
_Collect = Callable[["Service"], Iterable[Sample]]


def metrics_text(service: Service) -> str:
    """All families as OpenMetrics text; see docs/metrics.md."""
    return render(FAMILIES, service, limit_bytes=TEXT_LIMIT_BYTES, left_out=LEFT_OUT)


def family_names() -> tuple[str, ...]:
    """The names of all families that the text may hold."""
    return (*(family.name for family in FAMILIES), LEFT_OUT)


def _one(value: Callable[[Service], int | float]) -> _Collect:
    return lambda service: [({}, value(service))]


def _by_model(value: Callable[[Pipeline], int | float]) -> _Collect:
    return lambda service: [({"model": name}, value(one)) for name, one in service.roster.pipelines.items()]


def _counter(name: str) -> _Collect:
    return _by_model(lambda pipeline: int(getattr(pipeline.counters, name)))


def _stage(name: str) -> Callable[[Service], Iterable[tuple[Labels, Histogram]]]:
    return lambda service: [
        ({"model": model}, getattr(pipeline.counters.stages, name))
        for model, pipeline in service.roster.pipelines.items()
    ]


def _column(name: str) -> _Collect:
    return lambda service: [({"stream": stream}, _int(one[name])) for stream, one in service.ledgers.columns().items()]


def _int(value: object) -> int:
    assert isinstance(value, int)
    return value


# the daemon


def _state(service: Service) -> Iterator[Sample]:
    for state in STATES:
        yield {"state": state}, int(service.state == state)


def _ready(service: Service) -> int:
    return int(service.state == "serving" and service.standing.is_whole)


# frames


def _ended(service: Service) -> Iterator[Sample]:
    for stream, columns in service.ledgers.columns().items():
        for end in ENDS:
            yield {"stream": stream, "end": end}, _int(columns[end])


def _by_key(column: str, label: str) -> _Collect:
    def collect(service: Service) -> Iterator[Sample]:
        for stream, columns in service.ledgers.columns().items():
            counts = columns[column]
            assert isinstance(counts, dict)
            for key, count in counts.items():
                yield {"stream": stream, label: key}, count

    return collect


# models


def _model_info(service: Service) -> Iterator[Sample]:
    for name, pipeline in service.roster.pipelines.items():
        bundle = pipeline.model.bundle
        yield {"model": name, "version": bundle.statement.model.version, "digest": bundle.digest}, 1


def _floors(service: Service) -> Iterator[Sample]:
    for name, floor in service.trust.current.state.floors.items():
        yield {"model": name}, floor.release


def _modes(service: Service) -> Iterator[Sample]:
    for name, pipeline in service.roster.pipelines.items():
        for mode in Mode:
            yield {"model": name, "mode": mode.value}, int(pipeline.degradation.mode is mode)


def _active_entries(service: Service) -> Iterator[Sample]:
    for name, pipeline in service.roster.pipelines.items():
        for entry in pipeline.entries.all:
            yield {"model": name, "entrypoint": entry.contract.name}, int(entry is pipeline.entries.active)


def _run_p99(service: Service) -> Iterator[Sample]:
    for name, pipeline in service.roster.pipelines.items():
        for entry in pipeline.entries.all:
            yield {"model": name, "entrypoint": entry.contract.name}, entry.times.p99_ns / 1e9


def _probation_left(service: Service) -> Iterator[Sample]:
    for name in service.roster.pipelines:
        yield {"model": name}, service.switching.probation.frames_left(name)


def _probation_faults(service: Service) -> Iterator[Sample]:
    for name in service.roster.pipelines:
        for kind, count in dataclasses.asdict(service.switching.probation.faults(name)).items():
            yield {"model": name, "kind": kind}, count


def _shadow(service: Service) -> Iterator[Sample]:
    for name in service.roster.pipelines:
        report = service.switching.shadowing.report(name)
        for sets in _SHADOW_SETS if report is not None else ():
            assert report is not None
            yield {"model": name, "sets": sets}, _int(report[sets])


def _fences(service: Service) -> Iterator[Sample]:
    for name, pipeline in service.roster.pipelines.items():
        yield {"model": name, "status": "signaled"}, pipeline.counters.fences_signaled
        yield {"model": name, "status": "error"}, pipeline.counters.fences_failed


# device and peers


def _device_info(service: Service) -> Iterator[Sample]:
    found = service.device
    yield {"driver": found.driver, "device": found.device, "arch": found.arch}, 1


def _device_memory(service: Service) -> Iterator[Sample]:
    for kind, size in dataclasses.asdict(service.accelerator.memory()).items():
        if kind.endswith("_bytes"):
            yield {"kind": kind.removesuffix("_bytes")}, size


def _peers(service: Service) -> Iterator[Sample]:
    for role, count in service.server.counts().items():
        if not role.startswith("refused_"):
            yield {"role": role}, count


def _subscriptions(service: Service) -> Iterator[Sample]:
    for name in service.roster.pipelines:
        yield {"model": name}, len(service.subscriptions(name))


def _missed(service: Service) -> Iterator[Sample]:
    for name in service.roster.pipelines:
        yield {"model": name}, sum(one.missed for one in service.subscriptions(name))


def _tap_missed(service: Service) -> Iterator[Sample]:
    for tap in service.context.taps.status():
        yield {"tap": str(tap["tap"])}, _int(tap["missed"])


def _turned_away(service: Service) -> Iterator[Sample]:
    counts = service.server.counts()
    for reason in ("full", "share"):
        yield {"reason": reason}, counts[f"refused_{reason}"]


def _packet_refusals(service: Service) -> Iterator[Sample]:
    for (role, code), count in service.context.refusals.items():
        yield {"role": role, "code": code}, count


def _in_fences(service: Service) -> Iterator[Sample]:
    for outcome, count in service.in_fences.ended.items():
        yield {"outcome": outcome.value}, count


def _audit_events(service: Service) -> Iterator[Sample]:
    for (event, code), count in service.audit.counts.items():
        yield {"event": event, "code": code}, count


def _acts(service: Service) -> Iterator[Sample]:
    for act, count in guard.counts().items():
        yield {"act": act}, count


_C, _G, _I, _H = Kind.COUNTER, Kind.GAUGE, Kind.INFO, Kind.HISTOGRAM
_COUNTERS = (
    ("published", "Results published."),
    ("deadline_missed", "Results published after their deadline."),
    ("late_sets", "Frame sets that could not run before their deadline."),
    ("late_arrivals", "Frames that came after their own deadline: no miss of the model."),
    ("skipped_sets", "Frame sets skipped by contract, because misses persist."),
    ("skew", "Frames without a partner of another stream in time."),
    ("state_only", "Runs that only kept recurrent state in step with frames that did not run."),
    ("state_tainted", "Discarded runs whose recurrent state was reset."),
    ("torn", "Runs discarded because a frame was overwritten."),
    ("canary", "Runs discarded because output bytes were not written."),
    ("not_finite", "Runs discarded for NaN or infinity."),
    ("stale_aux", "Runs refused for a stale or missing aux input."),
    ("device_errors", "Runs that the device did not finish."),
)


def _of_daemon() -> tuple[Family[Service], ...]:
    return (
        Family("fenced_ready", _G, "1 while every model serves.", (), _one(_ready)),
        Family("fenced_daemon", _I, "The daemon's version.", ("version",), lambda _: [({"version": __version__}, 1)]),
        Family("fenced_state", _G, "1 for the state that the daemon is in.", ("state",), _state),
        Family("fenced_uptime_seconds", _G, "Since the daemon was opened.", (),
               _one(lambda service: (time.monotonic_ns() - service.started_ns) / 1e9)),
    )  # fmt: skip


def _of_frames() -> tuple[Family[Service], ...]:
    return (
        Family("fenced_frames_submitted", _C, "Frames that cameras gave to the daemon.", ("stream",),
               _column("submitted")),
        Family("fenced_frames_ended", _C, "Frames given back, by how they ended.", ("stream", "end"), _ended),
        Family("fenced_frames_held", _G, "Frames that the daemon holds now.", ("stream",), _column("held")),
        Family("fenced_camera_dropped", _C, "Frames that cameras never submitted (sequence gaps).", ("stream",),
               _column("camera_dropped")),
        Family("fenced_frame_refusals", _C, "Frames refused, by the refusal's code.", ("stream", "code"),
               _by_key("refusals", "code")),
        Family("fenced_frame_reasons", _C, "Why frames did not run, beyond how they ended.", ("stream", "reason"),
               _by_key("reasons", "reason")),
    )  # fmt: skip


def _of_models() -> tuple[Family[Service], ...]:
    return (
        *(Family(f"fenced_{name}", _C, text, _PER_MODEL, _counter(name)) for name, text in _COUNTERS),
        Family("fenced_fences_ended", _C, "Fences of a model's runs, by how they ended.", ("model", "status"), _fences),
        Family("fenced_fences_active", _G, "Runs whose fence has not ended.", _PER_MODEL,
               _by_model(lambda pipeline: int(pipeline.busy))),
        Family("fenced_model", _I, "What serves under a model's name.", ("model", "version", "digest"), _model_info),
        Family("fenced_release", _G, "Release counter of what serves.", _PER_MODEL,
               _by_model(lambda pipeline: pipeline.model.bundle.statement.model.release)),
        Family("fenced_rollback_floor", _G, "The least release that may be activated.", _PER_MODEL, _floors),
        Family("fenced_mode", _G, "1 for the mode that a model serves in.", ("model", "mode"), _modes),
        Family("fenced_mode_changes", _C, "Changes of a model's mode.", _PER_MODEL,
               _by_model(lambda pipeline: pipeline.degradation.changes)),
        Family("fenced_misses_in_window", _G, "Deadline misses in the contract's window.", _PER_MODEL,
               _by_model(lambda pipeline: pipeline.degradation.misses)),
        Family("fenced_entrypoint_active", _G, "1 for the entrypoint that publishes.", ("model", "entrypoint"),
               _active_entries),
        Family("fenced_frames_waiting", _G, "Frames that wait for a model's run.", _PER_MODEL,
               _by_model(lambda pipeline: pipeline.waiting)),
        Family("fenced_held_back", _C, "Frame sets that waited for a model of higher priority.", _PER_MODEL,
               _by_model(lambda pipeline: pipeline.claim.held_back)),
        Family("fenced_state_epoch", _G, "Epoch of a model's recurrent state; rises with every reset.", _PER_MODEL,
               _by_model(lambda pipeline: pipeline.state_epoch)),
        Family("fenced_run_p99_seconds", _G, "Submitted to dealt with, p99 of the last runs.", ("model", "entrypoint"),
               _run_p99),
        Family("fenced_probation_frames_left", _G, "Good results until the release is confirmed.", _PER_MODEL,
               _probation_left),
        Family("fenced_probation_faults", _G, "Faults in the probation that goes on.", ("model", "kind"),
               _probation_faults),
        Family("fenced_shadow_sets", _G, "Frame sets of the latest shadow: compared, and of these.", ("model", "sets"),
               _shadow),
    )  # fmt: skip


def _of_device() -> tuple[Family[Service], ...]:
    return (
        Family("fenced_in_fences_ended", _C, "Fences that frames came with, by outcome.", ("outcome",), _in_fences),
        Family("fenced_in_fences_active", _G, "Fences that frames came with and that are waited for.", (),
               _one(lambda service: len(service.in_fences))),
        Family("fenced_device", _I, "The device.", ("driver", "device", "arch"), _device_info),
        Family("fenced_device_resets", _C, "Resets of the device.", (), _one(lambda service: service.watch.resets)),
        Family("fenced_device_load_ratio", _G, "What the models ask of the device (p99 / period).", (),
               _one(lambda service: service.roster.dispatcher.load_percent() / 100)),
        Family("fenced_device_load_limit_ratio", _G, "What they may ask of it.", (),
               _one(lambda service: service.config.limits.device_load_percent / 100)),
        Family("fenced_device_memory_bytes", _G, "Memory that models hold on the device, by kind.", ("kind",),
               _device_memory),
    )  # fmt: skip


def _of_peers() -> tuple[Family[Service], ...]:
    return (
        Family("fenced_peers", _G, "Connected peers, by role.", ("role",), _peers),
        Family("fenced_subscriptions", _G, "Consumers that are subscribed to a model.", _PER_MODEL, _subscriptions),
        Family("fenced_results_missed", _G, "Results that its present consumers did not take in time.", _PER_MODEL,
               _missed),
        Family("fenced_tap_packets_missed", _G, "Packets that a present recorder did not take in time.", ("tap",),
               _tap_missed),
        Family("fenced_connections_refused", _C, "Connections closed at once, by reason.", ("reason",), _turned_away),
        Family("fenced_packet_refusals", _C, "Refusals said to peers, by role and code.", ("role", "code"),
               _packet_refusals),
        Family("fenced_audit_events", _C, "Entries of the audit log, by event and refusal code.", ("event", "code"),
               _audit_events),
        Family("fenced_audit_entries_lost", _C, "Audit entries that the disk refused.", (),
               _one(lambda service: service.audit.lost)),
        Family("fenced_log_lines_dropped", _C, "Log lines whose reader does not read.", (),
               _one(lambda service: service.context.log.dropped)),
        Family("fenced_internal_errors", _C, "Faults of the daemon that ended one peer.", (),
               _one(lambda service: service.context.internal_errors)),
        Family("fenced_forbidden_acts", _C, "Acts that the guard refused.", ("act",), _acts),
        Family("fenced_root_version", _G, "Version of the trusted root.", (),
               _one(lambda service: service.trust.current.root.version)),
    )  # fmt: skip


def _of_times() -> tuple[Family[Service], ...]:
    return (
        Family("fenced_latency_seconds", _H, "Start of the oldest frame to its result published.", _PER_MODEL,
               _stage("latency")),
        Family("fenced_queue_seconds", _H, "Start of the oldest frame to its run submitted.", _PER_MODEL,
               _stage("queue")),
        Family("fenced_run_seconds", _H, "Run submitted to its fence signalled, by the device's clock.", _PER_MODEL,
               _stage("run")),
        Family("fenced_publish_seconds", _H, "Fence signalled to the result published.", _PER_MODEL, _stage("publish")),
    )  # fmt: skip


FAMILIES = (*_of_daemon(), *_of_frames(), *_of_models(), *_of_device(), *_of_peers(), *_of_times())
"""Every family but LEFT_OUT, in the order in which they give way."""
