"""The blocking rule: what it chooses for the shapes that matter, and that what it chooses computes the same."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from lab.compile.toolchain import compile_context


@pytest.fixture(autouse=True)
def _device() -> Iterator[None]:
    with compile_context("x86_64", "x86_64_v3", 2):
        yield


def convolution(inside: int, out: int, side: int, taps: int, group: int = 1) -> Any:
    """A lazy channels-last convolution with packed weights, bias and Relu."""
    from tinygrad import Tensor  # noqa: PLC0415 (the device is open now)

    from lab.compile.layout import channels_last, pack_weight  # noqa: PLC0415

    draw = np.random.default_rng(3).standard_normal
    picture = channels_last(Tensor(draw((1, inside, side, side)).astype(np.float32))).realize()
    weight = pack_weight(Tensor(draw((out, inside // group, taps, taps)).astype(np.float32)), group)
    bias = Tensor(draw(out).astype(np.float32)).realize()
    return channels_last(picture.conv2d(weight, bias, groups=group).relu())


def program(value: Any) -> Any:
    """The last kernel of a lazy value, compiled by the rule and not taken from a cache."""
    from tinygrad import Device  # noqa: PLC0415
    from tinygrad.codegen import do_to_program  # noqa: PLC0415

    calls = [call for call in value.schedule_linear().src if call.src[0].op.name == "SINK"]
    return do_to_program(calls[-1].src[0], Device["CPU"].renderer)


def chosen(value: Any) -> list[tuple[str, int]]:
    """The transformations of a value's last kernel, as (name, amount); 0 stands for the whole loop."""
    return [(one.op.name, one.arg) for one in program(value).src[0].arg.applied_opts]


def test_a_pointwise_convolution_fills_the_registers_and_both_threads() -> None:
    options = chosen(convolution(32, 48, 44, 1))
    assert options[0] == ("UPCAST", 0)  # the packed channels: the whole innermost loop of 16
    assert options[1] == ("UPCAST", 4)  # two vectors and four pixels: 8 accumulators hide the latency
    assert options[-1] == ("THREAD", 2)


def test_threads_share_the_outermost_loop_where_some_block_allows_it() -> None:
    options = program(convolution(96, 96, 22, 1)).src[0].arg.applied_opts
    assert [(one.op.name, one.axis, one.arg) for one in options][-2:] == [("UPCAST", 0, 11), ("THREAD", 0, 2)]


def test_a_depthwise_convolution_is_unrolled_whole() -> None:
    options = chosen(convolution(32, 32, 26, 3, group=32))
    assert [one for one in options if one[0] == "UNROLL"] == [("UNROLL", 0), ("UNROLL", 0)]


def test_a_dense_spatial_convolution_is_not_unrolled() -> None:
    assert not [one for one in chosen(convolution(32, 32, 26, 3)) if one[0] == "UNROLL"]


def test_little_work_stays_on_one_core() -> None:
    assert not [one for one in chosen(convolution(8, 8, 4, 1)) if one[0] == "THREAD"]


def test_a_few_channels_become_whole_vectors_with_the_pixels_beside_them() -> None:
    from tinygrad import Tensor  # noqa: PLC0415

    from lab.compile.layout import channels_last  # noqa: PLC0415

    picture = channels_last(Tensor(np.ones((1, 3, 48, 64), np.float32)).realize())
    scale = Tensor(np.ones((1, 3, 1, 1), np.float32)).realize()
    assert chosen(channels_last(picture * scale))[:2] == [("UPCAST", 0), ("UPCAST", 8)]


def test_axes_change_their_order_by_tiles() -> None:
    from tinygrad import Tensor  # noqa: PLC0415

    picture = Tensor(np.ones((40, 40, 64), np.float32)).realize()
    assert chosen(picture.permute(2, 0, 1).contiguous())[:2] == [("UPCAST", 8), ("UPCAST", 8)]
    rows = Tensor(np.ones((1600, 1), np.float32)).realize()  # read along another axis too, but the same for a whole row
    assert [one[0] for one in chosen((picture.reshape(1600, 64) - rows).contiguous())].count("UPCAST") == 1


def test_the_choice_is_the_same_each_time() -> None:
    first = program(convolution(32, 48, 22, 1)).src[2].arg
    assert program(convolution(32, 48, 22, 1)).src[2].arg == first


def test_loads_and_stores_are_scalars_for_the_vectoriser() -> None:
    assert "float4" not in program(convolution(32, 48, 22, 1)).src[2].arg


@pytest.mark.parametrize(
    ("arch", "lanes", "count"),
    [
        ("x86_64,x86-64-v3", 8, 16),
        ("x86_64,x86-64-v4", 8, 32),
        ("x86_64,x86-64-v2", 4, 16),
        ("arm64,cortex_a78", 4, 32),
    ],
)
def test_the_register_file_follows_the_target(arch: str, lanes: int, count: int) -> None:
    from lab.compile.schedule import registers  # noqa: PLC0415

    assert (registers(arch).lanes, registers(arch).count) == (lanes, count)


@pytest.mark.parametrize(
    ("inside", "out", "side", "taps", "group"),
    [(16, 24, 20, 1, 1), (3, 8, 21, 3, 1), (7, 5, 9, 3, 1), (16, 16, 18, 3, 16), (8, 8, 17, 5, 8), (1, 13, 11, 1, 1)],
)
def test_blocked_kernels_compute_what_plain_ones_do(inside: int, out: int, side: int, taps: int, group: int) -> None:
    found = convolution(inside, out, side, taps, group).numpy()
    with compile_context("x86_64", "x86_64_v3", 1, renderer="CLANG"):
        expected = convolution(inside, out, side, taps, group).numpy()
    assert np.abs(found - expected).max() <= 1e-5 * np.abs(expected).max()


def test_other_renderers_keep_tinygrads_own_choices() -> None:
    ours = chosen(convolution(32, 48, 44, 1))
    with compile_context("x86_64", "x86_64_v3", 2, renderer="CLANG"):
        assert chosen(convolution(32, 48, 44, 1)) != ours
