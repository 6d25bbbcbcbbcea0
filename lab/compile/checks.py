"""The checks a bundle must pass before it is handed over (DESIGN §9, 3).

On every step's frames: the ordinary call, the recorded calls (with arena and outputs poisoned first) and the packed
bundle on the HAL agree bit for bit; onnxruntime, fed with the reference preprocessing, agrees within the spec's
tolerance. Other pixels must give another result, and each input, changed alone, must change some output. A check that
fails raises CompileRefused; one that passes says by how much.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
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
"""The bytes of frames, aux inputs and states to those of each output tensor, and then of each state as it was left."""
_NOISE_SEED = 0xF3
_AUX_SEED = 0xA0
_SAMPLED = 500
_ONNXRUNTIME_ERRORS_ONLY = 3


@dataclass(frozen=True)
class CheckResult:
    """A check that passed, and what it saw."""

    name: str
    seen: str


@dataclass(frozen=True)
class Accuracy:
    """How one output tensor compared with onnxruntime: the worst difference of each step, and elements of the last."""

    tensor: str
    worst_by_step: tuple[float, ...]
    expected: tuple[float, ...]
    found: tuple[float, ...]


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


def step_aux(spec: Spec, step: int, only: int | None = None) -> list[bytes]:
    """The aux inputs of one step. `only`: no other differs from step 0's."""
    values = []
    for index, one in enumerate(spec.aux):
        value = np.empty(one.size_bytes, np.uint8)
        number = step if only in (None, index) else 0
        golden.fill_elements(value, one.dtype, golden.input_seed(_AUX_SEED + number, index))
        values.append(value.tobytes())
    return values


def step_inputs(spec: Spec, step: int) -> list[bytes]:
    """Frames and aux inputs of one step."""
    return [*step_frames(spec, step), *step_aux(spec, step)]


def every_step(spec: Spec) -> Iterator[list[bytes]]:
    """Frames and aux inputs of each of the spec's steps, one after another: all at once may be gigabytes."""
    return (step_inputs(spec, step) for step in range(spec.check.steps))


def initial_states(spec: Spec) -> list[bytes]:
    """What every state is before the first run."""
    return [bytes(one.size_bytes) for one in spec.states]


def recurrent(spec: Spec, run: Run, inputs: Iterable[Sequence[bytes]]) -> Iterator[list[bytes]]:
    """The results of one run after another, each given the states that the one before left.

    inputs: frames and aux inputs of each step; a step that brings states of its own behind them is given those.
    """
    states = initial_states(spec)
    for values in inputs:
        own = list(values)[len(spec.inputs) + len(spec.aux) :]
        result = run([*values, *([] if own else states)])
        states = result[len(result) - len(states) :]
        yield result


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
        self._by_step: dict[str, list[float]] = {one: [] for one in tensors}
        self._last: dict[str, tuple[tuple[float, ...], tuple[float, ...]]] = {}

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
        for tensor, result, raw in zip(self.tensors, self(frames), found, strict=True):
            expected = np.atleast_1d(result)  # a single number has no elements to assign to
            values = np.frombuffer(raw, expected.dtype).reshape(expected.shape)
            difference = np.abs(values.astype(np.float64) - expected.astype(np.float64))
            difference[np.isnan(values) != np.isnan(expected)] = np.inf
            difference = np.nan_to_num(difference, nan=0.0, posinf=np.inf)
            worst = np.unravel_index(int(difference.argmax()), difference.shape)
            self.worst[tensor] = max(self.worst[tensor], float(difference[worst]))
            self._by_step[tensor].append(float(difference[worst]))
            self._last[tensor] = _sample(expected), _sample(values)
            if not difference[worst] <= tolerance:
                raise CompileRefused(
                    CompileRefusal.REFERENCE_DIFFERS, f"output {tensor!r}, element {[int(i) for i in worst]}",
                    expected=f"{expected[worst]} of onnxruntime within {tolerance:g}", found=f"{values[worst]}",
                    todo="if the model is that sensitive, state a wider check.onnxruntime_tolerance",
                )  # fmt: skip

    def accuracy(self) -> tuple[Accuracy, ...]:
        """What every comparison so far has seen."""
        return tuple(Accuracy(one, tuple(self._by_step[one]), *self._last[one]) for one in self.tensors)


def _sample(values: NDArray[np.generic]) -> tuple[float, ...]:
    """Some hundred finite elements, evenly spread."""
    flat = values.reshape(-1).astype(np.float64)
    spread = flat[:: max(1, flat.size // _SAMPLED)]
    return tuple(float(one) if np.isfinite(one) else 0.0 for one in spread)


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
    """Refuses an input that, changed alone in the first step, changes no output (cases/runtime.md row 3).

    Where there is state the change may show in any of the spec's steps; a state is an input here like the others.
    """
    steps = spec.check.steps if spec.states else 1
    still_inputs = [step_inputs(spec, 0)] * steps
    outputs = len(kinds)
    still = [one[:outputs] for one in recurrent(spec, run, still_inputs)]
    for index, name in enumerate(spec.names):
        moved = _first_step_changed(spec, index)
        results = recurrent(spec, run, [moved, *still_inputs[1:]])
        if all(_same(kinds, one[:outputs], other) for one, other in zip(results, still, strict=True)):
            what = "input" if index < len(spec.inputs) + len(spec.aux) else "state"
            raise CompileRefused(
                CompileRefusal.INPUT_WITHOUT_EFFECT, f"{what} {name!r}", expected="some output that depends on it",
                found=f"the same values whatever it is, over {steps} steps" if spec.states else
                "the same values whatever its pixels", todo=f"take the {what} out of the spec, or mend the model",
            )  # fmt: skip
    return CheckResult("every input matters", ", ".join(spec.names))


def _first_step_changed(spec: Spec, index: int) -> list[bytes]:
    """Frames, aux inputs and states of step 0, but number `index` of them changed alone."""
    frames, states = step_frames(spec, 1, inputs=[index]), initial_states(spec)
    aux, state = index - len(spec.inputs), index - len(spec.inputs) - len(spec.aux)
    if state >= 0:
        value = np.empty(spec.states[state].size_bytes, np.uint8)
        golden.fill_elements(value, spec.states[state].dtype, golden.input_seed(_AUX_SEED, index))
        states[state] = value.tobytes()
    return [*frames, *step_aux(spec, 1, only=aux), *states]
