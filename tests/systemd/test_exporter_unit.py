"""The exporter's unit on a booted machine: its own user, inside its sandbox, sees the daemon and commands nothing."""

from __future__ import annotations

import shutil
import sys
import sysconfig
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.systemd.machine import Machine, until
from tests.systemd.vehicle import CONFIG, FIRST, UNIT, Vehicle, runs

CHECKOUT = Path(__file__).parents[2]
EXPORTER = "fenced-exporter.service"
PAGE = "http://127.0.0.1:9877/metrics"  # the container has this machine's network
AS_EXPORTER = ("setpriv", "--reuid=fenced-exporter", "--regid=fenced-exporter", "--init-groups", "--")
_PACKAGES = ("prometheus_client", "numpy", "numpy.libs", "capnp", "cryptography", "cffi", "_cffi_backend*")
_OURS = ("abi", "hal", "signing", "client", "lab/exporter")
_SCRIPT = """#!/usr/bin/python{version} -IBS
import sys
sys.path.append("/opt/fenced-lab/lib")
from lab.exporter.main import main
sys.exit(main())
"""


def _install(machine: Machine) -> None:
    """As a lab's venv would be, as far as the exporter needs it."""
    place, installed = machine.path("/opt/fenced-lab"), Path(sysconfig.get_paths()["platlib"])
    (place / "bin").mkdir(parents=True)
    for pattern in _PACKAGES:
        for found in installed.glob(pattern):
            copy = shutil.copytree if found.is_dir() else shutil.copy
            (place / "lib").mkdir(exist_ok=True)
            copy(found, place / "lib" / found.name)
    for name in _OURS:
        shutil.copytree(CHECKOUT / name, place / "lib" / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(CHECKOUT / "lab/__init__.py", place / "lib/lab/__init__.py")
    script = place / "bin/fenced-exporter"
    script.write_text(_SCRIPT.format(version=f"{sys.version_info.major}.{sys.version_info.minor}"))
    script.chmod(0o755)
    machine.path("/etc/sysusers.d").mkdir(exist_ok=True)
    shutil.copy(CHECKOUT / "systemd/fenced-exporter.sysusers", machine.path("/etc/sysusers.d/fenced-exporter.conf"))
    shutil.copy(CHECKOUT / "systemd" / EXPORTER, machine.path(f"/etc/systemd/system/{EXPORTER}"))
    machine.run("systemd-sysusers", "fenced-exporter.conf")


@pytest.fixture
def observed(vehicle: Vehicle) -> Iterator[Vehicle]:
    """The machine with the exporter, which the configuration lets observe."""
    machine = vehicle.machine
    config = machine.path("/etc/fenced/fenced.toml")
    _install(machine)
    try:
        uid = machine.run("id", "-u", "fenced-exporter").strip()
        config.write_text(f"{CONFIG}[observe]\nuids = [{uid}]\n")
        machine.run("systemctl", "daemon-reload")
        machine.run("systemctl", "restart", UNIT)
        machine.run("systemctl", "start", EXPORTER)
        yield vehicle
    finally:
        machine.run("systemctl", "stop", EXPORTER, check=False)
        shutil.rmtree(machine.path("/opt/fenced-lab"))
        config.write_text(CONFIG)


def _scraped() -> str:
    try:
        with urllib.request.urlopen(PAGE, timeout=10) as answer:
            text: str = answer.read().decode()
    except OSError:
        return ""
    return text


def test_the_exporter_serves_what_the_daemon_says_and_outlives_its_restart(observed: Vehicle) -> None:
    until(lambda: "fenced_exporter_up 1.0" in _scraped())
    runs(observed, FIRST, 3)
    until(lambda: 'fenced_frames_ended_total{end="run",stream="road"} 3.0' in _scraped())
    observed.kill("KILL")
    until(lambda: 'fenced_frames_ended_total{end="run",stream="road"}' not in _scraped() and "up 1.0" in _scraped())
    status = observed.machine.path(f"/proc/{observed.machine.show(EXPORTER, 'MainPID')}/status").read_text()
    assert "CapEff:\t0000000000000000" in status
    assert "Seccomp:\t2" in status


def test_the_exporters_user_may_look_and_command_nothing(observed: Vehicle) -> None:
    fenced = "/opt/fenced/bin/fenced"
    assert "serving" in observed.machine.run(*AS_EXPORTER, fenced, "status")
    with pytest.raises(AssertionError, match="listed under"):
        observed.machine.run(*AS_EXPORTER, fenced, "drain")
    assert observed.status()["state"] == "serving"
