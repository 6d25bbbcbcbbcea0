"""StreamFormat: what every frame of a stream looks like, and the proof that it fits its memory.

A camera declares its format once; a model's contract states the one it was compiled for. Nothing is guessed: every
UNSPECIFIED field is refused by name. `validate` proves a format sound in itself, `prove_bounds` proves it
against a real descriptor, and `mismatches` compares two. All sizes are bounded before they are multiplied.
Fields are named in errors as the schema names them, since the peer may not be Python.
"""

from __future__ import annotations

import fcntl
from collections.abc import Sequence
from enum import IntEnum
from typing import Any, NamedTuple, NoReturn

from abi.colour import CfaOrder, ChromaSite, ClockId, Matrix, Primaries, Range, TimeMark, Transfer
from abi.pixels import PIXEL_FORMATS, ColourModel, PixelFormat, PlaneShape, fourcc, pixel_format
from abi.stream_format import FormatCode, FormatError, Plane, Rect, StreamFormat, fourcc_text, modifier_text

__all__ = [
    "MAX_BUFFER_BYTES", "MAX_DIMENSION", "MOD_LINEAR", "PIXEL_FORMATS", "CfaOrder", "ChromaSite", "ClockId",
    "ColourModel", "FormatCode", "FormatError", "Matrix", "Mismatch", "PixelFormat", "Plane", "PlaneShape",
    "Primaries", "Range", "Rect", "StreamFormat", "TimeMark", "Transfer", "fourcc", "make_format", "mismatches",
    "pixel_format", "prove_bounds", "validate", "validate_contract",
]  # fmt: skip

MAX_BUFFER_BYTES = 1 << 30  # 1 GiB: one frame of 32768 x 8192 pixels of 4 bytes
MAX_DIMENSION = 1 << 15  # pixels in a row, and rows
MAX_PERIOD_NS = 3600 * 10**9
MAX_CAMERA_NAME_BYTES = 64
MOD_LINEAR = 0  # DRM_FORMAT_MOD_LINEAR (drm_fourcc.h)


class Mismatch(NamedTuple):
    """One field in which an offered format differs from a contract."""

    field: str
    expected: str
    found: str


def validate(format: StreamFormat) -> None:
    """Prove a camera's format complete, free of contradiction and within limits. Raises FormatError."""
    validate_contract(format)
    _specified("clock", format.clock)
    _specified("mark", format.mark)
    if not 0 < format.period_ns <= MAX_PERIOD_NS:
        code = FormatCode.EMPTY if format.period_ns == 0 else FormatCode.SIZE_LIMIT
        raise FormatError(code, "periodNs", f"1..{MAX_PERIOD_NS} ns", str(format.period_ns))
    name = format.camera_name
    if not 0 < len(name.encode("utf-8", "replace")) <= MAX_CAMERA_NAME_BYTES or not name.isprintable():
        expected = f"1..{MAX_CAMERA_NAME_BYTES} bytes of printable UTF-8"
        raise FormatError(FormatCode.TEXT, "cameraName", expected, ascii(name[:MAX_CAMERA_NAME_BYTES]))


def validate_contract(format: StreamFormat) -> None:
    """Prove layout and colour, as `validate` does, without the fields that are the camera's own (clock, mark,
    periodNs, cameraName). Raises FormatError.
    """
    pixel = format.pixel
    if format.modifier != MOD_LINEAR:
        found = modifier_text(format.modifier)
        raise FormatError(FormatCode.MODIFIER, "modifier", "DRM_FORMAT_MOD_LINEAR (0)", found)
    _dimension("width", format.width)
    _dimension("height", format.height)
    if not 0 < format.buffer_bytes <= MAX_BUFFER_BYTES:
        code = FormatCode.EMPTY if format.buffer_bytes == 0 else FormatCode.SIZE_LIMIT
        raise FormatError(code, "bufferBytes", f"1..{MAX_BUFFER_BYTES} bytes", str(format.buffer_bytes))
    _validate_colour(format, pixel)
    _validate_crop(format)
    _validate_planes(format, pixel)


def _dimension(field: str, value: int) -> None:
    if value == 0:
        raise FormatError(FormatCode.EMPTY, field, f"1..{MAX_DIMENSION} pixels", "0")
    if not 0 < value <= MAX_DIMENSION:
        raise FormatError(FormatCode.SIZE_LIMIT, field, f"1..{MAX_DIMENSION} pixels", str(value))


def _specified(field: str, value: IntEnum) -> None:
    if value == 0:
        expected = f"one of {', '.join(member.name for member in type(value) if member)}"
        raise FormatError(FormatCode.UNSPECIFIED, field, expected, "UNSPECIFIED")


