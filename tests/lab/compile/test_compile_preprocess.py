"""Preprocessing on the device against its definition, and that its kernels touch only the pixels they need."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from lab.compile.reference import preprocess
from lab.compile.spec import InputSpec
from lab.compile.spec_toml import load_spec
from lab.compile.toolchain import compile_context
from tests.lab.compile.tiny_models import RGB_INPUT, SPEC, edited, random_frame

BGR24 = {**RGB_INPUT, 'format = "NV12"': 'format = "BGR24"'}
TOLERANCE = 2e-5  # tensor values lie in about -0.3..2.5; two orders of float32 rounding


@pytest.fixture(autouse=True)
def _device() -> Iterator[None]:
    with compile_context("x86_64", "x86_64_v3", 2):
        yield


def input_spec(tmp_path: Path, edits: dict[str, str]) -> InputSpec:
    path = tmp_path / "spec.toml"
    path.write_text(edited(SPEC, edits))
    return load_spec(path).inputs[0]


def on_device(spec: InputSpec, frame: np.ndarray) -> np.ndarray:
    from tinygrad import Tensor  # noqa: PLC0415 (the device is open now)

    from lab.compile.preprocess import Preprocessor  # noqa: PLC0415

    result: np.ndarray = Preprocessor(spec)(Tensor(frame).realize()).contiguous().numpy()
    return result


@pytest.mark.parametrize(
    "edits",
    [
        {},
        {'range = "limited"': 'range = "full"', 'matrix = "bt709"': 'matrix = "bt601"'},
        {'matrix = "bt709"': 'matrix = "bt2020nc"', "std = [": 'channels = "BGR"\nstd = ['},
        {"height = 21": "height = 21\nstride = 64\nrows = 32", "crop = [1, 2, 31, 18]": "crop = [3, 5, 30, 16]"},
        {'format = "NV12"': 'format = "NV21"', "resize = [16, 12]": "resize = [40, 50]"},
        {'format = "NV12"': 'format = "YU12"', "resize = [16, 12]": "resize = [1, 1]"},
        RGB_INPUT,
        {**BGR24, "std = [": 'channels = "BGR"\nstd = [', "height = 21": "height = 21\nstride = 128"},
    ],
)
def test_the_device_agrees_with_the_definition(tmp_path: Path, edits: dict[str, str]) -> None:
    spec = input_spec(tmp_path, edits)
    for seed in range(2):
        frame = random_frame(spec.buffer_bytes, seed)
        difference = np.abs(on_device(spec, frame) - preprocess(frame, spec))
        assert difference.max() < TOLERANCE


def test_grey_stays_exactly_grey(tmp_path: Path) -> None:  # cases/frames.md row 8
    spec = input_spec(tmp_path, {'range = "limited"': 'range = "full"'})
    plain = replace(spec, mean=(0.0, 0.0, 0.0), std=(1.0, 1.0, 1.0))
    assert np.array_equal(on_device(plain, np.full(spec.buffer_bytes, 128, np.uint8)), np.full(spec.shape, 128.0))


def test_no_kernel_walks_the_whole_picture(tmp_path: Path) -> None:
    from tinygrad import Tensor  # noqa: PLC0415
    from tinygrad.helpers import GlobalCounters  # noqa: PLC0415

    from lab.compile.preprocess import Preprocessor  # noqa: PLC0415

    edits = {"width = 33": "width = 1928", "height = 21": "height = 1208", "crop = [1, 2, 31, 18]": ""}
    spec = input_spec(tmp_path, edits)
    prepare, frame = Preprocessor(spec), Tensor(random_frame(spec.buffer_bytes, 0)).realize()
    prepare(frame).contiguous().realize()
    GlobalCounters.reset()
    prepare(frame).contiguous().realize()
    taps = 4 * 16 * 12
    assert GlobalCounters.global_ops < 100 * taps  # the picture has 2.3 million pixels
