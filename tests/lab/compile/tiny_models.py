"""Small ONNX models and specs that the compiler's tests are fed with."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

SPEC = """
[model]
name = "tiny"
version = "1.2.3"
source = "tiny.onnx"
release = 7

[target]
driver = "cpu"
arch = "x86_64"
cpu = "x86_64_v3"
threads = 2

[[input]]
name = "image"
stream = "road"
format = "NV12"
width = 33
height = 21
range = "limited"
matrix = "bt709"
primaries = "bt709"
transfer = "bt709"
chroma_site = "left"
crop = [1, 2, 31, 18]
resize = [16, 12]
mean = [10.0, 20.0, 30.0]
std = [100.0, 110.0, 120.0]

[[output]]
tensor = "result"
name = "offset_m"
slice = [0, 1]
unit = "m"
nan = "refuse"

[[output]]
tensor = "result"
name = "rest"
slice = [1, 6]
unit = "1"
nan = "flag"

[check]
onnxruntime_tolerance = 1e-3
"""
RGB_INPUT = {
    'format = "NV12"': 'format = "RGB24"',
    'range = "limited"': 'range = "full"',
    'matrix = "bt709"': 'matrix = "identity"',
    'chroma_site = "left"': 'chroma_site = "notSubsampled"',
}


def edited(text: str, edits: dict[str, str]) -> str:
    """`text` with each key of `edits`, which must occur, replaced once."""
    for old, new in edits.items():
        assert old in text, old
        text = text.replace(old, new, 1)
    return text


def weights(name: str, *shape: int, seed: int = 1) -> Any:
    """A float32 initialiser with seeded normal values, scaled to keep activations near one."""
    values = np.random.default_rng([seed, *shape]).standard_normal(shape) / np.sqrt(max(1, int(np.prod(shape[1:]))))
    return numpy_helper.from_array(values.astype(np.float32), name)


def tiny_model(nodes: list[Any] | None = None, initialisers: list[Any] | None = None, **changes: Any) -> Any:
    """Conv, BatchNormalization, Relu, depthwise Conv, Gemm to "result" [1, 6]; or the given nodes.

    changes: `input_shape`, `output_shape`, `extra_inputs`, `opset`, `extra_domains`.
    """
    given = nodes is not None
    image = helper.make_tensor_value_info("image", TensorProto.FLOAT, changes.get("input_shape", [1, 3, 12, 16]))
    result = helper.make_tensor_value_info("result", TensorProto.FLOAT, changes.get("output_shape", [1, 6]))
    graph = helper.make_graph(
        nodes if nodes is not None else _default_nodes(),
        "tiny",
        [image, *changes.get("extra_inputs", [])],
        [result],
        initialisers if given else _default_weights(),
    )
    domains = [helper.make_opsetid("", changes.get("opset", 17)), *changes.get("extra_domains", [])]
    return helper.make_model(graph, opset_imports=domains, ir_version=8)


def _default_nodes() -> list[Any]:
    return [
        helper.make_node("Conv", ["image", "w0"], ["c0"], name="conv0", pads=[1, 1, 1, 1], strides=[2, 2]),
        helper.make_node("BatchNormalization", ["c0", "gamma", "beta", "mean", "var"], ["n0"], name="norm0"),
        helper.make_node("Relu", ["n0"], ["r0"], name="relu0"),
        helper.make_node("Conv", ["r0", "w1", "b1"], ["c1"], name="conv1", pads=[1, 1, 1, 1], group=8),
        helper.make_node("Relu", ["c1"], ["r1"], name="relu1"),
        helper.make_node("Flatten", ["r1"], ["f"], name="flatten"),
        helper.make_node("Gemm", ["f", "w2", "b2"], ["result"], name="head"),
    ]


def _default_weights() -> list[Any]:
    variance = numpy_helper.from_array(np.linspace(0.5, 2.0, 8, dtype=np.float32), "var")
    named = [weights("gamma", 8), weights("beta", 8, seed=2), weights("mean", 8, seed=3), variance]
    convolutions = [weights("w0", 8, 3, 3, 3), weights("w1", 8, 1, 3, 3), weights("b1", 8, seed=4)]
    return [*named, *convolutions, weights("w2", 8 * 6 * 8, 6), weights("b2", 6)]


def write_spec(folder: Path, model: Any | None = None, edits: dict[str, str] | None = None) -> Path:
    """A folder with tiny.onnx and spec.toml; returns the spec's path."""
    onnx.save(model if model is not None else tiny_model(), str(folder / "tiny.onnx"))
    path = folder / "spec.toml"
    path.write_text(edited(SPEC, edits or {}))
    return path


def random_frame(size_bytes: int, seed: int) -> NDArray[np.uint8]:
    """A buffer of random bytes, padding included."""
    return np.random.default_rng(seed).integers(0, 256, size_bytes, dtype=np.uint8)
