"""Frames through a signed model and back, over the real sockets."""

import time
from pathlib import Path

import numpy as np
import pytest

from abi.flat import ReleaseStatus
from client.camera import Camera
from tests.support.bundles import BundleMaker, TinyModel
from tests.support.daemons import DaemonThread, picture


@pytest.fixture
def maker(tmp_path: Path) -> BundleMaker:
    (tmp_path / "models").mkdir()
    return BundleMaker(tmp_path / "models")


def submit(camera: Camera, sequence: int, pixels: np.ndarray, sof_ns: int | None = None) -> int:
    frame = camera.acquire(timeout_s=5.0)
    frame.pixels[:] = pixels
    sof_ns = time.monotonic_ns() if sof_ns is None else sof_ns
    camera.submit(frame, sequence, sof_ns)
    return sof_ns


def test_a_frame_becomes_a_result_with_its_receipt(tmp_path: Path, maker: BundleMaker) -> None:
    model = TinyModel("add", number=7, unit="m")
    with (
        DaemonThread(tmp_path, [maker.write(model)], maker) as daemon,
        daemon.camera() as camera,
        daemon.consumer() as consumer,
    ):
        assert camera.zero_copy
        sof_ns = submit(camera, 40, picture(1))
        delivery = consumer.recv(timeout_s=5.0)
        assert np.array_equal(delivery.outputs["values"], model.values(picture(1)))
        assert delivery.units == {"values": "m"}
        receipt = delivery.receipt
        assert receipt.model_digest == consumer.model_digest
        assert [(one.sequence, one.generation, one.sof_ns) for one in receipt.frames] == [(40, 1, sof_ns)]
        times = (sof_ns, receipt.submitted_ns, receipt.started_ns, receipt.completed_ns, receipt.published_ns)
        assert list(times) == sorted(times)
        camera.wait(5.0)
        assert camera.ledger.as_dict()["run"] == 1
        with daemon.control() as control:
            status = control.status()
        assert status["streams"]["road"]["run"] == 1
        assert status["models"][0]["digest"] == consumer.model_digest.hex()


def test_every_frame_is_accounted_for_when_cameras_are_faster_than_the_device(
    tmp_path: Path, maker: BundleMaker
) -> None:
    with DaemonThread(tmp_path, [maker.write(TinyModel("slow"))], maker) as daemon, daemon.camera() as camera:
        for sequence in range(40):
            pixels = picture(sequence)
            pixels[0] = 3
            submit(camera, sequence, pixels)
        while camera.ledger.held:
            assert camera.wait(5.0)
        counted = camera.ledger.as_dict()
        assert counted["submitted"] == 40 == counted["run"] + counted["superseded"]
        assert counted["superseded"]
        with daemon.control() as control:
            assert control.status()["streams"]["road"]["superseded"] == counted["superseded"]


def test_releases_name_their_frames(tmp_path: Path, maker: BundleMaker) -> None:
    with DaemonThread(tmp_path, [maker.write(TinyModel())], maker) as daemon, daemon.camera(slots=2) as camera:
        for sequence in (5, 9):
            submit(camera, sequence, picture(sequence))
            assert camera.wait(5.0) == 1
        releases = camera.releases()
        assert [(one.sequence, one.status, one.generation) for one in releases] == [
            (5, ReleaseStatus.RUN, 1),
            (9, ReleaseStatus.RUN, 1),
        ]
        assert camera.ledger.camera_dropped == 3
