"""Type=notify-reload, which systemd knows from version 253 on: `systemctl reload` returns when the reload is over.

Where this machine's systemd is older, FENCED_SYSTEMD names a folder into which the packages of a newer one are unpacked
(.ci/run takes them from Debian's backports); without either it skips.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.bundles import BundleMaker
from tests.systemd.machine import booted
from tests.systemd.vehicle import FIRST, SECOND, UNIT, Vehicle, runs

FIRST_VERSION = 253


@pytest.fixture
def newer(package: Path, tmp_path: Path) -> Iterator[Vehicle]:
    """A vehicle whose systemd knows the type, serving FIRST."""
    given = os.environ.get("FENCED_SYSTEMD")
    words = subprocess.run(["systemctl", "--version"], capture_output=True, text=True, check=True).stdout.split()
    if not given and int(words[1]) < FIRST_VERSION:
        pytest.skip(f"systemd {words[1]} knows no notify-reload, and FENCED_SYSTEMD names no newer one")
    machine = booted(tmp_path, Path(given) if given else None)
    try:
        (tmp_path / "models").mkdir()
        vehicle = Vehicle(machine, BundleMaker(tmp_path / "models"))
        vehicle.install(package)
        vehicle.begin()
        yield vehicle
    finally:
        machine.stop()


def test_the_package_chooses_the_type_and_a_reload_is_waited_for(newer: Vehicle) -> None:
    assert newer.machine.show(UNIT, "Type") == "notify-reload"
    runs(newer, FIRST)
    before = newer.pid
    for model, version in ((SECOND, "2.0.0"), (FIRST, "1.0.0"), (SECOND, "2.0.0")):
        newer.put(model)
        newer.machine.run("systemctl", "reload", UNIT)
        assert newer.status()["models"][0]["version"] == version  # at once: nothing is waited for here
    runs(newer, SECOND)
    assert newer.pid == before
    (newer.machine.path("/var/lib/fenced-models/lane.fenced")).unlink()
    newer.machine.run("systemctl", "reload", UNIT)
    assert "unreadable-file" in newer.machine.show(UNIT, "StatusText")
    assert newer.is_serving()
