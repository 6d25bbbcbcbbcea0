"""Formats, and what is wrong with them, for the tests of `abi.format`."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest

from abi import format as fmt
from abi import pixels
from abi.format import FormatCode, FormatError, StreamFormat, make_format

__all__ = ["MODELS", "OWN", "RAW", "RGB", "YUV", "changed", "nv12", "nv12_with", "plane_changed", "refusal", "refused"]

YUV: dict[str, Any] = {
    "range": fmt.Range.LIMITED,
    "matrix": fmt.Matrix.BT709,
    "primaries": fmt.Primaries.BT709,
    "transfer": fmt.Transfer.BT709,
    "chroma_site": fmt.ChromaSite.LEFT,
}
RGB: dict[str, Any] = {
    **YUV,
    "range": fmt.Range.FULL,
    "matrix": fmt.Matrix.IDENTITY,
    "transfer": fmt.Transfer.SRGB,
    "chroma_site": fmt.ChromaSite.NOT_SUBSAMPLED,
}
RAW: dict[str, Any] = {**RGB, "primaries": fmt.Primaries.SENSOR_NATIVE, "transfer": fmt.Transfer.LINEAR}
OWN: dict[str, Any] = {
    "clock": fmt.ClockId.MONOTONIC,
    "mark": fmt.TimeMark.READOUT_START,
    "period_ns": 50_000_000,
    "camera_name": "front",
}
MODELS = {
    pixels.ColourModel.YUV: YUV,
    pixels.ColourModel.RGB: RGB,
    pixels.ColourModel.MONO: RAW,
    pixels.ColourModel.BAYER: RAW,
}


def nv12(width: int = 64, height: int = 48, **changes: Any) -> StreamFormat:
    """A contract of a small NV12 camera."""
    return make_format("NV12", width, height, **{**YUV, **OWN, **changes})


def changed(format: StreamFormat, **changes: Any) -> StreamFormat:
    """The format with other fields."""
    return dataclasses.replace(format, **changes)


def plane_changed(format: StreamFormat, index: int, **changes: Any) -> StreamFormat:
    """The format with other fields of one plane."""
    planes = list(format.planes)
    planes[index] = dataclasses.replace(planes[index], **changes)
    return changed(format, planes=tuple(planes))


def refusal(call: Callable[[], object]) -> tuple[FormatCode, str, str, str]:
    """How the call is refused: code, field, expected, found."""
    with pytest.raises(FormatError) as caught:
        call()
    error = caught.value
    assert str(error) == f"{error.field}: expected {error.expected}, found {error.found}; {error.code.value}"
    assert error.action == error.code.value
    return error.code, error.field, error.expected, error.found


def refused(format: StreamFormat) -> tuple[FormatCode, str, str, str]:
    """How validating the format is refused."""
    return refusal(lambda: fmt.validate(format))


def nv12_with(**changes: Any) -> StreamFormat:
    """An NV12 format with other fields, not validated."""
    return changed(nv12(), **changes)
