"""One entrypoint of a model: built, run, captured, and held against its references (DESIGN §9, 2 and 3).

Its spec is the whole one cut to what it takes, so that it is checked as a model of its own. What it shares with other
entrypoints is put together afterwards (`lab.compile.merge`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import ModuleType

from abi.graph import BufferKind, EntryRole, OutputView
from lab.compile import checks
from lab.compile.capture import Capture, CapturedFunction
from lab.compile.checks import Accuracy, CheckResult
from lab.compile.finite import check_finite
from lab.compile.merge import Part
from lab.compile.model import Model, TensorInfo, load_model
from lab.compile.network import operators
from lab.compile.pack import output_views, view_bytes
from lab.compile.pipeline import Pipeline, build_pipeline
from lab.compile.python_pipeline import PythonPipeline, declared_inputs, load_pipeline
from lab.compile.refusal import CompileRefusal, CompileRefused
from lab.compile.spec import EntrySpec, Spec
from lab.compile.stages import Stages
from lab.compile.target import Target


@dataclass(frozen=True)
class CapturedEntry:
    """A captured entrypoint that has passed its checks. `spec`: cut to what it takes; `whole`: all of it."""

    entry: EntrySpec
    whole: Spec
    spec: Spec
    outputs: tuple[TensorInfo, ...]
    model: Model | None
    """None where the pipeline is written in Python: there is nothing for onnxruntime to run."""
    function: CapturedFunction
    capture: Capture
    tensors: tuple[str, ...]
    views: tuple[OutputView, ...]
    results: tuple[CheckResult, ...] = ()
    accuracy: tuple[Accuracy, ...] = ()

    @property
    def part(self) -> Part:
        """The capture, and what in the whole spec its inputs, states and outputs are."""
        numbers = {
            BufferKind.FRAME: self.frames, BufferKind.AUX: self.aux, BufferKind.STATE: self.states,
            BufferKind.OUTPUT: tuple(range(len(self.tensors))),
        }  # fmt: skip
        return Part(self.capture, numbers)

    @property
    def frames(self) -> tuple[int, ...]:
        """The whole spec's numbers of its frames."""
        return tuple(self.whole.inputs.index(one) for one in self.spec.inputs)

    @property
    def aux(self) -> tuple[int, ...]:
        """The whole spec's numbers of its aux inputs."""
        return tuple(self.whole.aux.index(one) for one in self.spec.aux)

    @property
    def states(self) -> tuple[int, ...]:
        """The whole spec's numbers of its states."""
        return tuple(self.whole.states.index(one) for one in self.spec.states)


def capture_entries(spec: Spec, target: Target, stages: Stages) -> tuple[CapturedEntry, ...]:
    """Every entrypoint of the spec, captured and checked alone. Raises CompileRefused."""
    stages.expect_entries(len(spec.entries))
    modules: dict[Path, ModuleType] = {}
    captured = tuple(_capture(spec, entry, target, stages, modules) for entry in spec.entries)
    for number, state in enumerate(spec.states):
        if all(number not in one.states for one in captured):
            raise CompileRefused(
                CompileRefusal.INPUT_MISMATCH, f"state {state.name!r}", expected="an entrypoint that takes it",
                found="none", todo="take it as a parameter, or take it out of the spec",
            )  # fmt: skip
    for one in captured[1:]:
        _require_same_outputs(captured[0], one)
    return captured


