"""Stream formats: laid out, and validated field by field."""

from __future__ import annotations

from typing import Any

import pytest

from abi import format as fmt
from abi import pixels
from abi.format import FormatCode, Plane, Rect, make_format
from tests.support.formats import MODELS, OWN, RAW, RGB, YUV, changed, nv12, nv12_with, plane_changed, refusal, refused

# --- layouts -------------------------------------------------------------------------------------------------------

# (name, width, height) -> (offset, stride, rows, size) of each plane when rows are tight, worked out by hand
LAYOUTS = [
    ("NV12", 64, 48, [(0, 64, 48, 3072), (3072, 64, 24, 1536)]),
    ("NV12", 321, 241, [(0, 321, 241, 77361), (77361, 322, 121, 38962)]),
    ("NV21", 65, 3, [(0, 65, 3, 195), (195, 66, 2, 132)]),
    ("YU12", 65, 3, [(0, 65, 3, 195), (195, 33, 2, 66), (261, 33, 2, 66)]),
    ("YUYV", 5, 3, [(0, 12, 3, 36)]),
    ("UYVY", 4, 3, [(0, 8, 3, 24)]),
    ("RGB24", 5, 3, [(0, 15, 3, 45)]),
    ("BGR24", 5, 3, [(0, 15, 3, 45)]),
    ("ABGR8888", 5, 3, [(0, 20, 3, 60)]),
    ("XRGB8888", 5, 3, [(0, 20, 3, 60)]),
    ("R8", 5, 3, [(0, 5, 3, 15)]),
    ("R10", 5, 3, [(0, 10, 3, 30)]),
    ("R12", 5, 3, [(0, 10, 3, 30)]),
    ("R16", 5, 3, [(0, 10, 3, 30)]),
    ("SRGGB10P", 5, 3, [(0, 10, 3, 30)]),
    ("SGRBG10P", 4, 3, [(0, 5, 3, 15)]),
    ("SGBRG10P", 8, 3, [(0, 10, 3, 30)]),
    ("SBGGR10P", 9, 3, [(0, 15, 3, 45)]),
    ("SRGGB12P", 5, 3, [(0, 9, 3, 27)]),
    ("SGRBG12P", 4, 3, [(0, 6, 3, 18)]),
    ("SGBRG12P", 6, 3, [(0, 9, 3, 27)]),
    ("SBGGR12P", 1, 3, [(0, 3, 3, 9)]),
]


@pytest.mark.parametrize(("name", "width", "height", "planes"), LAYOUTS)
def test_tight_layouts_round_odd_sizes_up(name: str, width: int, height: int, planes: list[tuple[int, ...]]) -> None:
    format = make_format(name, width, height, **MODELS[fmt.PIXEL_FORMATS[name].model], **OWN)
    assert format.planes == tuple(Plane(*plane) for plane in planes)
    assert format.buffer_bytes == planes[-1][0] + planes[-1][3]
    assert format.crop == Rect(0, 0, width, height)
    assert format.modifier == 0
    assert format.pixel is fmt.PIXEL_FORMATS[name]
    fmt.validate(format)


def test_every_format_of_the_table_has_a_layout_case() -> None:
    assert {name for name, *_ in LAYOUTS} == set(fmt.PIXEL_FORMATS)


@pytest.mark.parametrize(
    ("name", "stride", "rows", "planes"),
    [
        ("NV21", 1920, None, [(0, 1920, 1080, 2073600), (2073600, 1920, 540, 1036800)]),  # case 1
        ("NV12", 1288, 1088, [(0, 1288, 1080, 1401344), (1401344, 1288, 540, 700672)]),  # case 6
        ("YU12", 1288, None, [(0, 1288, 1080, 1391040), (1391040, 644, 540, 347760), (1738800, 644, 540, 347760)]),
        ("YU12", 1287, None, [(0, 1287, 1080, 1389960), (1389960, 644, 540, 347760), (1737720, 644, 540, 347760)]),
        (
            "YU12",
            (1280, 640, 704),
            None,
            [(0, 1280, 1080, 1382400), (1382400, 640, 540, 345600), (1728000, 704, 540, 380160)],
        ),
        ("NV12", (1280, 1344), 1081, [(0, 1280, 1080, 1383680), (1383680, 1344, 540, 727104)]),
        ("RGB24", 3841, None, [(0, 3841, 1080, 4148280)]),
    ],
)
def test_padded_layouts(name: str, stride: Any, rows: int | None, planes: list[tuple[int, ...]]) -> None:
    colour = MODELS[fmt.PIXEL_FORMATS[name].model]
    width, height = (1280, 1080) if planes[0][2] == 1080 else (64, 48)
    format = make_format(name, width, height, **colour, **OWN, stride=stride, rows=rows)
    assert format.planes == tuple(Plane(*plane) for plane in planes)


