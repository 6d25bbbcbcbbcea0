"""Every pixel format of the ABI through the unpack stage: the definition and the device give the samples that went in.

Pictures have odd sizes, padded rows, a valid part and a crop; what is not a sample is random. Resizing to the crop's
own size leaves values as they are, so integers must come back exactly.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from abi.colour import CfaOrder
from abi.pixels import PIXEL_FORMATS
from lab.compile.pixels import FORMATS
from lab.compile.reference import preprocess, samples
from lab.compile.refusal import CompileRefused
from lab.compile.spec import InputSpec
from lab.compile.toolchain import compile_context
from tests.lab.compile import frames
from tests.lab.compile.frames import BAYER, GREY, RGB, YUV, cropped, draw, input_spec, pack

LSB = 1.0
ROUNDING = 1e-3  # of a code value: what float32 may add to an 8-bit colour conversion
CFA = {"rggb": CfaOrder.RGGB, "grbg": CfaOrder.GRBG, "gbrg": CfaOrder.GBRG, "bggr": CfaOrder.BGGR}


@pytest.fixture(autouse=True)
def _device() -> Iterator[None]:
    with compile_context("x86_64", "x86_64_v3", 1):
        yield


def on_device(spec: InputSpec, frame: NDArray[np.uint8]) -> NDArray[np.float32]:
    from tinygrad import Tensor  # noqa: PLC0415 (the device is open now)

    from lab.compile.preprocess import Preprocessor  # noqa: PLC0415

    result: NDArray[np.float32] = Preprocessor(spec)(Tensor(frame).realize()).contiguous().numpy()
    return result


def both(spec: InputSpec, frame: NDArray[np.uint8]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """The definition's tensor and the device's, without the batch axis."""
    return preprocess(frame, spec)[0], on_device(spec, frame)[0]


def exact(expected: NDArray[Any], *found: NDArray[np.float32]) -> bool:
    return all(np.array_equal(one, expected.astype(np.float32)) for one in found)


def test_the_compiler_unpacks_every_format_of_the_abi() -> None:
    assert set(FORMATS) == set(PIXEL_FORMATS) == {*YUV, *RGB, *GREY, *BAYER}


@pytest.mark.parametrize("name", PIXEL_FORMATS)
def test_integer_samples_are_unpacked_bit_for_bit(tmp_path: Path, name: str) -> None:
    spec = input_spec(tmp_path, name)
    parts = draw(spec, seed=1)
    frame = pack(spec, parts)
    rows, columns = np.arange(frames.HEIGHT), np.arange(frames.WIDTH)
    for component, expected in zip(FORMATS[name].components, parts, strict=True):
        shared = component.bits[0].pixels if name in YUV else 1
        assert np.array_equal(samples(frame, spec, component, rows, columns),
                              expected[rows[:, None] // component.rows, columns[None, :] // shared])  # fmt: skip


@pytest.mark.parametrize("name", [*GREY, *BAYER])
def test_one_channel_formats_come_out_as_their_code_values(tmp_path: Path, name: str) -> None:
    spec = input_spec(tmp_path, name)
    (plane,) = draw(spec, seed=2)
    plane[2:4, 4:6] = [[0, (1 << PIXEL_FORMATS[name].bits) - 1], [1, 2]]  # the ends of the range, in the crop
    assert spec.shape == (1, 1, 9, 17)
    assert exact(cropped(plane, spec)[None], *both(spec, pack(spec, [plane])))


@pytest.mark.parametrize("channels", ["RGB", "BGR"])
@pytest.mark.parametrize("name", RGB)
def test_rgb_formats_come_out_in_the_tensors_order(tmp_path: Path, name: str, channels: str) -> None:
    spec = input_spec(tmp_path, name, channels=f'"{channels}"')
    parts = draw(spec, seed=3)
    expected = np.stack([cropped(parts["RGB".index(one)], spec) for one in channels])
    assert exact(expected, *both(spec, pack(spec, parts)))


KR_KB = {"bt601": (0.299, 0.114), "bt709": (0.2126, 0.0722), "bt2020nc": (0.2627, 0.0593)}


def rgb_by_the_standard(y: Any, cb: Any, cr: Any, *, limited: bool, matrix: str) -> NDArray[np.float64]:
    """E'R, E'G, E'B of BT.709-6 §3 (and of its sisters) from quantised values, times 255."""
    kr, kb = KR_KB[matrix]
    ey, scale = ((y - 16) / 219, 224) if limited else (y / 255, 255)
    ecb, ecr = (cb - 128) / scale, (cr - 128) / scale
    red, blue = ey + 2 * (1 - kr) * ecr, ey + 2 * (1 - kb) * ecb
    green = (ey - kr * red - kb * blue) / (1 - kr - kb)
    return np.clip(np.stack((red, green, blue)), 0, 1) * 255


