"""What a Python pipeline must not take from outside its inputs: the clock, chance, what it kept from earlier calls.

Captured, such a value is frozen, and a comparison of runs finds it only where it happens to change meanwhile: not the
hour, a counter that matters from the thousandth call on, or a draw that is rarely different. So the pipeline's own
calls are watched (those that tinygrad makes inside are not), and its Python values must be the same after the first
call and after the last: what is filled once, at the first call, is no memory.
"""

from __future__ import annotations

import contextlib
import hashlib
import random
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import BuiltinMethodType, FrameType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
import tinygrad

_TINYGRAD = str(Path(tinygrad.__file__).parent)
_IMPORTS = "<frozen importlib"
_TIME = frozenset({
    "time", "time_ns", "monotonic", "monotonic_ns", "perf_counter", "perf_counter_ns", "process_time",
    "process_time_ns", "thread_time", "thread_time_ns", "clock_gettime", "clock_gettime_ns", "localtime", "gmtime",
    "ctime", "asctime", "strftime",
})  # fmt: skip
_DATE = frozenset({"now", "utcnow", "today"})
_CHANCE = frozenset({"urandom", "getrandom"})
_MAX_DEPTH = 12


class TakenFromOutside(Exception):
    """The pipeline read something that is none of its inputs: `what`, called in `where`."""

    def __init__(self, what: str, where: str) -> None:
        super().__init__(f"{what} in {where}")
        self.what, self.where = what, where


@contextlib.contextmanager
def watched() -> Iterator[None]:
    """Raises TakenFromOutside at the end where the calls inside read a clock, or drew from the process's generators."""
    found: list[TakenFromOutside] = []

    def look(frame: FrameType, event: str, argument: Any) -> None:
        if event == "c_call" and not found:
            name = _outside(argument)
            if name and not _is_inside(frame):
                where = f"line {frame.f_lineno} of {Path(frame.f_code.co_filename).name}"
                found.append(TakenFromOutside(name, where))

    before, drawn = sys.getprofile(), _drawn()
    sys.setprofile(look)
    try:
        yield
    finally:
        sys.setprofile(before)
    if found:
        raise found[0]
    if _drawn() != drawn:
        raise TakenFromOutside("a draw from the process's own random generator", "the function or what it calls")


def _outside(function: Any) -> str:
    """The name of a built-in that reads a clock or chance; empty for others."""
    if not isinstance(function, BuiltinMethodType):
        return ""
    name: str = function.__name__
    owner: Any = function.__self__
    if isinstance(owner, ModuleType):
        taken = {"time": _TIME, "posix": _CHANCE}.get(owner.__name__, frozenset())
        return f"{owner.__name__}.{name}()" if name in taken else ""
    is_date = isinstance(owner, type) and owner.__module__ == "datetime" and name in _DATE
    return f"datetime.{owner.__name__}.{name}()" if is_date else ""


def _is_inside(frame: FrameType | None) -> bool:
    """Whether tinygrad, or the loading of a module, called on the way to `frame`."""
    while frame is not None and frame.f_code.co_filename != __file__:
        name = frame.f_code.co_filename
        if name.startswith((_TINYGRAD, _IMPORTS)):
            return True
        frame = frame.f_back
    return False


def _drawn() -> tuple[str, str]:
    return repr(random.getstate()), repr(np.random.get_state(legacy=False))


def kept_values(function: Callable[..., Any], module: ModuleType) -> dict[str, str]:
    """The Python values that a function can reach: in closures, in the globals of its file's module, and in objects of
    classes from there or from files beside it.

    Marks of each by where it is: equal marks, equal values. Tensors are marked by identity: their values are compared
    elsewhere, run by run.
    """
    reader = _Reader(module)
    reader.read("", function, 0)
    for name, value in vars(module).items():
        if not name.startswith("__"):
            reader.read(name, value, 0)
    return reader.marks


class _Reader:
    def __init__(self, module: ModuleType) -> None:
        self.marks: dict[str, str] = {}
        self._module = module
        self._folder = Path(module.__file__ or "").parent
        self._seen: set[int] = set()

    def read(self, where: str, value: Any, depth: int) -> None:
        if isinstance(value, int | float | complex | str | bytes | None):
            self.marks[where] = repr(value)
        elif isinstance(value, np.ndarray):
            self.marks[where] = hashlib.sha256(value.tobytes()).hexdigest()
        elif isinstance(value, random.Random):
            self.marks[where] = repr(value.getstate())
        elif isinstance(value, np.random.Generator):
            self.marks[where] = repr(value.bit_generator.state)
        elif id(value) not in self._seen and depth < _MAX_DEPTH:
            self._seen.add(id(value))
            self._inside(where, value, depth + 1)

    def _inside(self, where: str, value: Any, depth: int) -> None:
        for name, part in self._parts(where, value):
            self.read(name, part, depth)

    def _parts(self, where: str, value: Any) -> list[tuple[str, Any]]:
        if isinstance(value, dict):
            return [(f"{where}[{key!r}]", one) for key, one in value.items()]
        if isinstance(value, list | tuple | set | frozenset):
            self.marks[where] = f"{type(value).__name__} of {len(value)}"
            ordered = value if isinstance(value, list | tuple) else sorted(value, key=repr)
            return [(f"{where}[{at}]", one) for at, one in enumerate(ordered)]
        if isinstance(value, MethodType):
            return [(f"{where}.self", value.__self__), (where, value.__func__)]
        if isinstance(value, FunctionType):
            return _closure(where, value) if self._is_users(value.__module__) else []
        if isinstance(value, type) and self._is_users(value.__module__):
            return [(f"{where}.{name}", one) for name, one in vars(value).items() if not name.startswith("__")]
        if self._is_users(type(value).__module__):
            names = [*getattr(value, "__dict__", ()), *getattr(type(value), "__slots__", ())]
            return [(f"{where}.{name}", getattr(value, name)) for name in names if hasattr(value, name)]
        self.marks[where] = f"{type(value).__name__} {id(value)}"
        return []

    def _is_users(self, name: str) -> bool:
        """Whether a module is the pipeline's file, or lies beside it."""
        path = getattr(sys.modules.get(name), "__file__", None)
        return name == self._module.__name__ or (path is not None and Path(path).parent == self._folder)


def _closure(where: str, function: FunctionType) -> list[tuple[str, Any]]:
    prefix, found = f"{where}." if where else "", []
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        with contextlib.suppress(ValueError):  # a variable that has no value yet
            found.append((prefix + name, cell.cell_contents))
    return [*found, *((prefix + name, one) for name, one in vars(function).items())]
