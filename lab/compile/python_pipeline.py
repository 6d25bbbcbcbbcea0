"""A pipeline written in Python: `source = "pipeline.py:build"`.

`build()` is called once and returns the function to capture. Its parameters are the spec's inputs, aux inputs and
states by name, tinygrad tensors all; it returns a dict of output tensors by name, and, where the spec has states, a
second dict with the next value of every state. It must not keep anything from call to call: what it keeps would be
frozen when it is captured. Results are all computed before any state is written, so their order means nothing.
"""

from __future__ import annotations

import importlib.util
import inspect
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from tinygrad import Tensor, dtypes

from abi.graph import BufferKind
from lab.compile.capture import Input
from lab.compile.model import TensorInfo
from lab.compile.pipeline import tensors_of
from lab.compile.preprocess import Preprocessor
from lab.compile.refusal import CompileRefusal, CompileRefused
from lab.compile.spec import InputSpec, Spec, TensorSpec
from lab.compile.spec_tensors import DTYPES, numpy_dtype

_ABI_NAMES = {getattr(dtypes, name.replace("bool8", "bool")): name for name in DTYPES}
_LISTS = (list, tuple, dict, set)


class PythonPipeline:
    """The function that a bundle computes. `tensors` names its results, in order; states are written in place."""

    def __init__(self, spec: Spec, function: Callable[..., Any]) -> None:
        self.spec, self.function = spec, function
        self.prepare = [_preprocessor(one) for one in spec.inputs]
        self.tensors = tensors_of(spec)
        self.outputs: tuple[TensorInfo, ...] = ()
        """What the latest call returned."""

    def __call__(self, *arguments: Any) -> list[Any]:
        """The outputs for frames, aux inputs and states in the spec's order. The states hold their next values after.

        Raises CompileRefused where the function fails or returns something else than the spec says.
        """
        given = dict(zip(self.spec.names, arguments, strict=True))
        given |= {
            one.name: prepare(given[one.name]) for one, prepare in zip(self.spec.inputs, self.prepare, strict=True)
        }
        try:
            returned = self.function(**given)
        except CompileRefused:
            raise
        except Exception as error:  # the user's own code may raise anything; it is the user's to mend
            raise self._refused("the call", "a result", f"{type(error).__name__}: {error}", "mend it") from error
        outputs, nexts = self._parts(returned)
        self.outputs = tuple(TensorInfo(name, self._abi_name(name, one), one.shape) for name, one in outputs.items())
        results = [outputs[name].clone() for name in self.tensors]
        updates = [self._next(one, nexts[one.name]) for one in self.spec.states]
        Tensor.realize(*results, *updates)
        for state, update in zip(arguments[len(arguments) - len(updates) :], updates, strict=True):
            state.assign(update).realize()
        return results

    def _parts(self, returned: Any) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
        """Outputs, and the states' next values."""
        wanted = "a dict of tensors" + (", and a dict of the states' next values" if self.spec.states else "")
        parts = returned if isinstance(returned, tuple) else (returned,)
        good = len(parts) == 1 + bool(self.spec.states) and all(_are_tensors(one) for one in parts)
        if not good:
            raise self._refused("the result", wanted, _described(returned), "return nothing else")
        missing = [name for name in self.tensors if name not in parts[0]]
        if missing:
            raise CompileRefused(
                CompileRefusal.OUTPUT_MISMATCH, f"output tensor {missing[0]!r}", expected=f"one of {sorted(parts[0])}",
                found=repr(missing[0]), todo="use the name that the pipeline returns it by",
            )  # fmt: skip
        nexts = parts[1] if self.spec.states else {}
        states = [one.name for one in self.spec.states]
        if sorted(nexts) != sorted(states):
            raise self._refused("the states", str(sorted(states)), str(sorted(nexts)), "return each state's next value")
        return parts[0], nexts

    def _next(self, state: TensorSpec, value: Any) -> Any:
        """A state's next value in memory of its own, so that no state is written while another still needs it."""
        found = f"{_ABI_NAMES.get(value.dtype, value.dtype)} {list(value.shape)}"
        expected = f"{state.dtype.name.lower()} {list(state.shape)}"
        if found != expected:
            raise self._refused(f"state {state.name!r}", expected, found, "cast or reshape it, or mend the spec")
        return value.clone()

    def _abi_name(self, name: str, value: Any) -> str:
        if value.dtype not in _ABI_NAMES:
            raise CompileRefused(
                CompileRefusal.UNSUPPORTED_DTYPE, f"output tensor {name!r}", expected="one of " + ", ".join(DTYPES),
                found=str(value.dtype), todo="cast it",
            )  # fmt: skip
        return _ABI_NAMES[value.dtype]

    def _refused(self, what: str, expected: str, found: str, todo: str) -> CompileRefused:
        return _refused(self.spec, what, expected, found, todo)


