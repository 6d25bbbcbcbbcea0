"""The rewritten network against onnxruntime, operator by operator: rewrites must leave the function as it is."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper, numpy_helper

from lab.compile.toolchain import compile_context
from tests.lab.compile.tiny_models import tiny_model, weights

TOLERANCE = 2e-5
node = helper.make_node


@pytest.fixture(autouse=True)
def _device() -> Iterator[None]:
    with compile_context("x86_64", "x86_64_v3", 2):
        yield


def rewritten(folder: Path, model: Any) -> Any:
    from lab.compile.activations import use_fast_activations  # noqa: PLC0415 (the device is open now)
    from lab.compile.attention import use_pieces  # noqa: PLC0415
    from lab.compile.layout import use_channels_last  # noqa: PLC0415
    from lab.compile.network import read_network  # noqa: PLC0415
    from lab.compile.rewrite import fold_batch_norm  # noqa: PLC0415

    onnx.save(model, str(folder / "model.onnx"))
    network = read_network(folder / "model.onnx")
    fold_batch_norm(network)
    use_channels_last(network)
    use_fast_activations(network)
    use_pieces(network)
    return network


def both(folder: Path, model: Any) -> tuple[Any, Any]:
    """The result of the rewritten network and onnxruntime's, on the same random picture."""
    from tinygrad import Tensor  # noqa: PLC0415

    picture = np.random.default_rng(5).standard_normal((1, 3, 12, 16)).astype(np.float32)
    network = rewritten(folder, model)
    found = network({"image": network.materialise(Tensor(picture))})["result"].numpy()
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return found, session.run(["result"], {"image": picture})[0]


def integers(name: str, *values: int) -> Any:
    return numpy_helper.from_array(np.array(values, np.int64), name)


