"""State that a discarded run has written never reaches the next result: it is reset, and the next receipt says so."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from abi.flat import ResultFlag
from client.camera import Camera
from tests.support.bundles import BundleMaker, Pixels, TinyModel
from tests.support.daemons import LIMIT_S, DaemonThread, ended, picture, run_one, submit
from tests.support.gate import Gate
from tests.support.roles import RoleModel, total

A, B, C = (picture(seed) for seed in range(3))
B[:3] = 1


def with_pixel(index: int, value: int) -> Pixels:
    changed = B.copy()
    changed[index] = value
    return changed


def overwrite(camera: Camera) -> None:
    """A frame that its camera writes while the device reads it."""
    with Gate() as gate:
        frame = camera.acquire(timeout_s=LIMIT_S)
        slot = frame.slot
        frame.pixels[:] = gate.holds(B)
        camera.submit(frame, 2, time.monotonic_ns())
        gate.wait()
        camera._control[slot] += 2


BAD: dict[str, Callable[[Camera], object]] = {
    "canary": lambda camera: submit(camera, 2, with_pixel(1, 255)),
    "not_finite": lambda camera: submit(camera, 2, with_pixel(2, 255)),
    "torn": overwrite,
}


@pytest.mark.parametrize("case", BAD)
def test_a_discarded_run_leaves_nothing_in_the_state(tmp_path: Path, maker: BundleMaker, case: str) -> None:
    with (
        DaemonThread(tmp_path, [RoleModel().write(maker)], maker) as daemon,
        daemon.camera() as camera,
        daemon.consumer() as consumer,
    ):
        before = run_one(camera, consumer, 1, A).receipt
        BAD[case](camera)
        counted = ended(camera)
        assert (counted["run"], counted["lost"] + counted["torn"]) == (1, 1)
        after = run_one(camera, consumer, 3, C)
        assert np.array_equal(after.outputs["values"], total(C))
        assert after.receipt.state_epoch == before.state_epoch + 1
        assert ResultFlag.STATE_RESET in after.receipt.flags
        last = run_one(camera, consumer, 4, A)
        assert np.array_equal(last.outputs["values"], total(C, A))
        assert ResultFlag.STATE_RESET not in last.receipt.flags
        runs = daemon.status()["models"][0]["runs"]
        assert (runs[case], runs["state_tainted"]) == (1, 1)


def test_a_frame_torn_before_it_ran_leaves_the_state_alone(tmp_path: Path, maker: BundleMaker) -> None:
    with (
        DaemonThread(tmp_path, [RoleModel().write(maker)], maker) as daemon,
        daemon.camera() as camera,
        daemon.consumer() as consumer,
        Gate() as gate,
    ):
        held = gate.holds(B)
        submit(camera, 1, held)
        gate.wait()
        frame = camera.acquire(timeout_s=LIMIT_S)
        slot = frame.slot
        camera.submit(frame, 2, time.monotonic_ns())
        camera._control[slot] += 2
        daemon.wait_for(lambda status: status["streams"]["road"]["submitted"] == 2)
        gate.open()
        assert ended(camera)["torn"] == 1
        consumer.recv(timeout_s=LIMIT_S)
        after = run_one(camera, consumer, 3, C)
        assert np.array_equal(after.outputs["values"], total(held, C))
        assert ResultFlag.STATE_RESET not in after.receipt.flags


def test_a_model_without_state_has_nothing_to_taint(tmp_path: Path, maker: BundleMaker) -> None:
    with (
        DaemonThread(tmp_path, [maker.write(TinyModel("lazy"))], maker) as daemon,
        daemon.camera() as camera,
        daemon.consumer() as consumer,
    ):
        before = run_one(camera, consumer, 1, picture(1)).receipt
        submit(camera, 2, picture(2, first=255))
        assert ended(camera)["lost"] == 1
        after = run_one(camera, consumer, 3, picture(3)).receipt
        assert (after.state_epoch, after.flags) == (before.state_epoch, before.flags)