def test_chroma_is_never_shorter_than_its_row() -> None:
    assert [plane.stride for plane in nv12(321, 241, stride=321).planes] == [321, 322]


def test_a_contract_leaves_the_cameras_own_fields_out() -> None:
    format = make_format("NV12", 64, 48, **YUV)
    assert (format.clock, format.mark, format.period_ns, format.camera_name) == (0, 0, 0, "")
    fmt.validate_contract(format)
    assert refused(format)[:2] == (FormatCode.UNSPECIFIED, "clock")


def test_a_layout_with_only_some_of_the_cameras_own_fields_is_refused() -> None:
    assert refusal(lambda: make_format("NV12", 64, 48, **YUV, camera_name="x"))[1] == "clock"
    assert refusal(lambda: make_format("NV12", 64, 48, **YUV, period_ns=1))[1] == "clock"
    assert refusal(lambda: make_format("NV12", 64, 48, **YUV, clock=fmt.ClockId.TAI))[1] == "mark"
    assert refusal(lambda: make_format("NV12", 64, 48, **YUV, mark=fmt.TimeMark.EXPOSURE_END))[1] == "clock"


def test_an_explicit_crop_and_cfa_are_kept() -> None:
    assert nv12(crop=Rect(2, 4, 60, 40)).crop == Rect(2, 4, 60, 40)
    assert make_format("R12", 8, 8, **RAW, cfa=fmt.CfaOrder.GBRG).cfa is fmt.CfaOrder.GBRG
    assert make_format("R12", 8, 8, **RAW).cfa is fmt.CfaOrder.NONE
    assert make_format("SGBRG12P", 8, 8, **RAW).cfa is fmt.CfaOrder.GBRG


def test_make_format_refuses_what_it_cannot_lay_out() -> None:
    code, field, expected, found = refusal(lambda: make_format("nv12", 64, 48, **YUV))
    assert (code, field, found) == (FormatCode.UNKNOWN_FOURCC, "fourcc", "'nv12'")
    assert expected.startswith("one of NV12, NV21, ")
    assert refusal(lambda: nv12(stride=(64,))) == (FormatCode.STRIDE, "planes", "2 strides", "1 strides")
    assert refusal(lambda: nv12(rows=47)) == (FormatCode.ROWS, "rows", "at least 48 allocated rows", "47")
    assert refusal(lambda: nv12(0, 48))[:2] == (FormatCode.EMPTY, "width")
    assert refusal(lambda: nv12(64, 0))[:2] == (FormatCode.EMPTY, "height")
    assert refusal(lambda: nv12(-1, 48))[:2] == (FormatCode.SIZE_LIMIT, "width")
    assert refusal(lambda: nv12(stride=63))[:2] == (FormatCode.STRIDE, "planes[0].stride")


# --- validation ----------------------------------------------------------------------------------------------------


def test_sizes_are_bounded_before_they_are_multiplied() -> None:
    huge = changed(make_format("ABGR8888", 64, 1, **RGB, **OWN), width=1073741825)  # case 22
    assert refused(huge) == (FormatCode.SIZE_LIMIT, "width", "1..32768 pixels", "1073741825")
    assert refused(nv12_with(height=32769)) == (FormatCode.SIZE_LIMIT, "height", "1..32768 pixels", "32769")
    assert refused(nv12_with(width=0)) == (FormatCode.EMPTY, "width", "1..32768 pixels", "0")
    assert refused(nv12_with(height=0)) == (FormatCode.EMPTY, "height", "1..32768 pixels", "0")
    assert refused(nv12_with(buffer_bytes=0)) == (FormatCode.EMPTY, "bufferBytes", "1..1073741824 bytes", "0")
    over = refused(nv12_with(buffer_bytes=1073741825))
    assert over == (FormatCode.SIZE_LIMIT, "bufferBytes", "1..1073741824 bytes", "1073741825")


