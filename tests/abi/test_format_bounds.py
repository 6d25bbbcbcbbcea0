"""The bounds proof: a format against the memory that a camera passes for it."""

from __future__ import annotations

import fcntl
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from abi import format as fmt
from abi.format import FormatCode, FormatError, Plane, Rect, make_format
from tests.support.formats import MODELS, OWN, YUV, changed, nv12, nv12_with, plane_changed, refusal

SEALED = fcntl.F_SEAL_SHRINK


def test_bounds_hold_when_the_descriptor_is_large_enough_and_sealed() -> None:
    fmt.prove_bounds(nv12(), 4608, SEALED)
    fmt.prove_bounds(nv12(), 4609, SEALED | fcntl.F_SEAL_GROW)
    fmt.prove_bounds(nv12(), 4608, None)  # a dma-buf: the kernel fixes its size
    fmt.prove_bounds(make_format("NV12", 64, 48, **YUV), 4608, SEALED)  # a contract's format will do


def test_a_descriptor_too_small_names_the_plane_and_both_sizes() -> None:
    assert refusal(lambda: fmt.prove_bounds(nv12(), 4607, SEALED)) == (
        FormatCode.DESCRIPTOR_SIZE,
        "descriptor",
        "at least 4608 bytes for planes[1]",
        "4607 bytes",
    )
    assert refusal(lambda: fmt.prove_bounds(nv12(), 3071, SEALED))[2] == "at least 3072 bytes for planes[0]"
    assert refusal(lambda: fmt.prove_bounds(nv12(), 0, None))[0] is FormatCode.DESCRIPTOR_SIZE


def test_a_descriptor_smaller_than_the_declared_buffer_is_refused() -> None:
    roomy = nv12_with(buffer_bytes=8192)
    fmt.prove_bounds(roomy, 8192, SEALED)
    assert refusal(lambda: fmt.prove_bounds(roomy, 8191, SEALED)) == (
        FormatCode.DESCRIPTOR_SIZE,
        "descriptor",
        "at least bufferBytes (8192)",
        "8191 bytes",
    )


@pytest.mark.parametrize("seals", [0, fcntl.F_SEAL_GROW, fcntl.F_SEAL_SEAL | fcntl.F_SEAL_WRITE])
def test_memory_that_could_shrink_is_refused(seals: int) -> None:  # case 32
    assert refusal(lambda: fmt.prove_bounds(nv12(), 4608, seals)) == (
        FormatCode.NOT_SEALED,
        "seals",
        "F_SEAL_SHRINK",
        f"{seals:#x}",
    )


def test_the_proof_holds_for_a_real_memfd() -> None:
    descriptor = os.memfd_create("frame", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.ftruncate(descriptor, 4608)
        seals = fcntl.fcntl(descriptor, fcntl.F_GET_SEALS)
        size = os.fstat(descriptor).st_size
        assert refusal(lambda: fmt.prove_bounds(nv12(), size, seals))[0] is FormatCode.NOT_SEALED
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)
        fmt.prove_bounds(nv12(), size, fcntl.fcntl(descriptor, fcntl.F_GET_SEALS))
    finally:
        os.close(descriptor)


def test_the_proof_does_not_believe_an_unvalidated_format() -> None:
    assert (
        refusal(lambda: fmt.prove_bounds(plane_changed(nv12(), 0, stride=-64), 1 << 20, SEALED))[0] is FormatCode.STRIDE
    )


@given(st.data())
def test_a_validated_format_never_reaches_past_its_buffer(data: st.DataObject) -> None:
    """Every byte that a reader of rows touches lies in the buffer, whatever was declared."""
    small = st.integers(0, 40)
    wild = st.one_of(small, st.sampled_from([-1, 2**31, 2**32 - 1, 2**40, 2**63 - 1, 2**64 - 1]))
    name = data.draw(st.sampled_from(["NV12", "YU12", "YUYV", "SRGGB10P"]))
    base = make_format(name, 9, 5, **MODELS[fmt.PIXEL_FORMATS[name].model], **OWN)
    format = changed(
        base,
        width=data.draw(wild),
        height=data.draw(wild),
        crop=Rect(data.draw(small), data.draw(small), data.draw(small), data.draw(small)),
        buffer_bytes=data.draw(wild),
        planes=tuple(Plane(data.draw(wild), data.draw(wild), data.draw(wild), data.draw(wild)) for _ in base.planes),
    )
    try:
        fmt.validate(format)
    except FormatError:
        return
    for plane, shape in zip(format.planes, format.pixel.planes, strict=True):
        last = plane.offset + plane.stride * (plane.rows - 1) + shape.row_bytes(format.width)
        assert plane.offset >= 0
        assert last <= plane.offset + plane.size_bytes <= format.buffer_bytes
