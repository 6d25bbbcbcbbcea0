"""StreamFormat as frozen values, to and from Cap'n Proto, and the refusal that names a bad one.

These carry what a peer declared, not yet believed; `abi.format` validates. A field is named in errors as the
schema names it, since the peer may not be Python.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, IntEnum
from typing import Any, TypeVar

from abi.colour import CfaOrder, ChromaSite, ClockId, Matrix, Primaries, Range, TimeMark, Transfer
from abi.pixels import PixelFormat, pixel_format

__all__ = ["FormatCode", "FormatError", "Plane", "Rect", "StreamFormat", "fourcc_text", "modifier_text"]

MAX_PLANES = 4

E = TypeVar("E", bound=IntEnum)


class FormatCode(Enum):
    """Why a format was refused; the value says what to do about it."""

    UNSPECIFIED = "state the field; nothing is guessed"
    UNKNOWN_VALUE = "use a value that this ABI version names"
    UNKNOWN_FOURCC = "use a pixel format of the ABI's table (abi/pixels.py)"
    MODIFIER = "let the camera write linear buffers (DRM_FORMAT_MOD_LINEAR)"
    SIZE_LIMIT = "stay within the ABI's size limits"
    EMPTY = "give the field a size above zero"
    CONTRADICTION = "choose a value that fits the pixel format"
    CROP = "place the crop inside the picture"
    PLANE_COUNT = "declare one plane for each plane of the pixel format"
    STRIDE = "declare the true distance between rows: positive, and no shorter than a row"
    ROWS = "declare the picture's own rows; padding rows belong to sizeBytes"
    PLANE_SIZE = "declare every byte from the plane's first row to its last"
    OVERLAP = "place the planes apart, in the format's order"
    OUT_OF_BUFFER = "make the buffer hold all planes"
    DESCRIPTOR_SIZE = "allocate the memory before registering it, at least bufferBytes long"
    NOT_SEALED = "add F_SEAL_SHRINK to the memfd before registering it"
    TEXT = "use short printable UTF-8"


class FormatError(ValueError):
    """A format, or the memory behind it, was refused. Carries code, field (schema name), expected and found."""

    def __init__(self, code: FormatCode, field: str, expected: str, found: str) -> None:
        super().__init__(f"{field}: expected {expected}, found {found}; {code.value}")
        self.code, self.field, self.expected, self.found = code, field, expected, found

    @property
    def action(self) -> str:
        """What to do about it."""
        return self.code.value


@dataclass(frozen=True, slots=True)
class Plane:
    """One plane in the buffer: `offset` and `size_bytes` in bytes, `stride` in bytes a row, `rows` of valid pixels."""

    offset: int
    stride: int
    rows: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Rect:
    """A part of the picture in luma pixels, origin at the top left."""

    x: int
    y: int
    width: int
    height: int


@dataclass(frozen=True, slots=True)
class StreamFormat:
    """`frame.capnp` StreamFormat. Meaning and units stand in the schema. Not yet believed: see `validate`."""

    fourcc: int
    modifier: int
    width: int
    height: int
    crop: Rect
    planes: tuple[Plane, ...]
    buffer_bytes: int
    range: Range
    matrix: Matrix
    primaries: Primaries
    transfer: Transfer
    chroma_site: ChromaSite
    cfa: CfaOrder
    clock: ClockId
    mark: TimeMark
    period_ns: int
    camera_name: str

    @property
    def pixel(self) -> PixelFormat:
        """The row of the pixel-format table. Raises FormatError UNKNOWN_FOURCC."""
        pixel = pixel_format(self.fourcc)
        if pixel is None:
            raise FormatError(FormatCode.UNKNOWN_FOURCC, "fourcc", "a known pixel format", fourcc_text(self.fourcc))
        return pixel

    @classmethod
    def from_message(cls, reader: Any) -> StreamFormat:
        """Read a pycapnp StreamFormat. Raises FormatError for values no enum has, too many planes or bad text.

        What pycapnp itself raises for a malformed message passes through.
        """
        count = len(reader.planes)
        if count > MAX_PLANES:
            raise FormatError(FormatCode.PLANE_COUNT, "planes", f"at most {MAX_PLANES} planes", f"{count} planes")
        crop = reader.crop
        return cls(
            fourcc=reader.fourcc,
            modifier=reader.modifier,
            width=reader.width,
            height=reader.height,
            crop=Rect(crop.x, crop.y, crop.width, crop.height),
            planes=tuple(Plane(plane.offset, plane.stride, plane.rows, plane.sizeBytes) for plane in reader.planes),
            buffer_bytes=reader.bufferBytes,
            range=_enumerant(Range, "range", reader.range.raw),
            matrix=_enumerant(Matrix, "matrix", reader.matrix.raw),
            primaries=_enumerant(Primaries, "primaries", reader.primaries.raw),
            transfer=_enumerant(Transfer, "transfer", reader.transfer.raw),
            chroma_site=_enumerant(ChromaSite, "chromaSite", reader.chromaSite.raw),
            cfa=_enumerant(CfaOrder, "cfa", reader.cfa.raw),
            clock=_enumerant(ClockId, "clock", reader.clock.raw),
            mark=_enumerant(TimeMark, "mark", reader.mark.raw),
            period_ns=reader.periodNs,
            camera_name=_text(reader),
        )

    def to_message(self, builder: Any) -> None:
        """Write every field into a pycapnp StreamFormat builder. Values the schema cannot hold raise from pycapnp."""
        builder.fourcc, builder.modifier = self.fourcc, self.modifier
        builder.width, builder.height = self.width, self.height
        crop = builder.init("crop")
        crop.x, crop.y, crop.width, crop.height = self.crop.x, self.crop.y, self.crop.width, self.crop.height
        planes = builder.init("planes", len(self.planes))
        for message, plane in zip(planes, self.planes, strict=True):
            message.offset, message.stride = plane.offset, plane.stride
            message.rows, message.sizeBytes = plane.rows, plane.size_bytes
        builder.bufferBytes = self.buffer_bytes
        builder.range, builder.matrix = int(self.range), int(self.matrix)
        builder.primaries, builder.transfer = int(self.primaries), int(self.transfer)
        builder.chromaSite, builder.cfa = int(self.chroma_site), int(self.cfa)
        builder.clock, builder.mark = int(self.clock), int(self.mark)
        builder.periodNs, builder.cameraName = self.period_ns, self.camera_name


def fourcc_text(code: int) -> str:
    """Four characters where they are printable, otherwise hexadecimal."""
    raw = code.to_bytes(4, "little")
    return raw.decode("ascii") if raw.isascii() and raw.decode("ascii").isprintable() else f"{code:#010x}"


_MODIFIER_INVALID = (1 << 56) - 1  # DRM_FORMAT_MOD_INVALID
_MODIFIER_VENDORS = ("NONE", "INTEL", "AMD", "NVIDIA", "SAMSUNG", "QCOM", "VIVANTE", "BROADCOM", "ARM", "ALLWINNER",
                     "AMLOGIC")  # fmt: skip


def modifier_text(modifier: int) -> str:
    """A DRM format modifier by its vendor (the top byte) and the vendor's own number, as drm_fourcc.h composes it."""
    if modifier == _MODIFIER_INVALID:
        return f"DRM_FORMAT_MOD_INVALID ({modifier:#018x}), a layout that nobody stated"
    vendor = modifier >> 56
    name = _MODIFIER_VENDORS[vendor] if vendor < len(_MODIFIER_VENDORS) else f"vendor {vendor:#x}"
    return f"{name} layout {modifier & _MODIFIER_INVALID:#x} ({modifier:#018x})"


def _enumerant(kind: type[E], field: str, raw: int) -> E:
    try:
        return kind(raw)
    except ValueError:
        expected = f"one of {', '.join(member.name for member in kind)}"
        raise FormatError(FormatCode.UNKNOWN_VALUE, field, expected, str(raw)) from None


def _text(reader: Any) -> str:
    try:
        return str(reader.cameraName)
    except UnicodeDecodeError:
        raise FormatError(FormatCode.TEXT, "cameraName", "UTF-8", "other bytes") from None
