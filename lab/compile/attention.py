"""softmax(x) @ v for the CPU, some rows of x at a time, so that they stay in the cache between the two products.

Rows of a softmax need nothing of each other. Where x is itself a product (attention's scores) its rows are computed
piece by piece from rows of its left matrix, so that x as a whole is never in memory: 4 heads of 3600 x 144 scores are
8 MB, written and read in four launches. All pieces use the same two buffers, one for scores and one for their powers:
that a piece may not overwrite what the one before it still reads is what keeps the pieces in order.

The division by the sum comes last: (powers @ v) * inverse has fewer elements to scale than the rows of x.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tinygrad import Tensor, dtypes
from tinygrad.nn.onnx import OnnxNode

from lab.compile.activations import SOFTMAX_OF_ONE_AXIS, along, exp_of_negative, softmax
from lab.compile.network import ELEMENTWISE, SOFTMAX_PRODUCT, Network, Node

PIECE_BYTES = 1 << 20
"""Of x at a time, over all heads: with its powers it fits two cores' second-level caches of 1 MiB each."""
MIN_PIECE_ROWS = 16
_WHOLE_ROWS = 8
"""Pieces have a multiple of so many rows where that divides: threads and register blocks share them evenly."""


@dataclass(frozen=True)
class Steps:
    """How x comes about: nodes in order, each fed by the one before it, the first by the value `first`.

    None where x itself is `first`. axis: the softmax's. v: the product's right matrix.
    """

    nodes: tuple[Node, ...]
    first: str
    axis: int
    v: str

    @property
    def inputs(self) -> tuple[str, ...]:
        """Every value that softmax(x) @ v needs, each once."""
        own = {name for step in self.nodes for name in step.outputs}
        needed = (self.first, self.v, *(name for step in self.nodes for name in step.inputs))
        return tuple(name for name in dict.fromkeys(needed) if name and name not in own)


def use_pieces(network: Network) -> None:
    """Joins every softmax that only a product reads with that product, and with product and cheap work before it.

    Products are as `lab.compile.layout` replaces them.
    """
    network.replaced[SOFTMAX_PRODUCT] = _softmax_product
    readers = network.consumers()
    producers = {name: node for node in network.nodes for name in node.outputs}
    for node in [one for one in network.nodes if one.op == "Softmax" and one.opset_id.version >= SOFTMAX_OF_ONE_AXIS]:
        (name,) = node.outputs
        product = readers[name][0] if len(readers[name]) == 1 else None
        if product is None or product.op != "MatMul" or product.inputs[1] == name or name in network.outputs:
            continue
        nodes, first = _steps(network, node.inputs[0], readers, producers)
        steps = Steps(nodes, first, int(node.opts.get("axis", -1)), product.inputs[1])
        joined = OnnxNode(SOFTMAX_PRODUCT, product.opset_id, steps.inputs, product.outputs, {"steps": steps})
        network.nodes[network.nodes.index(product)] = joined
        for gone in (*nodes, node):
            network.nodes.remove(gone)


def _steps(
    network: Network, x: str, readers: dict[str, list[Node]], producers: dict[str, Node]
) -> tuple[tuple[Node, ...], str]:
    """Back from `x` through elementwise nodes to a product of matrices, each read by the next one alone.

    The nodes in order and what the first of them is fed with; no nodes where there is no such product.
    """
    found: list[Node] = []
    name = x
    while name in producers and len(readers[name]) == 1 and name not in network.outputs:
        step = producers[name]
        if step.op == "MatMul":
            return (step, *reversed(found)), step.inputs[0]
        computed = [one for one in step.inputs if one in producers]
        if step.op not in ELEMENTWISE or len(computed) != 1 or step.inputs.count(computed[0]) != 1:
            break
        found.append(step)
        name = computed[0]
    return (), x