def _validate_colour(format: StreamFormat, pixel: PixelFormat) -> None:
    for field in ("range", "matrix", "primaries", "transfer"):
        _specified(field, getattr(format, field))
    _specified("chromaSite", format.chroma_site)
    _specified("cfa", format.cfa)
    is_yuv = pixel.model is ColourModel.YUV
    if is_yuv == (format.matrix is Matrix.IDENTITY):
        _contradiction("matrix", "BT601, BT709 or BT2020NC" if is_yuv else "IDENTITY", format.matrix, pixel)
    if is_yuv == (format.chroma_site is ChromaSite.NOT_SUBSAMPLED):
        expected = "LEFT, CENTER or TOP_LEFT" if is_yuv else "NOT_SUBSAMPLED"
        _contradiction("chromaSite", expected, format.chroma_site, pixel)
    if pixel.model is not ColourModel.MONO and format.cfa is not pixel.cfa:
        _contradiction("cfa", pixel.cfa.name, format.cfa, pixel)
    if is_yuv and format.primaries is Primaries.SENSOR_NATIVE:
        _contradiction("primaries", "any but SENSOR_NATIVE", format.primaries, pixel)


def _contradiction(field: str, expected: str, found: IntEnum, pixel: PixelFormat) -> NoReturn:
    raise FormatError(FormatCode.CONTRADICTION, field, f"{expected} for {pixel.name}", found.name)


def _validate_crop(format: StreamFormat) -> None:
    crop = format.crop
    if crop.width == 0 or crop.height == 0:
        raise FormatError(FormatCode.EMPTY, "crop", "a width and height above 0", f"{crop.width}x{crop.height}")
    if crop.x + crop.width > format.width or crop.y + crop.height > format.height:
        expected = f"inside {format.width}x{format.height}"
        found = f"{crop.width}x{crop.height} at ({crop.x}, {crop.y})"
        raise FormatError(FormatCode.CROP, "crop", expected, found)


def _validate_planes(format: StreamFormat, pixel: PixelFormat) -> None:
    if len(format.planes) != len(pixel.planes):
        expected = f"{len(pixel.planes)} planes for {pixel.name}"
        raise FormatError(FormatCode.PLANE_COUNT, "planes", expected, str(len(format.planes)))
    end, before = 0, "the buffer's start"
    for index, (plane, shape) in enumerate(zip(format.planes, pixel.planes, strict=True)):
        name = f"planes[{index}]"
        _validate_plane(name, plane, shape, format)
        if plane.offset < end:
            expected = f"at or above {end}, the end of {before}"
            raise FormatError(FormatCode.OVERLAP, f"{name}.offset", expected, str(plane.offset))
        end, before = plane.offset + plane.size_bytes, name


def _validate_plane(name: str, plane: Plane, shape: PlaneShape, format: StreamFormat) -> None:
    row_bytes, rows = shape.row_bytes(format.width), shape.rows(format.height)
    if not row_bytes <= plane.stride <= MAX_BUFFER_BYTES:
        expected = f"{row_bytes}..{MAX_BUFFER_BYTES} bytes"
        raise FormatError(FormatCode.STRIDE, f"{name}.stride", expected, str(plane.stride))
    if plane.rows != rows:
        raise FormatError(FormatCode.ROWS, f"{name}.rows", str(rows), str(plane.rows))
    least = plane.stride * (rows - 1) + row_bytes
    if plane.size_bytes < least:
        raise FormatError(FormatCode.PLANE_SIZE, f"{name}.sizeBytes", f"at least {least}", str(plane.size_bytes))
    if plane.offset + plane.size_bytes > format.buffer_bytes:
        expected = f"offset + sizeBytes within the buffer's {format.buffer_bytes} bytes"
        found = f"{plane.offset} + {plane.size_bytes}"
        raise FormatError(FormatCode.OUT_OF_BUFFER, name, expected, found)


def prove_bounds(format: StreamFormat, descriptor_bytes: int, seals: int | None) -> None:
    """Prove that every byte of the format lies in the memory, now and for as long as it is held.

    `descriptor_bytes` is the descriptor's own size (fstat), `seals` its F_GET_SEALS mask, or None for memory whose
    size the kernel fixes (a dma-buf). Raises FormatError.
    """
    validate_contract(format)
    if seals is not None and not seals & fcntl.F_SEAL_SHRINK:
        raise FormatError(FormatCode.NOT_SEALED, "seals", "F_SEAL_SHRINK", f"{seals:#x}")
    for index, plane in enumerate(format.planes):
        end = plane.offset + plane.size_bytes
        if end > descriptor_bytes:
            expected, found = f"at least {end} bytes for planes[{index}]", f"{descriptor_bytes} bytes"
            raise FormatError(FormatCode.DESCRIPTOR_SIZE, "descriptor", expected, found)
    if format.buffer_bytes > descriptor_bytes:
        expected, found = f"at least bufferBytes ({format.buffer_bytes})", f"{descriptor_bytes} bytes"
        raise FormatError(FormatCode.DESCRIPTOR_SIZE, "descriptor", expected, found)


