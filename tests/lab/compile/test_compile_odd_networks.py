"""Networks that are seldom written but right are computed as onnxruntime does; what tinygrad does not take is refused.

Numbers of 16 and 64 bits, values of more than four axes, constants that are computed, masks with more rows than what
they are added to, a matrix times itself, results without an element.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from lab.compile.compiler import compile_spec
from lab.compile.model import load_model
from lab.compile.refusal import CompileRefusal, CompileRefused
from lab.compile.spec_toml import load_spec
from lab.compile.toolchain import compile_context
from tests.lab.compile.test_compile_network import TOLERANCE, both, integers, node, rewritten
from tests.lab.compile.tiny_models import tiny_model, weights, write_spec

SECOND_OUTPUT = """[[output]]
tensor = "result"
name = "rest"
slice = [1, 6]
unit = "1"
nan = "flag"
"""
HALF, DOUBLE = TensorProto.FLOAT16, TensorProto.DOUBLE
HALF_TOLERANCE = 2e-3
THIRTEEN = weights("w13", 13, 3, 3, 3)
PADDED = node("Conv", ["image", "w13"], ["c"], pads=[1, 1, 1, 1])  # thirteen channels become sixteen
MEAN = node("ReduceMean", ["image"], ["mean"], axes=[0, 2, 3], keepdims=0)
PER_CHANNEL = [weights("gamma", 3), weights("beta", 3, seed=2), weights("middle", 3, seed=3),
               numpy_helper.from_array(np.array([0.5, 1, 2], np.float32), "variance")]  # fmt: skip


@pytest.fixture(autouse=True)
def _device() -> Iterator[None]:
    with compile_context("x86_64", "x86_64_v3", 2):
        yield


def halves(value: Any) -> Any:
    return numpy_helper.from_array(numpy_helper.to_array(value).astype(np.float16), value.name)


def attention(*, query: str = "image", between: tuple[Any, ...] = (), scores: str = "s") -> list[Any]:
    """softmax(query @ imageᵀ) @ image; `between` makes `scores` of the products "s"."""
    return [
        node("Transpose", ["image"], ["t"], perm=[0, 1, 3, 2]), node("MatMul", [query, "t"], ["s"]), *between,
        node("Softmax", [scores], ["a"], axis=-1), node("MatMul", ["a", "image"], ["result"]),
    ]  # fmt: skip


def cast(nodes: list[Any], kind: int) -> list[Any]:
    """The same on numbers of another kind."""
    renamed = {"image": "cast image", "result": "cast result"}
    inner = [
        node(one.op_type, [renamed.get(name, name) for name in one.input], [renamed.get(one.output[0], one.output[0])],
             **{attribute.name: helper.get_attribute_value(attribute) for attribute in one.attribute})
        for one in nodes
    ]  # fmt: skip
    return [node("Cast", ["image"], ["cast image"], to=kind), *inner,
            node("Cast", ["cast result"], ["result"], to=TensorProto.FLOAT)]  # fmt: skip


CASES: dict[str, tuple[list[Any], list[Any], float]] = {
    "a constant of five axes beside padded channels": (
        [PADDED, node("Add", ["c", "one"], ["result"])],
        [THIRTEEN, numpy_helper.from_array(np.ones((1, 1, 1, 1, 1), np.float32), "one")], TOLERANCE,
    ),
    "batch normalisation behind a convolution whose bias is computed": (
        [MEAN, node("Conv", ["image", "w3", "mean"], ["c"]),
         node("BatchNormalization", ["c", "gamma", "beta", "middle", "variance"], ["result"])],
        [weights("w3", 3, 3, 3, 3), *PER_CHANNEL], TOLERANCE,
    ),
    "batch normalisation by a scale that is computed": (
        [MEAN, node("Conv", ["image", "w3"], ["c"]),
         node("BatchNormalization", ["c", "mean", "beta", "middle", "variance"], ["result"])],
        [weights("w3", 3, 3, 3, 3), *PER_CHANNEL], TOLERANCE,
    ),
    "convolutions of float16, the second with a border": (
        cast([PADDED, node("Relu", ["c"], ["r"]), node("Conv", ["r", "w2"], ["result"], pads=[1, 1, 1, 1])], HALF),
        [halves(THIRTEEN), halves(weights("w2", 5, 13, 3, 3))], HALF_TOLERANCE,
    ),
    "attention of float16": (cast(attention(), HALF), [], 4 * HALF_TOLERANCE),
    "attention of float64": (cast(attention(), DOUBLE), [], TOLERANCE),
    "a sigmoid of float16": (
        cast([node("Add", ["image", "image"], ["x2"]), node("Add", ["x2", "x2"], ["x4"]),
              node("Sigmoid", ["x4"], ["result"])], HALF), [], HALF_TOLERANCE / 4,
    ),
    "scores that are a matrix times a vector": (
        [node("Squeeze", ["image", "first"], ["i"]), node("MatMul", ["i", "vector"], ["s"]),
         node("Softmax", ["s"], ["a"], axis=-1), node("MatMul", ["a", "v"], ["result"])],
        [integers("first", 0), weights("vector", 16), weights("v", 12, 5)], TOLERANCE,
    ),
    "a mask with more rows than the scores of one query": (
        [node("ReduceMean", ["image"], ["q"], axes=[2], keepdims=1),
         *attention(query="q", between=(node("Add", ["s", "mask"], ["m"]),), scores="m")],
        [weights("mask", 1, 1, 20, 12)], TOLERANCE,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_an_odd_network_computes_what_onnxruntime_computes(tmp_path: Path, name: str) -> None:
    nodes, parts, tolerance = CASES[name]
    found, expected = both(tmp_path, tiny_model(nodes, parts, output_shape=None))
    assert found.shape == expected.shape
    assert np.abs(found - expected).max() < tolerance


def test_scores_of_a_matrix_times_itself_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from lab.compile import attention as room  # noqa: PLC0415 (the device is open now)

    monkeypatch.setattr(room, "pieces", lambda rows, row_bytes: [8, 4])
    nodes = [node("Slice", ["image", "from", "to", "axis"], ["square"]), node("MatMul", ["square", "square"], ["s"]),
             node("Softmax", ["s"], ["a"], axis=-1), node("MatMul", ["a", "square"], ["result"])]  # fmt: skip
    parts = [integers("from", 0), integers("to", 12), integers("axis", 3)]
    found, expected = both(tmp_path, tiny_model(nodes, parts, output_shape=None))
    assert np.abs(found - expected).max() < TOLERANCE


def test_a_form_that_tinygrad_does_not_take_is_refused_with_its_node(tmp_path: Path) -> None:
    from tinygrad import Tensor  # noqa: PLC0415

    nodes = [node("Conv", ["image", "w"], ["c"]), node("Flatten", ["c"], ["result"])]
    network = rewritten(tmp_path, tiny_model(nodes, [weights("w", 5, 3, 20, 20)], output_shape=None))
    with pytest.raises(CompileRefused, match="kernel size") as refused:
        network({"image": Tensor(np.ones((1, 3, 12, 16), np.float32))})
    assert (refused.value.code, refused.value.what) == (CompileRefusal.UNKNOWN_OPERATOR, "node 'c' (Conv)")


def test_an_output_without_an_element_is_refused(tmp_path: Path) -> None:
    nodes = [node("Slice", ["image", "at", "at", "axis"], ["result"])]
    model = tiny_model(nodes, [integers("at", 5), integers("axis", 3)], output_shape=None)
    path = write_spec(tmp_path, onnx.shape_inference.infer_shapes(model))
    with pytest.raises(CompileRefused) as refused:
        load_model(load_spec(path), frozenset({"Slice"}))
    assert refused.value.code is CompileRefusal.OUTPUT_MISMATCH
    assert (refused.value.what, refused.value.found) == ("model output 'result'", "shape [1, 3, 12, 0]")


def test_a_single_number_without_axes_is_an_output(tmp_path: Path) -> None:
    nodes = [node("ReduceMean", ["image"], ["result"], keepdims=0)]
    edits = {"slice = [0, 1]": "", SECOND_OUTPUT: ""}
    report = compile_spec(write_spec(tmp_path, tiny_model(nodes, [], output_shape=[]), edits), tmp_path / "bundle")
    assert any(one.name.startswith("onnxruntime") for one in report.checks)
