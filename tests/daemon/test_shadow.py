"""A shadow runs on the frames of the model that serves, publishes nothing, delays nobody, and says how it compares."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from abi.graph import Graph
from client.camera import Camera
from client.consumer import Consumer
from client.control import Control
from client.errors import Refused
from daemon import device_watch
from tests.support.bundles import BundleMaker, TinyModel
from tests.support.daemons import LIMIT_S, DaemonThread, ended, picture, run_one, submit
from tests.support.gate import BUDGET_NS, Gate, HeldModel, open_at_reset

OLD = TinyModel("add", number=3)
NEW = TinyModel("add", version="2.0.0", release=2, number=5)
SUM = TinyModel("total")
ONE_PLACE = f"[device]\npin_cores = [{min(os.sched_getaffinity(0))}]\n"  # nothing runs beside it


def tolerant(absolute: float) -> Callable[[Graph], Graph]:
    """Outputs that may differ by so much."""
    return lambda graph: replace(
        graph, outputs=tuple(replace(one, absolute_tolerance=absolute) for one in graph.outputs)
    )


def report(control: Control) -> dict[str, Any]:
    """What the status says of the shadow."""
    found: dict[str, Any] = control.status()["models"][0]["shadow"]
    return found


def feed(camera: Camera, consumer: Consumer, first: int, count: int, model: TinyModel) -> None:
    """Frames whose results are the serving model's, each ended before the next."""
    for sequence in range(first, first + count):
        outputs = run_one(camera, consumer, sequence, picture(sequence)).outputs
        assert np.array_equal(outputs["values"], model.values(picture(sequence)))
        ended(camera)


def last_audit(folder: Path, event: str) -> dict[str, Any]:
    """The last entry of this event."""
    lines = [json.loads(line) for line in (folder / "state" / "audit.jsonl").read_text().splitlines()]
    found: dict[str, Any] = [one for one in lines if one["event"] == event][-1]
    return found


@pytest.mark.parametrize(("tolerance", "within"), [(2.5, 4), (1.5, 0)])
def test_a_shadow_is_compared_under_its_own_tolerance_and_not_published(
    tmp_path: Path, maker: BundleMaker, tolerance: float, within: int
) -> None:
    new = maker.write(NEW, edit_graph=tolerant(tolerance))
    with (
        DaemonThread(tmp_path, [maker.write(OLD)], maker) as daemon,
        daemon.camera() as camera,
        daemon.consumer() as consumer,
        daemon.control() as control,
    ):
        feed(camera, consumer, 0, 2, OLD)
        assert control.shadow(new)["shadow"] is True
        feed(camera, consumer, 2, 4, OLD)
        found = report(control)
        assert (found["release"], found["ended"]) == (2, None)
        assert (found["compared"], found["within"], found["outside"]) == (4, within, 4 - within)
        assert set(found["skipped"].values()) == {0}
        (output,) = found["outputs"]
        assert (output["name"], output["worst"], output["outside"]) == ("values", 2.0, 4 - within)
        assert found["run_p99_us"] >= found["run_p50_us"] > 0
        metrics = control.metrics()
        assert f'fenced_shadow_sets{{model="tiny",sets="outside"}} {4 - within}' in metrics
        assert 'fenced_probation_frames_left{model="tiny"} 94' in metrics
        assert control.end_shadow()["ended"] == "by command"
        feed(camera, consumer, 6, 2, OLD)
        assert report(control)["compared"] == 4
        assert control.status()["device"]["memory"]["executables"] == 1
        with pytest.raises(Refused, match="one that runs, found none"):
            control.end_shadow()
        counted = ended(camera)
        assert counted["run"] == counted["submitted"] == 8
    entry = last_audit(tmp_path, "shadow.ended")
    assert (entry["compared"], entry["within"], entry["worst_values"], entry["reason"]) == (
        4,
        within,
        "2",
        "by command",
    )
    assert json.loads((tmp_path / "state" / "trials.json").read_text()) == []