def mismatches(contract: StreamFormat, offered: StreamFormat) -> tuple[Mismatch, ...]:
    """Every field in which `offered` differs from what a model was compiled for; empty when it fits.

    The camera's own fields (clock, mark, periodNs, cameraName) are not compared.
    """
    pairs = [(name, getattr(contract, attr), getattr(offered, attr)) for name, attr in _COMPARED]
    pairs += [("planes", f"{len(contract.planes)} planes", f"{len(offered.planes)} planes")]
    for index, (want, have) in enumerate(zip(contract.planes, offered.planes, strict=False)):
        for name, attr in (("offset", "offset"), ("stride", "stride"), ("rows", "rows"), ("sizeBytes", "size_bytes")):
            pairs.append((f"planes[{index}].{name}", getattr(want, attr), getattr(have, attr)))
    return tuple(Mismatch(name, _show(name, a), _show(name, b)) for name, a, b in pairs if a != b)


_COMPARED = (
    ("fourcc", "fourcc"), ("modifier", "modifier"), ("width", "width"), ("height", "height"), ("crop", "crop"),
    ("bufferBytes", "buffer_bytes"), ("range", "range"), ("matrix", "matrix"), ("primaries", "primaries"),
    ("transfer", "transfer"), ("chromaSite", "chroma_site"), ("cfa", "cfa"),
)  # fmt: skip


def _show(field: str, value: Any) -> str:
    if field == "fourcc":
        return fourcc_text(value)
    if isinstance(value, Rect):
        return f"{value.width}x{value.height} at ({value.x}, {value.y})"
    return value.name if isinstance(value, IntEnum) else str(value)


def make_format(
    name: str,
    width: int,
    height: int,
    *,
    range: Range,
    matrix: Matrix,
    primaries: Primaries,
    transfer: Transfer,
    chroma_site: ChromaSite,
    cfa: CfaOrder = CfaOrder.NONE,
    crop: Rect | None = None,
    stride: int | Sequence[int] | None = None,
    rows: int | None = None,
    clock: ClockId = ClockId.UNSPECIFIED,
    mark: TimeMark = TimeMark.UNSPECIFIED,
    period_ns: int = 0,
    camera_name: str = "",
) -> StreamFormat:
    """Lay out a format of the table, planes one after another, and validate it.

    `stride`: bytes between luma rows (other planes follow in proportion, and are never shorter than their row), or
    one number for each plane; without it rows are tight. `rows`: luma rows allocated, at least `height`. The crop
    defaults to the whole picture. Without the camera's own fields (clock, mark, period_ns, camera_name) the
    result is a contract's format. Raises FormatError.
    """
    pixel = PIXEL_FORMATS.get(name)
    if pixel is None:
        expected = f"one of {', '.join(PIXEL_FORMATS)}"
        raise FormatError(FormatCode.UNKNOWN_FOURCC, "fourcc", expected, ascii(name))
    _dimension("width", width)
    _dimension("height", height)
    planes = _lay_out(pixel, width, height, stride, height if rows is None else rows)
    format = StreamFormat(
        pixel.fourcc, MOD_LINEAR, width, height, Rect(0, 0, width, height) if crop is None else crop, planes,
        planes[-1].offset + planes[-1].size_bytes, range, matrix, primaries, transfer, chroma_site,
        pixel.cfa if cfa is CfaOrder.NONE else cfa, clock, mark, period_ns, camera_name,
    )  # fmt: skip
    own_fields_left_out = (clock, mark, period_ns, camera_name) == (0, 0, 0, "")
    (validate_contract if own_fields_left_out else validate)(format)
    return format


def _lay_out(
    pixel: PixelFormat, width: int, height: int, stride: int | Sequence[int] | None, allocated_rows: int
) -> tuple[Plane, ...]:
    tight = [shape.row_bytes(width) for shape in pixel.planes]
    if stride is None:
        strides: Sequence[int] = tight
    elif isinstance(stride, int):
        first = pixel.planes[0]
        shares = [-(-stride * s.block_bytes // (s.step_x * first.block_bytes)) for s in pixel.planes]
        strides = [stride] + [max(share, row) for share, row in zip(shares[1:], tight[1:], strict=True)]
    else:
        strides = stride
    if len(strides) != len(pixel.planes):
        raise FormatError(FormatCode.STRIDE, "planes", f"{len(pixel.planes)} strides", f"{len(strides)} strides")
    if allocated_rows < height:
        raise FormatError(FormatCode.ROWS, "rows", f"at least {height} allocated rows", str(allocated_rows))
    planes, offset = [], 0
    for shape, row_stride in zip(pixel.planes, strides, strict=True):
        size = row_stride * shape.rows(allocated_rows)
        planes.append(Plane(offset, row_stride, shape.rows(height), size))
        offset += size
    return tuple(planes)
