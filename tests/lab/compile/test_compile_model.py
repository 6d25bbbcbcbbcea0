"""What cannot be compiled is refused by node and operator, with what to do (cases/runtime.md rows 18-21)."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from lab.compile.model import Model, load_model
from lab.compile.refusal import CompileRefusal, CompileRefused
from lab.compile.spec_toml import load_spec
from tests.lab.compile.tiny_models import tiny_model, weights, write_spec

KNOWN = frozenset({"Conv", "BatchNormalization", "Relu", "Flatten", "Gemm", "Resize", "Reshape", "Constant"})


def load(tmp_path: Path, model: Any, edits: dict[str, str] | None = None) -> Model:
    return load_model(load_spec(write_spec(tmp_path, model, edits)), KNOWN)


def refusal(tmp_path: Path, model: Any, edits: dict[str, str] | None = None) -> CompileRefused:
    with pytest.raises(CompileRefused) as refused:
        load(tmp_path, model, edits)
    assert refused.value.todo
    return refused.value


def with_node(op: str, domain: str = "", **changes: Any) -> Any:
    nodes = [helper.make_node(op, ["image"], ["x"], name="middle", domain=domain),
             helper.make_node("Flatten", ["x"], ["result"])]  # fmt: skip
    return tiny_model(nodes, [], **changes)


def test_a_plain_model_is_read_with_its_output(tmp_path: Path) -> None:
    model = load(tmp_path, tiny_model())
    assert [(one.name, one.dtype, one.shape) for one in model.outputs] == [("result", "float32", (1, 6))]


def test_a_foreign_domain_names_node_operator_and_domain(tmp_path: Path) -> None:  # row 18
    domains = [helper.make_opsetid("com.microsoft", 1)]
    refused = refusal(tmp_path, with_node("FusedConv", "com.microsoft", extra_domains=domains))
    assert refused.code is CompileRefusal.FOREIGN_DOMAIN
    assert "'middle' (FusedConv)" in refused.what
    assert refused.found == "com.microsoft::FusedConv"


def test_an_unknown_operator_names_node_and_operator(tmp_path: Path) -> None:  # row 18
    refused = refusal(tmp_path, with_node("Det"))
    assert refused.code is CompileRefusal.UNKNOWN_OPERATOR
    assert "'middle' (Det)" in refused.what
    assert refused.found == "Det"


def test_a_node_without_a_name_is_named_by_its_output(tmp_path: Path) -> None:
    nodes = [helper.make_node("Det", ["image"], ["result"])]
    assert "'result' (Det)" in refusal(tmp_path, tiny_model(nodes, [])).what


@pytest.mark.parametrize(
    ("op", "code"),
    [
        ("NonZero", CompileRefusal.DYNAMIC_SIZE),
        ("RandomNormalLike", CompileRefusal.UNKNOWN_OPERATOR),
        ("Loop", CompileRefusal.UNKNOWN_OPERATOR),
    ],
)
def test_operators_without_fixed_work_are_refused(tmp_path: Path, op: str, code: CompileRefusal) -> None:
    assert refusal(tmp_path, with_node(op)).code is code


def test_an_operator_inside_a_subgraph_is_found(tmp_path: Path) -> None:
    inner = helper.make_graph(
        [helper.make_node("Det", ["image"], ["y"], name="hidden")], "branch", [],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
    )  # fmt: skip
    node = helper.make_node("Relu", ["image"], ["result"], name="outer", body=inner)
    assert "'hidden'" in refusal(tmp_path, tiny_model([node], [])).what


@pytest.mark.parametrize("batch", [-1, "N"])
def test_a_dynamic_batch_is_taken_from_the_spec(tmp_path: Path, batch: int | str) -> None:  # row 19
    model = load(tmp_path, tiny_model(input_shape=[batch, 3, 12, 16]))
    sizes = model.proto.graph.input[0].type.tensor_type.shape.dim
    assert [one.dim_value for one in sizes] == [1, 3, 12, 16]


def test_another_fixed_size_than_the_specs_is_refused_with_both(tmp_path: Path) -> None:  # row 19
    refused = refusal(tmp_path, tiny_model(input_shape=["N", 3, 24, 32]))
    assert refused.code is CompileRefusal.INPUT_MISMATCH
    assert "[1, 3, 12, 16]" in refused.expected
    assert refused.found == "[?, 3, 24, 32]"


def test_an_input_missing_in_spec_or_model_is_named(tmp_path: Path) -> None:
    extra = helper.make_tensor_value_info("desire", TensorProto.FLOAT, [1, 8])
    assert "'desire'" in refusal(tmp_path, tiny_model(extra_inputs=[extra])).what
    refused = refusal(tmp_path, tiny_model(), {'name = "image"': 'name = "picture"'})
    assert refused.code is CompileRefusal.INPUT_MISMATCH
    assert "'image'" in refused.what


def test_an_output_that_the_model_lacks_is_refused_with_the_choice(tmp_path: Path) -> None:
    refused = refusal(tmp_path, tiny_model(), {'tensor = "result"': 'tensor = "lane"'})
    assert refused.code is CompileRefusal.OUTPUT_MISMATCH
    assert "result" in refused.expected


def test_an_empty_initialiser_is_refused_by_name(tmp_path: Path) -> None:  # row 20
    nodes = [helper.make_node("Gemm", ["image", "hollow"], ["result"], name="head")]
    hollow = numpy_helper.from_array(np.zeros((0, 6), np.float32), "hollow")
    refused = refusal(tmp_path, tiny_model(nodes, [hollow]))
    assert refused.code is CompileRefusal.EMPTY_INITIALISER
    assert "'hollow'" in refused.what
    assert "[0, 6]" in refused.found


def test_resizes_empty_roi_is_no_empty_initialiser(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Resize", ["image", "roi", "scales"], ["r"], mode="nearest"),
        helper.make_node("Flatten", ["r"], ["f"]),
        helper.make_node("Gemm", ["f", "w"], ["result"]),
    ]
    initialisers = [
        numpy_helper.from_array(np.zeros(0, np.float32), "roi"),
        numpy_helper.from_array(np.array([1, 1, 2, 2], np.float32), "scales"),
        weights("w", 3 * 24 * 32, 6),
    ]
    assert load(tmp_path, tiny_model(nodes, initialisers, opset=11)).outputs[0].shape == (1, 6)


def test_initialisers_listed_as_inputs_are_no_inputs(tmp_path: Path) -> None:
    listed = helper.make_tensor_value_info("w0", TensorProto.FLOAT, [8, 3, 3, 3])
    model = load(tmp_path, tiny_model(extra_inputs=[listed]))
    assert [one.name for one in model.proto.graph.input] == ["image"]


def test_a_file_that_is_no_model_is_refused_with_its_path(tmp_path: Path) -> None:
    path = write_spec(tmp_path)
    for content in (b"not a model", b""):
        (tmp_path / "tiny.onnx").write_bytes(content)
        with pytest.raises(CompileRefused, match=r"tiny\.onnx") as refused:
            load_model(load_spec(path), KNOWN)
        assert refused.value.code is CompileRefusal.MODEL_UNREADABLE
    (tmp_path / "tiny.onnx").unlink()
    with pytest.raises(CompileRefused, match=r"tiny\.onnx"):
        load_model(load_spec(path), KNOWN)


def test_a_model_that_is_not_there_is_the_specs_mistake(tmp_path: Path) -> None:
    path = write_spec(tmp_path)
    (tmp_path / "tiny.onnx").unlink()
    with pytest.raises(CompileRefused) as refused:
        load_model(load_spec(path), KNOWN)
    assert (refused.value.code, refused.value.what) == (CompileRefusal.MODEL_UNREADABLE, "model.source")
    assert refused.value.found == str(tmp_path / "tiny.onnx")


def test_weights_beside_the_file_are_taken_in(tmp_path: Path) -> None:
    path = write_spec(tmp_path)
    onnx.save(tiny_model(), str(tmp_path / "tiny.onnx"), save_as_external_data=True, size_threshold=0, location="w.bin")
    inside = [numpy_helper.to_array(one) for one in load_model(load_spec(path), KNOWN).proto.graph.initializer]
    expected = [numpy_helper.to_array(one) for one in tiny_model().graph.initializer]
    assert all(np.array_equal(one, other) for one, other in zip(inside, expected, strict=True))
    onnx.save(tiny_model(), str(tmp_path / "tiny.onnx"), save_as_external_data=True, size_threshold=0, location="x.bin")
    (tmp_path / "x.bin").unlink()
    with pytest.raises(CompileRefused) as refused:
        load_model(load_spec(path), KNOWN)
    assert refused.value.code is CompileRefusal.MODEL_UNREADABLE
