"""Reads the [[aux]] and [[state]] tables of a spec.toml: the tensors of a Python pipeline that are no frames.

Bounds are admission's (`hal.limits`), so that what is compiled is not refused on the vehicle for its size.
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from abi.graph import DType
from hal.limits import Limits
from lab.compile.refusal import CompileRefusal
from lab.compile.spec import AuxSpec, StateSpec

if TYPE_CHECKING:
    from lab.compile.spec_toml import Table

DTYPES = ("float32", "float16", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64", "bool8")
"""bfloat16 is missing: numpy has none to check it with."""
_NAME = r"[a-z_][a-z0-9_]{0,63}"
_NAME_TEXT = "the name of the pipeline's parameter: 1..64 characters a-z 0-9 _, no digit first"
_LIMITS = Limits()


def numpy_dtype(dtype: DType) -> np.dtype[Any]:
    """numpy's type of the same elements."""
    return np.dtype("bool" if dtype is DType.BOOL8 else dtype.name.lower())


def read_aux(root: Table, is_python: bool) -> tuple[AuxSpec, ...]:
    """The [[aux]] tables; none where the model is an ONNX file, whose inputs are all frames."""
    return tuple(map(_aux, root.tables("aux", []))) if is_python else ()


def read_states(root: Table, is_python: bool) -> tuple[StateSpec, ...]:
    """The [[state]] tables; none where the model is an ONNX file."""
    return tuple(map(_state, root.tables("state", []))) if is_python else ()


def _aux(table: Table) -> AuxSpec:
    name, dtype, shape = _tensor(table, _LIMITS.aux_bytes)
    spec = AuxSpec(name, dtype, shape, table.number("max_age_ms", 0.0, 1e9), _default(table, dtype, shape))
    table.finish()
    return spec


def _state(table: Table) -> StateSpec:
    name, dtype, shape = _tensor(table, _LIMITS.memory_bytes)
    hand_over = bool(table.take("hand_over", "true or false", lambda value: isinstance(value, bool)))
    table.finish()
    return StateSpec(name, dtype, shape, hand_over)


def _tensor(table: Table, most_bytes: int) -> tuple[str, DType, tuple[int, ...]]:
    name = table.text("name", _NAME, _NAME_TEXT)
    dtype = DType[table.choice("dtype", DTYPES).upper()]
    shape: tuple[int, ...] = table.integers("shape", None, 1, 2**31 - 1)
    if prod(shape) * dtype.item_bytes > most_bytes:
        raise table.refuse(CompileRefusal.SPEC_VALUE, "shape", f"a tensor of at most {most_bytes} bytes", list(shape))
    return name, dtype, shape


def _default(table: Table, dtype: DType, shape: tuple[int, ...]) -> bytes | None:
    """One number for every element, or all elements in order; None where the key is missing."""
    count = prod(shape)
    form = lambda one: isinstance(one, bool | int | float | list)  # noqa: E731
    value = table.take("default", f"a number, or {count} of them", form, None)
    if value is None:
        return None
    elements = value if isinstance(value, list) else [value] * count
    fits = len(elements) == count and all(_is_element(one, dtype) for one in elements)
    if not fits:
        expected = f"a number, or {count} of them, that {dtype.name.lower()} can hold"
        raise table.refuse(CompileRefusal.SPEC_VALUE, "default", expected, value)
    return np.array(elements, numpy_dtype(dtype)).tobytes()


def _is_element(value: Any, dtype: DType) -> bool:
    kind = numpy_dtype(dtype)
    if kind == np.bool_:
        return isinstance(value, bool)
    if not isinstance(value, int | float) or isinstance(value, bool):
        return False
    if kind.kind == "f":
        return bool(abs(value) <= float(np.finfo(kind).max))  # NaN and infinity are not
    return isinstance(value, int) and np.iinfo(kind).min <= value <= np.iinfo(kind).max
