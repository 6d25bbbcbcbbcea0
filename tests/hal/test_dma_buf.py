"""dma-bufs: told from anything that only looks like one, mapped, and brought in line before the CPU reads."""

from __future__ import annotations

import errno
import mmap
import os
import struct
from pathlib import Path

import pytest

from hal import dma_buf
from hal.dma_buf import DmaBuf, is_dma_buf
from hal.error import HalCode, HalError
from hal.memory import create_sealed
from tests.support.dma_bufs import (
    END_READ,
    END_WRITE,
    START_READ,
    START_WRITE,
    SeemingExporter,
    real_dma_buf,
    require_udmabuf,
)


def test_only_the_kernel_can_say_that_something_is_a_dma_buf(tmp_path: Path) -> None:
    (tmp_path / "dmabuf:camera").write_bytes(b"exp_name:\tnot by the kernel\n")
    descriptors = [os.open(tmp_path / "dmabuf:camera", os.O_RDWR), create_sealed("dmabuf:x", 4096), *os.pipe()]
    for descriptor in descriptors:
        assert not is_dma_buf(descriptor)
        with pytest.raises(HalError) as refused:
            DmaBuf(descriptor)
        assert refused.value.code is HalCode.DESCRIPTOR
        os.close(descriptor)
    assert not is_dma_buf(descriptors[0])  # a closed one


def test_the_sync_request_is_the_one_of_the_kernels_header() -> None:
    write, size, kind, number = 1, struct.calcsize("Q"), ord("b"), 0
    assert write << 30 | size << 16 | kind << 8 | number == dma_buf._SYNC


def test_reads_and_writes_are_bracketed(monkeypatch: pytest.MonkeyPatch) -> None:
    exporter = SeemingExporter(monkeypatch)
    descriptor = exporter.export(8192)
    one = DmaBuf(descriptor)
    os.close(descriptor)  # the object has its own
    one.begin_read()
    one.end_read()
    one.begin_write()
    one.end_write()
    assert exporter.syncs == [START_READ, END_READ, START_WRITE, END_WRITE]
    assert one.size_bytes == 8192
    one.close()
    one.close()


def test_an_interrupted_sync_is_repeated_and_a_failed_one_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    exporter = SeemingExporter(monkeypatch)
    one = DmaBuf(exporter.export(4096))
    failures = [errno.EINTR, errno.EAGAIN]

    def ioctl(*_: object) -> int:
        if failures:
            raise OSError(failures.pop(0), "again")
        return 0

    monkeypatch.setattr(dma_buf.fcntl, "ioctl", ioctl)
    one.begin_read()
    assert not failures
    failures[:] = [errno.EIO]
    with pytest.raises(HalError) as refused:
        one.begin_read()
    assert refused.value.code is HalCode.NOT_PERMITTED


def test_a_mapping_never_reaches_past_a_dma_buf(monkeypatch: pytest.MonkeyPatch) -> None:
    exporter = SeemingExporter(monkeypatch)
    one = DmaBuf(exporter.export(5000))
    assert one.map(5000).size_bytes == 5000
    for size in (0, 5001):
        with pytest.raises(HalError) as refused:
            one.map(size)
        assert refused.value.code is HalCode.SIZE


def test_an_exporter_that_lets_nobody_map_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    one = DmaBuf(SeemingExporter(monkeypatch).export(4096))

    def no_mapping(*_: object, **__: object) -> mmap.mmap:
        raise OSError(errno.ENOTTY, "no mmap")

    monkeypatch.setattr(dma_buf.mmap, "mmap", no_mapping)
    with pytest.raises(HalError) as refused:
        one.map(4096)
    assert refused.value.code is HalCode.NOT_PERMITTED


def test_a_real_dma_buf_is_known_mapped_and_synchronised() -> None:
    require_udmabuf()
    descriptor = real_dma_buf(5000)
    assert is_dma_buf(descriptor)
    one = DmaBuf(descriptor)
    assert one.size_bytes == 8192
    assert one.is_written()
    with mmap.mmap(descriptor, 8192) as writable:
        one.begin_write()
        writable[:4] = b"abcd"
        one.end_write()
    mapping = one.map(5000)
    one.begin_read()
    assert bytes(mapping.view[:4]) == b"abcd"
    one.end_read()
    os.close(descriptor)