def _softmax_product(network: Network, node: Node, *inputs: Any, steps: Steps) -> Any:
    values = dict(zip(node.inputs, inputs, strict=True))
    x, v = _rows(network, steps, values, None), values[steps.v]
    product = network.replaced["MatMul"]
    if v.ndim < 2 or not _has_rows(steps, values, x) or x.dtype != dtypes.float32:
        return product(network, node, softmax(x.contiguous(), steps.axis), v).contiguous()
    shape, rows, columns = (x @ v).shape, x.shape[-2], x.shape[-1]
    result, start = _memory(shape), 0
    buffers: dict[int, tuple[Any, Any]] = {}
    for count in pieces(rows, x.numel() // rows * x.dtype.itemsize):
        piece = (*x.shape[:-2], count, columns)
        scores, powers = buffers.setdefault(count, (Tensor.empty(*piece), Tensor.empty(*piece)))
        span = (start, start + count)
        scores.assign(_rows(network, steps, values, span))
        powers.assign(exp_of_negative(scores - along(scores, -1, "max")))
        inverse = along(powers, -1, "sum").reciprocal().contiguous()
        _span(result, span).assign(product(network, node, powers, v) * inverse)
        start += count
    return result


def _has_rows(steps: Steps, values: dict[str, Any], x: Any) -> bool:
    """Whether a softmax along x's last axis can be made of rows of `steps.first`, one for each row of x."""
    first = values[steps.first]
    if min(first.ndim, x.ndim) < 2 or first.shape[-2] != x.shape[-2] or steps.axis not in (-1, x.ndim - 1):
        return False  # a mask may have more rows than the scores that it is added to
    return all(values[step.inputs[1]].ndim >= 2 for step in steps.nodes if step.op == "MatMul")


def _memory(shape: tuple[int, ...]) -> Any:
    """A buffer for the result. Heads, axis 1, lie side by side in a row, as what joins them again reads them."""
    if len(shape) != 4:
        return Tensor.empty(*shape)
    batch, heads, rows, columns = shape
    return Tensor.empty(batch, rows, heads, columns).permute(0, 2, 1, 3)


def _span(value: Any, span: tuple[int, int]) -> Any:
    return value.shrink((*[None] * (value.ndim - 2), span, None))


def _rows(network: Network, steps: Steps, values: dict[str, Any], span: tuple[int, int] | None) -> Any:
    """Rows `span`, from and to, of x; all of them where it is None."""
    x, name = values[steps.first], steps.first
    rows = x.shape[-2] if x.ndim >= 2 else 0

    def cut(value: Any) -> Any:
        has_rows = value.ndim >= 2 and value.shape[-2] == rows
        return _span(value, span) if span is not None and has_rows else value

    x = cut(x)
    for step in steps.nodes:
        operands = []
        for index, one in enumerate(step.inputs):
            is_x = one == name and not (step.op == "MatMul" and index)  # the right matrix of x @ x has all rows
            value = x if is_x else network.runner._get_python_const(one, step.op, index)
            if not is_x and isinstance(value, Tensor):
                value = values[one] if step.op == "MatMul" else cut(values[one])
            operands.append(value)
        replaced = network.replaced.get(step.op)
        if replaced is not None:
            x = replaced(network, step, *operands, **step.opts)
        else:
            x = network.own(step.op, step)(*operands, **step.opts)
        (name,) = step.outputs
    return x


def pieces(rows: int, row_bytes: int) -> list[int]:
    """Rows of each piece: equal ones, which share their kernels, where a divisor comes near the limit."""
    most = max(MIN_PIECE_ROWS, PIECE_BYTES // row_bytes)
    if rows <= most:
        return [rows]
    dividing = [one for one in range(most, most // 3, -1) if rows % one == 0]
    whole = [one for one in dividing if one % _WHOLE_ROWS == 0] or dividing
    count = whole[0] if whole else most - most % _WHOLE_ROWS
    return [count] * (rows // count) + ([rows % count] if rows % count else [])
