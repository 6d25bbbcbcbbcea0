"""A bundle in sealed memory, before and after it was verified.

`SealedBundle` is what the store read: nothing in it is believed. `VerifiedBundle` is what `signing.trust` returns: the
only type from which the vehicle takes a blob. Both stand on one sealed memfd, so the bytes that were verified are the
bytes that are used; views stay valid after `close` for as long as they live.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

from signing.container import Layout, Span
from signing.refusal import RefusalCode, Refused, shown
from signing.statement import Statement


class SealedBundle:
    """A bundle file's bytes in sealed memory, hashed blob by blob as they were read. Owns the memfd."""

    def __init__(self, memfd: int, data: memoryview, layout: Layout, blob_sha256: tuple[str, ...]) -> None:
        """Take over `memfd`, whose whole read-only mapping is `data`; digests are in the layout's order."""
        self._memfd = memfd
        self._data: memoryview | None = data
        self.size_bytes = len(data)
        self.layout = layout
        self.blob_sha256 = blob_sha256
        self.envelope = bytes(self.view(layout.envelope))

    @property
    def memfd(self) -> int:
        """The sealed descriptor; RuntimeError once closed."""
        if self._memfd < 0:
            raise RuntimeError("this bundle was closed: read the file again")
        return self._memfd

    def view(self, span: Span) -> memoryview:
        """Return a read-only view of `span` of the file; RuntimeError once closed."""
        if self._data is None:
            raise RuntimeError("this bundle was closed: read the file again")
        return self._data[span.offset_bytes : span.end_bytes]

    def close(self) -> None:
        """Close the memfd and let the mapping go when its last view does. May be called again."""
        memfd, self._memfd, self._data = self._memfd, -1, None
        if memfd >= 0:
            os.close(memfd)

    def __del__(self) -> None:
        """Close what a refusal left open."""
        if getattr(self, "_memfd", -1) >= 0:
            self.close()


@dataclass(frozen=True)
class VerifiedBundle:
    """A bundle whose signatures, digests and conditions held, under the root of `trust_epoch`.

    `digest` is the model's digest: lowercase hex SHA-256 of the signed payload, whatever signatures stand beside it.
    """

    statement: Statement
    digest: str
    trust_epoch: int
    sealed: SealedBundle

    @property
    def memfd(self) -> int:
        """The sealed descriptor that holds the whole file; owned by the bundle."""
        return self.sealed.memfd

    def blob_span(self, name: str) -> tuple[int, int]:
        """Return (offset, size) in bytes of the blob in `memfd`; Refused(UNKNOWN_BLOB) if there is none."""
        span = self._span(name)
        return span.offset_bytes, span.size_bytes

    def blob(self, name: str) -> memoryview:
        """Return a read-only view of the blob's bytes; Refused(UNKNOWN_BLOB) if there is none."""
        return self.sealed.view(self._span(name))

    def has(self, name: str) -> bool:
        """Say whether the bundle carries a blob of that name."""
        return any(blob.name == name for blob in self.statement.blobs)

    def close(self) -> None:
        """Close the memfd; views already taken stay valid."""
        self.sealed.close()

    def _span(self, name: str) -> Span:
        for blob, span in zip(self.statement.blobs, self.sealed.layout.blobs, strict=True):
            if blob.name == name:
                return span
        carried = ", ".join(blob.name for blob in self.statement.blobs)
        raise Refused(RefusalCode.UNKNOWN_BLOB, "bundle", f"a blob {shown(name)}", f"only {carried}")
