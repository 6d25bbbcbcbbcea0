"""Graph rewrites that leave the network's function as it is, up to float32 rounding.

Constants are folded in float64 and rounded once.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from tinygrad import Tensor
from tinygrad.nn.onnx import OnnxNode

from lab.compile.network import Network, Node


def fold_batch_norm(network: Network) -> None:
    """BatchNormalization behind a convolution becomes part of its weights and bias.

    y = gamma * (w * x + b - mean) / sqrt(var + epsilon) + beta, by ONNX BatchNormalization (inference).
    """
    readers = network.consumers()
    producers = {name: node for node in network.nodes for name in node.outputs}
    for norm in [node for node in network.nodes if node.op == "BatchNormalization"]:
        conv = producers.get(norm.inputs[0])
        if conv is None or conv.op != "Conv" or len(readers[conv.outputs[0]]) != 1:
            continue
        read = [name for name in (*conv.inputs[1:3], *norm.inputs[1:5]) if name]
        if conv.outputs[0] in network.outputs or any(network.constant(one) is None for one in read):
            continue
        folded = _folded(network, conv, norm)
        network.nodes[network.nodes.index(conv)] = folded
        network.nodes.remove(norm)
        producers[norm.outputs[0]] = folded


def _values(network: Network, name: str) -> NDArray[np.float64]:
    constant = network.constant(name)
    assert constant is not None, name
    return np.asarray(constant.numpy(), dtype=np.float64)


def _folded(network: Network, conv: Node, norm: Node) -> Node:
    gamma, beta, mean, variance = (_values(network, name) for name in norm.inputs[1:5])
    scale = gamma / np.sqrt(variance + norm.opts.get("epsilon", 1e-5))
    weight = _values(network, conv.inputs[1])
    has_bias = len(conv.inputs) > 2 and conv.inputs[2] != ""
    bias: Any = _values(network, conv.inputs[2]) if has_bias else 0.0
    weight_name, bias_name = f"{norm.outputs[0]}.weight", f"{norm.outputs[0]}.bias"
    network.constants[weight_name] = constant_tensor(weight * scale.reshape(-1, *[1] * (weight.ndim - 1)))
    network.constants[bias_name] = constant_tensor((bias - mean) * scale + beta)
    return OnnxNode(conv.op, conv.opset_id, (conv.inputs[0], weight_name, bias_name), norm.outputs, conv.opts)


def constant_tensor(values: NDArray[Any]) -> Any:
    """A float32 constant on the device."""
    return Tensor(np.ascontiguousarray(values, dtype=np.float32)).realize()
