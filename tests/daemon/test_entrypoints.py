"""Several entrypoints over one state: frames that never ran keep it in step, misses that persist change who runs."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from abi.flat import ResultFlag
from abi.graph import EntryRole, MissPolicy
from abi.messages import DeliveryPolicy
from client.camera import Camera
from client.consumer import Consumer, Delivery
from daemon.camera_stream import CameraStream
from daemon.health import Notifier
from tests.support.bundles import BundleMaker, Pixels, frame_format
from tests.support.daemons import LIMIT_S, DaemonThread, ended, picture, run_one, submit
from tests.support.gate import Gate
from tests.support.roles import PairModel, RoleModel, total

DEADLINE_NS = 10_000_000_000
TRIES = 50
KEEP = (EntryRole.STATE_ONLY,)
A, B, C, D = (picture(seed) for seed in range(4))


def every_result(daemon: DaemonThread) -> Consumer:
    return daemon.consumer(policy=DeliveryPolicy.EVERY, queue=7)


def values(delivery: Delivery) -> Any:
    return delivery.outputs["values"]


def submit_behind(daemon: DaemonThread, camera: Camera, gate: Gate, first: Pixels, *others: Pixels) -> Pixels:
    """One frame that runs until the gate is opened, and the others, which have come; the first one's pixels."""
    held = gate.holds(first)
    submit(camera, 1, held)
    gate.wait()
    for sequence, pixels in enumerate(others, 2):
        submit(camera, sequence, pixels)
    daemon.wait_for(lambda status: status["streams"]["road"]["submitted"] == 1 + len(others))
    return held


@pytest.mark.parametrize("roles", [(), KEEP], ids=["without", "with"])
def test_a_superseded_frame_still_reaches_the_state(
    tmp_path: Path, maker: BundleMaker, roles: tuple[EntryRole, ...]
) -> None:
    with (
        DaemonThread(tmp_path, [RoleModel(roles=roles).write(maker)], maker) as daemon,
        daemon.camera(slots=6) as camera,
        every_result(daemon) as consumer,
        Gate() as gate,
    ):
        held = submit_behind(daemon, camera, gate, A, B, C)
        gate.open()
        assert np.array_equal(values(consumer.recv(timeout_s=LIMIT_S)), total(held))
        delivery = consumer.recv(timeout_s=LIMIT_S)
        assert np.array_equal(values(delivery), total(held, B, C) if roles else total(held, C))
        assert delivery.receipt.entrypoint == 0
        assert delivery.receipt.frames[0].sequence == 3
        assert delivery.receipt.frames[0].not_run == 1  # kept in step, and yet it never ran
        counted = ended(camera)
        assert (counted["run"], counted["superseded"]) == (2, 1)
        runs = daemon.status()["models"][0]["runs"]
        assert (runs["published"], runs["state_only"]) == (2, len(roles))


def test_of_a_pair_that_never_ran_the_state_sees_the_camera_that_it_takes(tmp_path: Path, maker: BundleMaker) -> None:
    with (
        DaemonThread(tmp_path, [PairModel().write(maker)], maker) as daemon,
        daemon.camera("left", slots=6) as left,
        daemon.camera("right", slots=6) as right,
        every_result(daemon) as consumer,
        Gate() as gate,
    ):
        held = gate.holds(B)
        pairs = [(A, held), (B, C), (C, D)]
        for sequence, (one, other) in enumerate(pairs):
            sof_ns = submit(left, sequence, one)
            submit(right, sequence, other, sof_ns=sof_ns + 1_000_000)
            if not sequence:
                gate.wait()
        for stream in ("left", "right"):
            daemon.wait_for(lambda status, stream=stream: status["streams"][stream]["submitted"] == len(pairs))  # type: ignore[misc]
        gate.open()
        consumer.recv(timeout_s=LIMIT_S)
        delivery = consumer.recv(timeout_s=LIMIT_S)
        assert [frame.sequence for frame in delivery.receipt.frames] == [2, 2]
        assert np.array_equal(values(delivery), total(held, C, D) - C)
        for camera in (left, right):
            counted = ended(camera)
            assert (counted["run"], counted["superseded"]) == (2, 1)
        assert daemon.status()["models"][0]["runs"]["state_only"] == 1


