"""The bundle file's layout, as arithmetic: magic, envelope length, envelope, padding, blobs, padding.

    0    8   magic "FENCED\\0\\1"
    8    8   u64 LE envelope length, at most 256 KiB
    16   n   DSSE envelope, zero padding to 4096
         …   the blobs in the order of the statement's subjects, each zero-padded to 4096; then the end of the file

Offsets are implied, so no hole, overlap or extra entry can be written down. Nothing here reads a file: the store feeds
it bytes, the lab's packer asks it where they go.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from signing.refusal import RefusalCode, Refused, shown

MAGIC: Final = b"FENCED\0\1"
HEADER_BYTES: Final = 16
PAGE_BYTES: Final = 4096
ENVELOPE_LIMIT_BYTES: Final = 256 * 1024
_HEADER: Final = struct.Struct("<8sQ")
_ZEROS: Final = bytes(PAGE_BYTES)


@dataclass(frozen=True)
class Span:
    """A run of bytes in the file: `offset_bytes` from its start, `size_bytes` long."""

    offset_bytes: int
    size_bytes: int

    @property
    def end_bytes(self) -> int:
        """The offset just after the last byte."""
        return self.offset_bytes + self.size_bytes

    @property
    def padded_end_bytes(self) -> int:
        """The offset just after the zero padding that follows, a multiple of the page."""
        return -(-self.end_bytes // PAGE_BYTES) * PAGE_BYTES


@dataclass(frozen=True)
class Layout:
    """Where everything in a bundle lies: the envelope, then each blob in order."""

    envelope: Span
    blobs: tuple[Span, ...]

    @property
    def file_bytes(self) -> int:
        """The size that the file must have, to the byte."""
        return (self.blobs or (self.envelope,))[-1].padded_end_bytes


def header(envelope_bytes: int) -> bytes:
    """Return the 16-byte header for an envelope of that size; refuse one beyond the limit."""
    _require_envelope_size(envelope_bytes)
    return _HEADER.pack(MAGIC, envelope_bytes)


def read_header(head: bytes) -> Span:
    """Return the envelope's span from a file's first bytes, or raise Refused(BAD_CONTAINER)."""
    if len(head) < HEADER_BYTES:
        raise Refused(RefusalCode.BAD_CONTAINER, "bundle size", f"at least {HEADER_BYTES} bytes", f"{len(head)} bytes")
    magic, envelope_bytes = _HEADER.unpack_from(head)
    if magic != MAGIC:
        raise Refused(RefusalCode.BAD_CONTAINER, "bundle magic", shown(MAGIC), shown(magic))
    _require_envelope_size(envelope_bytes)
    return Span(HEADER_BYTES, envelope_bytes)


def layout(envelope_bytes: int, blob_bytes: Sequence[int]) -> Layout:
    """Return where an envelope and blobs of these sizes go. Sizes are not negative; sums do not wrap."""
    envelope = Span(HEADER_BYTES, envelope_bytes)
    blobs: list[Span] = []
    end_bytes = envelope.padded_end_bytes
    for size_bytes in blob_bytes:
        blobs.append(Span(end_bytes, size_bytes))
        end_bytes = blobs[-1].padded_end_bytes
    return Layout(envelope, tuple(blobs))


def require_file_size(where: Layout, file_bytes: int) -> None:
    """Refuse a file that is not exactly as long as its signed sizes make it."""
    if file_bytes != where.file_bytes:
        raise Refused(
            RefusalCode.BAD_CONTAINER, "bundle size", f"{where.file_bytes} bytes by its blobs", f"{file_bytes} bytes"
        )


def require_zero_padding(where: Layout, data: memoryview) -> None:
    """Refuse any padding byte that is not zero. `data` is the whole file."""
    for span in (where.envelope, *where.blobs):
        found = bytes(data[span.end_bytes : span.padded_end_bytes])
        if found != padding(span):
            first = next(i for i, byte in enumerate(found) if byte)
            raise Refused(
                RefusalCode.BAD_CONTAINER,
                f"padding at offset {span.end_bytes + first}",
                "zero",
                f"{found[first]:#04x}",
            )


def padding(span: Span) -> bytes:
    """Return the zeros that follow `span` in the file."""
    return _ZEROS[: span.padded_end_bytes - span.end_bytes]


def _require_envelope_size(envelope_bytes: int) -> None:
    if not 0 < envelope_bytes <= ENVELOPE_LIMIT_BYTES:
        raise Refused(
            RefusalCode.BAD_CONTAINER,
            "envelope length",
            f"from 1 to {ENVELOPE_LIMIT_BYTES} bytes",
            f"{envelope_bytes} bytes",
        )
