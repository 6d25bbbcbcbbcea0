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
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from rich.progress import Progress, TaskID

from abi.graph import Launch, OutputView, encode
from lab.compile import checks
from lab.compile.attachments import attachments, sources
from lab.compile.checks import CheckResult
from lab.compile.report import CompileReport, LaunchReport, Stage
from lab.compile.spec import Spec
from lab.compile.spec_toml import load_spec
from lab.compile.target import Target, open_target

if TYPE_CHECKING:
    from lab.compile.capture import Capture, CapturedFunction
    from lab.compile.model import Model

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
    model: Model
    function: CapturedFunction
    capture: Capture
    tensors: tuple[str, ...]
    views: tuple[OutputView, ...]


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
    from lab.compile.model import load_model  # noqa: PLC0415
    from lab.compile.network import operators  # noqa: PLC0415
    from lab.compile.pack import output_views  # noqa: PLC0415
    from lab.compile.pipeline import build_pipeline  # noqa: PLC0415

    with stages("build"):
        model = load_model(spec, operators())
        pipeline = build_pipeline(spec, model, target)
        function = CapturedFunction(pipeline, target.tinygrad_device)
    with stages("first run"):
        eager = [function.eager(checks.step_frames(spec, 0))]
    with stages("capture"):
        function.record(checks.step_frames(spec, 1))
        capture = function.capture(target.align_bytes)
        views = tuple(output_views(spec, model, capture, pipeline.tensors))
    captured = _Captured(target, model, function, capture, pipeline.tensors, views)
    with stages("check"):
        eager += [function.eager(checks.step_frames(spec, step)) for step in range(1, spec.check.steps)]
        results = _check(spec, captured, eager)
    return captured, results


def _check(spec: Spec, captured: _Captured, eager: Sequence[list[bytes]]) -> list[CheckResult]:
    reference = checks.Reference(spec, captured.model, captured.tensors)
    replayed = []
    for step, expected in enumerate(eager):
        frames = checks.step_frames(spec, step)
        replayed.append(captured.function.captured(frames, poison=True))
        checks.require_equal(f"step {step}: recorded calls", captured.tensors, expected, replayed[-1])
        reference.compare(frames, replayed[-1])
    by_name = {one.name: one.dtype for one in captured.model.outputs}
    kinds = [by_name[tensor] for tensor in captured.tensors]
    worst = ", ".join(f"{tensor} {value:.2e}" for tensor, value in reference.worst.items())
    return [
        CheckResult("eager = captured", f"bit for bit over {len(eager)} steps, arena and outputs poisoned"),
        CheckResult("onnxruntime", f"worst |difference| {worst}; allowed {spec.check.onnxruntime_tolerance:g}"),
        checks.check_other_pixels_matter(captured.tensors, kinds, replayed),
        checks.check_every_input_matters(spec, kinds, captured.function.captured),
    ]


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
        goldens = [captured.function.captured(pack.golden_frames(spec, seed)) for seed in pack.GOLDEN_SEEDS]
        cut = [pack.view_bytes(captured.views, spec, captured.tensors, one) for one in goldens]
        graph, golden_blob = pack.with_goldens(graph, cut)
        parts = {"graph": encode(graph), "code": code, "weights": captured.capture.weights, "goldens": golden_blob}
        origin = sources(spec, captured.model.data)
        with tempfile.TemporaryDirectory(dir=out_path.parent, prefix=f".{out_path.name}.") as folder:
            candidate = Path(folder) / "candidate"
            pack.write(candidate, spec, parts, target, pack.memory_bytes(graph, parts))
            with stages("run packed"):
                results.append(_check_packed(spec, captured, candidate))
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
        **sizes,
    )


def _check_packed(spec: Spec, captured: _Captured, candidate: Path) -> CheckResult:
    from lab.compile import pack  # noqa: PLC0415 (imports tinygrad)
    from lab.compile.packed import open_packed  # noqa: PLC0415

    names = [one.name for one in spec.outputs]
    with open_packed(candidate) as packed:
        for step in range(spec.check.steps):
            frames = checks.step_frames(spec, step)
            expected = pack.view_bytes(captured.views, spec, captured.tensors, captured.function.captured(frames))
            checks.require_equal(f"step {step}: packed bundle", names, expected, packed.run(frames))
    return CheckResult("captured = packed and run by the HAL", f"bit for bit over {spec.check.steps} steps")


def _launch_report(capture: Capture, launch: Launch) -> LaunchReport:
    kernel = capture.kernels[launch.program]
    return LaunchReport(kernel.name, kernel.cores, kernel.flops, sum(one.size_bytes for one in launch.arguments))
