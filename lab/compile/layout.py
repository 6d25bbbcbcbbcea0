"""Channels last: the memory layout in which CPU kernels vectorise.

Operators go on seeing NCHW. A value is written to memory with its channels innermost, so that a kernel's vector axis is
the output channels, with stride 1 in the store, in the bias and in the packed weights. Weights are laid out once as
[Co/16, kh, kw, Ci, 16] and viewed back as OIHW. A count of channels that the vector does not divide is the worst case
(a 131 to 131 convolution ran at 7.8 instead of 76 GFLOP/s), and a part of a vector costs as much as a whole one, so
output channels are padded with zero weights to a multiple of the vector, and the padding is cut off wherever an
operator could see it.
"""

from __future__ import annotations

import math
from typing import Any

from tinygrad import Tensor
from tinygrad.uop.ops import GroupOp, Ops

from lab.compile.border import border_of
from lab.compile.network import ELEMENTWISE, Network, Node

PACKS = (16, 8, 4)
"""Output channels that lie side by side in a packed weight. Two vectors of eight share each load of a pixel."""
VECTOR = 8
MIN_PADDED_CHANNELS = 5
"""Fewer channels fit half a vector as well."""

MIN_ROWS = 8
"""Rows of a matrix product from which on a copy of the other matrix in another order pays."""


def channels_last(value: Any) -> Any:
    """Writes a value to memory; four-dimensional ones with their channels innermost."""
    if value.ndim != 4:
        return value.contiguous()
    return value.permute(0, 2, 3, 1).contiguous().permute(0, 3, 1, 2)


def use_channels_last(network: Network, lanes: int = 8) -> None:
    """Pads channels to vectors of `lanes`, packs weights, and makes `network` write its values channels last."""
    _pad_channels(network, lanes)
    for node in network.nodes:
        weight = network.constant(node.inputs[1]) if node.op == "Conv" else None
        if weight is not None and weight.ndim == 4:
            network.constants[node.inputs[1]] = pack_weight(weight, node.opts.get("group", 1))
    network.materialise = channels_last
    network.border = border_of
    network.replaced["Conv"] = _convolution
    network.replaced["ConvTranspose"] = _transposed_convolution
    network.replaced["MatMul"] = _matrix_product