def test_a_shadow_ends_by_itself_after_as_many_frames_as_were_asked_for(tmp_path: Path, maker: BundleMaker) -> None:
    new = maker.write(NEW)
    with (
        DaemonThread(tmp_path, [maker.write(OLD)], maker) as daemon,
        daemon.camera() as camera,
        daemon.consumer() as consumer,
        daemon.control() as control,
    ):
        control.shadow(new, frames=3)
        feed(camera, consumer, 0, 5, OLD)
        found = report(control)
        assert (found["compared"], found["outside"], found["ended"]) == (3, 3, "complete")
        assert control.activate(new)["release"] == 2  # it may be promoted
        feed(camera, consumer, 5, 1, NEW)


@pytest.mark.parametrize("how", ["activate", "rollback", "roll back to the one before", "stop"])
def test_a_shadow_ends_when_something_else_serves(tmp_path: Path, maker: BundleMaker, how: str) -> None:
    new, newest = maker.write(NEW), maker.write(replace(NEW, version="3.0.0", release=3))
    with (
        DaemonThread(tmp_path, [maker.write(OLD)], maker) as daemon,
        daemon.camera() as camera,
        daemon.consumer() as consumer,
        daemon.control() as control,
    ):
        if how == "roll back to the one before":
            control.activate(new)
        control.shadow(newest)
        run_one(camera, consumer, 1, picture(1))
        ended(camera)
        if how == "activate":
            assert control.activate(newest)["release"] == 3
        elif how == "rollback":
            assert control.rollback()["ended"] == "by command"
        elif how == "roll back to the one before":
            assert control.rollback()["release"] == 1
        if how != "stop":
            assert report(control)["ended"]
            run_one(camera, consumer, 2, picture(2))
            assert ended(camera)["run"] == 2
    assert last_audit(tmp_path, "shadow.ended")["compared"] == 1


def test_a_shadow_ends_when_the_release_that_it_follows_is_taken_back(tmp_path: Path, maker: BundleMaker) -> None:
    new, newest = maker.write(NEW), maker.write(replace(NEW, version="3.0.0", release=3))
    with DaemonThread(tmp_path, [maker.write(OLD)], maker) as daemon, daemon.control() as control:
        control.activate(new)
        control.shadow(newest)
        daemon.service.roster.pipelines["tiny"].counters.canary += 100
        daemon.wait_for(lambda status: status["models"][0]["release"] == 1)
        assert report(control)["ended"] == "another release serves"
        assert control.status()["device"]["memory"]["executables"] == 1


def test_a_private_copy_of_the_frame_serves_the_shadow_too(tmp_path: Path, maker: BundleMaker) -> None:
    new = maker.write(replace(OLD, version="2.0.0", release=2))
    more = '[stream.road]\nisolation = "copy"\n'
    with (
        DaemonThread(tmp_path, [maker.write(OLD)], maker, more=more) as daemon,
        daemon.camera() as camera,
        daemon.consumer() as consumer,
        daemon.control() as control,
    ):
        control.shadow(new)
        feed(camera, consumer, 0, 3, OLD)
        found = report(control)
        assert (found["compared"], found["within"]) == (3, 3)


def test_a_shadow_that_hangs_costs_its_run_and_no_result(
    tmp_path: Path, maker: BundleMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device_watch, "RESET_LIMIT_NS", 20_000_000_000)  # the kernel ends by itself, however slowly
    held = HeldModel(version="2.0.0", release=2, budget_ns=BUDGET_NS).write(maker)
    with (
        DaemonThread(tmp_path, [maker.write(OLD)], maker) as daemon,
        daemon.camera() as camera,
        daemon.consumer() as consumer,
        daemon.control() as control,
        Gate() as gate,
    ):
        open_at_reset(monkeypatch, gate)
        control.shadow(held)
        run_one(camera, consumer, 1, gate.picture(1))
        daemon.wait_for(lambda status: status["faults"]["device_resets"] == 1)
        assert report(control)["skipped"]["device"] == 1
        run_one(camera, consumer, 2, picture(2))
        assert ended(camera)["run"] == 2
        assert control.status()["models"][0]["runs"]["device_errors"] == 0


