"""Compiles a spec: read, build, capture, check, link, pack, run what was packed (DESIGN §9).

Every entrypoint is captured and checked alone (`lab.compile.entry`), then all become one graph over the same weights,
state and arena, and are run from the bundle, alone and in turn. The bundle appears under its name only after every
check has passed. Two compiles of one spec on one machine write the same bytes.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich.progress import Progress

from abi.graph import Graph, encode
from hal.bindings import written_states
from lab.compile import checks
from lab.compile.attachments import attachments, sources
from lab.compile.checks import CheckResult
from lab.compile.merge import Merged, merge
from lab.compile.report import CompileReport, Details, EntryReport, LaunchReport
from lab.compile.spec import Spec
from lab.compile.spec_toml import load_spec
from lab.compile.stages import Stages
from lab.compile.target import Target, open_target
from lab.compile.tune_cache import Timed

if TYPE_CHECKING:
    from lab.compile.entry import CapturedEntry
    from lab.compile.packed import PackedModel


def compile_spec(
    spec_path: Path,
    out_path: Path,
    *,
    progress: Progress | None = None,
    without_device: bool = False,
    tune_s: float | None = None,
) -> CompileReport:
    """Compiles the spec at `spec_path` to an unsigned bundle at `out_path`.

    without_device: for a GPU that this machine lacks, or a CPU of another architecture; the bundle is admitted and not
    run (`lab.compile.target_cuda`, `lab.compile.target_cross`).
    tune_s: seconds for timing other choices for CPU kernels (`lab.compile.tune`); 0: only what the cache holds; None:
    none, the rule makes all choices.

    Raises CompileRefused where spec, model or target cannot be compiled as they stand, or where a check fails; nothing
    is written then. Sets `CC`, `DEV` and `CACHEDB` of the process on the first call (`lab.compile.toolchain`).
    """
    stages = Stages(progress)
    with stages("read"):
        spec = load_spec(spec_path)
        target = open_target(spec, without_device=without_device)
    with target.context():
        # these import tinygrad, which must find the compiler's environment already set
        from lab.compile.entry import capture_entries  # noqa: PLC0415

        if tune_s is None:
            return _pack_and_check(spec, capture_entries(spec, target, stages), target, out_path, stages)
        from lab.compile.tuned import tuned_entries  # noqa: PLC0415

        entries, verdicts = tuned_entries(spec, target, tune_s, stages)
        return _pack_and_check(spec, entries, target, out_path, stages, tuning=verdicts)


def _pack_and_check(
    spec: Spec,
    entries: Sequence[CapturedEntry],
    target: Target,
    out_path: Path,
    stages: Stages,
    *,
    tuning: tuple[Timed, ...] = (),
) -> CompileReport:
    from lab.compile import pack  # noqa: PLC0415 (imports tinygrad)

    merged = merge([one.part for one in entries], target.align_bytes)
    with stages("link"):
        code = target.code(merged.capture)
    with stages("pack"):
        graph = _graph(spec, entries, merged, target, len(code))
        graph, golden_blob = pack.with_goldens(
            graph, [_goldens(graph, number, one) for number, one in enumerate(entries)]
        )
        parts = {"graph": encode(graph), "code": code, "weights": merged.capture.weights, "goldens": golden_blob}
        origin = sources(spec, {one.entry.name: one.model.data for one in entries if one.model is not None})
        with tempfile.TemporaryDirectory(dir=out_path.parent, prefix=f".{out_path.name}.") as folder:
            candidate = Path(folder) / "candidate"
            pack.write(candidate, spec, parts, target, pack.memory_bytes(graph, parts))
            with stages("run packed"):
                results, details = _check_packed(spec, entries, candidate, target)
            # the same blobs once more, now with the report of what they passed
            attached = attachments(spec, parts, origin, target.options(), results)
            pack.write(candidate, spec, parts, target, pack.memory_bytes(graph, parts), attached=attached)
            os.replace(candidate, out_path)
    sizes = {f"{name}_bytes": len(data) for name, data in parts.items() if name != "goldens"}
    return CompileReport(
        path=out_path,
        name=spec.model.name,
        version=spec.model.version,
        release=spec.model.release,
        target=target.text,
        kernels=len(graph.programs),
        launches=_launch_reports(merged, graph),
        entries=_entry_reports(graph),
        arena_bytes=graph.arena_bytes,
        bundle_bytes=out_path.stat().st_size,
        checks=tuple(results),
        stages=tuple(stages.done),
        details=details,
        tuning=tuning,
        **sizes,
    )


def _entry_reports(graph: Graph) -> tuple[EntryReport, ...]:
    return tuple(
        EntryReport(one.name, one.role.name.lower().replace("_", " "), one.first_launch, one.launch_count)
        for one in graph.entrypoints
    )


def _graph(spec: Spec, entries: Sequence[CapturedEntry], merged: Merged, target: Target, code_bytes: int) -> Graph:
    from lab.compile import pack  # noqa: PLC0415 (imports tinygrad)

    primary = entries[0]
    entrypoints = [
        pack.entrypoint(one.entry, launches, one.frames, one.aux, len(one.spec.outputs))
        for one, launches in zip(entries, merged.launches, strict=True)
    ]
    graph = pack.build_graph(spec, merged.capture, target, primary.views, primary.tensors, entrypoints=entrypoints)
    return pack.with_code(graph, target, code_bytes)


def _goldens(graph: Graph, number: int, entry: CapturedEntry) -> list[bytes]:
    """What the self-test runs of an entrypoint give: its outputs, or where it has none, the states it writes."""
    from lab.compile import pack  # noqa: PLC0415 (imports tinygrad)

    written = [entry.states.index(one) for one in written_states(graph, graph.entrypoints[number])]
    found = []
    for seed in pack.GOLDEN_SEEDS:
        result = entry.function.captured(pack.golden_values(entry.spec, seed))
        outputs = pack.view_bytes(entry.views, entry.spec, entry.tensors, result)
        states = result[len(entry.tensors) :]
        found.append(b"".join(outputs or [states[one] for one in written]))
    return found


def _check_packed(
    spec: Spec, entries: Sequence[CapturedEntry], candidate: Path, target: Target
) -> tuple[list[CheckResult], Details]:
    """Every check that the bundle's parts have passed by now, and what only the bundle itself can tell."""
    from lab.compile.inexact import NOT_RUN, admit_packed, check_close  # noqa: PLC0415 (imports tinygrad)
    from lab.compile.interleave import check_interleaved  # noqa: PLC0415
    from lab.compile.packed import open_packed  # noqa: PLC0415

    results: list[CheckResult] = []
    accuracy = tuple(found for one in entries for found in one.accuracy)
    if not target.runs_here:
        admission = admit_packed(candidate)
        results += [*(found for one in entries for found in one.results), NOT_RUN]
        return results, Details(spec, accuracy, admission.arena, ())
    with open_packed(candidate) as packed:
        for number, one in enumerate(entries):
            label = "" if len(entries) == 1 else f"{one.entry.name}: "
            check = _check_entry if target.exact else check_close
            found = [*one.results, check(one, number, packed)]
            results += [CheckResult(label + result.name, result.seen) for result in found]
        if len(entries) > 1 and target.exact:
            results.append(check_interleaved(spec, entries, packed))
        arena, spans = packed.executable.admission.arena, packed.launch_spans_ns()
    return results, Details(spec, accuracy, arena, spans)


