"""The rollback floor rises with what has proved itself, outlives restarts, binds whoever asks; roots are followed."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from abi.flat import ResultFlag
from abi.packet import RefusalCode
from client.errors import Refused
from daemon import disk_chores, models
from daemon.audit import AuditLog, verify
from daemon.trust_store import VehicleTrust
from signing import store
from signing.refusal import RefusalCode as Code
from signing.refusal import Refused as SigningRefused
from tests.daemon.test_process import Process
from tests.simulators import NOW_UNIX_S, BundleSimulator, RoleKeys, make_root, sign_root
from tests.support.bundles import BundleMaker, TinyModel
from tests.support.daemons import LIMIT_S, DaemonThread, Sockets, picture, run_one, submit
from tests.support.gate import Gate, HeldModel

PROBATION = 3
MORE = f"[limits]\nprobation_frames = {PROBATION}\n"
FOUR = TinyModel("add", version="4.0.0", release=4, number=4)
FIVE = TinyModel("add", version="5.0.0", release=5, number=5)


def events(folder: Path) -> list[dict[str, Any]]:
    """The audit log, whose chain must hold."""
    path = folder / "state" / "audit.jsonl"
    verify(str(path))
    return [json.loads(line) for line in path.read_text().splitlines()]


def serve(daemon: Sockets, model: TinyModel, frames: int) -> None:
    """Runs frames through the daemon and sees that `model` computes them."""
    with daemon.camera() as camera, daemon.consumer() as consumer:
        for sequence in range(frames):
            outputs = run_one(camera, consumer, sequence, picture(sequence)).outputs
            assert np.array_equal(outputs["values"], model.values(picture(sequence)))


def confirmed(daemon: Sockets, release: int) -> None:
    """Waits until the floor is on the disk."""
    path = daemon.sockets.parent / "state" / "trust.json"

    def on_disk(_: object) -> bool:
        try:
            state = store.read_state(path)
        except SigningRefused:  # replaced while we read it
            return False
        return state is not None and "tiny" in state.floors and state.floors["tiny"].release == release

    daemon.wait_for(on_disk)


def test_release_4_after_5_was_confirmed_is_refused_over_the_control_socket_also_after_a_restart(
    tmp_path: Path, maker: BundleMaker
) -> None:
    four, five = maker.write(FOUR), maker.write(FIVE)
    with DaemonThread(tmp_path, [four], maker, more=MORE) as daemon, daemon.control() as control:
        control.activate(five)
        serve(daemon, FIVE, PROBATION)
        confirmed(daemon, 5)
        with pytest.raises(Refused) as refused:
            control.activate(four)
        assert refused.value.code is RefusalCode.MODEL_REFUSED
        assert refused.value.what == "rollback: release of tiny"
        assert (refused.value.expected, refused.value.found) == ("at least the confirmed 5", "4")
        daemon.wait_for(lambda status: status["models"][0]["previous"] is None)  # it is older, and let go
        with pytest.raises(Refused, match="a model that replaced another since the start, found none"):
            control.rollback()
        serve(daemon, FIVE, 1)
    with DaemonThread(tmp_path, [five], maker, more=MORE) as daemon, daemon.control() as control:
        with pytest.raises(Refused, match="rollback: release of tiny"):
            control.activate(four)
        assert control.status()["trust"]["rollback_floors"] == {"tiny": 5}
    seen = [(one["event"], one.get("release"), one.get("code")) for one in events(tmp_path)]
    assert ("model.confirmed", 5, None) in seen
    assert seen.count(("bundle.refused", None, "rollback")) == 2


def test_a_restart_serves_what_was_confirmed_where_the_configuration_still_names_what_came_before(
    tmp_path: Path, maker: BundleMaker
) -> None:
    four, five = maker.write(FOUR), maker.write(FIVE)
    with DaemonThread(tmp_path, [four], maker, more=MORE) as daemon, daemon.control() as control:
        control.activate(five)
        serve(daemon, FIVE, PROBATION)
        confirmed(daemon, 5)
    with DaemonThread(tmp_path, [four], maker, more=MORE) as daemon:
        serve(daemon, FIVE, 1)
    assert [one["confirmed"] for one in events(tmp_path) if one["event"] == "bundle.superseded"] == [str(five)]


def test_no_clock_stops_what_was_confirmed_as_it_runs_or_at_a_restart_and_what_is_new_is_refused(
    tmp_path: Path, maker: BundleMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    expires_unix_s = max(int(time.time()), NOW_UNIX_S) + 3600

    def expiring(sim: BundleSimulator) -> None:
        sim.statement = replace(sim.statement, expires_unix_s=expires_unix_s)

    four, five = maker.write(FOUR, edit=expiring), maker.write(FIVE, edit=expiring)
    with DaemonThread(tmp_path, [four], maker, more=MORE) as daemon, daemon.control() as control:
        serve(daemon, FOUR, PROBATION)
        confirmed(daemon, 4)
        later = SimpleNamespace(time=lambda: expires_unix_s, monotonic_ns=time.monotonic_ns)
        monkeypatch.setattr(models, "time", later)
        with pytest.raises(Refused, match="expired: statement"):
            control.activate(five)
        serve(daemon, FOUR, 1)
    with DaemonThread(tmp_path, [four], maker, more=MORE) as daemon:
        serve(daemon, FOUR, 1)
    (tmp_path / "other").mkdir()
    assert DaemonThread(tmp_path / "other", [four], maker, more=MORE).run_to_the_end() == 3


@pytest.mark.parametrize("spoilt", ["gone", "not JSON", "a list"])
def test_without_the_confirmed_bundle_a_start_below_the_floor_is_refused(
    tmp_path: Path, maker: BundleMaker, spoilt: str
) -> None:
    four, five = maker.write(FOUR), maker.write(FIVE)
    with DaemonThread(tmp_path, [five], maker, more=MORE) as daemon:
        serve(daemon, FIVE, PROBATION)
        confirmed(daemon, 5)
    if spoilt == "gone":
        five.unlink()
    else:
        (tmp_path / "state" / "confirmed.json").write_text({"not JSON": "{", "a list": "[1]"}[spoilt])
    assert DaemonThread(tmp_path, [four], maker, more=MORE).run_to_the_end() == 3


def test_a_root_that_resets_the_floor_lets_an_older_release_serve_again(tmp_path: Path, maker: BundleMaker) -> None:
    four, five = maker.write(FOUR), maker.write(FIVE)
    with DaemonThread(tmp_path, [five], maker, more=MORE) as daemon:
        serve(daemon, FIVE, PROBATION)
        confirmed(daemon, 5)
    keys = RoleKeys.make()
    maker.root_path = maker.folder / "2.root.json"
    root = make_root(keys, version=2, minimum_releases={"tiny": 4}, reset_floors=("tiny",))
    maker.root_path.write_bytes(sign_root(root, keys.root))
    maker.root_path.chmod(0o644)
    with DaemonThread(tmp_path, [five], maker, more=MORE) as daemon, daemon.control() as control:
        trust = control.status()["trust"]
        assert (trust["root_version"], trust["trust_epoch"], trust["rollback_floors"]) == (2, 2, {})
        assert control.activate(four)["release"] == 4
        serve(daemon, FOUR, PROBATION)
        confirmed(daemon, 4)


def test_fewer_good_frames_confirm_nothing(tmp_path: Path, maker: BundleMaker) -> None:
    four, five = maker.write(FOUR), maker.write(FIVE)
    with DaemonThread(tmp_path, [four], maker, more=MORE) as daemon, daemon.control() as control:
        control.activate(five)
        serve(daemon, FIVE, PROBATION - 1)
        assert daemon.status()["models"][0]["probation_frames_left"] == 1
        assert control.rollback()["release"] == 4
        serve(daemon, FOUR, PROBATION)  # which begins its own count
        confirmed(daemon, 4)
        control.activate(five)


def test_a_result_after_its_deadline_is_no_good_frame(tmp_path: Path, maker: BundleMaker) -> None:
    with DaemonThread(tmp_path, [maker.write(FIVE)], maker, more=MORE) as daemon:
        probation = daemon.service.switching.probation
        probation.count("tiny", ResultFlag.NAN)
        assert probation.frames_left("tiny") == PROBATION
        probation.count("tiny", ResultFlag.DEADLINE_MET)
        assert probation.frames_left("tiny") == PROBATION - 1


def test_the_last_run_of_a_model_that_is_being_replaced_does_not_confirm_it(tmp_path: Path, maker: BundleMaker) -> None:
    held = HeldModel(version="5.0.0", release=5)
    four = maker.write(FOUR)
    with (
        DaemonThread(tmp_path, [held.write(maker)], maker, more="[limits]\nprobation_frames = 1\n") as daemon,
        daemon.camera() as camera,
        daemon.consumer() as consumer,
        daemon.control() as control,
        Gate() as gate,
    ):
        submit(camera, 1, gate.picture(1))
        gate.wait()
        activation = threading.Thread(target=control.activate, args=(four,))
        activation.start()
        daemon.wait_for(lambda status: daemon.service.roster.switching)
        gate.open()
        activation.join()
        consumer.recv(timeout_s=LIMIT_S)
        assert control.status()["trust"]["rollback_floors"] == {}
        run_one(camera, consumer, 2, picture(2))
        confirmed(daemon, 4)


def full_disk(*_: object, **__: object) -> None:
    raise OSError(28, "No space left on device")


def test_a_disk_that_refuses_keeps_the_floor_in_this_process_and_is_audited(
    tmp_path: Path, maker: BundleMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    four, five = maker.write(FOUR), maker.write(FIVE)
    with DaemonThread(tmp_path, [five], maker, more=MORE) as daemon, daemon.control() as control:
        monkeypatch.setattr(store, "write_state", full_disk)
        serve(daemon, FIVE, PROBATION)
        daemon.wait_for(lambda _: any(one["event"] == "model.not-confirmed" for one in events(tmp_path)))
        with pytest.raises(Refused, match="rollback"):
            control.activate(four)
        assert control.status()["faults"]["state_writes_owed"] == 1
    assert [one["event"] for one in events(tmp_path)].count("model.not-confirmed") == 1  # the end tried once more
    state = store.read_state(tmp_path / "state" / "trust.json")
    assert state is not None
    assert state.floors == {}
    monkeypatch.undo()
    with DaemonThread(tmp_path, [four], maker, more=MORE) as daemon:  # as after a power cut at that point
        serve(daemon, FOUR, 1)


def test_what_a_full_disk_refused_is_written_once_there_is_room(
    tmp_path: Path, maker: BundleMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disk_chores, "RETRY_EVERY_NS", 1_000_000)
    with DaemonThread(tmp_path, [maker.write(FIVE)], maker, more=MORE) as daemon:
        with monkeypatch.context() as patched:
            patched.setattr(store, "write_atomically", full_disk)
            serve(daemon, FIVE, PROBATION)
            daemon.wait_for(lambda status: status["faults"]["state_writes_owed"] == 1)
        confirmed(daemon, FIVE.release)
        daemon.wait_for(lambda status: status["faults"]["state_writes_owed"] == 0)
    found = [one["event"] for one in events(tmp_path)]
    assert (found.count("model.not-confirmed"), found.count("model.confirmed")) == (1, 1)
    assert json.loads((tmp_path / "state" / "trials.json").read_text()) == []


def test_the_end_of_the_daemon_writes_what_a_full_disk_refused(
    tmp_path: Path, maker: BundleMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    with DaemonThread(tmp_path, [maker.write(FIVE)], maker, more=MORE) as daemon, monkeypatch.context() as patched:
        patched.setattr(store, "write_state", full_disk)
        serve(daemon, FIVE, PROBATION)
        daemon.wait_for(lambda status: status["faults"]["state_writes_owed"] == 1)
    state = store.read_state(tmp_path / "state" / "trust.json")
    assert state is not None
    assert state.floors["tiny"].release == FIVE.release


def test_a_sealed_daemon_confirms_without_a_forbidden_act(
    vehicle_site: Path, tmp_path: Path, maker: BundleMaker
) -> None:
    process = Process(vehicle_site, tmp_path, [maker.write(FOUR)], maker)
    text = process.config_path.read_text()
    process.config_path.write_text(text.replace("[limits]\n", MORE))
    child = process.start()
    try:
        serve(process, FOUR, PROBATION)
        confirmed(process, 4)
        assert json.loads((tmp_path / "state" / "confirmed.json").read_text()) == {
            "tiny": str(maker.folder / "tiny-4.0.0.fenced")
        }
        assert set(process.status()["guard"]["refused"].values()) == {0}
        assert process.stop() == 0
    finally:
        child.kill()
        child.communicate()
    assert "model.confirmed" in [one["event"] for one in events(tmp_path)]


# roots


@pytest.fixture
def audit(tmp_path: Path) -> Iterator[AuditLog]:
    (tmp_path / "state").mkdir()
    log = AuditLog(str(tmp_path / "state" / "audit.jsonl"))
    yield log
    log.close()


def write_roots(folder: Path, count: int) -> list[str]:
    """Versions 1 to `count`, each signed by the keys of the one before and its own."""
    paths = []
    for version in range(1, count + 1):
        keys, before = RoleKeys.make(generation=version), RoleKeys.make(generation=max(1, version - 1))
        path = folder / f"{version}.root.json"
        path.write_bytes(sign_root(make_root(keys, version=version), {*before.root, *keys.root}))
        path.chmod(0o644)
        paths.append(str(path))
    return paths


def test_roots_are_followed_in_order_and_each_step_is_audited(tmp_path: Path, audit: AuditLog) -> None:
    roots, state = write_roots(tmp_path, 4), str(tmp_path / "state")
    assert VehicleTrust(roots[:1], state, audit).current.root.version == 1
    assert VehicleTrust(roots[:1], state, audit).current.state.trust_epoch == 1
    trust = VehicleTrust(roots, state, audit)  # missed versions are caught up with, one by one
    assert (trust.current.root.version, trust.current.state.trust_epoch) == (4, 4)
    assert VehicleTrust(roots[:2], state, audit).current.root.version == 4  # older files change nothing
    seen = [(one["event"], one["version"]) for one in events(tmp_path)]
    assert seen == [("root.trusted", 1), ("root.accepted", 4)]


@pytest.mark.parametrize("mode", [0o770, 0o707, 0o722, 0o1777])
def test_a_state_folder_that_others_may_write_is_refused(tmp_path: Path, audit: AuditLog, mode: int) -> None:
    (tmp_path / "state").chmod(mode)
    with pytest.raises(SigningRefused) as refused:
        VehicleTrust(write_roots(tmp_path, 1), str(tmp_path / "state"), audit)
    assert (refused.value.code, refused.value.found[:9]) == (Code.UNSAFE_FILE, f"mode {mode:04o}")
    assert not (tmp_path / "state" / "trust.json").exists()
    assert events(tmp_path)[-1]["event"] == "trust.refused"


@pytest.mark.parametrize("case", ["a version is missing", "another root of the trusted version", "a damaged state"])
def test_a_break_in_the_chain_is_refused_and_audited(tmp_path: Path, audit: AuditLog, case: str) -> None:
    roots, state = write_roots(tmp_path, 4), str(tmp_path / "state")
    VehicleTrust(roots[:2], state, audit)
    code = Code.ROOT_CHAIN_BROKEN
    if case == "a version is missing":
        del roots[2]
    elif case == "another root of the trusted version":
        other = RoleKeys.make(generation=9)
        Path(roots[1]).write_bytes(sign_root(make_root(other, version=2), other.root))
    else:
        (tmp_path / "state" / "trust.json").write_text("{}")
        code = Code.BAD_STATE
    before = (tmp_path / "state" / "trust.json").read_bytes()
    with pytest.raises(SigningRefused) as refused:
        VehicleTrust(roots, state, audit)
    assert refused.value.code is code
    assert (tmp_path / "state" / "trust.json").read_bytes() == before
    last = events(tmp_path)[-1]
    assert (last["event"], last["code"], last["what"]) == ("trust.refused", code.value, refused.value.what)
