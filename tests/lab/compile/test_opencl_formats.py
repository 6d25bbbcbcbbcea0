"""The unpack stage on OpenCL, one format for each way of unpacking: the same samples as the definition gives."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from abi.pixels import PIXEL_FORMATS
from lab.compile.reference import preprocess
from lab.compile.spec import TargetSpec
from lab.compile.target_opencl import OpenClTarget
from tests.lab.compile.frames import YUV, draw, input_spec, pack
from tests.lab.compile.test_compile_formats import ROUNDING, on_device
from tests.support import opencl


@pytest.fixture(autouse=True)
def _device() -> None:
    opencl.require_device()


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("NV21", {}), ("YU12", {"range": '"full"'}), ("UYVY", {}), ("XRGB8888", {"channels": '"BGR"'}), ("R8", {}),
        ("R10", {}), ("R16", {}), ("SGRBG10P", {}), ("SBGGR12P", {}), ("SRGGB10P", {"demosaic": '"bilinear"'}),
        ("SGBRG12P", {"demosaic": '"bilinear"'}), ("R12", {"range": '"limited"', "resize": "[9, 14]"}),
    ],
)  # fmt: skip
def test_the_device_gives_the_definitions_values(tmp_path: Path, name: str, changes: dict[str, str]) -> None:
    spec = input_spec(tmp_path, name, **changes)
    frame = pack(spec, draw(spec, seed=11))
    with OpenClTarget(TargetSpec("opencl", "x86_64", "", 1)).context():
        found = on_device(spec, frame)
    expected = preprocess(frame, spec)
    if name in YUV or "resize" in changes:
        assert np.abs(found - expected).max() < ROUNDING * (1 << (PIXEL_FORMATS[name].bits - 8))
    else:
        assert np.array_equal(found, expected)