W = weights("w", 8, 3, 3, 3)
CONV = node("Conv", ["image", "w"], ["c"], pads=[1, 1, 1, 1])
CASES: dict[str, tuple[list[Any], list[Any], int]] = {
    "residual": (
        [CONV, node("Relu", ["c"], ["r"]), node("Conv", ["r", "w2"], ["d"], pads=[1, 1, 1, 1]),
         node("Add", ["d", "c"], ["s"]), node("Relu", ["s"], ["result"])],
        [W, weights("w2", 8, 8, 3, 3)], 17,
    ),
    "two convolutions that meet in a sum": (
        [CONV, node("Conv", ["image", "w2"], ["d"], pads=[1, 1, 1, 1]), node("Add", ["c", "d"], ["result"])],
        [W, weights("w2", 8, 3, 3, 3, seed=7)], 17,
    ),
    "swish": (
        [CONV, node("Sigmoid", ["c"], ["g"]), node("Mul", ["c", "g"], ["m"]), node("Conv", ["m", "w2"], ["result"])],
        [W, weights("w2", 4, 8, 1, 1)], 17,
    ),
    "a prime number of channels with PRelu": (
        [node("Conv", ["image", "w", "b"], ["c"]), node("PRelu", ["c", "slope"], ["p"]),
         node("Conv", ["p", "w2"], ["d"]), node("Clip", ["d", "low", "high"], ["result"])],
        [weights("w", 131, 3, 1, 1), weights("b", 131), weights("slope", 131, 1, 1), weights("w2", 67, 131, 1, 1),
         numpy_helper.from_array(np.array(-0.5, np.float32), "low"),
         numpy_helper.from_array(np.array(0.5, np.float32), "high")], 17,
    ),
    "padded channels that other operators see": (
        [node("Conv", ["image", "w", "b"], ["c"]), node("Relu", ["c"], ["r"]),
         node("GlobalAveragePool", ["r"], ["g"]), node("Softmax", ["g"], ["s"], axis=1),
         node("Mul", ["r", "s"], ["result"])],
        [weights("w", 13, 3, 1, 1), weights("b", 13)], 17,
    ),
    "transposed convolution, kernel = stride": (
        [node("ConvTranspose", ["image", "w", "b"], ["t"], strides=[2, 3], kernel_shape=[2, 3]),
         node("Relu", ["t"], ["result"])],
        [weights("w", 3, 5, 2, 3), weights("b", 5)], 17,
    ),
    "transposed convolution that overlaps": (
        [node("ConvTranspose", ["image", "w"], ["result"], strides=[2, 2], pads=[1, 1, 1, 1], output_padding=[1, 1])],
        [weights("w", 3, 4, 3, 3)], 17,
    ),
    "asymmetric padding, stride and dilation": (
        [node("Conv", ["image", "w"], ["result"], pads=[0, 1, 2, 3], strides=[2, 1], dilations=[1, 2])], [W], 17,
    ),
    "automatic padding": ([node("Conv", ["image", "w"], ["result"], auto_pad="SAME_UPPER", strides=[2, 2])], [W], 17),
    "grouped and depthwise": (
        [CONV, node("Conv", ["c", "g"], ["d"], group=2, pads=[1, 1, 1, 1]),
         node("Conv", ["d", "dw"], ["result"], group=12, pads=[2, 2, 2, 2])],
        [W, weights("g", 12, 4, 3, 3), weights("dw", 12, 1, 5, 5)], 17,
    ),
    "pooling, concatenation and resize": (
        [CONV, node("MaxPool", ["c"], ["m"], kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1]),
         node("AveragePool", ["c"], ["a"], kernel_shape=[2, 2], strides=[2, 2]),
         node("Concat", ["m", "a"], ["k"], axis=1),
         node("Resize", ["k", "", "scales"], ["result"], mode="nearest")],
        [W, numpy_helper.from_array(np.array([1, 1, 2, 2], np.float32), "scales")], 17,
    ),
    "channel shuffle": (
        [CONV, node("Reshape", ["c", "groups"], ["x"]), node("Transpose", ["x"], ["y"], perm=[0, 2, 1, 3, 4]),
         node("Reshape", ["y", "back"], ["z"]), node("Gather", ["z", "some"], ["s"], axis=1),
         node("Conv", ["s", "w2"], ["result"])],
        [W, integers("groups", 1, 2, 4, 12, 16), integers("back", 1, 8, 12, 16), integers("some", 0, 2, 4, 6),
         weights("w2", 8, 4, 1, 1)], 17,
    ),
    "softmax over everything behind the axis (opset 11)": (
        [CONV, node("Softmax", ["c"], ["result"], axis=2)], [W], 11,
    ),
    "attention": (
        [CONV, node("Reshape", ["c", "rows"], ["q"]), node("Transpose", ["q"], ["k"], perm=[0, 2, 1]),
         node("MatMul", ["k", "q"], ["s"]), node("Softmax", ["s"], ["p"], axis=-1),
         node("MatMul", ["q", "p"], ["result"])],
        [W, integers("rows", 1, 8, 192)], 17,
    ),
    "attention with heads": (
        [CONV, node("Reshape", ["c", "heads"], ["q"]), node("Transpose", ["q"], ["qt"], perm=[0, 1, 3, 2]),
         node("MatMul", ["qt", "q"], ["s"]), node("Softmax", ["s"], ["p"], axis=3), node("MatMul", ["p", "qt"], ["a"]),
         node("Transpose", ["a"], ["at"], perm=[0, 1, 3, 2]), node("Reshape", ["at", "picture"], ["m"]),
         node("Add", ["c", "m"], ["n"]), node("Conv", ["n", "w2"], ["result"], pads=[1, 1, 1, 1])],
        [W, weights("w2", 8, 8, 3, 3), integers("heads", 1, 2, 4, 192), integers("picture", 1, 8, 12, 16)], 17,
    ),
    "a softmax along another axis before a product": (
        [CONV, node("Softmax", ["c"], ["p"], axis=2), node("MatMul", ["p", "m"], ["result"])],
        [W, weights("m", 16, 5)], 17,
    ),
    "a product with a softmax on its right": (
        [CONV, node("Softmax", ["c"], ["p"], axis=-1), node("MatMul", ["m", "p"], ["result"])],
        [W, weights("m", 5, 12)], 17,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_a_rewritten_network_computes_what_onnxruntime_computes(tmp_path: Path, name: str) -> None:
    nodes, initialisers, opset = CASES[name]
    found, expected = both(tmp_path, tiny_model(nodes, initialisers, opset=opset, output_shape=None))
    assert found.shape == expected.shape
    assert np.abs(found - expected).max() < TOLERANCE


def test_batch_normalisation_leaves_the_graph(tmp_path: Path) -> None:
    network = rewritten(tmp_path, tiny_model())
    assert "BatchNormalization" not in {one.op for one in network.nodes}
    found, expected = both(tmp_path, tiny_model())
    assert np.abs(found - expected).max() < TOLERANCE


def test_a_convolution_whose_own_result_is_wanted_keeps_its_batch_normalisation(tmp_path: Path) -> None:
    nodes = [
        node("Conv", ["image", "w0"], ["c"]),
        node("BatchNormalization", ["c", "gamma", "beta", "mean", "var"], ["n"]),
        node("Add", ["n", "c"], ["result"]),
    ]
    parts = [weights("w0", 8, 3, 3, 3), *(weights(name, 8) for name in ("gamma", "beta", "mean"))]
    variance = numpy_helper.from_array(np.full(8, 0.5, np.float32), "var")
    found, expected = both(tmp_path, tiny_model(nodes, [*parts, variance], output_shape=None))
    assert np.abs(found - expected).max() < TOLERANCE


def test_no_kernel_nests_two_convolutions(tmp_path: Path) -> None:
    from tinygrad import Tensor  # noqa: PLC0415
    from tinygrad.uop.ops import Ops  # noqa: PLC0415

    network = rewritten(tmp_path, tiny_model(*CASES["residual"][:2], output_shape=None))
    result = network({"image": network.materialise(Tensor.zeros(1, 3, 12, 16).contiguous())})["result"]
    linear = result.contiguous().schedule_linear()
    reductions = [sum(one.op is Ops.REDUCE for one in call.src[0].toposort()) for call in linear.src]
    assert max(reductions) == 1


def test_channels_are_padded_to_whole_vectors() -> None:
    from lab.compile.layout import padded_channels  # noqa: PLC0415

    assert [padded_channels(one, 8) for one in (3, 4, 5, 8, 12, 131)] == [3, 4, 8, 8, 16, 136]
    assert [padded_channels(one, 4) for one in (3, 5, 12, 131)] == [3, 8, 12, 132]


@pytest.mark.parametrize(("pads", "kernels"), [([1, 1, 1, 1], 2), ([0, 1, 0, 2], 2), ([0, 0, 0, 0], 2)])
def test_what_makes_a_picture_is_done_where_it_is_first_copied(tmp_path: Path, pads: list[int], kernels: int) -> None:
    from tinygrad import Tensor  # noqa: PLC0415

    network = rewritten(
        tmp_path, tiny_model([node("Conv", ["image", "w"], ["result"], pads=pads)], [weights("w", 8, 3, 3, 3)])
    )
    pixels = Tensor(np.random.default_rng(5).integers(0, 256, (1, 12, 16, 3), np.uint8)).realize()
    picture = pixels.permute(0, 3, 1, 2).cast("float32") * 0.25 - 3.0
    calls = network({"image": picture}, frozenset(("image",)))["result"].schedule_linear().src
    assert len([call for call in calls if call.src[0].op.name == "SINK"]) == kernels
    found = network({"image": picture}, frozenset(("image",)))["result"].numpy()
    expected = network({"image": picture.contiguous().realize()})["result"].numpy()
    assert np.abs(found - expected).max() < 1e-5 * np.abs(expected).max()  # summed in the order that memory has


def test_a_lazy_picture_with_two_readers_is_computed_once(tmp_path: Path) -> None:
    from tinygrad import Tensor  # noqa: PLC0415

    nodes = [node("Relu", ["image"], ["r"]), node("Neg", ["image"], ["n"]), node("Conv", ["r", "w"], ["c"]),
             node("Conv", ["n", "w"], ["d"]), node("Add", ["c", "d"], ["result"])]  # fmt: skip
    network = rewritten(tmp_path, tiny_model(nodes, [W]))
    picture = Tensor(np.ones((1, 3, 12, 16), np.float32)).realize().exp()
    found = network({"image": picture}, frozenset(("image",)))["result"]
    sources = [call.src[0] for call in found.schedule_linear().src if call.src[0].op.name == "SINK"]
    assert sum(any(one.op.name in ("EXP2", "EXP") for one in ast.toposort()) for ast in sources) == 1


def products(folder: Path, nodes: list[Any], initialisers: list[Any]) -> list[Any]:
    """The kernels with a reduction of a network of products, as tinygrad schedules them."""
    from tinygrad import Tensor  # noqa: PLC0415
    from tinygrad.uop.ops import Ops  # noqa: PLC0415

    network = rewritten(folder, tiny_model(nodes, initialisers))
    result = network({"image": Tensor(np.ones((1, 3, 12, 16), np.float32)).contiguous().realize()})["result"]
    asts = [call.src[0] for call in result.contiguous().schedule_linear().src if call.src[0].op is Ops.SINK]
    return [one for one in asts if any(part.op is Ops.REDUCE for part in one.toposort())]


def vector_loads(ast: Any) -> int:
    """Loads of a kernel that are contiguous along its vector axis."""
    from tinygrad import Device  # noqa: PLC0415
    from tinygrad.codegen.opt.postrange import Scheduler  # noqa: PLC0415

    from lab.compile.schedule import Shape, _stride_one  # noqa: PLC0415
    from lab.compile.tune import _scheduler  # noqa: PLC0415

    kernel: Scheduler = _scheduler(ast)
    assert kernel.ren is Device["CPU"].renderer
    shape = Shape(kernel)
    return sum(shape.vector in _stride_one(one) for one in shape.reduced_loads)


def test_a_transposed_matrix_is_written_before_a_product_reads_its_rows(tmp_path: Path) -> None:
    nodes = [node("Transpose", ["image"], ["t"], perm=[0, 1, 3, 2]), node("MatMul", ["image", "t"], ["result"])]
    (product,) = products(tmp_path, nodes, [])
    assert vector_loads(product) == 1


def test_a_product_of_heads_is_written_in_its_own_order(tmp_path: Path) -> None:
    nodes = [node("MatMul", ["image", "m"], ["p"]), node("Relu", ["p"], ["r"]), node("MatMul", ["r", "n"], ["result"])]
    first, _ = products(tmp_path, nodes, [weights("m", 16, 24), weights("n", 24, 8)])
    assert vector_loads(first) == 1
