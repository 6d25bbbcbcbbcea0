"""Frames behind a sync_file, the in-fence that camera and GPU drivers give: its status decides, not that it is over."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.support.bundles import BundleMaker, TinyModel
from tests.support.daemons import LIMIT_S, DaemonThread, ended, picture, submit
from tests.support.sync_files import SoftwareFence, StandInFence, make_fence

PATIENT = "[limits]\nin_fence_timeout_ms = 30000\n"
BRIEF = "[limits]\nin_fence_timeout_ms = 20\n"


@pytest.fixture(params=["kernel", "stand-in"])
def fence(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[SoftwareFence | StandInFence]:
    made = make_fence(request.param, monkeypatch)
    yield made
    made.close()


def test_a_frame_runs_once_its_sync_file_has_signalled(
    tmp_path: Path, maker: BundleMaker, fence: SoftwareFence | StandInFence
) -> None:
    model = TinyModel()
    with (
        DaemonThread(tmp_path, [maker.write(model)], maker, more=PATIENT) as daemon,
        daemon.camera() as camera,
        daemon.consumer() as consumer,
    ):
        submit(camera, 1, picture(1), in_fence=fence.descriptor)
        held = daemon.wait_for(lambda status: status["streams"]["road"]["held"] == 1)
        assert held["models"][0]["runs"]["published"] == 0
        fence.end(good=True)
        delivery = consumer.recv(timeout_s=LIMIT_S)
        assert np.array_equal(delivery.outputs["values"], model.values(picture(1)))
        assert ended(camera)["run"] == 1


def test_a_frame_whose_sync_file_ends_in_an_error_never_runs(
    tmp_path: Path, maker: BundleMaker, fence: SoftwareFence | StandInFence
) -> None:  # it turns readable all the same
    with DaemonThread(tmp_path, [maker.write(TinyModel())], maker, more=PATIENT) as daemon, daemon.camera() as camera:
        submit(camera, 1, picture(1), in_fence=fence.descriptor)
        fence.end(good=False)
        assert ended(camera)["lost"] == 1
        status = daemon.status()
        assert status["streams"]["road"]["reasons"] == {"fence-error": 1}
        assert status["models"][0]["runs"]["published"] == 0


def test_a_frame_whose_sync_file_never_signals_is_lost_in_time(
    tmp_path: Path, maker: BundleMaker, fence: SoftwareFence | StandInFence
) -> None:
    with DaemonThread(tmp_path, [maker.write(TinyModel())], maker, more=BRIEF) as daemon, daemon.camera() as camera:
        submit(camera, 1, picture(1), in_fence=fence.descriptor)
        assert ended(camera)["lost"] == 1
        assert daemon.status()["streams"]["road"]["reasons"] == {"fence-timeout": 1}


def test_a_sync_file_that_does_not_tell_its_status_is_an_error(
    tmp_path: Path, maker: BundleMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    fence = StandInFence(monkeypatch, errno.ENOTTY)
    with DaemonThread(tmp_path, [maker.write(TinyModel())], maker, more=PATIENT) as daemon, daemon.camera() as camera:
        submit(camera, 1, picture(1), in_fence=fence.descriptor)
        fence.end(good=True)
        assert ended(camera)["lost"] == 1
        assert daemon.status()["streams"]["road"]["reasons"] == {"fence-error": 1}
        submit(camera, 2, picture(2))
        assert ended(camera)["run"] == 1
    fence.close()