def declared_inputs(spec: Spec) -> list[Input]:
    """What the captured function takes, in order."""
    frames = [Input(BufferKind.FRAME, np.dtype(np.uint8), None) for _ in spec.inputs]
    aux = [Input(BufferKind.AUX, numpy_dtype(one.dtype), one.shape) for one in spec.aux]
    return [*frames, *aux, *(Input(BufferKind.STATE, numpy_dtype(one.dtype), one.shape) for one in spec.states)]


def load_pipeline(spec: Spec) -> PythonPipeline:
    """Runs the spec's Python file and its build function, and checks the parameters of what it returns.

    The file runs with the user's rights, as any script does. Raises CompileRefused.
    """
    path, name = spec.model.source, spec.model.function
    loader = importlib.util.spec_from_file_location(f"fenced_pipeline_{path.stem}", path)
    if loader is None or loader.loader is None or not path.is_file():
        raise _refused(spec, "the file", "a Python file", "no such file", "mend model.source")
    module = importlib.util.module_from_spec(loader)
    try:
        loader.loader.exec_module(module)
        build = getattr(module, name)
        function = build()
    except Exception as error:  # as above
        raise _refused(spec, "building it", f"{name}() to return a function", f"{type(error).__name__}: {error}",
                       "mend the Python file") from error  # fmt: skip
    _check_parameters(spec, function)
    return PythonPipeline(spec, function)


def _check_parameters(spec: Spec, function: Any) -> None:
    """Every parameter is a declared tensor and every declared tensor a parameter: anything else would be frozen."""
    if not callable(function):
        raise _refused(
            spec, "the result of build", "a function", _described(function), "return the function to capture"
        )
    parameters = inspect.signature(function).parameters
    for one in parameters.values():
        what = f"parameter {one.name!r}"
        if one.kind in (one.VAR_POSITIONAL, one.VAR_KEYWORD) or _is_list(one.annotation):
            raise _refused(
                spec, what, "one tensor", f"several ({one})", "declare each tensor and name it as a parameter"
            )
        if one.default is not one.empty:
            raise _refused(spec, what, "no default", f"{one.default!r}, which would be frozen into the graph",
                           "make it a constant inside the function, or an [[aux]] input")  # fmt: skip
        if one.kind is one.POSITIONAL_ONLY or one.name not in spec.names:
            raise _mismatch(spec, what, f"one of {list(spec.names)}", one.name, "declare it in the spec")
    for name in spec.names:
        if name not in parameters:
            raise _mismatch(spec, f"{name!r} of the spec", f"one of {list(parameters)}", name, "take it as a parameter")


def _is_list(annotation: Any) -> bool:
    if isinstance(annotation, str):  # from __future__ import annotations
        return annotation.partition("[")[0].rpartition(".")[2].lower() in {"list", "tuple", "dict", "set", "sequence"}
    return (getattr(annotation, "__origin__", None) or annotation) in _LISTS


def _preprocessor(spec: InputSpec) -> Callable[[Any], Any]:
    if spec.layout == "bytes":
        return lambda frame: frame
    prepare = Preprocessor(spec)
    return lambda frame: prepare(frame).contiguous()


def _are_tensors(value: Any) -> bool:
    if not isinstance(value, dict):
        return False
    return all(isinstance(name, str) and isinstance(one, Tensor) for name, one in value.items())


def _described(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{name!r}: {_described(one)}" for name, one in value.items()) + "}"
    if isinstance(value, list | tuple):
        return f"{type(value).__name__} of " + ", ".join(map(_described, value))
    return type(value).__name__


def _refused(spec: Spec, what: str, expected: str, found: str, todo: str, /) -> CompileRefused:
    where = f"{spec.model.source.name}:{spec.model.function}, {what}"
    return CompileRefused(CompileRefusal.PIPELINE, where, expected=expected, found=found, todo=todo)


def _mismatch(spec: Spec, what: str, expected: str, found: str, todo: str) -> CompileRefused:
    where = f"{spec.model.source.name}:{spec.model.function}, {what}"
    return CompileRefused(CompileRefusal.INPUT_MISMATCH, where, expected=expected, found=found, todo=todo)