def _check_entry(entry: CapturedEntry, number: int, packed: PackedModel) -> CheckResult:
    """The packed entrypoint, alone from the initial state, gives what the recorded calls give."""
    from lab.compile import pack  # noqa: PLC0415 (imports tinygrad)

    spec, run = entry.spec, entry.function.captured
    names = [*(one.name for one in spec.outputs), *(one.name for one in spec.states)]
    packed.reset_state()
    for step, found in enumerate(checks.recurrent(spec, run, checks.every_step(spec))):
        expected = [*pack.view_bytes(entry.views, spec, entry.tensors, found), *found[len(entry.tensors) :]]
        got = packed.run(checks.step_inputs(spec, step), number)
        got += [state for at, state in enumerate(packed.states()) if at in entry.states]
        checks.require_equal(f"step {step}: packed bundle", names, expected, got)
    return CheckResult("captured = packed and run by the HAL", f"bit for bit over {spec.check.steps} steps")


def _launch_reports(merged: Merged, graph: Graph) -> tuple[LaunchReport, ...]:
    kernels = merged.capture.kernels
    return tuple(
        LaunchReport(
            kernels[one.program].name, kernels[one.program].cores, kernels[one.program].flops,
            sum(argument.size_bytes for argument in one.arguments),
        )
        for one in graph.launches
    )  # fmt: skip