def test_a_rollback_waits_for_the_shadow_that_reads_a_frame(tmp_path: Path, maker: BundleMaker) -> None:
    held = HeldModel(version="3.0.0", release=3).write(maker)
    with (
        DaemonThread(tmp_path, [maker.write(OLD)], maker) as daemon,
        daemon.camera() as camera,
        daemon.consumer() as consumer,
        daemon.control() as control,
        Gate() as gate,
    ):
        control.activate(maker.write(NEW))
        control.shadow(held)
        submit(camera, 1, gate.picture(1))
        consumer.recv(timeout_s=LIMIT_S)
        gate.wait()
        answers = list[dict[str, Any]]()
        back = threading.Thread(target=lambda: answers.append(control.rollback()))
        back.start()
        daemon.wait_for(lambda status: daemon.service.switching.shadowing.is_ending)
        assert daemon.status()["streams"]["road"]["held"] == 1
        gate.open()
        back.join()
        assert answers[0]["release"] == 1
        assert ended(camera)["run"] == 1
        feed(camera, consumer, 2, 1, OLD)


def test_recurrent_state_is_copied_at_the_start_and_after_every_gap(tmp_path: Path, maker: BundleMaker) -> None:
    new = maker.write(replace(SUM, version="2.0.0", release=2))
    with (
        DaemonThread(tmp_path, [maker.write(SUM)], maker) as daemon,
        daemon.camera() as camera,
        daemon.consumer() as consumer,
        daemon.control() as control,
    ):
        for sequence in range(3):
            run_one(camera, consumer, sequence, picture(sequence))
        control.shadow(new)
        for sequence in range(3, 6):
            run_one(camera, consumer, sequence, picture(sequence))
            ended(camera)
        found = report(control)
        assert (found["compared"], found["within"], found["states_copied"]) == (3, 3, ["sum"])
        control.reset_state()  # of the model that serves
        for sequence in range(6, 9):
            run_one(camera, consumer, sequence, picture(sequence))
            ended(camera)
        found = report(control)
        assert (found["compared"], found["within"], found["skipped"]["out_of_step"]) == (5, 5, 1)


def test_aux_inputs_are_those_of_the_served_run(tmp_path: Path, maker: BundleMaker) -> None:
    old = TinyModel("scale", aux_default=np.float32(1).tobytes())
    new = maker.write(replace(old, version="2.0.0", release=2))
    with (
        DaemonThread(tmp_path, [maker.write(old)], maker) as daemon,
        daemon.camera() as camera,
        daemon.consumer() as consumer,
        daemon.control() as control,
    ):
        control.shadow(new)
        for sequence in range(3):
            outputs = run_one(camera, consumer, sequence, picture(sequence)).outputs
            assert np.array_equal(outputs["values"], old.values(picture(sequence), gain=max(1, 2 * sequence)))
            ended(camera)
            control.set_aux("gain", 1 + sequence, np.float32(2 * sequence + 2).tobytes())
        found = report(control)
        assert (found["compared"], found["within"]) == (3, 3)


def test_a_shadow_that_would_make_a_frame_late_is_skipped(tmp_path: Path, maker: BundleMaker) -> None:
    old = replace(OLD, deadline_ns=5_000_000_000)
    slow = maker.write(TinyModel("slow", version="2.0.0", release=2))
    with (
        DaemonThread(tmp_path, [maker.write(old)], maker, more=ONE_PLACE) as daemon,
        daemon.camera() as camera,
        daemon.consumer() as consumer,
        daemon.control() as control,
    ):
        control.shadow(slow)
        shadow = daemon.service.switching.shadowing._shadow
        assert shadow is not None
        shadow._entry.times.add(10_000_000_000)  # as if it took ten seconds
        feed(camera, consumer, 0, 2, old)
        found = report(control)
        assert (found["compared"], found["skipped"]["no_time"]) == (0, 2)


