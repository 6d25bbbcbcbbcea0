"""Compiles a spec: read, build, capture, check, link, pack, run what was packed (DESIGN §9).

The bundle appears under its name only after every check has passed. Two compiles of one spec on one machine write the
same bytes.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from rich.progress import Progress, TaskID

from abi.graph import Launch, OutputView, encode
from lab.compile import checks
from lab.compile.attachments import attachments, sources
from lab.compile.checks import Accuracy, CheckResult
from lab.compile.refusal import CompileRefusal, CompileRefused
from lab.compile.report import CompileReport, Details, LaunchReport, Stage
from lab.compile.spec import Spec
from lab.compile.spec_toml import load_spec
from lab.compile.target import Target, open_target

if TYPE_CHECKING:
    from lab.compile.capture import Capture, CapturedFunction
    from lab.compile.model import Model, TensorInfo
    from lab.compile.pipeline import Pipeline
    from lab.compile.python_pipeline import PythonPipeline

STAGES = ("read", "build", "first run", "capture", "check", "link", "pack", "run packed")


@dataclass
class _Stages:
    """Times the stages and shows them."""

    progress: Progress | None
    done: list[Stage] = field(default_factory=list)
    task: TaskID | None = None

    @contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        if self.progress is not None:
            if self.task is None:
                self.task = self.progress.add_task(name, total=len(STAGES))
            self.progress.update(self.task, description=name)
        start = time.perf_counter()
        yield
        self.done.append(Stage(name, time.perf_counter() - start))
        if self.progress is not None and self.task is not None:
            self.progress.advance(self.task)


@dataclass(frozen=True)
class _Captured:
    """The captured function with what the later stages need of it."""

    target: Target
    outputs: tuple[TensorInfo, ...]
    model: Model | None
    """None where the pipeline is written in Python: there is nothing for onnxruntime to run."""
    function: CapturedFunction
    capture: Capture
    tensors: tuple[str, ...]
    views: tuple[OutputView, ...]
    accuracy: tuple[Accuracy, ...] = ()


def compile_spec(spec_path: Path, out_path: Path, *, progress: Progress | None = None) -> CompileReport:
    """Compiles the spec at `spec_path` to an unsigned bundle at `out_path`.

    Raises CompileRefused where spec, model or target cannot be compiled as they stand, or where a check fails; nothing
    is written then. Sets `CC`, `DEV` and `CACHEDB` of the process on the first call (`lab.compile.toolchain`).
    """
    stages = _Stages(progress)
    with stages("read"):
        spec = load_spec(spec_path)
        target = open_target(spec)
    with target.context():
        captured, results = _capture_and_check(spec, target, stages)
        return _pack_and_check(spec, captured, results, out_path, stages)


def _capture_and_check(spec: Spec, target: Target, stages: _Stages) -> tuple[_Captured, list[CheckResult]]:
    # these import tinygrad, which must find the compiler's environment already set
    from lab.compile.capture import CapturedFunction  # noqa: PLC0415
    from lab.compile.pack import output_views  # noqa: PLC0415
    from lab.compile.python_pipeline import declared_inputs  # noqa: PLC0415

    with stages("build"):
        pipeline, model = _build(spec, target)
        function = CapturedFunction(pipeline, target.tinygrad_device, declared_inputs(spec))
    eager = checks.recurrent(spec, function.eager, checks.every_step(spec))
    with stages("first run"):
        expected = [next(eager)]
    with stages("capture"):
        _record(spec, function)
        capture = function.capture(target.align_bytes)
        views = tuple(output_views(spec, pipeline.outputs, capture, pipeline.tensors))
    captured = _Captured(target, pipeline.outputs, model, function, capture, pipeline.tensors, views)
    with stages("check"):
        expected += eager
        results, accuracy = _check(spec, captured, expected)
    return replace(captured, accuracy=accuracy), results


def _build(spec: Spec, target: Target) -> tuple[Pipeline | PythonPipeline, Model | None]:
    from lab.compile.model import load_model  # noqa: PLC0415 (as above)
    from lab.compile.network import operators  # noqa: PLC0415
    from lab.compile.pipeline import build_pipeline  # noqa: PLC0415
    from lab.compile.python_pipeline import load_pipeline  # noqa: PLC0415

    if spec.model.function:
        return load_pipeline(spec), None
    model = load_model(spec, operators())
    return build_pipeline(spec, model, target), model


def _record(spec: Spec, function: CapturedFunction) -> None:
    """Records the function; a Python pipeline that reads values, or returns none of its inputs, cannot be."""
    values = [*checks.step_inputs(spec, 1), *checks.initial_states(spec)]
    if not spec.model.function:
        function.record(values)
        return
    try:
        function.record(values)
    except CompileRefused:
        raise
    except Exception as error:  # whatever tinygrad meets in a user's code
        raise CompileRefused(
            CompileRefusal.PIPELINE, f"{spec.model.source.name}:{spec.model.function}, recording it",
            expected="a function of tensors whose results all depend on its inputs",
            found=f"{type(error).__name__}: {error}", todo="compute with tensors only: no .item(), .numpy(), .tolist()",
        ) from error  # fmt: skip


def _check(
    spec: Spec, captured: _Captured, eager: Sequence[list[bytes]]
) -> tuple[list[CheckResult], tuple[Accuracy, ...]]:
    reference = None if captured.model is None else checks.Reference(spec, captured.model, captured.tensors)
    replayed = []
    names = [*captured.tensors, *(one.name for one in spec.states)]
    run = partial(captured.function.captured, poison=True)
    for step, found in enumerate(checks.recurrent(spec, run, checks.every_step(spec))):
        checks.require_equal(f"step {step}: recorded calls", names, eager[step], found)
        replayed.append(found[: len(captured.tensors)])
        if reference is not None:
            reference.compare(checks.step_frames(spec, step), replayed[-1])
    by_name = {one.name: one.dtype for one in captured.outputs}
    kinds = [by_name[tensor] for tensor in captured.tensors]
    results = [CheckResult("eager = captured", f"bit for bit over {len(eager)} steps, arena and outputs poisoned")]
    if reference is not None:
        worst = ", ".join(f"{tensor} {value:.2e}" for tensor, value in reference.worst.items())
        allowed = f"allowed {spec.check.onnxruntime_tolerance:g}"
        results.append(CheckResult("onnxruntime", f"worst |difference| {worst}; {allowed}"))
    results += [
        checks.check_other_pixels_matter(captured.tensors, kinds, replayed),
        checks.check_every_input_matters(spec, kinds, captured.function.captured),
    ]
    return results, () if reference is None else reference.accuracy()


def _pack_and_check(
    spec: Spec, captured: _Captured, results: list[CheckResult], out_path: Path, stages: _Stages
) -> CompileReport:
    from lab.compile import pack  # noqa: PLC0415 (imports tinygrad)

    with stages("link"):
        target = captured.target
        code = target.code(captured.capture)
    with stages("pack"):
        graph = pack.build_graph(spec, captured.capture, target, captured.views, captured.tensors)
        graph = pack.with_code(graph, target, len(code))
        goldens = [captured.function.captured(pack.golden_values(spec, seed)) for seed in pack.GOLDEN_SEEDS]
        cut = [pack.view_bytes(captured.views, spec, captured.tensors, one) for one in goldens]
        graph, golden_blob = pack.with_goldens(graph, cut)
        parts = {"graph": encode(graph), "code": code, "weights": captured.capture.weights, "goldens": golden_blob}
        origin = sources(spec, None if captured.model is None else captured.model.data)
        with tempfile.TemporaryDirectory(dir=out_path.parent, prefix=f".{out_path.name}.") as folder:
            candidate = Path(folder) / "candidate"
            pack.write(candidate, spec, parts, target, pack.memory_bytes(graph, parts))
            with stages("run packed"):
                checked, details = _check_packed(spec, captured, candidate)
                results.append(checked)
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
        kernels=len(captured.capture.kernels),
        launches=tuple(_launch_report(captured.capture, one) for one in graph.launches),
        arena_bytes=graph.arena_bytes,
        bundle_bytes=out_path.stat().st_size,
        checks=tuple(results),
        stages=tuple(stages.done),
        details=details,
        **sizes,
    )


def _check_packed(spec: Spec, captured: _Captured, candidate: Path) -> tuple[CheckResult, Details]:
    from lab.compile import pack  # noqa: PLC0415 (imports tinygrad)
    from lab.compile.packed import open_packed  # noqa: PLC0415

    names = [*(one.name for one in spec.outputs), *(one.name for one in spec.states)]
    run = captured.function.captured
    with open_packed(candidate) as packed:
        for step, found in enumerate(checks.recurrent(spec, run, checks.every_step(spec))):
            outputs, states = found[: len(captured.tensors)], found[len(captured.tensors) :]
            expected = [*pack.view_bytes(captured.views, spec, captured.tensors, outputs), *states]
            got = [*packed.run(checks.step_inputs(spec, step)), *packed.states()]
            checks.require_equal(f"step {step}: packed bundle", names, expected, got)
        arena, spans = packed.executable.admission.arena, packed.launch_spans_ns()
    result = CheckResult("captured = packed and run by the HAL", f"bit for bit over {spec.check.steps} steps")
    return result, Details(spec, captured.accuracy, arena, spans)


def _launch_report(capture: Capture, launch: Launch) -> LaunchReport:
    kernel = capture.kernels[launch.program]
    return LaunchReport(kernel.name, kernel.cores, kernel.flops, sum(one.size_bytes for one in launch.arguments))
