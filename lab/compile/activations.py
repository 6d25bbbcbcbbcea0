"""Sigmoid and softmax as polynomials that vectorise, with a stated error.

tinygrad builds both on exp2 with exponent tricks, which clang does not vectorise behind a convolution (12 against 43
GFLOP/s measured). Here sigmoid is a rational function and softmax's exponential a Taylor polynomial squared five times.

Sigmoid: x is clamped to ±18, where 1 - sigmoid(18) = 1.5e-8 is below float32's half unit in the last place of 1. The
coefficients are a minimax fit of sigmoid(x) - 1/2 as x p(x²) / q(x²). Error against float64 over all finite float32:
at most MAX_SIGMOID_ERROR, absolutely, and the result stays in [0, 1]; infinities give 0 and 1, NaN gives NaN.

Exponential: for x <= 0, e^x = (e^(x/32))^32 by Taylor's polynomial of degree 5 and five squarings, with x clamped at
-60, up to where the polynomial falls with x and stays positive. Squaring multiplies the relative error by 32: 2e-6 near
x = 0, where it is rounding, 2e-4 at x = -12, and more below, where e^x is small; the clamp gives 6e-32. A softmax
element differs from float64's by at most MAX_SOFTMAX_ERROR, absolutely. Both bounds are held by tests over the whole
range of float32. The factors 1/32 are in the coefficients: outside, tinygrad multiplies by them at every step.
"""

from __future__ import annotations

import math
from typing import Any

from tinygrad import dtypes

from lab.compile.network import Network, Node

SOFTMAX_OF_ONE_AXIS = 13
"""The opset from which on it goes along one axis."""
MAX_SIGMOID_ERROR = 2.0e-7
MAX_SOFTMAX_ERROR = 2.0e-6
_SIGMOID_LIMIT = 18.0
_NUMERATOR = (
    4.37031012579801e-11, 1.15627324459942e-07, 6.08574864600143e-05, 8.51377133304701e-03, 2.48287947061529e-01,
)  # fmt: skip
_DENOMINATOR = (
    6.10247389755681e-13, 5.76102136993427e-09, 6.29106785017040e-06, 1.70198817374094e-03, 1.16817656904453e-01,
    9.93151921023180e-01,
)  # fmt: skip
_PIECES = (16, 8)
"""Elements of a row that are summed side by side."""
MIN_STEPS = 4
_EXP_LIMIT = -60.0
_EXP_SQUARINGS = 5
_EXP_TAYLOR = tuple(1 / math.factorial(k) / (1 << _EXP_SQUARINGS * k) for k in (5, 4, 3, 2, 1, 0))


def _horner(coefficients: tuple[float, ...], x: Any) -> Any:
    total = x * coefficients[0] + coefficients[1]
    for one in coefficients[2:]:
        total = total * x + one
    return total


def sigmoid(x: Any) -> Any:
    """1 / (1 + e^-x) of a tensor of floats, by float32."""
    if x.dtype != dtypes.float32:  # float16 has no place for the smallest coefficients
        return sigmoid(x.cast(dtypes.float32)).cast(x.dtype)
    x = x.maximum(-_SIGMOID_LIMIT).minimum(_SIGMOID_LIMIT)
    square = x * x
    return (_horner(_NUMERATOR, square) * x / _horner(_DENOMINATOR, square) + 0.5).maximum(0.0).minimum(1.0)


def exp_of_negative(x: Any) -> Any:
    """e^x of a float32 tensor that is nowhere positive."""
    result = _horner(_EXP_TAYLOR, x.maximum(_EXP_LIMIT))
    for _ in range(_EXP_SQUARINGS):
        result = result * result
    return result


def softmax(x: Any, axis: int = -1) -> Any:
    """e^x / sum(e^x) along `axis`: maximum, exponential and sum are each written to memory once, not recomputed.

    By float32, whatever floats x holds.
    """
    if x.dtype != dtypes.float32:
        return softmax(x.cast(dtypes.float32), axis).cast(x.dtype)
    powers = exp_of_negative(x - along(x, axis, "max")).contiguous()
    return powers * along(powers, axis, "sum").reciprocal().contiguous()


def along(x: Any, axis: int, operation: str) -> Any:
    """The maximum or sum along `axis`, in memory. A long last axis goes by whole vectors first, which are joined then.

    Within one row a sum is a chain of additions whose order a compiler must keep, so it cannot use vectors.
    """
    pieces = next((one for one in _PIECES if x.shape[-1] % one == 0 and x.shape[-1] >= one * MIN_STEPS), 0)
    if axis % x.ndim == x.ndim - 1 and pieces:
        x = getattr(x.reshape(*x.shape[:-1], -1, pieces), operation)(-2).contiguous()
    return getattr(x, operation)(axis, keepdim=True).contiguous()


def use_fast_activations(network: Network) -> None:
    """Makes `network` compute Sigmoid and Softmax by the polynomials above."""
    network.replaced["Sigmoid"] = lambda network, node, x: sigmoid(x)
    network.replaced["Softmax"] = _softmax


def _softmax(network: Network, node: Node, x: Any, axis: int | None = None) -> Any:
    """ONNX Softmax: from opset 13 along one axis, before that over everything from `axis` (default 1) on."""
    if node.opset_id.version >= SOFTMAX_OF_ONE_AXIS:
        return softmax(x, -1 if axis is None else axis)
    first = 1 if axis is None else axis % x.ndim
    rows = 1
    for one in x.shape[:first]:
        rows *= one
    return softmax(x.reshape(rows, -1), -1).reshape(x.shape)
