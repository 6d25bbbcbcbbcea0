"""Pictures written with the zeros that a convolution wants around them: against onnxruntime, and without copies."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest

from lab.compile.toolchain import compile_context
from tests.lab.compile.test_compile_network import CONV, TOLERANCE, W, both, node, rewritten
from tests.lab.compile.tiny_models import tiny_model, weights

W2, THIRTEEN = weights("w2", 8, 8, 3, 3), weights("w13", 13, 3, 1, 1)
RELU = node("Relu", ["c"], ["r"])


@pytest.fixture(autouse=True)
def _device() -> Iterator[None]:
    with compile_context("x86_64", "x86_64_v3", 2):
        yield


CASES: dict[str, tuple[list[Any], list[Any]]] = {
    "two readers with other borders": (
        [CONV, RELU, node("Conv", ["r", "w2"], ["d"], pads=[0, 1, 2, 1]),
         node("Conv", ["r", "w3"], ["e"], pads=[2, 2, 2, 2]), node("Add", ["d", "e"], ["result"])],
        [W, W2, weights("w3", 8, 8, 5, 5)],
    ),
    "a reader with a border and one without": (
        [CONV, RELU, node("Conv", ["r", "w2"], ["d"], pads=[1, 1, 1, 1]), node("Conv", ["r", "w3"], ["e"]),
         node("Add", ["d", "e"], ["s"]), node("Add", ["s", "r"], ["result"])],
        [W, W2, weights("w3", 8, 8, 1, 1)],
    ),
    "on some sides": (
        [CONV, RELU, node("Conv", ["r", "w2"], ["d"], pads=[0, 0, 1, 0]),
         node("Conv", ["d", "w3"], ["result"], pads=[0, 3, 0, 0])],
        [W, W2, weights("w3", 8, 8, 3, 3, seed=4)],
    ),
    "channels that are padded too": (
        [node("Conv", ["image", "w13"], ["c"]), RELU, node("Conv", ["r", "w2"], ["result"], pads=[1, 1, 1, 1])],
        [THIRTEEN, weights("w2", 8, 13, 3, 3)],
    ),
    "behind a pool, and one row high": (
        [CONV, node("MaxPool", ["c"], ["p"], kernel_shape=[12, 2], strides=[1, 2]),
         node("Conv", ["p", "w2"], ["result"], pads=[1, 1, 1, 1])],
        [W, W2],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_what_is_written_with_a_border_is_what_onnxruntime_computes(tmp_path: Path, name: str) -> None:
    nodes, parts = CASES[name]
    found, expected = both(tmp_path, tiny_model(nodes, parts, output_shape=None))
    assert found.shape == expected.shape
    assert np.abs(found - expected).max() < TOLERANCE


def written(folder: Path, nodes: list[Any], parts: list[Any]) -> list[int]:
    """How many elements each launch without a reduction writes."""
    from tinygrad import Tensor  # noqa: PLC0415 (the device is open now)
    from tinygrad.uop.ops import Ops  # noqa: PLC0415

    network = rewritten(folder, tiny_model(nodes, parts, output_shape=None))
    picture = network.materialise(Tensor(np.ones((1, 3, 12, 16), np.float32))).realize()
    calls = network({"image": picture})["result"].schedule_linear().src
    asts = [call.src[0] for call in calls if call.src[0].op is Ops.SINK]
    stores = [[one for one in ast.toposort() if one.op is Ops.STORE] for ast in asts
              if all(one.op is not Ops.REDUCE for one in ast.toposort())]  # fmt: skip
    return [int(np.prod([loop.vmax + 1 for loop in one.ranges])) for (one,) in stores]


def test_only_the_edges_are_written_beside_the_convolutions(tmp_path: Path) -> None:
    nodes = [CONV, RELU, node("Conv", ["r", "w2"], ["result"], pads=[1, 1, 1, 1])]
    _, above, below, beside = written(tmp_path, nodes, [W, W2])  # first the image, which nothing here computes
    assert (above, below) == (8 * 19, 8 * 19)
    assert beside == 8 * 2 * 11


def test_a_picture_that_is_an_output_is_written_without_a_border(tmp_path: Path) -> None:
    nodes = [CONV, node("Conv", ["c", "w2"], ["result"], pads=[1, 1, 1, 1])]
    model = tiny_model(nodes, [W, W2], output_shape=None)
    model.graph.output.append(onnx.helper.make_tensor_value_info("c", onnx.TensorProto.FLOAT, None))
    from tinygrad import Tensor  # noqa: PLC0415

    network = rewritten(tmp_path, model)
    assert "c" in network.outputs
    picture = np.random.default_rng(2).standard_normal((1, 3, 12, 16)).astype(np.float32)
    found = network({"image": network.materialise(Tensor(picture))})
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    for name, expected in zip(("result", "c"), session.run(["result", "c"], {"image": picture}), strict=True):
        assert np.abs(found[name].numpy() - expected).max() < TOLERANCE