def test_the_largest_frame_is_accepted() -> None:
    fmt.validate(make_format("ABGR8888", 32768, 8192, **RGB, **OWN))
    fmt.validate(make_format("R8", 32768, 32768, **RAW, **OWN))
    fmt.validate(make_format("R8", 1, 1, **RAW, **OWN))
    assert refusal(lambda: make_format("ABGR8888", 32768, 8193, **RGB, **OWN))[:2] == (
        FormatCode.SIZE_LIMIT,
        "bufferBytes",
    )


def test_an_unknown_pixel_format_is_named() -> None:
    assert refused(nv12_with(fourcc=fmt.fourcc("P010"))) == (
        FormatCode.UNKNOWN_FOURCC,
        "fourcc",
        "a known pixel format",
        "P010",
    )
    assert refused(nv12_with(fourcc=0x80))[3] == "0x00000080"
    assert refused(nv12_with(fourcc=0x01020304))[3] == "0x01020304"


@pytest.mark.parametrize(
    ("modifier", "found"),
    [
        (0x0100000000000002, "INTEL layout 0x2 (0x0100000000000002)"),  # I915_FORMAT_MOD_Y_TILED
        (0x0A00000000000001, "AMLOGIC layout 0x1 (0x0a00000000000001)"),
        (0x0B00000000000001, "vendor 0xb layout 0x1 (0x0b00000000000001)"),
        (1, "NONE layout 0x1 (0x0000000000000001)"),
        ((1 << 56) - 1, "DRM_FORMAT_MOD_INVALID (0x00ffffffffffffff), a layout that nobody stated"),
    ],
)
def test_only_linear_memory_is_accepted_and_others_are_refused_by_name(modifier: int, found: str) -> None:
    expected = "DRM_FORMAT_MOD_LINEAR (0)"
    assert refused(nv12_with(modifier=modifier)) == (FormatCode.MODIFIER, "modifier", expected, found)


@pytest.mark.parametrize(
    ("attribute", "field", "value"),
    [
        ("range", "range", fmt.Range.UNSPECIFIED),
        ("matrix", "matrix", fmt.Matrix.UNSPECIFIED),
        ("primaries", "primaries", fmt.Primaries.UNSPECIFIED),
        ("transfer", "transfer", fmt.Transfer.UNSPECIFIED),
        ("chroma_site", "chromaSite", fmt.ChromaSite.UNSPECIFIED),
        ("cfa", "cfa", fmt.CfaOrder.UNSPECIFIED),
        ("clock", "clock", fmt.ClockId.UNSPECIFIED),
        ("mark", "mark", fmt.TimeMark.UNSPECIFIED),
    ],
)
def test_nothing_is_guessed(attribute: str, field: str, value: Any) -> None:  # case 10
    code, named, expected, found = refused(nv12_with(**{attribute: value}))
    assert (code, named, found) == (FormatCode.UNSPECIFIED, field, "UNSPECIFIED")
    assert expected == "one of " + ", ".join(member.name for member in type(value) if member.name != "UNSPECIFIED")


@pytest.mark.parametrize("name", list(fmt.PIXEL_FORMATS))
@pytest.mark.parametrize("matrix", [fmt.Matrix.IDENTITY, fmt.Matrix.BT601, fmt.Matrix.BT709, fmt.Matrix.BT2020NC])
def test_only_luma_and_chroma_have_a_matrix(name: str, matrix: fmt.Matrix) -> None:
    model = fmt.PIXEL_FORMATS[name].model
    good = make_format(name, 8, 8, **MODELS[model], **OWN)
    is_yuv = model is pixels.ColourModel.YUV
    if is_yuv != (matrix is fmt.Matrix.IDENTITY):
        fmt.validate(changed(good, matrix=matrix))
        return
    expected = "BT601, BT709 or BT2020NC" if is_yuv else "IDENTITY"
    assert refused(changed(good, matrix=matrix)) == (
        FormatCode.CONTRADICTION,
        "matrix",
        f"{expected} for {name}",
        matrix.name,
    )


