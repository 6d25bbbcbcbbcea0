"""The model as a list of nodes over tinygrad tensors, and the loop that runs it.

`Network` wraps tinygrad's ONNX reader but runs the nodes itself, for two reasons: graph rewrites work on the node list
(`lab.compile.rewrite`), and the places where a value is written to memory are chosen here. tinygrad's own fusion can
put one convolution inside another's reduction and compute it again for each tap (FastestDet: 209 ms, of which one
kernel 157 ms), so a heavy operator's result is materialised before anything but cheap elementwise work reads it.
No value of a run outlives the call: what stays alive would be held out of the arena by tinygrad's memory planner.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tinygrad import Tensor, dtypes
from tinygrad.nn import onnx as tinygrad_onnx

from lab.compile.border import Border, middle, widest, write_bordered
from lab.compile.refusal import CompileRefusal, CompileRefused

ELEMENTWISE = frozenset((
    "Abs", "Add", "BatchNormalization", "Cast", "Ceil", "Clip", "Div", "Elu", "Erf", "Exp", "Floor", "Gelu",
    "HardSigmoid", "HardSwish", "Identity", "LeakyRelu", "Log", "Max", "Min", "Mish", "Mul", "Neg", "PRelu", "Pow",
    "Reciprocal", "Relu", "Round", "Selu", "Sigmoid", "Softplus", "Softsign", "Sqrt", "Sub", "Swish", "Tanh", "Where",
))  # fmt: skip
VIEWS = frozenset(("Reshape", "Transpose", "Slice", "Unsqueeze", "Squeeze", "Flatten", "Split", "Expand", "Gather"))
SOFTMAX_PRODUCT = "SoftmaxProduct"
"""An operator of our own (`lab.compile.attention`): softmax(x) @ v."""
ORDERED = frozenset(("Einsum", "Gemm", "MatMul", "Softmax", SOFTMAX_PRODUCT, "Transpose"))
"""Operators whose results are no pictures: their axes are written in their own order."""

_NOT_TAKEN = (AssertionError, ArithmeticError, LookupError, NotImplementedError, RuntimeError, TypeError, ValueError)
"""How tinygrad's operators end where they do not take what they are given."""

Operator = Callable[..., Any]
Node = Any
"""tinygrad.nn.onnx.OnnxNode: op, opset_id, inputs, outputs, opts."""


def operators() -> frozenset[str]:
    """The ONNX operators that can be compiled."""
    return frozenset(tinygrad_onnx.onnx_ops)


def contiguous(value: Any) -> Any:
    """Writes a value to memory in its own order."""
    return value.contiguous()


@dataclass
class Network:
    """Nodes in topological order, and the constants they read. Rewrites change it; running does not."""

    nodes: list[Node]
    constants: dict[str, Any]
    outputs: tuple[str, ...]
    runner: Any
    replaced: dict[str, Operator] = field(default_factory=dict)
    """Operators computed in another way than tinygrad's own, by operator name: `f(network, node, *inputs, **opts)`."""
    materialise: Callable[[Any], Any] = contiguous
    """How a value is written to memory: the layout."""
    border: Callable[[Node], Border | None] = lambda node: None
    """The zeros that an operator wants around its first input, if any."""
    padded: dict[str, int] = field(default_factory=dict)
    """Values with more channels (axis 1) than the model says: name to the model's count."""

    def consumers(self) -> dict[str, list[Node]]:
        """Who reads each value; a graph output is read by nobody here."""
        readers: dict[str, list[Node]] = defaultdict(list)
        for node in self.nodes:
            for name in dict.fromkeys(node.inputs):
                readers[name].append(node)
        return readers

    def constant(self, name: str) -> Any | None:
        """The constant tensor called `name`, None where the value is computed or omitted."""
        value = self.constants.get(name)
        return value if isinstance(value, Tensor) else None

    def own(self, operator: str, node: Node) -> Operator:
        """tinygrad's own implementation of an operator, for the node's opset.

        It raises CompileRefused, naming the node, for a form of the operator that tinygrad does not take.
        """
        implementation: Operator = self.runner._select_op(operator, node.opset_id)

        def checked(*inputs: Any, **options: Any) -> Any:
            try:
                return implementation(*inputs, **options)
            except _NOT_TAKEN as error:
                raise CompileRefused(
                    CompileRefusal.UNKNOWN_OPERATOR, f"node {node.outputs[0]!r} ({operator})",
                    expected="a form of the operator that tinygrad 0.14.0 implements",
                    found=f"{type(error).__name__}: {error}", todo="export the model with other operators or options",
                ) from error  # fmt: skip

        return checked

    def cut(self, name: str, value: Any) -> Any:
        """`value` as the model means it: without padding channels."""
        if name not in self.padded or not isinstance(value, Tensor):
            return value
        return value.shrink(tuple((0, self.padded[name]) if axis == 1 else None for axis in range(value.ndim)))

    def __call__(self, inputs: dict[str, Any], lazy: frozenset[str] = frozenset()) -> dict[str, Any]:
        """Lazy output tensors for input tensors, by name. `lazy`: inputs that hold elementwise work."""
        return _Run(self, inputs, lazy).outputs()