def pack_weight(weight: Any, group: int = 1) -> Any:
    """The OIHW weight as a view of memory in which neighbouring output channels are neighbours."""
    out, inside, high, wide = weight.shape
    pack = next((one for one in PACKS if out % one == 0), 0)
    if group != 1 or not pack:
        return weight.permute(2, 3, 1, 0).contiguous().realize().permute(3, 2, 0, 1)
    packed = weight.reshape(out // pack, pack, inside, high, wide).permute(0, 3, 4, 2, 1).contiguous().realize()
    return packed.permute(0, 4, 3, 1, 2).reshape(out, inside, high, wide)


def padded_channels(channels: int, lanes: int) -> int:
    """The channel count that a convolution computes for `channels` wanted ones."""
    return channels if channels < MIN_PADDED_CHANNELS else -(-channels // lanes) * lanes


def _pad_channels(network: Network, lanes: int) -> None:
    """Pads output channels of convolutions, and passes the padding on through elementwise nodes that can take it."""
    readers = network.consumers()
    for node in network.nodes:
        if node.op == "Conv":
            _pad_convolution(network, node, readers, lanes)
        elif node.op in ELEMENTWISE:
            _pass_padding_on(network, node, readers, lanes)


def _pad_convolution(network: Network, node: Node, readers: dict[str, list[Node]], lanes: int) -> None:
    weight = network.constant(node.inputs[1])
    biases = [name for name in node.inputs[2:3] if name]
    is_own = all(len(readers[name]) == 1 for name in (node.inputs[1], *biases))
    if weight is None or weight.ndim != 4 or node.opts.get("group", 1) != 1 or not is_own:
        return
    channels = weight.shape[0]
    wanted = padded_channels(channels, lanes)
    if wanted == channels or any(network.constant(name) is None for name in biases):
        return
    for name in (node.inputs[1], *biases):
        network.constants[name] = _padded(network.constants[name], 0, wanted)
    network.padded[node.outputs[0]] = channels


def _padded(value: Any, axis: int, wanted: int) -> Any:
    margin = tuple((0, wanted - value.shape[axis]) if one == axis else (0, 0) for one in range(value.ndim))
    return value.pad(margin).contiguous().realize()


def _pass_padding_on(network: Network, node: Node, readers: dict[str, list[Node]], lanes: int) -> None:
    counts = {network.padded[name] for name in node.inputs if name in network.padded}
    if len(counts) != 1:
        return
    channels = counts.pop()
    wanted = padded_channels(channels, lanes)
    to_pad: list[tuple[str, int]] = []
    for name in node.inputs:
        value = network.constant(name)
        if value is not None and value.ndim > 4:
            return  # its leading axes would move the channels
        if name in network.padded or name == "" or (value is not None and value.numel() == 1):
            continue
        axis = _channel_axis(value, channels)
        if axis is None or len(readers[name]) != 1:
            return
        to_pad.append((name, axis))
    for name, axis in to_pad:
        network.constants[name] = _padded(network.constants[name], axis, wanted)
    network.padded[node.outputs[0]] = channels


def _channel_axis(value: Any, channels: int) -> int | None:
    """The axis of a per-channel constant such as PRelu's slope, [C, 1, 1] or [1, C, 1, 1]; None if it is not one."""
    if not isinstance(value, Tensor) or value.numel() != channels or value.ndim not in (3, 4):
        return None
    axis = value.ndim - 3
    return axis if value.shape[axis] == channels else None


def _convolution(network: Network, node: Node, x: Any, weight: Any, bias: Any = None, **options: Any) -> Any:
    """A convolution whose zero padding is a padded copy: taps then need no test of the border."""
    if x.ndim == 4 and border_of(node) is not None and any(options["pads"]):
        x = _padded_picture(x, *options["pads"])
        options["pads"] = [0, 0, 0, 0]
    return network.own("Conv", node)(x, weight, bias, **options)


def _padded_picture(x: Any, top: int, left: int, bottom: int, right: int) -> Any:
    """`x` with a border of zeros: in memory by whole vectors, each all picture or all border, which the view cuts off.

    With fewer channels than a vector has lanes a vector covers several columns, which one test can only serve so.
    """
    channels, wide = x.shape[1], x.shape[3]
    whole = VECTOR // math.gcd(channels, VECTOR) if channels < VECTOR else 1
    if wide % whole:
        whole = 1
    before, after = -left % whole, -right % whole
    padded = channels_last(x.pad(((0, 0), (0, 0), (top, bottom), (left + before, right + after))))
    return padded.shrink((None, None, None, (before, before + left + wide + right)))


def _matrix_product(network: Network, node: Node, a: Any, b: Any, **options: Any) -> Any:
    """A product of matrices reads rows of `b` as vectors: a transposed one is first written as it is read."""
    if b.ndim >= 2 and a.ndim >= 2 and a.shape[-2] >= MIN_ROWS and _is_permuted(b):
        b = b.contiguous()
    return network.own("MatMul", node)(a, b, **options)


def _is_permuted(value: Any) -> bool:
    """Whether a view lies between `value` and what is in memory that changes the order of axes."""
    uop = value.uop
    while uop.op in GroupOp.Movement:
        if uop.op is Ops.PERMUTE:
            return True
        uop = uop.src[0]
    return False


def _transposed_convolution(network: Network, node: Node, x: Any, weight: Any, bias: Any = None, **options: Any) -> Any:
    """Kernel = stride, no padding: a 1x1 convolution to all taps at once, and a shuffle of pixels."""
    taps = [int(one) for one in weight.shape[2:]]
    fits = len(taps) == 2 and list(options.get("strides", (1, 1))) == taps and options.get("group", 1) == 1
    plain = not any(options.get("pads") or (0,)) and not any(options.get("output_padding") or (0,))
    if not (fits and plain and set(options.get("dilations") or (1,)) == {1} and "output_shape" not in options):
        return network.own("ConvTranspose", node)(x, weight, bias, **options)
    high, wide = taps
    channels = weight.shape[1]
    flat = weight.permute(2, 3, 1, 0).reshape(high * wide * channels, weight.shape[0], 1, 1)
    repeated = None if bias is None else bias.reshape(1, channels).expand(high * wide, channels).reshape(-1)
    y = network.materialise(x.conv2d(pack_weight(flat), repeated))
    batch, _, rows, columns = y.shape
    y = y.reshape(batch, high, wide, channels, rows, columns).permute(0, 3, 4, 1, 5, 2)
    return y.reshape(batch, channels, rows * high, columns * wide)
