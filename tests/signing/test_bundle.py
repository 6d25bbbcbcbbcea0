"""Bundles in memory: views by name, and a clear end of life."""

from __future__ import annotations

import contextlib
import gc
import os
from pathlib import Path

import pytest

from signing.bundle import SealedBundle
from signing.container import Span, layout
from signing.refusal import RefusalCode
from tests.simulators import BundleSimulator, refusal


@pytest.fixture
def sim(tmp_path: Path) -> BundleSimulator:
    return BundleSimulator(tmp_path)


def test_blobs_are_found_by_name(sim: BundleSimulator) -> None:
    verified = sim.verify()
    for name, data in sim.blobs.items():
        offset_bytes, size_bytes = verified.blob_span(name)
        assert verified.has(name)
        assert offset_bytes % 4096 == 0
        assert os.pread(verified.memfd, size_bytes, offset_bytes) == data == bytes(verified.blob(name))
        assert verified.blob(name).readonly
    assert not verified.has("absent")


def test_missing_blob_is_refused(sim: BundleSimulator) -> None:
    verified = sim.verify()
    carried = "only graph, code, weights, goldens, sbom.json"
    for ask in (verified.blob, verified.blob_span):
        with refusal(RefusalCode.UNKNOWN_BLOB, "bundle", "a blob 'absent'", carried):
            ask("absent")


def test_closing_ends_access_but_not_the_views(sim: BundleSimulator) -> None:
    verified = sim.verify()
    view, memfd = verified.blob("graph"), verified.memfd
    verified.close()
    verified.close()
    assert bytes(view) == sim.blobs["graph"]
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(memfd)
    for use in (lambda: verified.blob("graph"), lambda: verified.memfd):
        with pytest.raises(RuntimeError, match="this bundle was closed: read the file again"):
            use()


def test_forgotten_bundle_closes_its_descriptor(sim: BundleSimulator) -> None:
    verified = sim.verify()
    memfd = verified.memfd
    inode = os.fstat(memfd).st_ino
    del verified
    gc.collect()
    with contextlib.suppress(OSError):  # the number may serve another file by now
        assert os.fstat(memfd).st_ino != inode


def test_envelope_is_the_one_in_the_file() -> None:
    data = b"x" * 16 + b"envelope" + bytes(4096 - 24) + b"blob" + bytes(4092)
    sealed = SealedBundle(os.memfd_create("test"), memoryview(data), layout(8, [4]), ("0" * 64,))
    assert sealed.envelope == b"envelope"
    assert sealed.size_bytes == 8192
    assert bytes(sealed.view(Span(4096, 4))) == b"blob"


def test_bundle_that_was_never_made_has_nothing_to_close() -> None:
    SealedBundle.__new__(SealedBundle).__del__()