def test_a_late_frame_still_reaches_the_state(tmp_path: Path, maker: BundleMaker) -> None:
    model = RoleModel(roles=KEEP, deadline_ns=DEADLINE_NS)
    rare = frame_format(period_ns=3_600_000_000_000)
    with (
        DaemonThread(tmp_path, [model.write(maker)], maker) as daemon,
        daemon.camera(slots=6, format=rare) as camera,
        every_result(daemon) as consumer,
    ):
        submit(camera, 1, A, sof_ns=time.monotonic_ns() - DEADLINE_NS)
        counted = ended(camera)
        assert (counted["run"], counted["late"]) == (0, 1)
        assert np.array_equal(values(run_one(camera, consumer, 2, B)), total(A, B))
        runs = daemon.status()["models"][0]["runs"]
        assert (runs["published"], runs["state_only"]) == (1, 1)
        assert (runs["late_sets"], runs["late_arrivals"]) == (0, 1)  # it came late: that is no miss of the model


def test_state_is_not_kept_in_step_at_the_price_of_a_deadline(tmp_path: Path, maker: BundleMaker) -> None:
    model = RoleModel(roles=KEEP, deadline_ns=DEADLINE_NS)
    with (
        DaemonThread(tmp_path, [model.write(maker)], maker) as daemon,
        daemon.camera(slots=6) as camera,
        every_result(daemon) as consumer,
        Gate() as gate,
    ):
        state_only = daemon.service.roster.pipelines["tiny"].entries.state_only
        assert state_only is not None
        for _ in range(3):
            state_only.times.add(2 * DEADLINE_NS)  # as if it took that long
        held = submit_behind(daemon, camera, gate, A, B, C)
        gate.open()
        consumer.recv(timeout_s=LIMIT_S)
        assert np.array_equal(values(consumer.recv(timeout_s=LIMIT_S)), total(held, C))
        assert ended(camera)["superseded"] == 1
        assert daemon.status()["models"][0]["runs"]["state_only"] == 0


def test_a_camera_with_few_slots_gets_its_frames_back_first(tmp_path: Path, maker: BundleMaker) -> None:
    with (
        DaemonThread(tmp_path, [RoleModel(roles=KEEP).write(maker)], maker) as daemon,
        daemon.camera(slots=3) as camera,
        every_result(daemon) as consumer,
        Gate() as gate,
    ):
        submit_behind(daemon, camera, gate, A, B, C)
        submit(camera, 4, D)  # into B's slot
        daemon.wait_for(lambda status: status["streams"]["road"]["submitted"] == 4)
        gate.open()
        consumer.recv(timeout_s=LIMIT_S)
        assert consumer.recv(timeout_s=LIMIT_S).receipt.frames[0].sequence == 4
        assert ended(camera)["superseded"] == 2
        assert camera.releases()[0].sequence == 2  # before the run ended that it had waited for


def test_a_camera_that_leaves_takes_what_was_kept_for_the_state_with_it(tmp_path: Path, maker: BundleMaker) -> None:
    with DaemonThread(tmp_path, [RoleModel(roles=KEEP).write(maker)], maker) as daemon, Gate() as gate:
        with daemon.camera(slots=6) as camera:
            submit_behind(daemon, camera, gate, A, B, C)
        daemon.wait_for(lambda status: status["peers"]["camera"] == 0)
        gate.open()
        status = daemon.wait_for(lambda status: status["streams"]["road"]["held"] == 0)
        road = status["streams"]["road"]
        assert (road["run"], road["superseded"], road["lost"]) == (1, 1, 1)
        assert status["faults"]["internal_errors"] == 0