@pytest.mark.parametrize("name", list(fmt.PIXEL_FORMATS))
@pytest.mark.parametrize("site", [site for site in fmt.ChromaSite if site])
def test_only_luma_and_chroma_have_a_chroma_site(name: str, site: fmt.ChromaSite) -> None:
    model = fmt.PIXEL_FORMATS[name].model
    good = make_format(name, 8, 8, **MODELS[model], **OWN)
    is_yuv = model is pixels.ColourModel.YUV
    if is_yuv != (site is fmt.ChromaSite.NOT_SUBSAMPLED):
        fmt.validate(changed(good, chroma_site=site))
        return
    expected = "LEFT, CENTER or TOP_LEFT" if is_yuv else "NOT_SUBSAMPLED"
    assert refused(changed(good, chroma_site=site)) == (
        FormatCode.CONTRADICTION,
        "chromaSite",
        f"{expected} for {name}",
        site.name,
    )


@pytest.mark.parametrize("name", list(fmt.PIXEL_FORMATS))
@pytest.mark.parametrize("cfa", [cfa for cfa in fmt.CfaOrder if cfa])
def test_a_mosaic_is_declared_where_there_is_one(name: str, cfa: fmt.CfaOrder) -> None:
    pixel = fmt.PIXEL_FORMATS[name]
    good = make_format(name, 8, 8, **MODELS[pixel.model], **OWN)
    if pixel.model is pixels.ColourModel.MONO or cfa is pixel.cfa:
        fmt.validate(changed(good, cfa=cfa))
        return
    expected = f"{pixel.cfa.name} for {name}"
    assert refused(changed(good, cfa=cfa)) == (FormatCode.CONTRADICTION, "cfa", expected, cfa.name)


def test_luma_and_chroma_are_not_of_raw_sensor_colour() -> None:
    raw = fmt.Primaries.SENSOR_NATIVE
    assert refused(nv12_with(primaries=raw)) == (
        FormatCode.CONTRADICTION,
        "primaries",
        "any but SENSOR_NATIVE for NV12",
        "SENSOR_NATIVE",
    )
    fmt.validate(changed(make_format("RGB24", 8, 8, **RGB, **OWN), primaries=raw))


@pytest.mark.parametrize(
    ("crop", "code"),
    [
        (Rect(0, 0, 0, 48), FormatCode.EMPTY),
        (Rect(0, 0, 64, 0), FormatCode.EMPTY),
        (Rect(1, 0, 64, 48), FormatCode.CROP),
        (Rect(0, 1, 64, 48), FormatCode.CROP),
        (Rect(0, 0, 65, 48), FormatCode.CROP),
        (Rect(0, 0, 64, 49), FormatCode.CROP),
        (Rect(2**32 - 1, 0, 2, 1), FormatCode.CROP),
    ],
)
def test_a_crop_outside_the_picture_is_refused(crop: Rect, code: FormatCode) -> None:
    found_code, field, expected, found = refused(nv12_with(crop=crop))
    assert (found_code, field) == (code, "crop")
    if code is FormatCode.CROP:
        assert expected == "inside 64x48"
        assert found == f"{crop.width}x{crop.height} at ({crop.x}, {crop.y})"
    else:
        assert (expected, found) == ("a width and height above 0", f"{crop.width}x{crop.height}")


@pytest.mark.parametrize("crop", [Rect(63, 47, 1, 1), Rect(0, 0, 64, 48), Rect(4, 8, 60, 40)])
def test_a_crop_inside_the_picture_is_accepted(crop: Rect) -> None:
    fmt.validate(nv12_with(crop=crop))


def test_the_number_of_planes_is_the_formats() -> None:
    one = nv12().planes[:1]
    assert refused(nv12_with(planes=one)) == (FormatCode.PLANE_COUNT, "planes", "2 planes for NV12", "1")
    assert refused(nv12_with(planes=nv12().planes * 2))[3] == "4"
    assert refused(nv12_with(planes=()))[:2] == (FormatCode.PLANE_COUNT, "planes")


@pytest.mark.parametrize("stride", [-640, -1, 0, 63, (1 << 30) + 1, 2**63 - 1])
def test_a_stride_no_buffer_has_is_refused(stride: int) -> None:  # cases 20, 21
    assert refused(plane_changed(nv12(), 0, stride=stride)) == (
        FormatCode.STRIDE,
        "planes[0].stride",
        "64..1073741824 bytes",
        str(stride),
    )


def test_zero_stride_of_packed_rgb_is_refused() -> None:  # case 21
    format = make_format("BGR24", 1280, 720, **RGB, **OWN)
    assert refused(plane_changed(format, 0, stride=0))[:2] == (FormatCode.STRIDE, "planes[0].stride")