@pytest.mark.parametrize(
    ("name", "range_", "matrix"),
    [(name, range_, "bt709") for name in YUV for range_ in ("limited", "full")]
    + [("YUYV", "limited", "bt601"), ("UYVY", "full", "bt2020nc")],
)
def test_luma_and_chroma_become_rgb_by_the_standard(tmp_path: Path, name: str, range_: str, matrix: str) -> None:
    spec = input_spec(tmp_path, name, range=f'"{range_}"', matrix=f'"{matrix}"')
    y, cb, cr = draw(spec, seed=4)
    high = FORMATS[name].components[1].rows
    codes = cropped(y, spec), cropped(cb, spec, high, 2), cropped(cr, spec, high, 2)
    expected = rgb_by_the_standard(*codes, limited=range_ == "limited", matrix=matrix)
    for found in both(spec, pack(spec, [y, cb, cr])):
        assert np.abs(found - expected).max() < ROUNDING < LSB


@pytest.mark.parametrize("name", [*GREY, *RGB])
def test_limited_range_without_a_matrix_is_stretched_and_clamped(tmp_path: Path, name: str) -> None:
    spec = input_spec(tmp_path, name, range='"limited"')
    depth = PIXEL_FORMATS[name].bits
    parts = draw(spec, seed=5)
    unit, white = 1 << (depth - 8), (1 << depth) - 1
    codes = np.stack([cropped(one, spec) for one in parts])
    expected = np.clip((codes - 16 * unit) * (white / (219 * unit)), 0, white)
    for found in both(spec, pack(spec, parts)):
        assert np.abs(found - expected).max() < ROUNDING * unit


@pytest.mark.parametrize("name", [*BAYER[:3], BAYER[7], "R16"])
@pytest.mark.parametrize("channels", ["RGB", "BGR"])
def test_a_mosaic_becomes_colour_by_the_mean_of_its_nearest_samples(tmp_path: Path, name: str, channels: str) -> None:
    cfa = {"cfa": '"gbrg"'} if name == "R16" else {}
    spec = input_spec(tmp_path, name, demosaic='"bilinear"', channels=f'"{channels}"', **cfa)
    (plane,) = draw(spec, seed=6)
    expected = frames.demosaiced(plane, spec)
    assert spec.crop[1] == spec.stream_format.crop.y  # so that one edge is mirrored
    assert exact(expected if channels == "RGB" else expected[::-1], *both(spec, pack(spec, [plane])))


@pytest.mark.parametrize("order", CFA)
def test_a_flat_field_of_each_order_is_three_flat_colours(tmp_path: Path, order: str) -> None:
    spec = input_spec(tmp_path, f"S{order.upper()}10P", demosaic='"bilinear"', crop="[1, 2, 21, 10]", resize="[21, 10]")
    assert spec.stream_format.cfa is CFA[order]
    flat = {"r": 1001, "g": 502, "b": 3}
    rows, columns = np.arange(frames.HEIGHT)[:, None], np.arange(frames.WIDTH)[None, :]
    mosaic = np.array([flat[letter] for letter in order])[rows % 2 * 2 + columns % 2]
    expected = np.broadcast_to(np.array([1001, 502, 3])[:, None, None], (3, 10, 21))
    assert exact(expected, *both(spec, pack(spec, [mosaic])))


