"""What can be asked of bundles and devices without a running daemon: verify, inspect, selftest, devices.

The answers are plain trees for the command line. Nothing here changes the vehicle's state.
"""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Sequence
from enum import IntEnum

from abi.graph import Entrypoint, FrameInput, decode
from daemon.arena_map import draw
from daemon.models import describe_machine
from daemon.selftest import self_test
from hal.accelerator import Accelerator, Module, SealedSpan, open_accelerator
from hal.admit import ArenaRange, EntryReport, Target, admit
from hal.conformance import Subject, Verdict, run_checks
from signing import envelope, statement, store
from signing.bundle import SealedBundle, VerifiedBundle
from signing.container import ENVELOPE_LIMIT_BYTES
from signing.trust import TrustStore, require_contents, verify_bundle

Tree = dict[str, object]
_LIMIT_BYTES = 16 << 30
_CONFORMANCE_RUNS = 200
_NS_PER_MS = 1e6


def verify(path: str, root_paths: Sequence[str], state_path: str | None, device: str) -> Tree:
    """Verifies a bundle for this machine as the daemon would. Raises signing's Refused, HalError."""
    accelerator = open_accelerator(device)
    try:
        bundle = _verified(path, root_paths, state_path, accelerator)
        try:
            return {"verified": True, "path": path, **_model(bundle.statement), "digest": bundle.digest}
        finally:
            bundle.close()
    finally:
        accelerator.close()


def inspect(path: str) -> Tree:
    """What is in a bundle, every digest compared, no signature. Raises Refused, GraphError, AdmissionRefused."""
    sealed: SealedBundle = store.read_bundle(path, limit_bytes=_LIMIT_BYTES)
    try:
        parsed = envelope.parse(sealed.envelope, payload_type=envelope.BUNDLE_PAYLOAD_TYPE)
        stated = statement.decode(parsed.payload)
        require_contents(sealed, stated)
        spans = {blob.name: span for blob, span in zip(stated.blobs, sealed.layout.blobs, strict=True)}
        graph = decode(sealed.view(spans["graph"]))
        target = Target(stated.target.driver, stated.target.arch)
        admission = admit(graph, sealed.view(spans["code"]), spans["weights"].size_bytes, target)
        return {
            "path": path,
            "signature": "not looked at: use `fenced verify`",
            **_model(stated),
            "signed_by": [signature.keyid for signature in parsed.signatures],
            "target": dataclasses.asdict(stated.target),
            "compiler": {"tinygrad": stated.compiler.tinygrad, **dict(stated.compiler.options)},
            "blobs": {blob.name: {"size_bytes": blob.size_bytes, "sha256": blob.sha256} for blob in stated.blobs},
            "attachments": {one.name: one.media_type for one in stated.attachments},
            "inputs": [_input(one) for one in graph.frames],
            "aux": [
                {"name": one.name, "dtype": one.dtype.name.lower(), "shape": list(one.shape),
                 "max_age_ms": one.max_age_ns / _NS_PER_MS, "has_default": one.has_default}
                for one in graph.aux
            ],
            "states": [
                {"name": one.name, "dtype": one.dtype.name.lower(), "shape": list(one.shape),
                 "hand_over": one.hand_over}
                for one in graph.states
            ],
            "outputs": [
                {"name": one.view.name, "dtype": one.view.dtype.name.lower(), "shape": list(one.view.shape),
                 "unit": one.view.unit, "nan": one.view.nan.name.lower()}
                for one in graph.outputs
            ],
            "entrypoints": [
                _entrypoint(report, entry, admission.driver)
                for report, entry in zip(admission.entrypoints, graph.entrypoints, strict=True)
            ],
            "device": admission.driver,
            "memory": {
                "arena_bytes": admission.arena_bytes, "weights_bytes": admission.weights_bytes,
                "state_bytes": admission.state_bytes, "code_bytes": admission.code_bytes,
                "bound_bytes": admission.bound_bytes,
            },
        }  # fmt: skip
    finally:
        sealed.close()


def with_arena_maps(inspected: Tree) -> Tree:
    """What `inspect` gave, for people: each entrypoint's arena as the lines of a map instead of a list of buffers."""
    entrypoints = inspected["entrypoints"]
    assert isinstance(entrypoints, list)
    drawn = []
    for one in entrypoints:
        ranges = [ArenaRange(**row) for row in one["arena"]]
        drawn.append({**one, "arena": "\n".join(draw(ranges, one["first_launch"], one["launches"]))})
    return {**inspected, "entrypoints": drawn}


