"""`[realtime]` on a booted machine: with its drop-in the daemon has what it asks for, without it a refusal says so."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest

from tests.systemd.machine import Machine, until
from tests.systemd.vehicle import CONFIG, FIRST, UNIT, Vehicle, runs

REALTIME = (
    "[realtime]\nfifo_priority = 20\ncores = [0]\nmemory_limit_bytes = 2147483648\nLOCK[device]\nfifo_priority = 10\n"
)
# Where systemd itself may not raise limits the right to a priority comes as a capability: the sandbox is the same.
CAPABILITY = "CapabilityBoundingSet=CAP_SYS_NICE\nAmbientCapabilities=CAP_SYS_NICE\n"


@pytest.fixture
def configured(vehicle: Vehicle) -> Iterator[Vehicle]:
    """The daemon is stopped and its configuration asks for real time; whatever comes, it is put back."""
    machine = vehicle.machine
    config, folder = machine.path("/etc/fenced/fenced.toml"), machine.path(f"/etc/systemd/system/{UNIT}.d")
    folder.mkdir(exist_ok=True)
    try:
        machine.run("systemctl", "stop", UNIT)
        config.write_text(CONFIG + REALTIME.replace("LOCK", "lock_memory = true\n" * machine.may_raise_limits))
        yield vehicle
    finally:
        machine.run("systemctl", "stop", UNIT)
        (folder / "realtime.conf").unlink(missing_ok=True)
        config.write_text(CONFIG)
        machine.run("systemctl", "daemon-reload")


def _drop_in(machine: Machine) -> str:
    text = machine.path("/opt/fenced/share/systemd/fenced-realtime.conf").read_text()
    if machine.may_raise_limits:
        return text
    kept = [line for line in text.splitlines(keepends=True) if not line.startswith(("LimitRTPRIO", "LimitMEMLOCK"))]
    return "".join(kept) + CAPABILITY


def _policies(machine: Machine, pid: int) -> str:
    """Of all its threads; asked for anew where one that loaded the model ended meanwhile."""
    for _ in range(10):
        with contextlib.suppress(AssertionError):
            return machine.run("chrt", "--all-tasks", "--pid", str(pid))
    return machine.run("chrt", "--all-tasks", "--pid", str(pid))


def test_with_the_drop_in_the_daemon_has_what_it_asks_for(configured: Vehicle) -> None:
    machine = configured.machine
    machine.path(f"/etc/systemd/system/{UNIT}.d/realtime.conf").write_text(_drop_in(machine))
    machine.run("systemctl", "daemon-reload")
    machine.run("systemctl", "start", UNIT)
    runs(configured, FIRST, 3)
    policies = _policies(machine, configured.pid)
    priorities = [line.rpartition(" ")[2] for line in policies.splitlines() if "priority:" in line]
    assert sorted(set(priorities)) == ["0", "10", "20"]  # what loads, the workers, the loop
    assert priorities.count("20") == 1
    assert "SCHED_FIFO|SCHED_RESET_ON_FORK" in policies
    status = machine.path(f"/proc/{configured.pid}/status").read_text()
    assert "Cpus_allowed_list:\t0\n" in status
    assert ("VmLck:\t       0 kB" not in status) is machine.may_raise_limits
    assert "2147483648" in machine.path(f"/proc/{configured.pid}/limits").read_text()
    assert set(configured.status()["guard"]["refused"].values()) == {0}


def test_without_the_drop_in_the_right_that_is_missing_is_named(configured: Vehicle) -> None:
    machine = configured.machine
    machine.run("systemctl", "start", UNIT, check=False)
    until(lambda: machine.show(UNIT, "ActiveState") == "failed")
    assert machine.show(UNIT, "ExecMainStatus") == "3"  # which systemd does not start again
    said = [entry["MESSAGE"] for entry in configured.journal(_SYSTEMD_UNIT=UNIT)]
    assert any("realtime-cores" in one and "fenced-realtime.conf" in one for one in said), said
