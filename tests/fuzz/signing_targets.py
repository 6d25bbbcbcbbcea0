"""The fuzz targets of `signing`: any bytes as a bundle file, an envelope, a statement, a root or a stored state.

The invariant: any bytes are read or refused by name; what is read is written again as it was meant, and no bytes but
those of the signed bundle verify as a bundle, whatever stands in their place.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from lab.sign.root import encode_root
from signing import container, envelope, statement
from signing.container import PAGE_BYTES
from signing.envelope import BUNDLE_PAYLOAD_TYPE, ROOT_PAYLOAD_TYPE
from signing.refusal import Refused
from signing.root import decode_root
from signing.state import VehicleState, decode_state, encode_state
from signing.trust import TrustStore
from tests.simulators import BundleSimulator, make_root, sign_root


@functools.cache
def _simulator() -> BundleSimulator:
    """One lab, whose bundle is small enough for a fuzzer's inputs."""
    folder = tempfile.TemporaryDirectory(prefix="fenced-fuzz-")
    simulator = BundleSimulator(Path(folder.name))
    vars(simulator)["folder"] = folder  # lives as long as the simulator
    simulator.blobs = {"graph": b"graph", "code": b"\x7fELF", "sbom.json": b"{}"}
    return simulator


@functools.cache
def _trusted() -> TrustStore:
    return _simulator().fresh_trust()


@functools.cache
def _good() -> tuple[bytes, str]:
    """The signed bundle's bytes and its digest."""
    simulator = _simulator()
    return simulator.file_bytes(), simulator.verify().digest


def unpacked(data: bytes) -> bytes:
    """A file whose pages are written without their zeros: [whole last page or not], then [length (2), bytes] a page."""
    pages, at = [b""], 1
    while at + 2 <= len(data):
        size = int.from_bytes(data[at : at + 2], "little") % (PAGE_BYTES + 1)
        pages[-1] = pages[-1].ljust(PAGE_BYTES, b"\0")
        pages.append(data[at + 2 : at + 2 + size])
        at += 2 + size
    last = pages.pop()
    return b"".join(pages[1:]) + (last if data[:1] == b"\1" else last.ljust(PAGE_BYTES, b"\0"))


def packed(file: bytes) -> bytes:
    """The input that `unpacked` makes such a file of."""
    pages = [file[at : at + PAGE_BYTES].rstrip(b"\0") for at in range(0, len(file), PAGE_BYTES)]
    return b"\0" + b"".join(len(page).to_bytes(2, "little") + page for page in pages)


def bundle_file(data: bytes) -> None:
    """Any bytes as a bundle file, read and judged as the vehicle does."""
    digest = _good()[1]
    simulator = _simulator()
    simulator.write(unpacked(data))
    with contextlib.suppress(Refused), contextlib.closing(simulator.verify_file(_trusted())) as verified:
        assert verified.digest == digest
        assert {name: bytes(verified.blob(name)) for name in simulator.blobs} == simulator.blobs


def any_envelope(data: bytes) -> None:
    """Any bytes as an envelope, for a bundle and for a root."""
    for payload_type in (BUNDLE_PAYLOAD_TYPE, ROOT_PAYLOAD_TYPE):
        with contextlib.suppress(Refused):
            parsed = envelope.parse(data, payload_type=payload_type)
            assert envelope.parse(parsed.encode(), payload_type=payload_type) == parsed


def any_statement(data: bytes) -> None:
    """Any bytes as a payload: what is read has one encoding, and sizes whose layout does not wrap."""
    with contextlib.suppress(Refused):
        stated = statement.decode(data)
        assert statement.decode(statement.encode(stated)) == stated
        where = container.layout(len(data), [blob.size_bytes for blob in stated.blobs])
        spans = (where.envelope, *where.blobs)
        assert all(one.padded_end_bytes <= other.offset_bytes for one, other in itertools.pairwise(spans))


def any_root(data: bytes) -> None:
    """Any bytes as a root's payload, and as the next root of a vehicle, which they never are."""
    with contextlib.suppress(Refused):
        root = decode_root(data)
        assert decode_root(encode_root(root)) == root
    try:
        _trusted().accept_root(data)
    except Refused:
        return
    raise AssertionError("a root that nobody signed was accepted")


def any_state(data: bytes) -> None:
    """Any bytes as a vehicle's stored state."""
    with contextlib.suppress(Refused):
        state = decode_state(data)
        assert decode_state(encode_state(state)) == state


TARGETS: dict[str, Callable[[bytes], None]] = {
    "bundle": bundle_file,
    "envelope": any_envelope,
    "statement": any_statement,
    "root": any_root,
    "state": any_state,
}


def seeds(target: str) -> Iterator[bytes]:
    """Good inputs to begin with."""
    simulator = _simulator()
    root = make_root(simulator.keys, minimum_releases={"lane": 1}, reset_floors=("lane",))
    match target:
        case "bundle":
            yield packed(_good()[0])
        case "envelope":
            yield simulator.envelope().encode()
            yield sign_root(root, simulator.keys.root)
        case "statement":
            yield simulator.payload()
        case "root":
            yield encode_root(root)
            yield sign_root(root, simulator.keys.root)  # of the trusted version, so not the next
        case "state":
            yield encode_state(VehicleState(sign_root(root, simulator.keys.root), 1))
