"""The unit's sandbox on a booted machine: the kernel stops what a daemon never does, and before it the guard."""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import sys
from pathlib import Path

from tests.systemd.vehicle import SOCKET_UNITS, UNIT, Vehicle, runs

HERE = Path(__file__).parent
PYTHON = f"/usr/bin/python{sys.version_info.major}.{sys.version_info.minor}"
EXPECTED = {
    "run a shell": "EACCES",
    "map state as code": "EPERM",
    "map /tmp as code": "EPERM",
    "map /var/tmp as code": "EPERM",
    "map shared memory as code": "EACCES",
    "map /run as code": "EPERM",
    "make memory code": "EPERM EACCES",  # by seccomp, or by prctl(2) PR_SET_MDWE from systemd 254 on
    "write into its configuration": "EROFS",
    "write into its image": "EROFS",
    "open a network socket": "EAFNOSUPPORT",
    "open a netlink socket": "EAFNOSUPPORT",
    "be traced": "EPERM",
    "make a namespace": "EPERM",
    "load a kernel program": "EPERM",
    "become root": "EPERM",
    "make a device": "EPERM",
    "read memory": "ENOENT",
    "look into a home": "EACCES",
    "see the first process": "ENOENT",
}


def test_what_a_daemon_never_does_is_stopped_by_the_kernel_and_by_the_guard(vehicle: Vehicle) -> None:
    machine = vehicle.machine
    machine.run("systemctl", "stop", UNIT, *SOCKET_UNITS)
    shutil.copy(HERE / "probe.py", machine.path("/etc/fenced/probe.py"))
    unit = machine.run("cat", f"/usr/lib/systemd/system/{UNIT}")
    for pattern, text in (
        (r"^Type=.*", "Type=oneshot\nStandardOutput=file:/run/probe.json"),
        (r"^ExecStart=.*", f"ExecStart={PYTHON} -IBS /etc/fenced/probe.py"),
        (r"^(Requires|After|Sockets|Restart|RestartSec|WatchdogSec|ExecReload)=.*", ""),
    ):
        unit = re.sub(pattern, text, unit, flags=re.MULTILINE)
    machine.path("/run/systemd/system/probe.service").write_text(unit)
    machine.run("systemctl", "daemon-reload")
    machine.run("systemctl", "start", "probe.service")
    found = json.loads(machine.path("/run/probe.json").read_text())
    said = found["kernel"]
    assert said.keys() == EXPECTED.keys()
    assert {name: word for name, word in said.items() if word not in EXPECTED[name].split()} == {}
    assert found["guard"] == [
        "run a shell", "open a network socket", "write into its configuration", "write into its image",
    ]  # fmt: skip


def of_threads(vehicle: Vehicle, name: str) -> list[str]:
    """A file of /proc for each of the daemon's threads; one that loaded the model may end while they are read."""
    found = []
    for task in vehicle.machine.path(f"/proc/{vehicle.pid}/task").iterdir():
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            found.append((task / name).read_text())
    return found


def test_cores_and_priority_can_be_given_with_the_drop_in(vehicle: Vehicle) -> None:
    machine = vehicle.machine
    folder = machine.path(f"/etc/systemd/system/{UNIT}.d")
    config = machine.path("/etc/fenced/fenced.toml")
    text = config.read_text()
    may_raise = machine.may_raise_limits
    wanted = "fifo_priority = 10\nlock_memory = true\n" if may_raise else ""
    config.write_text(f"{text}\n[device]\npin_cores = [0]\n{wanted}")
    folder.mkdir(exist_ok=True)
    (folder / "realtime.conf").symlink_to("/opt/fenced/share/systemd/fenced-realtime.conf")
    try:
        machine.run("systemctl", "daemon-reload")
        machine.run("systemctl", "restart", UNIT)
        runs(vehicle)
        statuses = of_threads(vehicle, "status")
        assert any("Cpus_allowed_list:\t0\n" in status for status in statuses)
        scheduled = [int(stat.rpartition(")")[2].split()[38]) for stat in of_threads(vehicle, "stat")]
        assert (1 in scheduled) is may_raise  # proc(5): policy, SCHED_FIFO
    finally:
        config.write_text(text)
        (folder / "realtime.conf").unlink()
        machine.run("systemctl", "daemon-reload")
