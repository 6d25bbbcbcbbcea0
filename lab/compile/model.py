"""Reads an ONNX model and refuses, by node and operator, what cannot be compiled (cases/runtime.md rows 18-21).

The sizes of the model's inputs are taken from the spec, so a dynamic batch or picture size becomes a fixed one here;
any other size that stays open is refused. The result is a checked `onnx.ModelProto` with shapes inferred: onnxruntime
and tinygrad are both given exactly these bytes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
from onnx import TensorProto

from lab.compile.refusal import CompileRefusal, CompileRefused
from lab.compile.spec import InputSpec, Spec

ONNX_DOMAINS = ("", "ai.onnx")
# their results' sizes depend on pixel values: there is no static launch table for them
DATA_DEPENDENT = frozenset({"NonZero", "Unique", "Compress", "NonMaxSuppression", "StringNormalizer", "RegexFullMatch"})
CONTROL_FLOW = frozenset({"If", "Loop", "Scan", "SequenceMap"})
RANDOM = frozenset(
    {"RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike", "Bernoulli", "Multinomial"}
)
_REFUSED_KINDS = (
    (DATA_DEPENDENT, CompileRefusal.DYNAMIC_SIZE, "an operator whose output size is fixed"),
    (CONTROL_FLOW, CompileRefusal.UNKNOWN_OPERATOR, "a graph without control flow"),
    (RANDOM, CompileRefusal.UNKNOWN_OPERATOR, "a deterministic operator"),
)
_DTYPES = {
    TensorProto.FLOAT: "float32",
    TensorProto.FLOAT16: "float16",
    TensorProto.INT8: "int8",
    TensorProto.UINT8: "uint8",
    TensorProto.INT16: "int16",
    TensorProto.UINT16: "uint16",
    TensorProto.INT32: "int32",
    TensorProto.UINT32: "uint32",
    TensorProto.INT64: "int64",
    TensorProto.UINT64: "uint64",
    TensorProto.BOOL: "bool8",
}
"""What an output may be, as the result ABI names it."""


@dataclass(frozen=True)
class TensorInfo:
    """A model output: name, ABI dtype name, and shape where shape inference found one."""

    name: str
    dtype: str
    shape: tuple[int, ...] | None


@dataclass(frozen=True)
class Model:
    """A model that can be compiled: the checked proto, its bytes, and its outputs."""

    proto: Any
    data: bytes
    outputs: tuple[TensorInfo, ...]


def load_model(spec: Spec, operators: frozenset[str]) -> Model:
    """The spec's model with its sizes fixed.

    `operators` are the ones the compiler has. Raises CompileRefused, naming the node and the operator.
    """
    proto = _read(spec.model.source)
    for node in _nodes(proto.graph):
        _refuse_node(node, operators)
    allowed = _empty_by_right(proto.graph)
    for initialiser in proto.graph.initializer:
        _refuse_initialiser(initialiser, allowed)
    _fix_inputs(proto, spec)
    try:
        onnx.checker.check_model(proto, full_check=False)
        proto = onnx.shape_inference.infer_shapes(proto, strict_mode=True)
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError) as error:
        raise _unreadable(spec.model.source, str(error).splitlines()[0]) from error
    outputs = tuple(_output(value) for value in proto.graph.output)
    _refuse_unknown_outputs(spec, outputs)
    return Model(proto=proto, data=proto.SerializeToString(deterministic=True), outputs=outputs)


def _unreadable(path: Path, found: str) -> CompileRefused:
    return CompileRefused(
        CompileRefusal.MODEL_UNREADABLE, str(path), expected="a valid ONNX model", found=found,
        todo="export the model again and run onnx.checker on it",
    )  # fmt: skip


def _read(path: Path) -> Any:
    if not path.is_file():
        raise CompileRefused(
            CompileRefusal.MODEL_UNREADABLE, "model.source", expected="the path of a file, relative to the spec",
            found=str(path), todo="set model.source",
        )  # fmt: skip
    try:
        proto = onnx.load(str(path))  # weights that lie beside the file are read into the proto
    except (OSError, ValueError, DecodeError, onnx.checker.ValidationError) as error:
        raise _unreadable(path, f"{type(error).__name__}: {error}") from error
    if not proto.graph.node:
        raise _unreadable(path, "no node in it")
    return proto


def _nodes(graph: Any) -> Iterator[Any]:
    """Every node, those of subgraphs included."""
    for node in graph.node:
        yield node
        for attribute in node.attribute:
            for subgraph in [attribute.g, *attribute.graphs] if attribute.type in (5, 10) else []:
                yield from _nodes(subgraph)


def describe(node: Any) -> str:
    """How messages name a node: its name, or its first output where it has none."""
    name = node.name or (node.output[0] if node.output else "")
    return f"node {name!r} ({node.op_type})"


def _refuse_node(node: Any, operators: frozenset[str]) -> None:
    if node.domain not in ONNX_DOMAINS:
        raise CompileRefused(
            CompileRefusal.FOREIGN_DOMAIN, f"{describe(node)} of domain {node.domain!r}",
            expected="operators of the standard domain ai.onnx only", found=f"{node.domain}::{node.op_type}",
            todo="export without vendor fusions, or replace the operator by standard ones",
        )  # fmt: skip
    for kinds, code, expected in _REFUSED_KINDS:
        if node.op_type in kinds:
            raise CompileRefused(
                code, describe(node), expected=expected, found=node.op_type,
                todo="take this operator out of the model and do its work after the result is received",
            )  # fmt: skip
    if node.op_type not in operators:
        raise CompileRefused(
            CompileRefusal.UNKNOWN_OPERATOR, describe(node), expected="an operator that tinygrad 0.14.0 implements",
            found=node.op_type, todo="export the model with other operators",
        )  # fmt: skip


def _empty_by_right(graph: Any) -> frozenset[str]:
    """Resize before opset 13 says "not given" by an empty `roi` or `scales`: the one place where empty has a sense."""
    readers: dict[str, list[bool]] = {}
    for node in graph.node:
        for index, name in enumerate(node.input):
            readers.setdefault(name, []).append(node.op_type in ("Resize", "Upsample") and index > 0)
    return frozenset(name for name, are_resize in readers.items() if name and all(are_resize))


def _refuse_initialiser(value: Any, allowed_empty: frozenset[str]) -> None:
    if not value.name or (0 in value.dims and value.name not in allowed_empty):
        raise CompileRefused(
            CompileRefusal.EMPTY_INITIALISER, f"initialiser {value.name!r}", expected="a name and at least one element",
            found=f"shape {list(value.dims)}", todo="simplify the model so that the empty tensor is folded away",
        )  # fmt: skip
    if value.data_type == TensorProto.STRING:
        raise CompileRefused(
            CompileRefusal.UNSUPPORTED_DTYPE, f"initialiser {value.name!r}", expected="numbers", found="strings",
            todo="take text processing out of the model",
        )  # fmt: skip


def _fix_inputs(proto: Any, spec: Spec) -> None:
    """Gives every model input the spec's shape; initialisers listed as inputs (before IR version 4) are no inputs."""
    constants = {value.name for value in proto.graph.initializer}
    for value in [value for value in proto.graph.input if value.name in constants]:
        proto.graph.input.remove(value)
    proto.ir_version = max(proto.ir_version, 4)
    inputs = {value.name: value for value in proto.graph.input}
    declared = {one.name: one for one in spec.inputs}
    for name in inputs.keys() - declared.keys():
        raise _mismatch(f"model input {name!r}", "an [[input]] table for each model input", f"{sorted(declared)}",
                        f'add an [[input]] with name = "{name}"')  # fmt: skip
    for name in declared.keys() - inputs.keys():
        raise _mismatch(f"input {name!r} of the spec", f"one of {sorted(inputs)}", name, "use the model's input name")
    for name, value in inputs.items():
        _fix_input(value, declared[name])


