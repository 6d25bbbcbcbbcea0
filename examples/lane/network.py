"""The lane network: four strided convolutions and two dense layers, in tinygrad to train and as ONNX to ship.

3×64×192 → 8×32×96 → 16×16×48 → 24×8×24 → 32×4×12 → 24 → 2: about 5 MFLOP. It learns outputs of unit spread;
their units (metres, radians) are multiplied into the last layer on export.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper
from tinygrad import Tensor

F32 = NDArray[np.float32]

INPUT_SHAPE = (1, 3, 64, 192)
CHANNELS = (3, 8, 16, 24, 32)
FEATURES = 32 * 4 * 12
HIDDEN = 24
OUTPUT_UNITS = np.array([0.6, 0.03], np.float32)
"""Metres and radians to an output of 1: the spread of the training scenes' truth."""
OPSET, IR_VERSION = 17, 8


@dataclass
class Layer:
    """Weight and bias of a convolution [out, in, 3, 3] or a dense layer [out, in]."""

    weight: Tensor
    bias: Tensor

    @classmethod
    def drawn(cls, rng: np.random.Generator, shape: tuple[int, ...]) -> "Layer":
        """He et al., 2015: normal weights of variance 2 / fan-in; zero bias."""
        spread = math.sqrt(2.0 / math.prod(shape[1:]))
        weight = (rng.standard_normal(shape) * spread).astype(np.float32)
        return cls(Tensor(weight).is_param_(), Tensor(np.zeros(shape[0], np.float32)).is_param_())


class LaneNetwork:
    """Trainable parameters, seeded."""

    def __init__(self, seed: int) -> None:
        rng = np.random.default_rng([seed, 0x4E7])
        self.convolutions = [Layer.drawn(rng, (after, before, 3, 3)) for before, after in pairwise(CHANNELS)]
        self.dense = [Layer.drawn(rng, (HIDDEN, FEATURES)), Layer.drawn(rng, (2, HIDDEN))]

    def __call__(self, images: Tensor) -> Tensor:
        """Outputs of unit spread [batch, 2] for normalised images [batch, 3, 64, 192]."""
        x = images
        for layer in self.convolutions:
            x = x.conv2d(layer.weight, layer.bias, stride=2, padding=1).relu()
        x = x.flatten(1)
        hidden, last = self.dense
        return x.linear(hidden.weight.T, hidden.bias).relu().linear(last.weight.T, last.bias)

    def parameters(self) -> list[Tensor]:
        """All weights and biases."""
        return [tensor for layer in (*self.convolutions, *self.dense) for tensor in (layer.weight, layer.bias)]

    def arrays(self) -> Iterator[tuple[str, F32, F32]]:
        """Name, weight and bias of each layer, in metres and radians."""
        names = [f"conv{i + 1}" for i in range(len(self.convolutions))] + ["hidden", "lane"]
        for name, layer in zip(names, (*self.convolutions, *self.dense), strict=True):
            weight, bias = layer.weight.numpy(), layer.bias.numpy()
            if name == "lane":
                weight, bias = weight * OUTPUT_UNITS[:, None], bias * OUTPUT_UNITS
            yield name, weight, bias


def export_onnx(network: LaneNetwork) -> onnx.ModelProto:
    """The network as ONNX: input `image` float32 [1, 3, 64, 192], output `lane` [1, 2] in metres and radians."""
    nodes, weights = [], []
    value = "image"
    for name, weight, bias in network.arrays():
        weights += [numpy_helper.from_array(weight, f"{name}.weight"), numpy_helper.from_array(bias, f"{name}.bias")]
        inputs = [value, f"{name}.weight", f"{name}.bias"]
        if weight.ndim == 4:
            nodes.append(helper.make_node("Conv", inputs, [name], name=name, strides=[2, 2], pads=[1, 1, 1, 1]))
        else:
            if name == "hidden":
                nodes.append(helper.make_node("Flatten", [value], ["features"], name="flatten", axis=1))
                inputs[0] = "features"
            nodes.append(helper.make_node("Gemm", inputs, [name], name=name, transB=1))
        value = name
        if name != "lane":
            value = f"{name}.relu"
            nodes.append(helper.make_node("Relu", [name], [value], name=value))
    graph = helper.make_graph(
        nodes,
        "lane",
        [helper.make_tensor_value_info("image", TensorProto.FLOAT, INPUT_SHAPE)],
        [helper.make_tensor_value_info("lane", TensorProto.FLOAT, (1, 2))],
        weights,
    )
    model = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR_VERSION, producer_name="fenced-lab"
    )
    onnx.checker.check_model(model, full_check=True)
    return model
