"""Several models on one device: who goes first, and what they may ask of it together."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from abi.messages import DeliveryPolicy
from client.errors import Refused
from tests.support.bundles import BundleMaker, TinyModel, frame_format
from tests.support.daemons import LIMIT_S, DaemonThread, ended, picture, run_one, submit
from tests.support.gate import Gate, HeldModel

ONE_PLACE = f"[device]\npin_cores = [{min(os.sched_getaffinity(0))}]\n"
HIGH, LOW = TinyModel("add", name="high", streams=("wide",)), TinyModel("slow", name="low", golden_units=2)


def ranked(high: int, low: int) -> str:
    return ONE_PLACE + "".join(
        f'[[model]]\nname = "{name}"\npriority = {priority}\n' for name, priority in (("high", high), ("low", low))
    )


@pytest.mark.parametrize(("high", "low"), [(2, 1), (1, 2), (0, 0)])
def test_the_model_of_higher_priority_goes_first_and_of_equal_ones_the_older_frame(
    tmp_path: Path, maker: BundleMaker, high: int, low: int
) -> None:
    bundles = [HeldModel(name="low").write(maker), maker.write(HIGH)]
    with (
        DaemonThread(tmp_path, bundles, maker, more=ranked(high, low)) as daemon,
        daemon.camera() as slow,
        daemon.camera("wide") as quick,
        daemon.consumer("low", policy=DeliveryPolicy.EVERY, queue=2) as results,
        daemon.consumer("high") as quick_results,
        Gate() as gate,
    ):
        assert daemon.status()["device"]["places"] == 1
        submit(slow, 1, gate.picture(1))
        gate.wait()
        submit(slow, 2, picture(2))
        daemon.wait_for(lambda status: status["streams"]["road"]["submitted"] == 2)
        submit(quick, 1, picture(3))
        daemon.wait_for(lambda status: status["streams"]["wide"]["submitted"] == 1)
        gate.open()
        results.recv(timeout_s=LIMIT_S)
        second = results.recv(timeout_s=LIMIT_S).receipt
        other = quick_results.recv(timeout_s=LIMIT_S).receipt
        assert second.frames[0].sequence == 2
        assert second.submitted_ns != other.submitted_ns
        assert (other.submitted_ns < second.submitted_ns) == (high > low)
        first, last = sorted((second, other), key=lambda one: one.submitted_ns)
        assert first.completed_ns <= last.submitted_ns  # one place: never beside one another


def test_a_run_that_would_make_the_next_frame_of_a_higher_model_late_waits_until_none_is_expected(
    tmp_path: Path, maker: BundleMaker
) -> None:
    period_ns = 100_000_000_000
    high = TinyModel("add", name="high", streams=("wide",), deadline_ns=period_ns)
    with (
        DaemonThread(tmp_path, [maker.write(LOW), maker.write(high)], maker, more=ranked(2, 1)) as daemon,
        daemon.camera() as low_camera,
        daemon.consumer("high") as results,
    ):
        low = daemon.service.roster.pipelines["low"]
        low.entries.primary.times.add(3 * period_ns)  # as if it took that long
        low.claim.run_ns = low.entries.primary.times.p99_ns
        with daemon.camera("wide", format=frame_format(period_ns=period_ns)) as camera:
            run_one(camera, results, 1, picture(1))
            submit(low_camera, 1, picture(2))
            daemon.wait_for(lambda status: status["models"][0]["runs"]["held_back"])
            run_one(camera, results, 2, picture(1))
            assert daemon.status()["models"][0]["runs"]["published"] == 0
        assert ended(low_camera)["run"] == 1  # as soon as the other camera has gone


def test_models_run_side_by_side_where_the_device_has_places(tmp_path: Path, maker: BundleMaker) -> None:
    if len(os.sched_getaffinity(0)) < 2:
        pytest.skip("this machine gives the process one core only")
    with (
        DaemonThread(tmp_path, [HeldModel(name="low").write(maker), maker.write(HIGH)], maker) as daemon,
        daemon.camera() as slow,
        daemon.camera("wide") as quick,
        daemon.consumer("high") as results,
        Gate() as gate,
    ):
        submit(slow, 1, gate.picture(1))
        gate.wait()
        run_one(quick, results, 1, picture(3))
        assert daemon.status()["models"][0]["busy"]
        gate.open()
        assert ended(slow)["run"] == 1


def test_a_model_that_asks_for_more_of_the_device_than_it_may_is_refused(tmp_path: Path, maker: BundleMaker) -> None:
    light = TinyModel("add", name="low")
    heavy = replace(LOW, version="2.0.0", release=2)
    often = frame_format(period_ns=100_000)  # the slow one takes milliseconds
    more = ONE_PLACE + "[limits]\ndevice_load_percent = 100\n"
    with (
        DaemonThread(tmp_path, [maker.write(light)], maker, more=more) as daemon,
        daemon.control() as control,
    ):
        with daemon.camera(format=often) as camera:
            with pytest.raises(Refused, match="device-load") as refused:
                control.activate(maker.write(heavy))
            assert "100 % of the device" in refused.value.expected
            submit(camera, 1, picture(1))
            assert ended(camera)["run"] == 1
            assert daemon.status()["models"][0]["version"] == "1.0.0"
        daemon.wait_for(lambda status: status["peers"]["camera"] == 0)
        control.activate(maker.write(heavy))  # nobody has opened its stream: its rate is not known
        with daemon.camera(format=often) as camera:
            control.rollback()  # what asks for less is never refused
            control.activate(maker.write(light))


def test_cameras_that_bring_the_device_over_its_limit_are_named_once_and_served(
    tmp_path: Path, maker: BundleMaker
) -> None:
    often = frame_format(period_ns=100_000)
    with DaemonThread(tmp_path, [maker.write(LOW)], maker, more=ONE_PLACE) as daemon:
        for _ in range(2):
            with daemon.camera(format=often) as camera:
                submit(camera, 1, picture(1))
                assert ended(camera)["run"] == 1
                device = daemon.status()["device"]
                assert device["load_percent"] > device["load_limit_percent"] == 100
        events = [json.loads(line) for line in (tmp_path / "state" / "audit.jsonl").read_text().splitlines()]
        assert [entry["limit"] for entry in events if entry["event"] == "device.overload"] == [100]
        assert any("more than limits.device_load_percent = 100" in line for line in daemon.log.lines)