def _mismatch(what: str, expected: str, found: str, todo: str) -> CompileRefused:
    return CompileRefused(CompileRefusal.INPUT_MISMATCH, what, expected=expected, found=found, todo=todo)


def _fix_input(value: Any, declared: InputSpec) -> None:
    tensor = value.type.tensor_type
    if tensor.elem_type != TensorProto.FLOAT:
        raise _mismatch(f"model input {value.name!r}", "float32 pixels", TensorProto.DataType.Name(tensor.elem_type),
                        "export the model with a float32 input")  # fmt: skip
    given = tuple(size.dim_value if size.dim_value > 0 else None for size in tensor.shape.dim)
    fits = len(given) == 4 and all(one in (None, want) for one, want in zip(given, declared.shape, strict=True))
    if not fits:
        found = "[" + ", ".join("?" if one is None else str(one) for one in given) + "]"
        raise _mismatch(f"model input {value.name!r}", f"{list(declared.shape)} (resize of the spec)", found,
                        "set resize = [width, height] to the model's, or export the model for this size")  # fmt: skip
    for size, want in zip(tensor.shape.dim, declared.shape, strict=True):
        size.dim_value = want


def _output(value: Any) -> TensorInfo:
    tensor = value.type.tensor_type
    if tensor.elem_type not in _DTYPES:
        raise CompileRefused(
            CompileRefusal.UNSUPPORTED_DTYPE, f"model output {value.name!r}",
            expected="one of " + ", ".join(_DTYPES.values()),
            found=TensorProto.DataType.Name(tensor.elem_type), todo="cast the output in the model",
        )  # fmt: skip
    if any(size.HasField("dim_value") and size.dim_value == 0 for size in tensor.shape.dim):
        raise CompileRefused(
            CompileRefusal.OUTPUT_MISMATCH, f"model output {value.name!r}", expected="at least one element",
            found=f"shape {[size.dim_value for size in tensor.shape.dim]}",
            todo="take the empty output out of the model",
        )  # fmt: skip
    sizes = tuple(size.dim_value for size in tensor.shape.dim)
    known = tensor.HasField("shape") and all(size > 0 for size in sizes)
    return TensorInfo(value.name, _DTYPES[tensor.elem_type], sizes if known else None)


def _refuse_unknown_outputs(spec: Spec, outputs: tuple[TensorInfo, ...]) -> None:
    names = {one.name for one in outputs}
    for index, one in enumerate(spec.outputs):
        if one.tensor not in names:
            raise CompileRefused(
                CompileRefusal.OUTPUT_MISMATCH, f"output[{index}].tensor", expected=f"one of {sorted(names)}",
                found=repr(one.tensor), todo="use the name of a model output",
            )  # fmt: skip
