"""From spec.toml to an unsigned bundle: checked four ways, reproducible, and free of the capture's data."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from abi import golden
from abi.graph import Access, BufferKind, Graph, NanPolicy, decode
from lab.compile import checks
from lab.compile.compiler import compile_spec
from lab.compile.packed import open_packed
from lab.compile.refusal import CompileRefusal, CompileRefused
from lab.compile.spec_toml import load_spec
from lab.sign.pack import open_checked
from tests.lab.compile.tiny_models import random_frame, tiny_model, weights, write_spec

TWO_INPUTS = """
[[input]]
name = "wide"
stream = "wide"
format = "RGB24"
width = 20
height = 10
range = "full"
matrix = "identity"
primaries = "bt709"
transfer = "srgb"
chroma_site = "notSubsampled"
resize = [16, 12]
mean = [0, 0, 0]
std = [255, 255, 255]

[timing]
max_skew_ms = 4.5

[check]"""


def parts_of(bundle: Path) -> dict[str, bytes]:
    with open_checked(bundle) as (sealed, _, stated):
        return {one.name: bytes(sealed.view(span)) for one, span in zip(stated.blobs, sealed.layout.blobs, strict=True)}


def graph_of(bundle: Path) -> Graph:
    return decode(parts_of(bundle)["graph"])


def compiled(tmp_path: Path, model: Any | None = None, edits: dict[str, str] | None = None) -> Path:
    bundle = tmp_path / "tiny.fenced"
    compile_spec(write_spec(tmp_path, model, edits), bundle)
    return bundle


@pytest.fixture(scope="module")
def tiny_bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compiled(tmp_path_factory.mktemp("tiny"))


def test_the_graph_states_the_contract_of_the_spec(tiny_bundle: Path) -> None:
    graph = graph_of(tiny_bundle)
    assert (graph.driver, graph.threads) == ("cpu", 2)
    assert [(one.name, one.stream, one.format.width) for one in graph.frames] == [("image", "road", 33)]
    views = [one.view for one in graph.outputs]
    assert [(one.name, one.shape, one.unit, one.offset, one.size_bytes) for one in views] == [
        ("offset_m", (1,), "m", 0, 4),
        ("rest", (5,), "1", 4, 20),
    ]
    assert [one.nan for one in views] == [NanPolicy.REFUSE, NanPolicy.FLAG]
    assert graph.outputs[0].buffer == graph.outputs[1].buffer
    assert graph.entrypoints[0].budget_ns == 1_000_000_000


def test_frames_and_weights_are_only_read_and_every_buffer_is_used(tiny_bundle: Path) -> None:
    graph = graph_of(tiny_bundle)
    used = set()
    for launch in graph.launches:
        for argument, access in zip(launch.arguments, graph.programs[launch.program].argument_access, strict=True):
            used.add(argument.buffer)
            if graph.buffers[argument.buffer].kind in (BufferKind.FRAME, BufferKind.WEIGHTS):
                assert access is Access.READ
    assert used == set(range(len(graph.buffers)))
    assert any(one.global_size == (2,) for one in graph.launches) or len(graph.launches) > 0


def test_goldens_are_what_the_device_computes_from_their_seeds(tiny_bundle: Path) -> None:
    parts = parts_of(tiny_bundle)
    graph = decode(parts["graph"])
    assert len(graph.goldens) == 2
    outputs = []
    with open_packed(tiny_bundle) as packed:
        for vector in graph.goldens:
            frame = np.empty(graph.frames[0].format.buffer_bytes, np.uint8)
            golden.fill(frame, golden.input_seed(vector.seed, 0))
            outputs.append(b"".join(packed.run([frame.tobytes()])))
            stated = parts["goldens"][vector.output_offset : vector.output_offset + vector.output_bytes]
            assert outputs[-1] == stated
    assert outputs[0] != outputs[1]


def test_the_packed_bundle_agrees_with_onnxruntime(tiny_bundle: Path) -> None:
    spec = load_spec(tiny_bundle.with_name("spec.toml"))
    from lab.compile.model import load_model  # noqa: PLC0415
    from lab.compile.network import operators  # noqa: PLC0415 (imports tinygrad)

    reference = checks.Reference(spec, load_model(spec, operators()), ["result"])
    with open_packed(tiny_bundle) as packed:
        for seed in range(3):
            frame = random_frame(spec.inputs[0].buffer_bytes, seed).tobytes()
            reference.compare([frame], [b"".join(packed.run([frame]))])
    assert 0.0 < reference.worst["result"] < 1e-5


def test_two_compiles_give_the_same_bytes(tiny_bundle: Path, tmp_path: Path) -> None:
    assert compiled(tmp_path).read_bytes() == tiny_bundle.read_bytes()


def test_nothing_of_the_captures_frames_or_results_is_in_the_bundle(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    marker = bytes(range(1, 64))
    real = checks.step_frames

    def marked(*args: Any, **kwargs: Any) -> list[bytes]:
        return [marker + frame[len(marker) :] for frame in real(*args, **kwargs)]

    monkeypatch.setattr(checks, "step_frames", marked)
    bundle = compiled(tmp_path)
    assert marker not in bundle.read_bytes()
    spec = load_spec(bundle.with_name("spec.toml"))
    with open_packed(bundle) as packed:
        for step in range(spec.check.steps):
            assert b"".join(packed.run(checks.step_frames(spec, step))) not in bundle.read_bytes()


def test_the_bundle_is_no_larger_than_weights_code_and_64_kb(tiny_bundle: Path) -> None:
    parts = parts_of(tiny_bundle)
    assert tiny_bundle.stat().st_size <= len(parts["weights"]) + len(parts["code"]) + 64 * 1024


def test_the_report_tells_sizes_checks_and_launches(tmp_path: Path) -> None:
    report = compile_spec(write_spec(tmp_path), tmp_path / "out.fenced")
    assert len(report.checks) == 6
    assert len(report.launches) == len(graph_of(tmp_path / "out.fenced").launches)
    assert report.flops > 0
    assert report.bundle_bytes == (tmp_path / "out.fenced").stat().st_size
    assert "onnxruntime" in report.to_text()
    assert '"arena_bytes"' in report.to_json()


def two_input_model(*, uses_wide: bool) -> Any:
    nodes = [
        helper.make_node("Flatten", ["image"], ["a"]),
        helper.make_node("Flatten", ["wide"], ["b"]),
        helper.make_node("Gemm", ["a", "wa"], ["x"]),
        helper.make_node("Gemm", ["b", "wb" if uses_wide else "zero"], ["y"]),
        helper.make_node("Add", ["x", "y"], ["result"]),
    ]
    nothing = numpy_helper.from_array(np.zeros((576, 6), np.float32), "zero")
    extra = helper.make_tensor_value_info("wide", TensorProto.FLOAT, [1, 3, 12, 16])
    return tiny_model(nodes, [weights("wa", 576, 6), weights("wb", 576, 6, seed=9), nothing], extra_inputs=[extra])


def test_two_cameras_go_into_one_graph(tmp_path: Path) -> None:
    graph = graph_of(compiled(tmp_path, two_input_model(uses_wide=True), {"\n[check]": TWO_INPUTS}))
    assert [one.stream for one in graph.frames] == ["road", "wide"]
    assert graph.entrypoints[0].max_skew_ns == 4_500_000
    assert graph.frames[0].buffer != graph.frames[1].buffer


def test_an_input_that_changes_nothing_is_refused(tmp_path: Path) -> None:  # cases/runtime.md row 3
    with pytest.raises(CompileRefused) as refused:
        compiled(tmp_path, two_input_model(uses_wide=False), {"\n[check]": TWO_INPUTS})
    assert refused.value.code is CompileRefusal.INPUT_WITHOUT_EFFECT
    assert "'wide'" in refused.value.what
    assert not (tmp_path / "tiny.fenced").exists()


def test_a_result_that_is_a_constant_is_refused(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Flatten", ["image"], ["f"]),
        helper.make_node("Gemm", ["f", "w"], ["g"]),
        helper.make_node("Mul", ["g", "zeros"], ["result"]),
    ]
    zeros = numpy_helper.from_array(np.zeros((1, 6), np.float32), "zeros")
    with pytest.raises(CompileRefused) as refused:
        compiled(tmp_path, tiny_model(nodes, [weights("w", 576, 6), zeros]))
    assert refused.value.code in (CompileRefusal.SEED_WITHOUT_EFFECT, CompileRefusal.OUTPUT_MISMATCH)


def test_a_difference_to_onnxruntime_is_refused_by_element(tmp_path: Path) -> None:
    with pytest.raises(CompileRefused) as refused:
        compiled(tmp_path, None, {"onnxruntime_tolerance = 1e-3": "onnxruntime_tolerance = 0.0"})
    assert refused.value.code is CompileRefusal.REFERENCE_DIFFERS
    assert "'result', element [0, " in refused.value.what
    assert not (tmp_path / "tiny.fenced").exists()
    assert list(tmp_path.glob(".*")) == []


def test_a_slice_beyond_the_tensor_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CompileRefused) as refused:
        compiled(tmp_path, None, {"slice = [1, 6]": "slice = [1, 7]"})
    assert refused.value.code is CompileRefusal.OUTPUT_MISMATCH
    assert "'rest'" in refused.value.what


def test_another_architecture_is_refused_before_any_work(tmp_path: Path) -> None:
    with pytest.raises(CompileRefused) as refused:
        compiled(tmp_path, None, {'arch = "x86_64"': 'arch = "aarch64"', 'cpu = "x86_64_v3"': 'cpu = "cortex_a78"'})
    assert refused.value.code is CompileRefusal.TARGET


def test_a_cpu_that_the_compiler_does_not_know_is_the_specs_mistake(tmp_path: Path) -> None:
    with pytest.raises(CompileRefused) as refused:
        compiled(tmp_path, None, {'cpu = "x86_64_v3"': 'cpu = "x86_64_v9"'})
    assert (refused.value.code, refused.value.what) == (CompileRefusal.TARGET, "target.cpu")
    assert refused.value.found == "x86_64_v9"


def test_quantised_nodes_compile(tmp_path: Path) -> None:  # cases/runtime.md row 21
    scale = numpy_helper.from_array(np.array(0.0173, np.float32), "scale")
    zero = numpy_helper.from_array(np.array(3, np.int8), "zero")
    nodes = [
        helper.make_node("QuantizeLinear", ["image", "scale", "zero"], ["q"]),
        helper.make_node("DequantizeLinear", ["q", "scale", "zero"], ["d"]),
        helper.make_node("Flatten", ["d"], ["f"]),
        helper.make_node("Gemm", ["f", "w"], ["result"]),
    ]
    edits = {"onnxruntime_tolerance = 1e-3": "onnxruntime_tolerance = 0.05"}  # a value on a rounding edge may fall over
    compiled(tmp_path, tiny_model(nodes, [scale, zero, weights("w", 576, 6)]), edits)


def test_a_convolution_of_integers_compiles_and_integers_without_an_operator_are_refused_by_it(
    tmp_path: Path,
) -> None:  # cases/runtime.md row 21
    scale, zero = (numpy_helper.from_array(np.array(value, kind), name)
                   for value, kind, name in ((0.0173, np.float32, "scale"), (3, np.int8, "zero")))  # fmt: skip
    kernel = np.random.default_rng(2).integers(-9, 9, (4, 3, 3, 3)).astype(np.int8)
    constants = [scale, zero, numpy_helper.from_array(kernel, "k"), weights("w", 4 * 10 * 14, 6),
                 numpy_helper.from_array(np.array(0.11, np.float32), "wide"),
                 numpy_helper.from_array(np.array(0.02, np.float32), "fine"),
                 numpy_helper.from_array(np.array(0, np.int8), "none")]  # fmt: skip
    nodes = [
        helper.make_node("QuantizeLinear", ["image", "scale", "zero"], ["q"]),
        helper.make_node("QLinearConv", ["q", "scale", "zero", "k", "fine", "none", "wide", "none"], ["c"]),
        helper.make_node("DequantizeLinear", ["c", "wide", "none"], ["d"]),
        helper.make_node("Flatten", ["d"], ["f"]),
        helper.make_node("Gemm", ["f", "w"], ["result"]),
    ]
    edits = {"onnxruntime_tolerance = 1e-3": "onnxruntime_tolerance = 0.5"}  # a value on a rounding edge may fall over
    compiled(tmp_path, tiny_model(nodes, constants), edits)
    nodes[1] = helper.make_node("QLinearSigmoid", [*nodes[1].input[:3], "wide", "none"], ["c"], "quick",
                                domain="com.microsoft")  # fmt: skip
    with pytest.raises(CompileRefused) as refused:
        compiled(tmp_path, tiny_model(nodes, constants), edits)
    assert refused.value.code is CompileRefusal.FOREIGN_DOMAIN
    assert "'quick' (QLinearSigmoid)" in refused.value.what