def _capture(
    spec: Spec, entry: EntrySpec, target: Target, stages: Stages, modules: dict[Path, ModuleType]
) -> CapturedEntry:
    label = "" if len(spec.entries) == 1 else f" {entry.name}"
    with stages(f"build{label}"):
        pipeline, own, model = _build(spec, entry, target, modules)
        function = CapturedFunction(pipeline, target.tinygrad_device, declared_inputs(own))
    eager = checks.recurrent(own, function.eager, checks.every_step(own))
    with stages(f"first run{label}"):
        expected = [next(eager)]
    with stages(f"capture{label}"):
        _record(own, function)
        capture = function.capture(target.align_bytes)
        views = tuple(output_views(own, pipeline.outputs, capture, pipeline.tensors))
    captured = CapturedEntry(entry, spec, own, pipeline.outputs, model, function, capture, pipeline.tensors, views)
    with stages(f"check{label}"):
        expected += eager
        results, accuracy = _check(captured, expected)
    if isinstance(pipeline, PythonPipeline):
        pipeline.require_nothing_kept()
    return replace(captured, results=results, accuracy=accuracy)


def _build(
    spec: Spec, entry: EntrySpec, target: Target, modules: dict[Path, ModuleType]
) -> tuple[Pipeline | PythonPipeline, Spec, Model | None]:
    """The pipeline, the spec of what it takes, and the ONNX model where it is one."""
    if entry.function:
        pipeline = load_pipeline(spec, entry, modules)
        return pipeline, pipeline.spec, None
    own = spec.for_entry(entry, spec.names)
    model = load_model(own, operators())
    return build_pipeline(own, model, target), own, model


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
    captured: CapturedEntry, eager: Sequence[list[bytes]]
) -> tuple[tuple[CheckResult, ...], tuple[Accuracy, ...]]:
    spec = captured.spec
    reference = None if captured.model is None else checks.Reference(spec, captured.model, captured.tensors)
    replayed, seen = [], _seen(captured)
    names = [*captured.tensors, *(one.name for one in spec.states)]
    run = partial(captured.function.captured, poison=True)
    for step, found in enumerate(checks.recurrent(spec, run, checks.every_step(spec))):
        checks.require_equal(f"step {step}: recorded calls", names, eager[step], found)
        replayed.append(found[: len(seen[0])])
        if reference is not None:
            reference.compare(checks.step_frames(spec, step), found)
    results = [CheckResult("eager = captured", f"bit for bit over {len(eager)} steps, arena and outputs poisoned")]
    if reference is not None:
        worst = ", ".join(f"{tensor} {value:.2e}" for tensor, value in reference.worst.items())
        allowed = f"allowed {spec.check.onnxruntime_tolerance:g}"
        results.append(CheckResult("onnxruntime", f"worst |difference| {worst}; {allowed}"))
    if captured.views:
        steps = [view_bytes(captured.views, spec, captured.tensors, one) for one in replayed]
        results.append(check_finite(captured.views, steps))
    results += [
        checks.check_other_pixels_matter(*seen, replayed),
        checks.check_every_input_matters(spec, seen[1], captured.function.captured),
    ]
    return tuple(results), () if reference is None else reference.accuracy()


def _seen(captured: CapturedEntry) -> tuple[list[str], list[str]]:
    """What an input has to show in, first of a run's results: names and ABI dtypes.

    A primary's outputs; with any other also the states, which it may keep for the primary alone.
    """
    by_name = {one.name: one.dtype for one in captured.outputs}
    names, kinds = list(captured.tensors), [by_name[tensor] for tensor in captured.tensors]
    if captured.entry.role is not EntryRole.PRIMARY:
        names += [one.name for one in captured.spec.states]
        kinds += [one.dtype.name.lower() for one in captured.spec.states]
    return names, kinds


def _require_same_outputs(primary: CapturedEntry, other: CapturedEntry) -> None:
    """A lighter entrypoint answers in the primary's form: consumers read both by the same views."""
    for wanted, found in zip(primary.views, other.views, strict=False):  # a stateOnly entrypoint has none
        if wanted != found:
            raise CompileRefused(
                CompileRefusal.OUTPUT_MISMATCH, f"output {found.name!r} of entrypoint {other.entry.name!r}",
                expected=f"the primary's {wanted.dtype.name.lower()} {list(wanted.shape)}",
                found=f"{found.dtype.name.lower()} {list(found.shape)}", todo="return a tensor of the same kind",
            )  # fmt: skip
