"""What is checked of a packed bundle where tinygrad's runs do not give the device's bits: CUDA, and a foreign CPU.

With the device: every step's outputs, within the tolerance that the bundle states for its goldens. Without: that the
bundle is admitted and its code holds every kernel; report and bundle then say that it has not run.
"""

from __future__ import annotations

from pathlib import Path

from abi.graph import decode
from daemon.outputs import worst_difference
from hal.admit import Admission, Target, admit
from lab.compile import checks, cuda, pack
from lab.compile.checks import CheckResult
from lab.compile.entry import CapturedEntry
from lab.compile.packed import PackedModel
from lab.compile.refusal import CompileRefusal, CompileRefused
from lab.sign.pack import open_checked

_NAME = "captured = packed and run by the HAL"
NOT_RUN = CheckResult(_NAME, "not run: no device; admitted, and every kernel is in the code")


def check_close(entry: CapturedEntry, number: int, packed: PackedModel) -> CheckResult:
    """The packed entrypoint, alone from the initial state, gives what the recorded calls give, within tolerance.

    Its states are its own from step to step; they are seen in the outputs. Raises CompileRefused CAPTURE_DIFFERS.
    """
    spec, graph = entry.spec, packed.executable.graph
    packed.reset_state()
    for step, found in enumerate(checks.recurrent(spec, entry.function.captured, checks.every_step(spec))):
        expected = pack.view_bytes(entry.views, spec, entry.tensors, found)
        got = packed.run(checks.step_inputs(spec, step), number)
        for index, one, other in zip(graph.entrypoints[number].outputs, got, expected, strict=True):
            output = graph.outputs[index]
            differs = worst_difference(output, memoryview(one), memoryview(other))
            if differs is not None:
                raise CompileRefused(
                    CompileRefusal.CAPTURE_DIFFERS, f"step {step}: packed bundle, output {output.view.name!r}",
                    expected=f"within {output.absolute_tolerance:g}", found=differs,
                    todo="widen check.onnxruntime_tolerance where the model allows it, else report a compiler defect",
                )  # fmt: skip
    return CheckResult(_NAME, f"within tolerance over {spec.check.steps} steps")


def admit_packed(path: Path) -> Admission:
    """Read the bundle back, admit its graph, look its kernels up in its code. Raises AdmissionRefused, ValueError."""
    with open_checked(path) as (sealed, _, stated):
        spans = {blob.name: span for blob, span in zip(stated.blobs, sealed.layout.blobs, strict=True)}
        graph, code = decode(sealed.view(spans["graph"])), sealed.view(spans["code"])
        target = Target(stated.target.driver, stated.target.arch)
        admission = admit(graph, code, spans["weights"].size_bytes, target)
        if target.driver == "cpu":
            return admission  # which has found every kernel in the shared object
        missing = {one.symbol for one in graph.programs} - cuda.functions(bytes(code))
        if missing:
            raise ValueError(f"the cubin lacks {sorted(missing)}")  # a defect of ours
        return admission