def test_a_frame_that_comes_while_the_shadow_runs_is_served_and_the_run_given_up(
    tmp_path: Path, maker: BundleMaker
) -> None:
    held = HeldModel(version="2.0.0", release=2).write(maker)
    with (
        DaemonThread(tmp_path, [maker.write(OLD)], maker, more=ONE_PLACE) as daemon,
        daemon.camera() as camera,
        daemon.consumer() as consumer,
        daemon.control() as control,
        Gate() as gate,
    ):
        control.shadow(held)
        submit(camera, 1, gate.picture(1))
        consumer.recv(timeout_s=LIMIT_S)
        gate.wait()
        assert daemon.status()["streams"]["road"]["held"] == 1  # by the shadow
        submit(camera, 2, picture(2, first=1))
        daemon.wait_for(lambda status: status["streams"]["road"]["submitted"] == 2)
        gate.open()
        delivery = consumer.recv(timeout_s=LIMIT_S)
        assert np.array_equal(delivery.outputs["values"], OLD.values(picture(2, first=1)))
        assert ended(camera)["run"] == 2
        found = report(control)
        assert found["compared"] + found["skipped"]["preempted"] == 2  # one launch cannot be cut short


def test_a_camera_that_leaves_while_the_shadow_reads_its_frame_disturbs_nothing(
    tmp_path: Path, maker: BundleMaker
) -> None:
    held = HeldModel(version="2.0.0", release=2).write(maker)
    with (
        DaemonThread(tmp_path, [maker.write(OLD)], maker) as daemon,
        daemon.consumer() as consumer,
        daemon.control() as control,
        Gate() as gate,
    ):
        control.shadow(held)
        with daemon.camera() as camera:
            submit(camera, 1, gate.picture(1))
            consumer.recv(timeout_s=LIMIT_S)
            gate.wait()
        daemon.wait_for(lambda status: status["peers"]["camera"] == 0)
        gate.open()
        daemon.wait_for(lambda status: status["models"][0]["shadow"]["compared"] == 1)
        with daemon.camera() as camera:
            run_one(camera, consumer, 1, picture(1))
            assert ended(camera)["run"] == 1
        assert control.status()["faults"]["internal_errors"] == 0


def test_an_output_that_is_not_written_is_not_compared(tmp_path: Path, maker: BundleMaker) -> None:
    lazy = maker.write(TinyModel("lazy", version="2.0.0", release=2))
    with (
        DaemonThread(tmp_path, [maker.write(OLD)], maker) as daemon,
        daemon.camera() as camera,
        daemon.consumer() as consumer,
        daemon.control() as control,
    ):
        control.shadow(lazy)
        run_one(camera, consumer, 1, picture(1, first=255))
        ended(camera)
        found = report(control)
        assert (found["compared"], found["skipped"]["canary"]) == (0, 1)


def test_a_difference_without_a_number_is_told_in_json_too(tmp_path: Path, maker: BundleMaker) -> None:
    inf = maker.write(TinyModel("inf", version="2.0.0", release=2))
    with (
        DaemonThread(tmp_path, [maker.write(OLD)], maker) as daemon,
        daemon.camera() as camera,
        daemon.consumer() as consumer,
        daemon.control() as control,
    ):
        control.shadow(inf)
        run_one(camera, consumer, 1, picture(1, first=255))
        ended(camera)
        status = control.status()
        (output,) = status["models"][0]["shadow"]["outputs"]
        assert (output["outside"], output["worst"]) == (1, None)
        json.dumps(status, allow_nan=False)  # JSON has no infinity: other readers than Python's refuse it
