"""Frames in dma-bufs, over the real sockets: registered by their own size, waited for, synchronised, never copied."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from abi.packet import LocalProtocolError, RefusalCode
from client.errors import Refused
from hal.memory import create_sealed
from tests.support.bundles import PIXELS, BundleMaker, TinyModel
from tests.support.daemons import DaemonThread, ended, picture, run_one, submit
from tests.support.dma_bufs import (
    END_READ,
    END_WRITE,
    START_READ,
    START_WRITE,
    SeemingExporter,
    real_dma_buf,
    require_udmabuf,
)

MODEL = TinyModel("add")


def test_frames_in_real_dma_bufs_run_without_a_copy(tmp_path: Path, maker: BundleMaker) -> None:
    require_udmabuf()
    buffers = [real_dma_buf(PIXELS) for _ in range(3)]
    with (
        DaemonThread(tmp_path, [maker.write(MODEL)], maker) as daemon,
        daemon.camera(buffers=buffers) as camera,
        daemon.consumer() as consumer,
    ):
        assert camera.zero_copy
        for sequence in range(6):
            outputs = run_one(camera, consumer, sequence, picture(sequence)).outputs
            assert np.array_equal(outputs["values"], MODEL.values(picture(sequence)))


def test_the_device_reads_between_the_two_syncs(
    tmp_path: Path, maker: BundleMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    exporter = SeemingExporter(monkeypatch)
    buffers = [exporter.export(PIXELS) for _ in range(2)]
    with (
        DaemonThread(tmp_path, [maker.write(MODEL)], maker) as daemon,
        daemon.camera(buffers=buffers) as camera,
        daemon.consumer() as consumer,
    ):
        assert (camera.slots, camera.zero_copy) == (2, True)
        for sequence in range(4):
            outputs = run_one(camera, consumer, sequence, picture(sequence)).outputs
            assert np.array_equal(outputs["values"], MODEL.values(picture(sequence)))
            assert ended(camera)["run"] == sequence + 1
        assert exporter.syncs == [START_WRITE, END_WRITE, START_READ, END_READ] * 4


def test_a_frame_waits_for_the_writers_that_the_kernel_knows_of(
    tmp_path: Path, maker: BundleMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    exporter = SeemingExporter(monkeypatch)
    buffer = exporter.export(PIXELS)
    more = "[limits]\nin_fence_timeout_ms = 30000\n"
    with (
        DaemonThread(tmp_path, [maker.write(MODEL)], maker, more=more) as daemon,
        daemon.camera(buffers=[buffer]) as camera,
    ):
        done = exporter.write_later(buffer)
        submit(camera, 1, picture(1))
        held = daemon.wait_for(lambda status: status["streams"]["road"]["held"] == 1)
        assert held["models"][0]["runs"]["published"] == 0
        assert START_READ not in exporter.syncs
        done()
        assert ended(camera)["run"] == 1


def test_a_writer_that_never_ends_loses_its_frame_by_name(
    tmp_path: Path, maker: BundleMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    exporter = SeemingExporter(monkeypatch)
    buffer = exporter.export(PIXELS)
    with DaemonThread(tmp_path, [maker.write(MODEL)], maker) as daemon, daemon.camera(buffers=[buffer]) as camera:
        exporter.write_later(buffer)
        submit(camera, 1, picture(1))
        assert ended(camera)["lost"] == 1
        assert daemon.status()["streams"]["road"]["reasons"] == {"fence-timeout": 1}


def test_a_frame_whose_caches_cannot_be_brought_in_line_never_runs(
    tmp_path: Path, maker: BundleMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    exporter = SeemingExporter(monkeypatch)
    buffer = exporter.export(PIXELS)
    with DaemonThread(tmp_path, [maker.write(MODEL)], maker) as daemon, daemon.camera(buffers=[buffer]) as camera:
        exporter.fail_reads = True
        submit(camera, 1, picture(1))
        assert ended(camera)["lost"] == 1
        exporter.fail_reads = False
        submit(camera, 2, picture(2))
        assert ended(camera)["run"] == 1
        assert daemon.status()["streams"]["road"]["reasons"] == {"dma-buf-sync": 1}


def test_a_dma_buf_that_is_too_small_is_refused_with_both_sizes(
    tmp_path: Path, maker: BundleMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    exporter = SeemingExporter(monkeypatch)
    monkeypatch.setattr("client.camera._map", lambda descriptor, size: bytearray(size))  # a careless client
    with DaemonThread(tmp_path, [maker.write(MODEL)], maker) as daemon:
        with pytest.raises(Refused) as refused:
            daemon.camera(buffers=[exporter.export(PIXELS), exporter.export(PIXELS - 1)])
        assert refused.value.code is RefusalCode.BAD_BUFFER
        assert refused.value.what == "buffer 1, descriptor"
        assert (str(PIXELS) in refused.value.expected, str(PIXELS - 1) in refused.value.found) == (True, True)


def test_a_camera_may_bring_sealed_memfds_of_its_own(tmp_path: Path, maker: BundleMaker) -> None:
    buffers = [create_sealed("mine", PIXELS) for _ in range(2)]
    with (
        DaemonThread(tmp_path, [maker.write(MODEL)], maker) as daemon,
        daemon.camera(buffers=buffers) as camera,
        daemon.consumer() as consumer,
    ):
        run_one(camera, consumer, 1, picture(1))
        assert os.pread(buffers[0], PIXELS, 0) == picture(1).tobytes()  # the memory is the caller's
    for descriptor in buffers:
        os.close(descriptor)


def test_more_buffers_than_the_daemon_takes_are_refused_before_they_are_sent(
    tmp_path: Path, maker: BundleMaker
) -> None:
    buffers = [create_sealed("mine", PIXELS)] * 100
    with (
        DaemonThread(tmp_path, [maker.write(MODEL)], maker) as daemon,
        pytest.raises(LocalProtocolError, match="buffers"),
    ):
        daemon.camera(buffers=buffers)
    os.close(buffers[0])
