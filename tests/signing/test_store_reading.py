"""Reading and hashing at once, on two threads: every byte arrives, and what fails on either side leaves nothing."""

from __future__ import annotations

import errno
import itertools
import mmap
import os
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from signing import store
from tests.simulators import BundleSimulator
from tests.support.descriptors import open_descriptors


def write_large(sim: BundleSimulator) -> None:
    """A file that is read ahead on another thread."""
    sim.blobs["weights"] = os.urandom(store._AHEAD_FROM_BYTES)
    sim.write()


def test_fault_of_the_reading_thread_is_raised_here(sim: BundleSimulator, monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory runs out after the first chunk: the error arrives, and nothing is left behind."""
    write_large(sim)
    real, threads = os.write, []

    def write(fd: int, data: memoryview) -> int:
        threads.append(threading.current_thread().name)
        if len(threads) == 2:
            raise OSError(errno.ENOSPC, "no room")
        return real(fd, data)

    monkeypatch.setattr(store.os, "write", write)
    before = open_descriptors(), threading.active_count()
    with pytest.raises(OSError, match="no room"):
        sim.read()
    assert open_descriptors() <= before[0]
    assert threading.active_count() <= before[1]
    assert threads == [threading.current_thread().name, "fenced-read-ahead"]


@pytest.mark.parametrize("advice", [store._MADV_POPULATE_READ, 1 << 20], ids=["this kernel", "one that cannot"])
def test_large_file_comes_whole(sim: BundleSimulator, monkeypatch: pytest.MonkeyPatch, advice: int) -> None:
    write_large(sim)
    monkeypatch.setattr(store, "_MADV_POPULATE_READ", advice)
    bundle = sim.read()
    assert {name: bytes(bundle.blob(name)) for name in sim.blobs} == sim.blobs


def test_reader_that_is_ahead_maps_pages_for_the_hash(sim: BundleSimulator, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first chunk is wanted at once; behind it, until the caller comes to them, pages are mapped without a gap."""
    write_large(sim)
    ranges: list[tuple[int, int]] = []
    hash_behind, real, step_bytes = store._hash_behind, os.preadv, 300_001
    monkeypatch.setattr(store.os, "preadv", lambda fd, buffers, offset: real(fd, [buffers[0][:step_bytes]], offset))

    class Noted(mmap.mmap):
        def madvise(self, advice: int, start: int, length: int) -> None:  # type: ignore[override]
            ranges.append((start, start + length))
            super().madvise(advice, start, length)

    def late(filled: Iterator[int], *rest: Any) -> tuple[str, ...]:
        head, first = next(filled), next(filled)
        for thread in threading.enumerate():
            if thread.name == "fenced-read-ahead":
                thread.join()
        return hash_behind(itertools.chain([head, first], filled), *rest)

    monkeypatch.setattr(store.mmap, "mmap", Noted)
    monkeypatch.setattr(store, "_hash_behind", late)
    bundle = sim.read()
    assert {name: bytes(bundle.blob(name)) for name in sim.blobs} == sim.blobs
    assert ranges[0][0] <= 3 * step_bytes  # head, first, and what came before we asked
    for (before, end), (start, _) in itertools.pairwise(ranges):
        assert before < start <= end
        assert start % mmap.PAGESIZE == 0
    assert ranges[-1][1] == sim.path.stat().st_size


def test_hashing_that_fails_leaves_no_thread_writing(sim: BundleSimulator, monkeypatch: pytest.MonkeyPatch) -> None:
    """The memfd's number may be another file's once it is closed."""
    write_large(sim)

    def fail(filled: Iterator[int], *_: object) -> tuple[str, ...]:
        next(filled)  # the head
        next(filled)  # the first that the thread brought
        raise MemoryError

    order: list[str] = []
    join, close = threading.Thread.join, os.close
    monkeypatch.setattr(store, "_hash_behind", fail)
    monkeypatch.setattr(threading.Thread, "join", lambda self: (order.append(self.name), join(self)))
    monkeypatch.setattr(store.os, "close", lambda fd: (order.append("close"), close(fd)))
    before = open_descriptors(), threading.active_count()
    with pytest.raises(MemoryError):
        sim.read()
    assert order == ["fenced-read-ahead", "close", "close"]
    assert open_descriptors() <= before[0]
    assert threading.active_count() <= before[1]


def test_short_reads_are_completed(sim: BundleSimulator, monkeypatch: pytest.MonkeyPatch) -> None:
    """Reads of 100 bytes: the envelope, too, comes in many pieces."""
    real = os.preadv
    monkeypatch.setattr(store.os, "preadv", lambda fd, buffers, offset: real(fd, [buffers[0][:100]], offset))
    assert {name: bytes(sim.read().blob(name)) for name in sim.blobs} == sim.blobs


def test_short_writes_are_completed(sim: BundleSimulator, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.write
    monkeypatch.setattr(store.os, "write", lambda fd, data: real(fd, data[:1000]))
    assert {name: bytes(sim.read().blob(name)) for name in sim.blobs} == sim.blobs
