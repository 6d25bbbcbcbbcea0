"""Stream formats against a contract, to and from their messages, and the names that the table gives them."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from abi import format as fmt
from abi import schema, stream_format
from abi.format import FormatCode, Plane, Rect, StreamFormat, make_format
from tests.support.formats import YUV, nv12, nv12_with, plane_changed, refusal


def test_a_format_that_fits_has_no_mismatch() -> None:
    contract = make_format("NV12", 64, 48, **YUV)
    assert fmt.mismatches(contract, nv12()) == ()


@pytest.mark.parametrize(
    ("changes", "mismatch"),
    [
        ({"fourcc": fmt.fourcc("NV21")}, ("fourcc", "NV12", "NV21")),
        ({"modifier": 1}, ("modifier", "0", "1")),
        ({"width": 63}, ("width", "64", "63")),
        ({"height": 47}, ("height", "48", "47")),
        ({"crop": Rect(1, 2, 3, 4)}, ("crop", "64x48 at (0, 0)", "3x4 at (1, 2)")),
        ({"buffer_bytes": 5000}, ("bufferBytes", "4608", "5000")),
        ({"range": fmt.Range.FULL}, ("range", "LIMITED", "FULL")),  # case 7
        ({"matrix": fmt.Matrix.BT601}, ("matrix", "BT709", "BT601")),  # case 9
        ({"primaries": fmt.Primaries.BT2020}, ("primaries", "BT709", "BT2020")),
        ({"transfer": fmt.Transfer.HLG}, ("transfer", "BT709", "HLG")),
        ({"chroma_site": fmt.ChromaSite.CENTER}, ("chromaSite", "LEFT", "CENTER")),
        ({"cfa": fmt.CfaOrder.RGGB}, ("cfa", "NONE", "RGGB")),
    ],
)
def test_each_field_that_differs_is_named(changes: dict[str, Any], mismatch: tuple[str, str, str]) -> None:
    assert fmt.mismatches(nv12(), nv12_with(**changes)) == (mismatch,)


@pytest.mark.parametrize(
    ("attribute", "field", "found"),
    [("offset", "offset", 3073), ("stride", "stride", 65), ("rows", "rows", 23), ("size_bytes", "sizeBytes", 1535)],
)
def test_each_plane_that_differs_is_named(attribute: str, field: str, found: int) -> None:
    original = getattr(nv12().planes[1], attribute)
    other = plane_changed(nv12(), 1, **{attribute: found})
    assert fmt.mismatches(nv12(), other) == ((f"planes[1].{field}", str(original), str(found)),)


def test_another_number_of_planes_is_a_mismatch() -> None:
    found = fmt.mismatches(nv12(), nv12_with(planes=nv12().planes[:1]))
    assert found == (("planes", "2 planes", "1 planes"),)
    assert found[0].field == "planes"


def test_all_mismatches_are_listed() -> None:
    found = fmt.mismatches(nv12(), nv12_with(range=fmt.Range.FULL, width=62))
    assert [item.field for item in found] == ["width", "range"]


def test_the_cameras_own_fields_are_not_compared() -> None:
    other = nv12(clock=fmt.ClockId.TAI, mark=fmt.TimeMark.EXPOSURE_END, period_ns=1, camera_name="another")
    assert fmt.mismatches(nv12(), other) == ()


def to_bytes(format: StreamFormat) -> bytes:
    builder = schema.frame.StreamFormat.new_message()
    format.to_message(builder)
    return bytes(builder.to_bytes())


def from_bytes(data: bytes) -> StreamFormat:
    with schema.frame.StreamFormat.from_bytes(data) as reader:
        return StreamFormat.from_message(reader)


@given(st.data())
def test_a_format_comes_back_from_its_message(data: st.DataObject) -> None:
    u32, u64 = st.integers(0, 2**32 - 1), st.integers(0, 2**64 - 1)
    planes = st.builds(Plane, u64, st.integers(-(2**63), 2**63 - 1), u32, u64)
    format = StreamFormat(
        data.draw(u32), data.draw(u64), data.draw(u32), data.draw(u32), data.draw(st.builds(Rect, u32, u32, u32, u32)),
        tuple(data.draw(st.lists(planes, max_size=4))), data.draw(u64),
        *(data.draw(st.sampled_from(list(enum))) for _, enum in ENUM_FIELDS),
        data.draw(u64), data.draw(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"))),
    )  # fmt: skip
    assert from_bytes(to_bytes(format)) == format


ENUM_FIELDS = [
    ("range", fmt.Range), ("matrix", fmt.Matrix), ("primaries", fmt.Primaries), ("transfer", fmt.Transfer),
    ("chromaSite", fmt.ChromaSite), ("cfa", fmt.CfaOrder), ("clock", fmt.ClockId), ("mark", fmt.TimeMark),
]  # fmt: skip


@pytest.mark.parametrize(("field", "enum"), ENUM_FIELDS)
def test_a_value_that_no_enum_has_is_refused_by_name(field: str, enum: Any) -> None:
    builder = schema.frame.StreamFormat.new_message()
    nv12().to_message(builder)
    setattr(builder, field, 99)
    assert refusal(lambda: from_bytes(bytes(builder.to_bytes()))) == (
        FormatCode.UNKNOWN_VALUE,
        field,
        "one of " + ", ".join(member.name for member in enum),
        "99",
    )


def test_more_planes_than_any_format_has_are_refused() -> None:
    four = nv12_with(planes=nv12().planes * 2)
    assert from_bytes(to_bytes(four)) == four
    five = nv12_with(planes=nv12().planes * 2 + nv12().planes[:1])
    assert refusal(lambda: from_bytes(to_bytes(five))) == (
        FormatCode.PLANE_COUNT,
        "planes",
        "at most 4 planes",
        "5 planes",
    )


def test_a_name_that_is_not_utf8_is_refused() -> None:
    wire = to_bytes(nv12(camera_name="front")).replace(b"front", b"fr\xffnt")
    assert refusal(lambda: from_bytes(wire)) == (FormatCode.TEXT, "cameraName", "UTF-8", "other bytes")


def test_names_and_codes_of_the_table_are_those_of_the_headers() -> None:
    """drm_fourcc.h and, for RGB24, BGR24 and packed Bayer, videodev2.h."""
    codes = {
        "NV12": "NV12", "NV21": "NV21", "YU12": "YU12", "YUYV": "YUYV", "UYVY": "UYVY", "RGB24": "RGB3",
        "BGR24": "BGR3", "ABGR8888": "AB24", "XRGB8888": "XR24", "R8": "R8  ", "R10": "R10 ", "R12": "R12 ",
        "R16": "R16 ", "SRGGB10P": "pRAA", "SGRBG10P": "pgAA", "SGBRG10P": "pGAA", "SBGGR10P": "pBAA",
        "SRGGB12P": "pRCC", "SGRBG12P": "pgCC", "SGBRG12P": "pGCC", "SBGGR12P": "pBCC",
    }  # fmt: skip
    assert {name: stream_format.fourcc_text(row.fourcc) for name, row in fmt.PIXEL_FORMATS.items()} == codes
    assert fmt.fourcc("NV12") == ord("N") | ord("V") << 8 | ord("1") << 16 | ord("2") << 24
    for row in fmt.PIXEL_FORMATS.values():
        assert fmt.pixel_format(row.fourcc) is row
    assert fmt.pixel_format(0) is None


@pytest.mark.parametrize("name", [name for name in fmt.PIXEL_FORMATS if name.endswith("P")])
def test_a_packed_bayer_name_states_order_and_depth(name: str) -> None:
    row = fmt.PIXEL_FORMATS[name]
    assert (f"S{row.cfa.name}", f"{row.bits}P") == (name[:5], name[5:])


@pytest.mark.parametrize(("name", "bits"), [("NV12", 8), ("R8", 8), ("R10", 10), ("R12", 12), ("R16", 16)])
def test_significant_bits(name: str, bits: int) -> None:
    assert fmt.PIXEL_FORMATS[name].bits == bits
