"""The definition of preprocessing, against values worked out by hand from the standards."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from lab.compile.reference import bilinear_taps, pixels_at, preprocess, to_rgb
from lab.compile.spec import InputSpec
from lab.compile.spec_toml import load_spec
from tests.lab.compile.tiny_models import RGB_INPUT, SPEC, edited, random_frame


def input_spec(tmp_path: Path, edits: dict[str, str] | None = None) -> InputSpec:
    path = tmp_path / "spec.toml"
    path.write_text(edited(SPEC, edits or {}))
    return load_spec(path).inputs[0]


def rgb_of(y: float, cb: float, cr: float, range_: str, matrix: str) -> list[float]:
    codes = (np.array([float(one)]) for one in (y, cb, cr))
    return [float(one[0]) for one in to_rgb(*codes, range_=range_, matrix=matrix)]


def test_grey_in_full_range_is_exactly_grey() -> None:  # cases/frames.md row 8
    assert rgb_of(128, 128, 128, "full", "bt709") == [128.0, 128.0, 128.0]


def test_limited_black_and_white_are_0_and_255_and_beyond_is_clamped() -> None:  # row 7
    assert rgb_of(16, 128, 128, "limited", "bt709") == [0.0, 0.0, 0.0]
    assert rgb_of(235, 128, 128, "limited", "bt709") == pytest.approx([255.0] * 3)
    assert rgb_of(1, 128, 128, "limited", "bt709") == [0.0] * 3
    assert rgb_of(254, 128, 128, "limited", "bt709") == [255.0] * 3


def test_the_same_ramp_read_as_limited_and_full_differs_as_predicted() -> None:  # row 7
    for code in range(16, 236, 7):
        assert rgb_of(code, 128, 128, "full", "bt709") == pytest.approx([code] * 3)
        assert rgb_of(code, 128, 128, "limited", "bt709") == pytest.approx([(code - 16) * 255 / 219] * 3)


def test_saturated_red_by_both_matrices() -> None:  # row 9: BT.601 red is (81, 90, 240), BT.709 red (63, 102, 240)
    assert rgb_of(81, 90, 240, "limited", "bt601") == pytest.approx([255, 0, 0], abs=1.2)
    assert rgb_of(63, 102, 240, "limited", "bt709") == pytest.approx([255, 0, 0], abs=1.2)
    # by hand: Y' = 65 * 255/219, Cb = -38 * 255/224, Cr = 127.5; G' = Y' - 0.18733 Cb - 0.46813 Cr
    assert rgb_of(81, 90, 240, "limited", "bt709") == pytest.approx([255, 24.1, 0], abs=0.05)
    # by hand: Y' = 47 * 255/219, Cb = -26 * 255/224; R' = Y' + 1.402 * 127.5, B' = Y' + 1.772 Cb
    assert rgb_of(63, 102, 240, "limited", "bt601") == pytest.approx([233.48, 0, 2.28], abs=0.01)


def test_taps_are_half_pixel_centred_and_clamped() -> None:
    low, high, weight = bilinear_taps(4, 2)
    assert (low.tolist(), high.tolist(), weight.tolist()) == ([0, 2], [1, 3], [0.5, 0.5])
    low, high, weight = bilinear_taps(2, 4)
    assert (low.tolist(), high.tolist()) == ([0, 0, 0, 1], [1, 1, 1, 1])
    assert weight.tolist() == [0.0, 0.25, 0.75, 0.0]


def test_the_last_chroma_row_and_column_of_an_odd_picture_are_used(tmp_path: Path) -> None:  # row 19
    spec = input_spec(tmp_path, {"crop = [1, 2, 31, 18]": "", 'range = "limited"': 'range = "full"'})
    frame = np.full(spec.buffer_bytes, 128, np.uint8)
    chroma = spec.planes[1]
    frame[chroma.offset + 10 * chroma.stride + 2 * 16 + 1] = 255  # Cr of the last column and row
    corner = pixels_at(frame, spec, np.array([20]), np.array([32]))
    beside = pixels_at(frame, spec, np.array([20]), np.array([31]))
    assert corner[0, 0, 0] == pytest.approx(255.0)  # 128 + 1.5748 * 127, clamped
    assert beside[:, 0, 0].tolist() == [128.0] * 3


def test_padding_bytes_never_matter(tmp_path: Path) -> None:  # rows 1, 2, 4, 6
    spec = input_spec(tmp_path, {"height = 21": "height = 21\nstride = 64\nrows = 32"})
    frame = random_frame(spec.buffer_bytes, 1)
    other = random_frame(spec.buffer_bytes, 2)
    for plane, row_bytes in zip(spec.planes, (33, 34), strict=True):
        for row in range(plane.rows):
            start = plane.offset + row * plane.stride
            other[start : start + row_bytes] = frame[start : start + row_bytes]
    assert np.array_equal(preprocess(frame, spec), preprocess(other, spec))


@pytest.mark.parametrize("format_", ["NV12", "NV21", "YU12"])
def test_the_same_picture_in_every_yuv_format_is_the_same_tensor(tmp_path: Path, format_: str) -> None:
    nv12 = input_spec(tmp_path)
    frame = random_frame(nv12.buffer_bytes, 3)
    other = input_spec(tmp_path, {'format = "NV12"': f'format = "{format_}"'})
    chroma = frame[nv12.planes[1].offset :].reshape(11, 17, 2)
    planes = {"NV12": chroma, "NV21": chroma[:, :, ::-1], "YU12": np.moveaxis(chroma, 2, 0)}[format_]
    buffer = np.concatenate((frame[: 33 * 21], planes.reshape(-1)))
    assert np.array_equal(preprocess(buffer, other), preprocess(frame, nv12))


def test_resize_to_the_same_size_is_the_crop_itself(tmp_path: Path) -> None:
    spec = replace(input_spec(tmp_path, RGB_INPUT), resize=(31, 18), mean=(0.0, 0.0, 0.0), std=(1.0, 1.0, 1.0))
    frame = random_frame(spec.buffer_bytes, 4)
    picture = frame.reshape(21, 33, 3)[2:20, 1:32]
    assert np.array_equal(preprocess(frame, spec)[0], picture.transpose(2, 0, 1).astype(np.float32))
    swapped = preprocess(frame, replace(spec, channels="BGR"))
    assert np.array_equal(swapped[0], picture.transpose(2, 0, 1)[::-1].astype(np.float32))


def test_mean_and_std_apply_to_the_channels_in_the_tensors_order(tmp_path: Path) -> None:
    spec = replace(input_spec(tmp_path, RGB_INPUT), channels="BGR")
    frame = np.zeros(spec.buffer_bytes, np.uint8)
    assert preprocess(frame, spec)[0, :, 0, 0] == pytest.approx([-0.1, -20 / 110, -0.25])


def test_a_buffer_of_another_size_is_refused(tmp_path: Path) -> None:
    spec = input_spec(tmp_path)
    for wrong in (np.zeros(spec.buffer_bytes - 1, np.uint8), np.zeros(spec.buffer_bytes, np.int8)):
        with pytest.raises(ValueError, match="expected uint8"):
            preprocess(wrong, spec)  # type: ignore[arg-type]
