"""The file layout: implied offsets, exact size, zero padding."""

from __future__ import annotations

import struct

import pytest

from signing import container
from signing.container import ENVELOPE_LIMIT_BYTES, MAGIC, Layout, Span, layout
from signing.refusal import RefusalCode
from tests.simulators import refusal

CODE = RefusalCode.BAD_CONTAINER


def test_offsets_follow_from_sizes() -> None:
    assert layout(100, [1, 0, 4096, 4097]) == Layout(
        Span(16, 100), (Span(4096, 1), Span(8192, 0), Span(8192, 4096), Span(12288, 4097))
    )
    assert layout(100, [1, 0, 4096, 4097]).file_bytes == 12288 + 8192
    assert layout(4080, []).file_bytes == 4096
    assert layout(4081, []).file_bytes == 8192


def test_header_comes_back() -> None:
    assert container.header(300) == b"FENCED\0\1" + struct.pack("<Q", 300)
    assert container.read_header(container.header(300) + b"rest") == Span(16, 300)
    assert container.read_header(container.header(ENVELOPE_LIMIT_BYTES)).size_bytes == 256 * 1024
    assert container.read_header(container.header(1)).size_bytes == 1


@pytest.mark.parametrize("size_bytes", [0, ENVELOPE_LIMIT_BYTES + 1, 2**64 - 1])
def test_envelope_length_is_bounded(size_bytes: int) -> None:  # case 19
    with refusal(CODE, "envelope length", "from 1 to 262144 bytes", f"{size_bytes} bytes"):
        container.read_header(struct.pack("<8sQ", MAGIC, size_bytes))
    with refusal(CODE, "envelope length", "from 1 to 262144 bytes", f"{size_bytes} bytes"):
        container.header(size_bytes)


def test_short_and_foreign_files_are_refused() -> None:
    with refusal(CODE, "bundle size", "at least 16 bytes", "15 bytes"):
        container.read_header(container.header(1)[:15])
    with refusal(CODE, "bundle magic", "b'FENCED\\x00\\x01'", "b'FENCED\\x00\\x02'"):
        container.read_header(b"FENCED\0\2" + bytes(8))


def test_sizes_do_not_wrap() -> None:  # case 19
    huge = layout(1, [2**63 - 1, 2**63 - 1])
    assert huge.file_bytes == 4096 + 2**64
    with refusal(CODE, "bundle size", f"{4096 + 2**64} bytes by its blobs", "4096 bytes"):
        container.require_file_size(huge, 4096)


@pytest.mark.parametrize("off_by", [-1, 1, 4096])
def test_file_of_another_size_is_refused(off_by: int) -> None:  # case 19
    where = layout(10, [5])
    container.require_file_size(where, 8192)
    with refusal(CODE, "bundle size", "8192 bytes by its blobs", f"{8192 + off_by} bytes"):
        container.require_file_size(where, 8192 + off_by)


@pytest.mark.parametrize("offset", [26, 4095, 4096 + 5, 8191, 8192 + 4095])
def test_padding_must_be_zero(offset: int) -> None:  # case 19
    where = layout(10, [5, 4095])
    data = bytearray(where.file_bytes)
    for span in (where.envelope, *where.blobs):
        data[span.offset_bytes : span.end_bytes] = b"x" * span.size_bytes
    container.require_zero_padding(where, memoryview(data))
    data[offset] = 7
    with refusal(CODE, f"padding at offset {offset}", "zero", "0x07"):
        container.require_zero_padding(where, memoryview(data))


@pytest.mark.parametrize(("size_bytes", "padding_bytes"), [(0, 0), (1, 4095), (4095, 1), (4096, 0), (4097, 4095)])
def test_padding_fills_the_page(size_bytes: int, padding_bytes: int) -> None:
    assert container.padding(Span(8192, size_bytes)) == bytes(padding_bytes)
