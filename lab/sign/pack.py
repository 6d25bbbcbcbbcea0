"""Writing bundle files: unsigned ones from a statement and blobs, and the same blobs under a changed envelope.

Equal statements and blobs give byte-identical files. A file appears under its name only when it is whole, with mode
0644, as the vehicle's store demands.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import IO, Final

from signing import container, envelope, statement
from signing.bundle import SealedBundle
from signing.envelope import BUNDLE_PAYLOAD_TYPE, Envelope
from signing.refusal import RefusalCode, Refused
from signing.statement import Blob, Statement
from signing.store import read_bundle
from signing.trust import require_contents

BUNDLE_MODE: Final = 0o644
SIZE_LIMIT_BYTES: Final = 64 * 1024**3

BlobData = bytes | bytearray | memoryview


def describe_blob(name: str, data: BlobData) -> Blob:
    """Return the statement's entry for a blob: its name, size in bytes and SHA-256."""
    view = memoryview(data).cast("B")
    return Blob(name, view.nbytes, hashlib.sha256(view).hexdigest())


def write_bundle(path: str | os.PathLike[str], stated: Statement, blobs: Mapping[str, BlobData]) -> None:
    """Write an unsigned bundle: `stated` and, in its order, the blobs, which must be those that it describes.

    Raises Refused: UNKNOWN_BLOB, DIGEST_MISMATCH, and what `signing.statement.decode` raises of a bad statement.
    """
    payload = statement.encode(stated)
    if set(blobs) != {blob.name for blob in stated.blobs}:
        expected = ", ".join(blob.name for blob in stated.blobs)
        raise Refused(RefusalCode.UNKNOWN_BLOB, "blobs to pack", expected, ", ".join(sorted(blobs)))
    for blob in stated.blobs:
        found = describe_blob(blob.name, blobs[blob.name])
        if found != blob:
            raise Refused(RefusalCode.DIGEST_MISMATCH, f"blob {blob.name}", str(blob), str(found))
    raw = Envelope(BUNDLE_PAYLOAD_TYPE, payload, ()).encode()
    where = container.layout(len(raw), [blob.size_bytes for blob in stated.blobs])

    def write(file: IO[bytes]) -> None:
        _write_front(file, raw, where.envelope)
        for blob, span in zip(stated.blobs, where.blobs, strict=True):
            file.write(blobs[blob.name])
            file.write(container.padding(span))

    write_whole(path, write)


def replace_envelope(path: str | os.PathLike[str], sealed: SealedBundle, signed: Envelope) -> None:
    """Write to `path` the blobs of `sealed`, byte for byte, behind `signed`, whose payload the caller left as it was.

    Raises Refused(BAD_CONTAINER) if the new envelope is too long.
    """
    raw = signed.encode()
    where = container.layout(len(raw), [span.size_bytes for span in sealed.layout.blobs])

    def write(file: IO[bytes]) -> None:
        _write_front(file, raw, where.envelope)
        for span in sealed.layout.blobs:
            file.write(sealed.view(span))
            file.write(container.padding(span))

    write_whole(path, write)


@contextlib.contextmanager
def open_checked(path: str | os.PathLike[str]) -> Iterator[tuple[SealedBundle, Envelope, Statement]]:
    """Read the bundle at `path`, signed or not, and check every digest against its own statement.

    Gives the sealed bytes, the envelope and the statement; no signature is looked at. Closed on leaving.
    """
    with contextlib.closing(read_bundle(path, limit_bytes=SIZE_LIMIT_BYTES)) as sealed:
        parsed = envelope.parse(sealed.envelope, payload_type=BUNDLE_PAYLOAD_TYPE)
        stated = statement.decode(parsed.payload)
        require_contents(sealed, stated)
        yield sealed, parsed, stated


def write_whole(path: str | os.PathLike[str], write: Callable[[IO[bytes]], object], mode: int = BUNDLE_MODE) -> None:
    """Let `write` fill a temporary file beside `path`, then move it there; on an error nothing is left."""
    target = Path(path)
    fd, temporary = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
    try:
        with open(fd, "wb") as file:
            write(file)
            os.fchmod(file.fileno(), mode)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, target)
    except BaseException:
        os.unlink(temporary)
        raise


def _write_front(file: IO[bytes], raw: bytes, span: container.Span) -> None:
    file.write(container.header(len(raw)))
    file.write(raw)
    file.write(container.padding(span))
