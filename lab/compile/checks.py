"""The checks a bundle must pass before it is handed over (DESIGN §9, 3).

On every step's frames: the ordinary call, the recorded calls (with arena and outputs poisoned first) and the packed
bundle on the HAL agree bit for bit; onnxruntime, fed with the reference preprocessing, agrees within the spec's
tolerance. Other pixels must give another result, and each input, changed alone, must change some output. A check that
fails raises CompileRefused; one that passes says by how much.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import onnxruntime
from numpy.typing import NDArray

from abi import golden
from lab.compile.model import Model
from lab.compile.reference import preprocess
from lab.compile.refusal import CompileRefusal, CompileRefused
from lab.compile.spec import Spec

Run = Callable[[Sequence[bytes]], list[bytes]]
"""Frames' bytes to the bytes of each output tensor."""
_NOISE_SEED = 0xF3
_ONNXRUNTIME_ERRORS_ONLY = 3


@dataclass(frozen=True)
class CheckResult:
    """A check that passed, and what it saw."""

    name: str
    seen: str


def step_frames(spec: Spec, step: int, inputs: Sequence[int] | None = None) -> list[bytes]:
    """The frames of one step: stripes on even steps, noise on odd ones. `inputs`: only these differ from step 0's."""
    frames = []
    for index, one in enumerate(spec.inputs):
        seed = step if inputs is None or index in inputs else 0
        if seed % 2:
            frames.append(np.random.default_rng([_NOISE_SEED, seed, index]).bytes(one.buffer_bytes))
        else:
            frame = np.empty(one.buffer_bytes, np.uint8)
            golden.fill(frame, golden.input_seed(_NOISE_SEED + seed, index))
            frames.append(frame.tobytes())
    return frames


def require_equal(name: str, tensors: Sequence[str], expected: Sequence[bytes], found: Sequence[bytes]) -> None:
    """Refuses results that are not the same bits, naming the tensor and the first byte that differs."""
    for tensor, one, other in zip(tensors, expected, found, strict=True):
        if one != other:
            same = min(len(one), len(other))
            left, right = (np.frombuffer(part, np.uint8, same) for part in (one, other))
            differing = np.flatnonzero(left != right)
            where = int(differing[0]) if differing.size else same
            raise CompileRefused(
                CompileRefusal.CAPTURE_DIFFERS, f"{name}, output {tensor!r}", expected="the same bits in both",
                found=f"{differing.size} of {len(one)} bytes differ, the first at byte {where}",
                todo="look for state or randomness in the model; if there is none, report a compiler defect",
            )  # fmt: skip


class Reference:
    """onnxruntime on the reference's pixels."""

    def __init__(self, spec: Spec, model: Model, tensors: Sequence[str]) -> None:
        options = onnxruntime.SessionOptions()
        options.log_severity_level = _ONNXRUNTIME_ERRORS_ONLY
        options.intra_op_num_threads = spec.target.threads
        self.session = onnxruntime.InferenceSession(model.data, options, providers=["CPUExecutionProvider"])
        self.spec, self.tensors = spec, list(tensors)
        self.worst: dict[str, float] = dict.fromkeys(tensors, 0.0)

    def __call__(self, frames: Sequence[bytes]) -> list[NDArray[np.generic]]:
        """The output tensors for the frames' bytes."""
        pixels = {
            one.name: preprocess(np.frombuffer(frame, np.uint8), one)
            for one, frame in zip(self.spec.inputs, frames, strict=True)
        }
        results: list[NDArray[np.generic]] = self.session.run(self.tensors, pixels)
        return results

    def compare(self, frames: Sequence[bytes], found: Sequence[bytes]) -> None:
        """Refuses a result beyond the spec's tolerance, naming the worst element; remembers the worst seen."""
        tolerance = self.spec.check.onnxruntime_tolerance
        for tensor, expected, raw in zip(self.tensors, self(frames), found, strict=True):
            values = np.frombuffer(raw, expected.dtype).reshape(expected.shape)
            difference = np.abs(values.astype(np.float64) - expected.astype(np.float64))
            difference[np.isnan(values) != np.isnan(expected)] = np.inf
            difference = np.nan_to_num(difference, nan=0.0, posinf=np.inf)
            worst = np.unravel_index(int(difference.argmax()), difference.shape)
            self.worst[tensor] = max(self.worst[tensor], float(difference[worst]))
            if not difference[worst] <= tolerance:
                raise CompileRefused(
                    CompileRefusal.REFERENCE_DIFFERS, f"output {tensor!r}, element {[int(i) for i in worst]}",
                    expected=f"{expected[worst]} of onnxruntime within {tolerance:g}", found=f"{values[worst]}",
                    todo="if the model is that sensitive, state a wider check.onnxruntime_tolerance",
                )  # fmt: skip


def _same(kinds: Sequence[str], one: Sequence[bytes], other: Sequence[bytes]) -> bool:
    """Whether two runs gave the same values: bits would tell 0 from -0, which means nothing to a consumer."""
    for kind, left, right in zip(kinds, one, other, strict=True):
        dtype = np.dtype("bool" if kind == "bool8" else kind)
        values, others = np.frombuffer(left, dtype), np.frombuffer(right, dtype)
        if not np.array_equal(values, others, equal_nan=kind.startswith("float")):
            return False
    return True


def check_other_pixels_matter(
    tensors: Sequence[str], kinds: Sequence[str], results: Sequence[list[bytes]]
) -> CheckResult:
    """Refuses a bundle whose outputs, of ABI dtypes `kinds`, are the same for every step."""
    if all(_same(kinds, one, results[0]) for one in results[1:]):
        raise CompileRefused(
            CompileRefusal.SEED_WITHOUT_EFFECT, "outputs " + ", ".join(tensors), expected="results of the pixels",
            found=f"the same values for {len(results)} different frames", todo="look for a result frozen in the export",
        )  # fmt: skip
    return CheckResult("other pixels give other results", f"{len(results)} different frames")


def check_every_input_matters(spec: Spec, kinds: Sequence[str], run: Run) -> CheckResult:
    """Refuses an input that, changed alone, changes no output (cases/runtime.md row 3)."""
    still = run(step_frames(spec, 0))
    for index, one in enumerate(spec.inputs):
        if _same(kinds, run(step_frames(spec, 1, inputs=[index])), still):
            raise CompileRefused(
                CompileRefusal.INPUT_WITHOUT_EFFECT, f"input {one.name!r}", expected="some output that depends on it",
                found="the same values whatever its pixels", todo="take the input out of the spec, or mend the model",
            )  # fmt: skip
    return CheckResult("every input matters", ", ".join(one.name for one in spec.inputs))
