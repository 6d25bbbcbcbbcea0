"""Two networks of random weights for the kernels benchmark, so that anybody can repeat it without a download.

swish: a detector's backbone, as YOLO's are built: C2f blocks, spatial pyramid pooling, an upsampled head; 320x320.
attention: three convolutions, attention of four heads over 3600 positions and 144 pooled ones, and of one head over
880 x 880; 640x360. The same bytes each time for one version of numpy.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

_OPSET, _IR_VERSION, _SEED = 17, 8, 0
INPUT, OUTPUT = "image", "out"


class _Builder:
    """Nodes and constants in order; every method returns the name of a value."""

    def __init__(self) -> None:
        self.nodes: list[Any] = []
        self.constants: list[Any] = []
        self._draw = np.random.default_rng(_SEED)

    def _name(self) -> str:
        return f"value{len(self.nodes) + len(self.constants)}"

    def constant(self, values: Any) -> str:
        name = self._name()
        self.constants.append(numpy_helper.from_array(np.asarray(values), name))
        return name

    def weight(self, *shape: int, scale: float | None = None) -> str:
        """Normal values, of a spread that keeps a layer's results near one."""
        spread = scale if scale is not None else float(np.prod(shape[1:])) ** -0.5
        return self.constant((self._draw.standard_normal(shape) * spread).astype(np.float32))

    def sizes(self, *values: int) -> str:
        return self.constant(np.array(values, np.int64))

    def op(self, operator: str, *inputs: str, output: str | None = None, **options: Any) -> str:
        name = output or self._name()
        self.nodes.append(helper.make_node(operator, list(inputs), [name], **options))
        return name

    def conv(self, x: str, inside: int, out: int, taps: int = 1, stride: int = 1) -> str:
        weight, bias = self.weight(out, inside, taps, taps), self.weight(out, scale=0.1)
        return self.op("Conv", x, weight, bias, kernel_shape=[taps] * 2, pads=[taps // 2] * 4, strides=[stride] * 2)

    def swish(self, x: str) -> str:
        return self.op("Mul", x, self.op("Sigmoid", x))

    def halves(self, x: str, channels: int) -> tuple[str, str]:
        sizes, first, second = self.sizes(channels // 2, channels // 2), f"{x}.first", f"{x}.second"
        self.nodes.append(helper.make_node("Split", [x, sizes], [first, second], axis=1))
        return first, second

    def save(self, path: Path, high: int, wide: int, shape: Sequence[int]) -> None:
        graph = helper.make_graph(
            self.nodes, path.stem, [helper.make_tensor_value_info(INPUT, TensorProto.FLOAT, [1, 3, high, wide])],
            [helper.make_tensor_value_info(OUTPUT, TensorProto.FLOAT, shape)], self.constants,
        )  # fmt: skip
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", _OPSET)], ir_version=_IR_VERSION)
        onnx.checker.check_model(model)
        onnx.save(model, path)


def _c2f(build: _Builder, x: str, channels: int, count: int) -> str:
    """Two halves, one of them through `count` residual pairs of convolutions, all of it joined."""
    half = channels // 2
    parts = list(build.halves(build.swish(build.conv(x, channels, channels)), channels))
    for _ in range(count):
        inner = build.swish(build.conv(parts[-1], half, half, 3))
        parts.append(build.op("Add", parts[-1], build.swish(build.conv(inner, half, half, 3))))
    return build.swish(build.conv(build.op("Concat", *parts, axis=1), half * len(parts), channels))


def save_swish(path: Path) -> None:
    """The detector's backbone; 1, 64, 40, 40 values."""
    build = _Builder()
    x = build.swish(build.conv(INPUT, 3, 16, 3, 2))
    x = _c2f(build, build.swish(build.conv(x, 16, 32, 3, 2)), 32, 1)
    x = _c2f(build, build.swish(build.conv(x, 32, 64, 3, 2)), 64, 2)
    x = _c2f(build, build.swish(build.conv(x, 64, 128, 3, 2)), 128, 1)
    pooled = [x]
    for _ in range(3):
        pooled.append(build.op("MaxPool", pooled[-1], kernel_shape=[5, 5], pads=[2] * 4, strides=[1, 1]))
    x = build.swish(build.conv(build.op("Concat", *pooled, axis=1), 512, 128))
    x = build.op("Resize", x, "", build.constant(np.array([1, 1, 2, 2], np.float32)), mode="nearest")
    x = build.conv(build.swish(build.conv(x, 128, 64, 3)), 64, 64)
    build.op("Identity", x, output=OUTPUT)
    build.save(path, 320, 320, (1, 64, 40, 40))


def save_attention(path: Path) -> None:
    """Convolutions and two attention blocks; 1, 880, 64 values."""
    build = _Builder()
    x = INPUT
    for inside, out in ((3, 24), (24, 48), (48, 64)):
        x = build.op("Relu", build.conv(x, inside, out, 3, 2))
    high, wide, heads, columns = 45, 80, 4, 16
    positions, pooled = high * wide, high * wide // 25

    def by_head(value: str, count: int) -> str:
        return build.op("Reshape", value, build.sizes(1, heads, columns, count))

    small = build.op("AveragePool", x, kernel_shape=[5, 5], strides=[5, 5])
    q = build.op("Transpose", by_head(build.conv(x, 64, 64), positions), perm=[0, 1, 3, 2])
    k = by_head(build.conv(small, 64, 64), pooled)
    v = build.op("Transpose", by_head(build.conv(small, 64, 64), pooled), perm=[0, 1, 3, 2])
    scores = build.op("Mul", build.op("MatMul", q, k), build.constant(np.array([columns**-0.5], np.float32)))
    y = build.op("Transpose", build.op("MatMul", build.op("Softmax", scores, axis=-1), v), perm=[0, 1, 3, 2])
    y = build.op("Add", x, build.conv(build.op("Reshape", y, build.sizes(1, 64, high, wide)), 64, 64))
    y = build.op("AveragePool", build.op("Relu", build.conv(y, 64, 64, 3)), kernel_shape=[2, 2], strides=[2, 2])
    rows = build.op("Transpose", build.op("Reshape", y, build.sizes(1, 64, 880)), perm=[0, 2, 1])
    q, k, v = (build.op("MatMul", rows, build.weight(64, 64)) for _ in range(3))
    scores = build.op("MatMul", q, build.op("Transpose", k, perm=[0, 2, 1]))
    build.op("MatMul", build.op("Softmax", scores, axis=-1), v, output=OUTPUT)
    build.save(path, 360, 640, (1, 880, 64))


NETWORKS: dict[str, tuple[Callable[[Path], None], int, int]] = {
    "swish": (save_swish, 320, 320),
    "attention": (save_attention, 640, 360),
}
"""By name: what writes it, and the width and height of its picture."""