def read_network(path: Path) -> Network:
    """The network in an ONNX file that `lab.compile.model` has checked, with its constants on the device."""
    runner = tinygrad_onnx.OnnxRunner(path)
    constants = dict(runner.graph_values)
    for name, value in constants.items():
        if isinstance(value, Tensor):
            constants[name] = value.to(None).contiguous().realize()
    runner.graph_values = constants
    return Network(list(runner.graph_nodes), constants, runner.graph_outputs, runner)


class _Run:
    """One pass over the nodes: the values so far, and which of them hold work that is not yet written to memory."""

    def __init__(self, network: Network, inputs: dict[str, Any], lazy: frozenset[str]) -> None:
        self.network, self.readers = network, network.consumers()
        self.values: dict[str, Any] = {**network.constants, **inputs}
        self.heavy: dict[str, frozenset[int]] = {}
        """By value: the heavy nodes fused into it. Two of them in one kernel would nest their loops."""
        self.computed: set[str] = set(lazy)
        """Values that hold elementwise work, which a heavy reader would repeat for each of its taps."""
        self.ordered: set[str] = set()
        """Values that are no pictures: results of ORDERED operators, and what cheap operators make of them."""
        self.bordered: dict[str, tuple[Any, Border]] = {}
        """Pictures in memory with the zeros around them that their readers want."""
        for name in lazy:
            if len(self.readers[name]) > 1:
                self._write(name)

    def outputs(self) -> dict[str, Any]:
        runner = self.network.runner
        runner.graph_values = self.values
        try:
            for index, node in enumerate(self.network.nodes):
                self._prepare(node)
                self._evaluate(node)
                self._settle(index, node)
        finally:
            runner.graph_values = self.network.constants
        return {name: self.network.cut(name, self.values[name]) for name in self.network.outputs}

    def _write(self, name: str) -> None:
        value = self.values[name]
        if isinstance(value, Tensor) and dtypes.is_float(value.dtype):
            border = self._border(name)
            if border is not None:
                picture = write_bordered(value, border)
                self.bordered[name] = (picture, border)
                self.values[name] = middle(picture, border)
            else:
                self.values[name] = contiguous(value) if name in self.ordered else self.network.materialise(value)
        self.heavy[name] = frozenset()
        self.computed.discard(name)

    def _border(self, name: str) -> Border | None:
        """The border with which a picture is written; None without."""
        value = self.values[name]
        if name in self.ordered or name in self.network.outputs or value.ndim != 4 or value.shape[0] != 1:
            return None
        readers = [one for one in self.readers[name] if one.inputs[0] == name]
        return widest([border for border in map(self.network.border, readers) if border is not None])

    def _fused(self, name: str) -> frozenset[int]:
        return self.heavy.get(name, frozenset())

    def _prepare(self, node: Node) -> None:
        """Writes those inputs to memory that must not be fused into `node`."""
        inputs = list(dict.fromkeys(node.inputs))
        if node.op not in ELEMENTWISE:
            for name in inputs:
                if self._fused(name) or (name in self.computed and not self._reads_once(node, name)):
                    self._write(name)
            return
        fused = frozenset().union(*map(self._fused, inputs))
        if len(fused) > 1:  # only one heavy node may stay open where several meet: the latest
            for name in inputs:
                if self._fused(name) and self._fused(name) != {max(fused)}:
                    self._write(name)

    def _reads_once(self, node: Node, name: str) -> bool:
        """Whether `node` reads each element of its input once, so that elementwise work on it can stay open."""
        is_own = name == node.inputs[0] and node.inputs.count(name) == 1 and len(self.readers[name]) == 1
        return node.op in VIEWS or (is_own and self.network.border(node) is not None)  # it begins with a padded copy

    def _evaluate(self, node: Node) -> None:
        runner, options = self.network.runner, dict(node.opts)
        inputs = [runner._get_python_const(name, node.op, i) for i, name in enumerate(node.inputs)]
        if node.op == "Split" and "num_outputs" not in options:
            options["num_outputs"] = len(node.outputs)
        if node.op == "Gather" and node.inputs[1] in runner.const_names:
            inputs[1] = self._constant_indices(node.inputs[1])
        if node.outputs[0] not in self.network.padded or node.op == "Conv":
            inputs = [self.network.cut(name, value) for name, value in zip(node.inputs, inputs, strict=True)]
        wanted = self.network.border(node)
        if wanted is not None and node.inputs[0] in self.bordered:
            picture, border = self.bordered[node.inputs[0]]
            inputs[0] = self.network.cut(node.inputs[0], middle(picture, border, wanted))
            options["pads"] = [0, 0, 0, 0]
        replaced = self.network.replaced.get(node.op)
        if replaced is not None:
            result = replaced(self.network, node, *inputs, **options)
        else:
            result = self.network.own(node.op, node)(*inputs, **options)
        results = result if isinstance(result, tuple) else (result,)
        self.values.update(zip(node.outputs, results[: len(node.outputs)], strict=True))

    def _constant_indices(self, name: str) -> Any:
        """Indices that are a constant become a slice or a permutation instead of a gather."""
        cache = self.network.runner._python_const_cache
        if name not in cache:
            cache[name] = tinygrad_onnx._to_python_const(self.values[name])
        return cache[name]

    def _settle(self, index: int, node: Node) -> None:
        """Decides for each result whether it may stay open for its readers."""
        inputs = list(dict.fromkeys(node.inputs))
        is_cheap = node.op in ELEMENTWISE or node.op in VIEWS
        fused = frozenset().union(*map(self._fused, inputs)) if is_cheap else frozenset((index,))
        if node.op == SOFTMAX_PRODUCT:  # its result is in memory
            fused = frozenset()
        for name in node.outputs:
            if self._is_constant(name):
                continue
            self.heavy[name] = fused
            if node.op in ORDERED or (is_cheap and self._are_ordered(inputs)):
                self.ordered.add(name)
            if node.op in ELEMENTWISE or (node.op in VIEWS and any(one in self.computed for one in inputs)):
                self.computed.add(name)
            if fused and not _may_stay_open(self.readers[name]):
                self._write(name)

    def _are_ordered(self, inputs: list[str]) -> bool:
        computed = [one for one in inputs if one in self.heavy]
        return bool(computed) and all(one in self.ordered for one in computed)

    def _is_constant(self, name: str) -> bool:
        """Shape arithmetic: integers that no kernel of the run computes."""
        value = self.values[name]
        return not isinstance(value, Tensor) or not dtypes.is_float(value.dtype)


def _may_stay_open(readers: list[Node]) -> bool:
    """One elementwise reader, or the two of x * sigmoid(x)."""
    if len(readers) == 1:
        return readers[0].op in ELEMENTWISE
    if len(readers) == 2 and {one.op for one in readers} == {"Sigmoid", "Mul"}:
        sigmoid, product = sorted(readers, key=lambda one: one.op == "Mul")
        return sigmoid.outputs[0] in product.inputs
    return False
