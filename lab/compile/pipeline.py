"""From frame bytes to output tensors: preprocessing and model as one function, ready to be captured.

The function's arguments are the frames' bytes in the spec's order and its results the model's output tensors that the
spec names, each contiguous in memory of its own.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from lab.compile.model import Model, TensorInfo
from lab.compile.network import Network, read_network
from lab.compile.preprocess import Preprocessor
from lab.compile.rewrite import fold_batch_norm
from lab.compile.spec import Spec
from lab.compile.target import Target


class Pipeline:
    """The function that a bundle computes. `tensors` names its results, in order."""

    def __init__(self, spec: Spec, network: Network, outputs: tuple[TensorInfo, ...]) -> None:
        self.inputs = spec.inputs
        self.network = network
        self.preprocessors = [Preprocessor(one) for one in spec.inputs]
        self.tensors = tensors_of(spec)
        self.outputs = outputs
        """The model's outputs, of which `tensors` are some."""

    def __call__(self, *frames: Any) -> list[Any]:
        """Lazy output tensors for the frames' bytes, each a uint8 Tensor [buffer_bytes]."""
        pictures, lazy = {}, set()
        for one, prepare, frame in zip(self.inputs, self.preprocessors, frames, strict=True):
            if prepare.is_interleaved:
                pictures[one.name] = prepare(frame)
                lazy.add(one.name)
            else:
                pictures[one.name] = prepare(frame).contiguous()  # by rows: three channels are too few for a vector
        outputs = self.network(pictures, frozenset(lazy))
        return [outputs[name].contiguous() for name in self.tensors]


def tensors_of(spec: Spec) -> tuple[str, ...]:
    """The tensors that the spec's outputs are cut from, each once."""
    return tuple(dict.fromkeys(one.tensor for one in spec.outputs))


def build_pipeline(spec: Spec, model: Model, target: Target) -> Pipeline:
    """Reads the model onto the open device and rewrites it for the target."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        path.write_bytes(model.data)
        network = read_network(path)
    fold_batch_norm(network)
    target.rewrite(network)
    return Pipeline(spec, network, model.outputs)
