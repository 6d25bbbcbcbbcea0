"""The package on a machine that systemd has booted: from the first frame to crash, hang, reload, refusal and stop.

Runs where FENCED_SLOW is set and a container can be booted (root, Debian's systemd-container); else it skips.
"""

from __future__ import annotations

import json
import stat
import threading

import numpy as np
import pytest

from client.errors import ConnectionLost, Refused
from daemon.journal import MessageId
from lab.hil.clients import ended, picture, run_one, submit
from tests.simulators import RoleKeys, make_root, sign_root
from tests.systemd.machine import until
from tests.systemd.vehicle import CONFIG, FIRST, MODELS, SECOND, SOCKET_UNITS, UNIT, Vehicle, runs


def test_the_installed_package_serves_frames(vehicle: Vehicle) -> None:
    runs(vehicle, FIRST, 3)
    assert vehicle.machine.show(UNIT, "StatusText").startswith("serving")
    assert vehicle.machine.show(UNIT, "CPUWeight") == "5000"
    assert len(vehicle.audited("image.verified")) == 1
    status = json.loads(vehicle.fenced("status", "--json"))
    assert status["guard"]["sealed"] is True
    assert vehicle.machine.run("systemctl", "is-enabled", UNIT, check=False).strip() in ("disabled", "enabled")


def test_each_socket_belongs_to_its_own_group(vehicle: Vehicle) -> None:
    groups = dict(line.split(":")[:3:2] for line in vehicle.machine.path("/etc/group").read_text().splitlines())
    for role in ("camera", "consumer", "control"):
        found = vehicle.machine.path(f"/run/fenced/{role}.sock").stat()
        assert stat.S_IMODE(found.st_mode) == 0o660
        assert found.st_gid == int(groups[f"fenced-{role}"])
    assert stat.S_IMODE(vehicle.machine.path("/var/lib/fenced").stat().st_mode) == 0o700


def test_a_peer_that_comes_while_it_is_stopped_starts_it(vehicle: Vehicle) -> None:
    vehicle.machine.run("systemctl", "stop", UNIT)
    runs(vehicle, FIRST)
    until(vehicle.is_serving)  # it may answer before systemd has read that it is READY


def test_a_reload_takes_a_new_bundle_up_while_frames_go_on(vehicle: Vehicle) -> None:
    before = vehicle.pid
    with vehicle.camera() as camera, vehicle.consumer() as consumer:
        assert np.array_equal(run_one(camera, consumer, 1, picture(1)).outputs["values"], FIRST.values(picture(1)))
        vehicle.put(SECOND)
        vehicle.machine.run("systemctl", "reload", UNIT)
        until(lambda: vehicle.events(MESSAGE_ID=MessageId.RELOADED.value))
        assert np.array_equal(run_one(camera, consumer, 2, picture(2)).outputs["values"], SECOND.values(picture(2)))
        assert ended(camera)["lost"] == 0
    assert vehicle.pid == before
    assert vehicle.is_serving()
    assert json.loads(vehicle.fenced("status", "--json"))["guard"]["refused"] == dict.fromkeys(
        ("import", "open", "process", "network", "unpickle", "compile", "native-code", "hook"), 0
    )


def test_a_killed_daemon_comes_back_with_its_floors_and_free_slots(vehicle: Vehicle) -> None:
    vehicle.put(SECOND)
    vehicle.machine.run("systemctl", "reload", UNIT)
    until(lambda: vehicle.status()["models"][0]["version"] == SECOND.version)
    runs(vehicle, SECOND, 6)
    until(lambda: vehicle.audited("model.confirmed"))
    camera = vehicle.camera()
    submit(camera, 1, picture(1))
    vehicle.kill("KILL")
    with pytest.raises(ConnectionLost):
        ended(camera)
    runs(vehicle, SECOND, 10)
    assert vehicle.restarts == 1
    old = vehicle.put(FIRST, "old.fenced")
    with vehicle.control() as control, pytest.raises(Refused, match="rollback"):
        control.activate(old)


def test_a_loop_that_hangs_is_killed_and_started_again(vehicle: Vehicle) -> None:
    with vehicle.in_a_hurry():
        vehicle.kill("STOP")
        assert any("Watchdog timeout" in event["MESSAGE"] for event in vehicle.journal(UNIT=UNIT))
    vehicle.machine.run("systemctl", "restart", UNIT)
    runs(vehicle, FIRST)


def test_a_release_that_crashes_again_and_again_gives_way_to_the_one_before(vehicle: Vehicle) -> None:
    runs(vehicle, FIRST, 6)
    until(lambda: vehicle.audited("model.confirmed"))
    path = vehicle.put(SECOND, "second.fenced")
    with vehicle.control() as control:
        control.activate(path)
    assert vehicle.status()["models"][0]["version"] == SECOND.version
    config = vehicle.machine.path("/etc/fenced/fenced.toml")
    text = config.read_text()
    config.write_text(text.replace("lane.fenced", "second.fenced"))
    try:
        for _ in range(2):
            vehicle.kill("KILL")
        assert vehicle.audited("model.crash-loop")
        runs(vehicle, FIRST)
    finally:
        config.write_text(text)


