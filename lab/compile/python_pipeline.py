"""A pipeline written in Python: `source = "pipeline.py:build"`.

`build()` is called once and returns the function to capture. Its parameters are the spec's inputs, aux inputs and
states by name, tinygrad tensors all; it returns a dict of output tensors by name, and, where it takes states, a second
dict with the next value of each; a stateOnly entrypoint returns only that one. It must not keep anything from call to
call: what it keeps would be frozen when it is captured. Results are all computed before any state is written, so their
order means nothing.
"""

from __future__ import annotations

import importlib.util
import inspect
import re
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, get_args, get_origin

import numpy as np
from tinygrad import Tensor, dtypes

from abi.graph import BufferKind, EntryRole
from lab.compile.capture import Input
from lab.compile.model import TensorInfo
from lab.compile.outside import TakenFromOutside, kept_values, watched
from lab.compile.pipeline import tensors_of
from lab.compile.preprocess import Preprocessor
from lab.compile.refusal import CompileRefusal, CompileRefused
from lab.compile.spec import EntrySpec, InputSpec, Spec, TensorSpec
from lab.compile.spec_tensors import DTYPES, numpy_dtype

_ABI_NAMES = {getattr(dtypes, name.replace("bool8", "bool")): name for name in DTYPES}
_LIST_NAMES = frozenset({
    "list", "tuple", "dict", "set", "frozenset", "sequence", "mutablesequence", "iterable", "collection", "mapping",
    "namedtuple",
})  # fmt: skip


class PythonPipeline:
    """The function that a bundle computes. `tensors` names its results, in order; states are written in place."""

    def __init__(self, spec: Spec, function: Callable[..., Any], module: ModuleType) -> None:
        self.spec, self.function = spec, function
        self._module = module
        self._kept: dict[str, str] | None = None  # after the first call
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
            returned = self._call(given)
        except CompileRefused:
            raise
        except TakenFromOutside as error:
            raise self._refused("the call", "a result of its inputs alone", str(error),
                                "declare it as an [[aux]] input: read here it would be frozen") from error  # fmt: skip
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

    def _call(self, given: Mapping[str, Any]) -> Any:
        if self._kept is not None:
            return self.function(**given)
        with watched():
            returned = self.function(**given)
        self._kept = kept_values(self.function, self._module)
        return returned

    def require_nothing_kept(self) -> None:
        """Raises CompileRefused where a Python value has changed from call to call: it would be frozen."""
        before, now = self._kept or {}, kept_values(self.function, self._module)
        changed = [name for name in {**before, **now} if before.get(name) != now.get(name)]
        if changed:
            first, last = (marks.get(changed[0], "nothing") for marks in (before, now))
            raise self._refused(
                f"{changed[0]!r}", "values that are the same after every call",
                f"{first} after the first, {last} after the last",
                "declare it as a [[state]], or do without: kept here it would be frozen",
            )  # fmt: skip

    def _parts(self, returned: Any) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
        """Outputs, and the states' next values."""
        wanted = ["a dict of tensors"] * bool(self.tensors) + ["a dict of the states' next values"] * bool(
            self.spec.states
        )
        parts = returned if isinstance(returned, tuple) else (returned,)
        if len(parts) != len(wanted) or not all(_are_tensors(one) for one in parts):
            raise self._refused("the result", ", and ".join(wanted), _described(returned), "return nothing else")
        outputs = parts[0] if self.tensors else {}
        missing = [name for name in self.tensors if name not in outputs]
        if missing:
            raise CompileRefused(
                CompileRefusal.OUTPUT_MISMATCH, f"output tensor {missing[0]!r}", expected=f"one of {sorted(outputs)}",
                found=repr(missing[0]), todo="use the name that the pipeline returns it by",
            )  # fmt: skip
        nexts = parts[-1] if self.spec.states else {}
        states = [one.name for one in self.spec.states]
        if sorted(nexts) != sorted(states):
            raise self._refused("the states", str(sorted(states)), str(sorted(nexts)), "return each state's next value")
        return outputs, nexts

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


def load_pipeline(spec: Spec, entry: EntrySpec, modules: dict[Path, ModuleType]) -> PythonPipeline:
    """Runs the entrypoint's Python file and its build function; the pipeline's spec is cut to what the function takes.

    The file runs with the user's rights, as any script does, once for all entrypoints: `modules` holds what has run.
    Raises CompileRefused.
    """
    whole = spec.for_entry(entry, spec.names)
    try:
        module = _module(whole, modules)
        build = getattr(module, entry.function)
        function = build()
    except CompileRefused:
        raise
    except Exception as error:  # as above
        raise _refused(whole, "building it", f"{entry.function}() to return a function",
                       f"{type(error).__name__}: {error}", "mend the Python file") from error  # fmt: skip
    taken = _parameters(whole, function)
    needed = spec.names if len(spec.entries) == 1 else _needed(spec, entry)
    for name in needed:
        if name not in taken:
            raise _mismatch(whole, f"{name!r} of the spec", f"one of {list(taken)}", name, "take it as a parameter")
    own = spec.for_entry(entry, taken)
    if entry.role is EntryRole.STATE_ONLY and not own.states:
        raise _refused(whole, "its parameters", "a state, for it publishes nothing", str(list(taken)),
                       "take the state that it keeps in step")  # fmt: skip
    return PythonPipeline(own, function, module)


def _module(spec: Spec, modules: dict[Path, ModuleType]) -> ModuleType:
    path = spec.model.source
    if path not in modules:
        loader = importlib.util.spec_from_file_location(f"fenced_pipeline_{path.stem}", path)
        if loader is None or loader.loader is None or not path.is_file():
            raise _refused(spec, "the file", "a Python file", "no such file", "mend its source in the spec")
        module = importlib.util.module_from_spec(loader)
        loader.loader.exec_module(module)
        modules[path] = module
    return modules[path]


def _needed(spec: Spec, entry: EntrySpec) -> tuple[str, ...]:
    """What an entrypoint among several has to take: the primary all that is bound at a run, a lighter all frames."""
    frames, aux = tuple(one.name for one in spec.inputs), tuple(one.name for one in spec.aux)
    return {EntryRole.PRIMARY: (*frames, *aux), EntryRole.LIGHTER: frames}.get(entry.role, ())


def _parameters(spec: Spec, function: Any) -> tuple[str, ...]:
    """The function's parameters, each a declared tensor: anything else would be frozen."""
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
    return tuple(parameters)


def _is_list(annotation: Any) -> bool:
    """Whether a parameter is annotated as several tensors, in a union or by name too."""
    if isinstance(annotation, str):  # from __future__ import annotations
        words = re.findall(r"\w+", annotation)
        return any(word.lower() in _LIST_NAMES for word in words)
    kind = get_origin(annotation) or annotation
    is_collection = isinstance(kind, type) and issubclass(kind, Collection) and kind is not str
    return is_collection or any(map(_is_list, get_args(annotation)))


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