def test_a_stride_that_leaves_the_buffer_is_refused() -> None:  # case 3
    format = make_format("NV12", 4096, 2, **YUV, **OWN, stride=4096)
    assert refused(plane_changed(format, 0, stride=4128)) == (
        FormatCode.PLANE_SIZE,
        "planes[0].sizeBytes",
        "at least 8224",
        "8192",
    )


def test_a_stride_may_be_as_long_as_the_largest_buffer() -> None:
    one_row = make_format("R8", 64, 1, **RAW, **OWN)
    fmt.validate(plane_changed(one_row, 0, stride=1 << 30))


@pytest.mark.parametrize("rows", [0, 47, 49, 2**32 - 1])
def test_rows_are_the_pictures_own(rows: int) -> None:
    assert refused(plane_changed(nv12(), 0, rows=rows)) == (FormatCode.ROWS, "planes[0].rows", "48", str(rows))


def test_chroma_one_byte_short_is_refused() -> None:  # case 5
    format = make_format("NV12", 1280, 720, **YUV, **OWN)
    assert refused(plane_changed(format, 1, size_bytes=460_799)) == (
        FormatCode.PLANE_SIZE,
        "planes[1].sizeBytes",
        "at least 460800",
        "460799",
    )


def test_the_last_row_needs_no_padding() -> None:
    padded = nv12(stride=80)
    least = 80 * 23 + 64
    fmt.validate(plane_changed(padded, 1, size_bytes=least))
    assert refused(plane_changed(padded, 1, size_bytes=least - 1))[:2] == (
        FormatCode.PLANE_SIZE,
        "planes[1].sizeBytes",
    )


@pytest.mark.parametrize("offset", [1, 2**40, 2**64 - 1])
def test_a_plane_outside_the_buffer_is_refused(offset: int) -> None:  # case 31
    last = nv12().planes[1]
    assert refused(plane_changed(nv12(), 1, offset=last.offset + offset)) == (
        FormatCode.OUT_OF_BUFFER,
        "planes[1]",
        "offset + sizeBytes within the buffer's 4608 bytes",
        f"{last.offset + offset} + 1536",
    )


def test_a_buffer_may_be_larger_than_its_planes() -> None:
    fmt.validate(changed(plane_changed(nv12(), 1, offset=4096), buffer_bytes=8192))


def test_planes_that_overlap_are_refused() -> None:
    assert refused(plane_changed(nv12(), 1, offset=3071)) == (
        FormatCode.OVERLAP,
        "planes[1].offset",
        "at or above 3072, the end of planes[0]",
        "3071",
    )
    roomy = changed(plane_changed(nv12(), 0, size_bytes=3073), buffer_bytes=1 << 20)
    assert refused(roomy)[:2] == (FormatCode.OVERLAP, "planes[1].offset")


@pytest.mark.parametrize("offset", [-1, -4096])
def test_a_plane_before_the_buffer_is_refused(offset: int) -> None:
    assert refused(plane_changed(nv12(), 0, offset=offset)) == (
        FormatCode.OVERLAP,
        "planes[0].offset",
        "at or above 0, the end of the buffer's start",
        str(offset),
    )


def test_the_period_is_stated_and_bounded() -> None:
    expected = "1..3600000000000 ns"
    assert refused(nv12_with(period_ns=0)) == (FormatCode.EMPTY, "periodNs", expected, "0")
    over = 3600 * 10**9 + 1
    assert refused(nv12_with(period_ns=over)) == (FormatCode.SIZE_LIMIT, "periodNs", expected, str(over))
    fmt.validate(nv12_with(period_ns=1))
    fmt.validate(nv12_with(period_ns=3600 * 10**9))


@pytest.mark.parametrize("name", ["", "a" * 65, "é" * 33, "a\n", "a\x00b", "\ud800"])
def test_a_bad_camera_name_is_refused(name: str) -> None:
    assert refused(nv12_with(camera_name=name)) == (
        FormatCode.TEXT,
        "cameraName",
        "1..64 bytes of printable UTF-8",
        ascii(name[:64]),
    )


@pytest.mark.parametrize("name", ["a", "a" * 64, "é" * 32, "front camera"])
def test_a_good_camera_name_is_accepted(name: str) -> None:
    fmt.validate(nv12_with(camera_name=name))
