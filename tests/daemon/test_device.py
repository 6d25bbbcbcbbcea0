"""What the device does wrong is seen: no result is published, and no slot is freed before its fence or a reset."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import pytest

from abi.flat import ResultFlag
from abi.graph import NanPolicy
from daemon import device_watch
from hal.error import HalCode, HalError
from tests.support.bundles import BundleMaker, TinyModel
from tests.support.daemons import LIMIT_S, DaemonThread, ended, picture, run_one, submit
from tests.support.gate import BUDGET_NS, Gate, HeldModel, open_at_reset


def test_an_output_that_was_not_written_trips_the_canary(tmp_path: Path, maker: BundleMaker) -> None:
    with (
        DaemonThread(tmp_path, [maker.write(TinyModel("lazy"))], maker) as daemon,
        daemon.camera() as camera,
        daemon.consumer() as consumer,
    ):
        for sequence in range(1, 4):  # every output's memory has held a result
            run_one(camera, consumer, sequence, picture(sequence))
        submit(camera, 4, picture(4, first=255))
        counted = ended(camera)
        assert (counted["run"], counted["lost"]) == (3, 1)
        with pytest.raises(TimeoutError):
            consumer.recv()
        run_one(camera, consumer, 5, picture(5))
        assert daemon.status()["models"][0]["runs"]["canary"] == 1


@pytest.mark.parametrize("policy", [NanPolicy.REFUSE, NanPolicy.FLAG])
def test_infinity_is_refused_or_flagged_as_the_contract_says(
    tmp_path: Path, maker: BundleMaker, policy: NanPolicy
) -> None:
    model = TinyModel("inf", nan=policy)
    with (
        DaemonThread(tmp_path, [maker.write(model)], maker) as daemon,
        daemon.camera() as camera,
        daemon.consumer() as consumer,
    ):
        assert ResultFlag.NAN not in run_one(camera, consumer, 1, picture(1)).receipt.flags
        submit(camera, 2, picture(2, first=255))
        if policy is NanPolicy.REFUSE:
            assert ended(camera)["lost"] == 1
            assert daemon.status()["models"][0]["runs"]["not_finite"] == 1
        else:
            delivery = consumer.recv(timeout_s=LIMIT_S)
            assert ResultFlag.NAN in delivery.receipt.flags
            assert np.isinf(delivery.outputs["values"][0])


@pytest.fixture
def patient_reset(monkeypatch: pytest.MonkeyPatch) -> None:
    """A reset may take as long as the busiest machine needs to end the kernel."""
    monkeypatch.setattr(device_watch, "RESET_LIMIT_NS", int(LIMIT_S * 1e9))


@pytest.mark.usefixtures("patient_reset")
def test_a_run_beyond_its_budget_is_reset_and_its_frame_is_lost(
    tmp_path: Path, maker: BundleMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device_watch, "RESET_LIMIT_NS", 20_000_000_000)  # the kernel ends by itself, however slowly
    model = HeldModel(budget_ns=BUDGET_NS)
    with (
        DaemonThread(tmp_path, [model.write(maker)], maker) as daemon,
        daemon.camera() as camera,
        daemon.consumer() as consumer,
        Gate() as gate,
    ):
        open_at_reset(monkeypatch, gate)
        epoch = run_one(camera, consumer, 1, picture(1)).receipt.state_epoch
        submit(camera, 2, gate.picture(2))
        assert ended(camera)["lost"] == 1
        assert not daemon.lost.is_set()
        delivery = run_one(camera, consumer, 3, picture(3))
        assert np.array_equal(delivery.outputs["values"], model.values(picture(3)))
        assert delivery.receipt.state_epoch == epoch + 1
        assert delivery.receipt.frames[0].sequence == 3
        status = daemon.status()
        assert (status["faults"]["device_resets"], status["models"][0]["runs"]["device_errors"]) == (1, 1)


def test_a_device_that_cannot_be_reset_ends_the_daemon(
    tmp_path: Path, maker: BundleMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device_watch, "RESET_LIMIT_NS", 1)
    daemon = DaemonThread(tmp_path, [HeldModel(budget_ns=BUDGET_NS).write(maker)], maker)
    with daemon.camera_when_ready() as camera, Gate() as gate:
        submit(camera, 1, gate.picture(1))
        submit(camera, 2, gate.picture(2))
        assert daemon.lost.wait(LIMIT_S)
    daemon.join()
    # no fence signalled and no reset succeeded: the slot in flight was never given back
    assert daemon.service.ledgers.columns()["road"]["held"] == 1
    assert daemon.exit_status == 1
    assert '"event":"device.lost"' in (tmp_path / "state" / "audit.jsonl").read_text()


def test_the_fence_is_real(tmp_path: Path, maker: BundleMaker) -> None:
    """A long kernel: nothing is published 50 ms into it, and the whole output after its end."""
    model = HeldModel()
    with (
        DaemonThread(tmp_path, [model.write(maker)], maker) as daemon,
        daemon.camera() as camera,
        daemon.consumer() as consumer,
        Gate() as gate,
    ):
        submit(camera, 1, gate.picture(1))
        gate.wait()
        with pytest.raises(TimeoutError):
            consumer.recv(timeout_s=0.05)
        status = daemon.status()["models"][0]
        assert (status["busy"], status["runs"]["published"]) == (True, 0)
        assert camera.poll() == 0
        gate.open()
        delivery = consumer.recv(timeout_s=LIMIT_S)
        assert np.array_equal(delivery.outputs["values"], model.values(gate.picture(1)))
        assert delivery.receipt.completed_ns - delivery.receipt.started_ns > 50_000_000
        assert delivery.receipt.published_ns < time.monotonic_ns()


@pytest.mark.usefixtures("patient_reset")
def test_a_device_that_latches_frees_no_slot_before_its_reset(
    tmp_path: Path, maker: BundleMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    with (
        DaemonThread(tmp_path, [HeldModel().write(maker)], maker) as daemon,
        daemon.camera() as camera,
        Gate() as gate,
    ):
        open_at_reset(monkeypatch, gate)
        submit(camera, 1, gate.picture(1))
        gate.wait()
        service = daemon.service
        pipeline = service.roster.pipelines["tiny"]

        def latch() -> None:
            service.accelerator.latch(HalError(HalCode.DEVICE_LOST, "planted"))
            pipeline.look()

        service.loop.call_soon(latch)
        assert ended(camera)["lost"] == 1
        assert daemon.status()["faults"]["device_resets"] == 1
        submit(camera, 2, picture(2))
        assert ended(camera)["run"] == 1