def test_a_refused_peer_is_in_the_journal_by_field(vehicle: Vehicle) -> None:
    with pytest.raises(Refused):
        vehicle.camera(stream="nowhere")
    until(lambda: vehicle.events(STREAM="nowhere"))
    (event,) = vehicle.events(STREAM="nowhere")
    assert event["MESSAGE_ID"] == MessageId.PACKET_REFUSED.value
    assert (event["PRIORITY"], event["SYSLOG_IDENTIFIER"], event["REFUSAL"]) == ("4", "fenced", "not-permitted")
    assert "list it in the configuration" in event["MESSAGE"]
    assert vehicle.events(MODEL="tiny", MESSAGE_ID=MessageId.SERVING.value)
    assert "what it may not have" in vehicle.machine.run("journalctl", "--catalog", "STREAM=nowhere")


def test_a_stop_drains_and_ends_in_order(vehicle: Vehicle) -> None:
    with vehicle.camera() as camera, vehicle.consumer() as consumer:
        submit(camera, 1, picture(1))
        stopping = threading.Thread(target=vehicle.machine.run, args=("systemctl", "stop", UNIT))
        stopping.start()
        assert consumer.recv(timeout_s=30.0).receipt.frames[0].sequence == 1
        stopping.join()
    assert vehicle.machine.show(UNIT, "Result") == "success"
    assert vehicle.machine.show(UNIT, "ExecMainStatus") == "0"
    assert vehicle.audited("daemon.stopped")[-1]["exit_status"] == 0


def test_a_changed_image_does_not_start_and_is_not_tried_again(vehicle: Vehicle) -> None:
    vehicle.machine.run("systemctl", "stop", UNIT, *SOCKET_UNITS)
    added = vehicle.machine.path("/opt/fenced/lib/more.py")
    added.touch()
    try:
        vehicle.machine.run("systemctl", "start", UNIT, check=False)
        until(lambda: vehicle.machine.show(UNIT, "ActiveState") == "failed")
        assert vehicle.machine.show(UNIT, "ExecMainStatus") == "3"
        assert vehicle.audited("image.refused")[0]["what"] == "image file 'lib/more.py'"
    finally:
        added.unlink()


def test_a_damaged_bundle_is_refused_on_a_reload_and_the_old_one_serves_on(vehicle: Vehicle) -> None:
    target = vehicle.machine.path(f"{MODELS}/lane.fenced")
    data = bytearray(target.read_bytes())
    data[9000] ^= 1
    target.write_bytes(data)
    vehicle.machine.run("systemctl", "reload", UNIT)
    until(lambda: vehicle.events(REFUSAL="digest-mismatch"))
    until(lambda: "digest-mismatch" in vehicle.machine.show(UNIT, "StatusText"))
    runs(vehicle, FIRST)


def test_a_newer_root_is_followed_on_a_reload_inside_the_sandbox(vehicle: Vehicle) -> None:
    keys = RoleKeys.make()
    machine, config = vehicle.machine, vehicle.machine.path("/etc/fenced/fenced.toml")
    root = machine.path("/etc/fenced/root-2.json")
    root.write_bytes(sign_root(make_root(keys, version=2, minimum_releases={"tiny": 2}), keys.root))
    root.chmod(0o644)
    try:
        config.write_text(CONFIG.replace('root.json"]', 'root.json", "/etc/fenced/root-2.json"]'))
        machine.run("systemctl", "reload", UNIT)
        until(lambda: vehicle.status()["trust"]["root_version"] == 2)
        old = vehicle.put(FIRST, "old.fenced")
        with vehicle.control() as control, pytest.raises(Refused, match="rollback"):
            control.activate(old)
        assert sum(vehicle.status()["guard"]["refused"].values()) == 0
    finally:
        config.write_text(CONFIG)
        root.unlink()


def test_the_package_is_upgraded_under_a_daemon_that_serves_and_removed_without_its_state(vehicle: Vehicle) -> None:
    machine, before = vehicle.machine, vehicle.pid
    machine.run("dpkg", "--force-depends", "--install", "/root/fenced.deb")
    runs(vehicle)
    assert vehicle.pid == before
    machine.run("systemctl", "restart", UNIT)
    runs(vehicle)
    machine.run("dpkg", "--remove", "fenced")
    try:
        assert machine.show(UNIT, "LoadState") == "not-found"
        assert not machine.path("/opt/fenced").exists()
        assert vehicle.audited("daemon.stopped")
        assert machine.path("/etc/fenced/fenced.toml").read_text() == CONFIG
    finally:
        machine.run("dpkg", "--force-depends", "--install", "/root/fenced.deb")
