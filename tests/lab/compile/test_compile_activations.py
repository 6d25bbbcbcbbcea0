"""The polynomial sigmoid and softmax against float64, over the whole range of float32."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from lab.compile.toolchain import compile_context


@pytest.fixture(autouse=True)
def _device() -> Iterator[None]:
    with compile_context("x86_64", "x86_64_v3", 2):
        yield


def every_magnitude() -> Any:
    """Finite float32 values of both signs: one in 4099 bit patterns of all, and the active range densely."""
    patterns = np.arange(0, 2**32, 4099, dtype=np.uint64).astype(np.uint32).view(np.float32)
    return np.concatenate((patterns[np.isfinite(patterns)], np.linspace(-20, 20, 400_001, dtype=np.float32)))


def test_sigmoid_is_within_its_stated_error_everywhere() -> None:
    from tinygrad import Tensor  # noqa: PLC0415 (the device is open now)

    from lab.compile.activations import MAX_SIGMOID_ERROR, sigmoid  # noqa: PLC0415

    x = every_magnitude()
    found = sigmoid(Tensor(x)).numpy().astype(np.float64)
    with np.errstate(over="ignore"):
        expected = 1.0 / (1.0 + np.exp(-x.astype(np.float64)))
    assert np.abs(found - expected).max() <= MAX_SIGMOID_ERROR
    assert found.min() >= 0.0
    assert found.max() <= 1.0


def test_sigmoid_of_special_values() -> None:
    from tinygrad import Tensor  # noqa: PLC0415

    from lab.compile.activations import sigmoid  # noqa: PLC0415

    found = sigmoid(Tensor(np.array([np.inf, -np.inf, 0.0, -0.0, np.nan], np.float32))).numpy()
    assert found[:4] == pytest.approx([1.0, 0.0, 0.5, 0.5], abs=3e-8)
    assert np.isnan(found[4])


@pytest.mark.parametrize("scale", [0.0, 1.0, 30.0, 1e4, 3e37])
def test_softmax_is_within_its_stated_error(scale: float) -> None:
    from tinygrad import Tensor  # noqa: PLC0415

    from lab.compile.activations import MAX_SOFTMAX_ERROR, softmax  # noqa: PLC0415

    for width in (2, 80, 1000):
        x = (np.random.default_rng(width).standard_normal((200, width)) * scale).astype(np.float32)
        powers = np.exp(x.astype(np.float64) - x.astype(np.float64).max(1, keepdims=True))
        found = softmax(Tensor(x)).numpy().astype(np.float64)
        assert np.abs(found - powers / powers.sum(1, keepdims=True)).max() <= MAX_SOFTMAX_ERROR


def test_softmax_keeps_the_order_of_what_it_compares() -> None:
    from tinygrad import Tensor  # noqa: PLC0415

    from lab.compile.activations import exp_of_negative  # noqa: PLC0415

    found = exp_of_negative(Tensor(-np.linspace(0, 87, 100_001, dtype=np.float32))).numpy()
    assert found[0] == 1.0
    assert (np.diff(found) <= np.spacing(found[:-1]) * 64).all()