def _entrypoint(report: EntryReport, entry: Entrypoint, device: str) -> Tree:
    """What one run of it does, and in what time. All launches are on one device: admission refuses others."""
    return {
        "name": report.name,
        "role": entry.role.name.lower(),
        "launches": report.launches,
        "first_launch": entry.first_launch,
        "launches_by_device": {device: report.launches},
        "bytes_moved": report.bytes_read + report.bytes_written,
        "bytes_read": report.bytes_read,
        "bytes_written": report.bytes_written,
        "flops": report.flops,
        "budget_ms": entry.budget_ns / _NS_PER_MS,
        "deadline_ms": entry.deadline_ns / _NS_PER_MS,
        "max_skew_ms": entry.max_skew_ns / _NS_PER_MS,
        "miss_limit": entry.miss_limit,
        "miss_window": entry.miss_window,
        "on_misses": entry.on_misses.name.lower(),
        "arena": [dataclasses.asdict(one) for one in report.arena],
    }


def _input(one: FrameInput) -> Tree:
    """What the camera of this stream must send, in the words of frame.capnp."""
    form = one.format
    colour = ("range", "matrix", "primaries", "transfer", "chroma_site", "cfa")
    return {
        "name": one.name,
        "stream": one.stream,
        "format": form.pixel.name,
        "width": form.width,
        "height": form.height,
        "crop": list(dataclasses.astuple(form.crop)),
        **{name: _schema_name(getattr(form, name)) for name in colour},
        "buffer_bytes": form.buffer_bytes,
        "plane_offsets": [plane.offset for plane in form.planes],
        "plane_strides": [plane.stride for plane in form.planes],
        "plane_rows": [plane.rows for plane in form.planes],
    }


def _schema_name(value: IntEnum) -> str:
    first, *others = value.name.lower().split("_")
    return first + "".join(map(str.capitalize, others))


def selftest(path: str, root_path: str, device: str) -> Tree:
    """Verifies a bundle, runs its golden vectors, then the driver's conformance suite with it.

    Raises Refused, AdmissionRefused, HalError, ModelRefused.
    """
    accelerator = open_accelerator(device)
    try:
        bundle = _verified(path, [root_path], None, accelerator)
        span = SealedSpan(bundle.memfd, *bundle.blob_span("weights"))
        module = Module(decode(bundle.blob("graph")), bundle.blob("code"), bundle.blob("weights"), span)
        executable = accelerator.load(module)
        report = self_test(accelerator, executable, bundle.blob("goldens"))
        accelerator.unload(executable)
        findings = run_checks(accelerator, Subject(module, many=_CONFORMANCE_RUNS))
        bundle.close()
    finally:
        accelerator.close()
    return {
        **_model(bundle.statement),
        "passed": all(finding.verdict is not Verdict.FAILED for finding in findings),
        "golden_vectors": report.vectors,
        "fastest_run_ns": list(report.fastest_run_ns),
        "checks": [
            {"check": finding.check, "verdict": finding.verdict.value, "detail": finding.detail} for finding in findings
        ],
    }


def devices(device: str) -> Tree:
    """What the device is. Raises HalError."""
    accelerator = open_accelerator(device)
    try:
        properties = accelerator.properties()
        return {**dataclasses.asdict(properties), "features": list(properties.features)}
    finally:
        accelerator.close()


def _verified(path: str, root_paths: Sequence[str], state_path: str | None, accelerator: Accelerator) -> VerifiedBundle:
    roots = [store.read_file(one, limit_bytes=ENVELOPE_LIMIT_BYTES) for one in root_paths]
    resumed = None if state_path is None else store.resume_trust(state_path)
    trust = (resumed or TrustStore.bootstrap(roots[0])).follow(roots)
    sealed = store.read_bundle(path, limit_bytes=_LIMIT_BYTES)
    memory_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    try:
        machine = describe_machine(accelerator, memory_bytes)
        return verify_bundle(sealed, trust, machine=machine, now_unix_s=int(time.time()))
    except BaseException:
        sealed.close()
        raise


def _model(stated: statement.Statement) -> Tree:
    model = stated.model
    return {"model": model.name, "version": model.version, "release": model.release}