def test_a_torn_frame_never_stays_in_the_state_that_it_kept_in_step(
    tmp_path: Path, maker: BundleMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    torn: list[int] = []
    intact = CameraStream.is_intact
    monkeypatch.setattr(
        CameraStream, "is_intact", lambda stream, frame: frame.sequence not in torn and intact(stream, frame)
    )
    with (
        DaemonThread(tmp_path, [RoleModel(roles=KEEP).write(maker)], maker) as daemon,
        daemon.camera(slots=6) as camera,
        every_result(daemon) as consumer,
        Gate() as gate,
    ):
        torn.append(2)  # as if B's camera had written it while the device read it
        submit_behind(daemon, camera, gate, A, B, C)
        gate.open()
        counted = ended(camera)
        assert (counted["run"], counted["torn"], counted["superseded"]) == (2, 1, 0)
        consumer.recv(timeout_s=LIMIT_S)
        delivery = consumer.recv(timeout_s=LIMIT_S)
        assert np.array_equal(values(delivery), total(C))
        assert ResultFlag.STATE_RESET in delivery.receipt.flags
        assert daemon.status()["models"][0]["runs"]["state_tainted"] == 1


# misses


def misses(daemon: DaemonThread) -> int:
    runs = daemon.status()["models"][0]["runs"]
    return int(runs["deadline_missed"] + runs["late_sets"])


def miss(daemon: DaemonThread, camera: Camera, first: int) -> None:
    """A frame that comes in time and is not run in time: it is dropped as late, or its result is late.

    On a busy machine it may come too late itself, which is no miss of the model: then it is another frame.
    """
    before = misses(daemon)
    for sequence in range(first, first + TRIES):
        with Gate() as gate:
            sof_ns = time.monotonic_ns() - DEADLINE_NS + 100_000_000
            submit(camera, sequence, gate.holds(A), sof_ns=sof_ns)
            while time.monotonic_ns() <= sof_ns + DEADLINE_NS:
                time.sleep(0.01)
        ended(camera)
        if misses(daemon) > before:
            return
    raise AssertionError(f"none of {TRIES} frames came in time")


def degraded(daemon: DaemonThread, camera: Camera) -> dict[str, Any]:
    """Two misses; the model's status then. Sequence numbers go up to 2 * TRIES."""
    miss(daemon, camera, 1)
    assert daemon.status()["models"][0]["mode"] == "serving"
    miss(daemon, camera, TRIES + 1)
    assert misses(daemon) == 2
    model: dict[str, Any] = daemon.status()["models"][0]
    return model


def audited(folder: Path) -> list[tuple[str, str]]:
    lines = (folder / "state" / "audit.jsonl").read_text().splitlines()
    return [(entry["event"], entry["mode"]) for entry in map(json.loads, lines) if "mode" in entry]


def drain_results(consumer: Consumer) -> None:
    while True:
        try:
            consumer.recv(timeout_s=0.0)
        except TimeoutError:
            return


def test_a_model_whose_misses_persist_skips_every_second_set_until_a_window_is_clean(
    tmp_path: Path, maker: BundleMaker
) -> None:
    model = RoleModel(deadline_ns=DEADLINE_NS, misses=(1, 4), on_misses=MissPolicy.SKIP)
    with (
        DaemonThread(tmp_path, [model.write(maker)], maker) as daemon,
        daemon.camera() as camera,
    ):
        assert degraded(daemon, camera)["mode"] == "skipping"
        before = ended(camera)
        for sequence in range(110, 118):
            submit(camera, sequence, A)
            ended(camera)
        after = ended(camera)
        assert (after["run"] - before["run"], after["superseded"] - before["superseded"]) == (4, 4)
        for sequence in (118, 119):
            submit(camera, sequence, A)
            assert ended(camera)["superseded"] == after["superseded"]
        status = daemon.status()
        assert status["models"][0]["mode"] == "serving"
        assert status["models"][0]["runs"]["skipped_sets"] == status["streams"]["road"]["reasons"]["skipped"] == 4
    assert audited(tmp_path) == [("model.degraded", "skipping"), ("model.recovered", "serving")]
    assert any("skips every second set: 2 of the last 4 runs missed" in line for line in daemon.log.lines)


def test_a_lighter_entrypoint_runs_while_misses_persist_and_shares_the_state(
    tmp_path: Path, maker: BundleMaker
) -> None:
    roles = (EntryRole.LIGHTER,)
    model = RoleModel(roles=roles, deadline_ns=DEADLINE_NS, misses=(1, 4), on_misses=MissPolicy.LIGHTER)
    with (
        DaemonThread(tmp_path, [model.write(maker)], maker) as daemon,
        daemon.camera() as camera,
        every_result(daemon) as consumer,
    ):
        status = degraded(daemon, camera)
        assert (status["mode"], status["entrypoint"]) == ("lighter", "lighter")
        drain_results(consumer)
        seen = [run_one(camera, consumer, sequence, A) for sequence in range(110, 116)]
        assert [one.receipt.entrypoint for one in seen] == [1, 1, 1, 1, 0, 0]
        before = -values(seen[0])
        assert np.array_equal(values(seen[1]), -(before + A))
        assert np.array_equal(values(seen[4]), before + np.float32(4) * A)
        assert all(one.receipt.deadline_met for one in seen)
        entrypoints = daemon.status()["models"][0]["entrypoints"]
        assert [one["role"] for one in entrypoints] == ["primary", "lighter"]
        assert all(0 < one["p50_ns"] <= one["p99_ns"] for one in entrypoints)
    assert audited(tmp_path) == [("model.degraded", "lighter"), ("model.recovered", "serving")]


@pytest.mark.parametrize("how", ["reset-state", "activate"])
def test_a_model_that_stops_says_so_everywhere_and_comes_back_by_command(
    tmp_path: Path, maker: BundleMaker, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    told: list[dict[str, Any]] = []
    monkeypatch.setattr(Notifier, "send", lambda notifier, **fields: told.append(fields))
    model = RoleModel(deadline_ns=DEADLINE_NS, misses=(1, 4), on_misses=MissPolicy.STOP)
    newer = RoleModel(version="2.0.0", release=2, deadline_ns=DEADLINE_NS, misses=(1, 4), on_misses=MissPolicy.STOP)
    with (
        DaemonThread(tmp_path, [model.write(maker)], maker) as daemon,
        daemon.camera() as camera,
        every_result(daemon) as consumer,
        daemon.control() as control,
    ):
        epoch = degraded(daemon, camera)["state_epoch"]
        drain_results(consumer)
        submit(camera, 104, A)
        assert ended(camera)["refusals"] == {"not_ready": 1}
        status = daemon.status()
        assert (status["models"][0]["mode"], status["streams"]["road"]["reasons"]["stopped"]) == ("stopped", 1)
        assert {'fenced_mode{model="tiny",mode="stopped"} 1', "fenced_ready 0"} <= set(control.metrics().splitlines())
        assert told[-1] == {"STATUS": "serving nothing; tiny is stopped"}
        if how == "activate":
            control.activate(newer.write(maker))
        else:
            control.reset_state()
        label = "tiny 2.0.0 (release 2)" if how == "activate" else "tiny 1.0.0 (release 1)"
        assert told[-1] == {"STATUS": f"serving {label}"}
        delivery = run_one(camera, consumer, 105, B)
        assert np.array_equal(values(delivery), total(B))
        assert delivery.receipt.state_epoch == epoch + 1
        assert daemon.status()["models"][0]["mode"] == "serving"
        assert "fenced_ready 1" in control.metrics().splitlines()