@pytest.mark.parametrize("name", ["R12", "SGRBG12P", "XRGB8888", "UYVY"])
def test_resized_pictures_agree_on_the_device(tmp_path: Path, name: str) -> None:
    more = {"demosaic": '"bilinear"'} if name == "SGRBG12P" else {}
    spec = input_spec(tmp_path, name, resize="[9, 14]", **more)
    expected, found = both(spec, pack(spec, draw(spec, seed=7)))
    assert np.abs(expected - found).max() < ROUNDING * (1 << (PIXEL_FORMATS[name].bits - 8))


@pytest.mark.parametrize(
    ("name", "changes", "key"),
    [
        ("R12", {"cfa": '"unspecified"'}, "cfa"),
        ("R12", {"cfa": '"rggb"'}, "demosaic"),  # a mosaic that nobody said what to do with
        ("SRGGB10P", {"demosaic": '"clever"'}, "demosaic"),
        ("SRGGB10P", {"resize": "[8, 8]"}, "demosaic"),  # would mix the mosaic's colours
        ("SRGGB10P", {"crop": "[5, 2, 17, 9]"}, "demosaic"),  # would turn its order
        ("SRGGB10P", {"demosaic": '"bilinear"', "valid": "[4, 2, 17, 1]", "crop": "[4, 2, 17, 1]"}, "demosaic"),
        ("SRGGB10P", {"cfa": '"bggr"'}, "cfa"),  # the code says the order
        ("SRGGB10P", {"range": '"limited"'}, "range"),
        ("R8", {"demosaic": '"none"'}, "demosaic"),
        ("R8", {"channels": '"RGB"'}, "channels"),
        ("NV12", {"channels": '"GREY"'}, "channels"),
        ("YUYV", {"matrix": '"identity"'}, "matrix"),
        ("YUYV", {"chroma_site": '"notSubsampled"'}, "chroma_site"),
        ("NV12", {"stride": "[160]"}, "stride"),
        ("NV12", {"stride": "[160, 20]"}, "stride"),
        ("NV12", {"valid": "[3, 2, 21, 10]"}, "valid"),
        ("NV12", {"crop": "[0, 2, 17, 9]"}, "crop"),  # outside the valid part
    ],
)
def test_what_is_not_stated_or_makes_no_sense_is_refused_by_key(
    tmp_path: Path, name: str, changes: dict[str, str], key: str
) -> None:
    with pytest.raises(CompileRefused) as refused:
        input_spec(tmp_path, name, **changes)
    assert refused.value.what == f"spec.toml: input[0].{key}"


def test_each_plane_may_have_its_own_stride(tmp_path: Path) -> None:
    spec = input_spec(tmp_path, "YU12", stride="[32, 48, 64]")
    assert [one.stride for one in spec.planes] == [32, 48, 64]
    y, cb, cr = draw(spec, seed=8)
    codes = cropped(y, spec), cropped(cb, spec, 2, 2), cropped(cr, spec, 2, 2)
    expected = rgb_by_the_standard(*codes, limited=True, matrix="bt709")
    for found in both(spec, pack(spec, [y, cb, cr])):
        assert np.abs(found - expected).max() < ROUNDING


def test_the_contract_states_the_valid_part_and_the_mosaics_order(tmp_path: Path) -> None:
    contract = input_spec(tmp_path, "R10", cfa='"bggr"', demosaic='"bilinear"').stream_format
    assert (contract.crop.x, contract.crop.y, contract.crop.width, contract.crop.height) == frames.VALID
    assert contract.cfa is CfaOrder.BGGR


def test_the_page_of_formats_names_every_one() -> None:
    page = (Path(__file__).parents[3] / "docs" / "pixel-formats.md").read_text()
    assert {name for name in PIXEL_FORMATS if f"`{name}`" not in page} == set()
