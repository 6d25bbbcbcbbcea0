"""The installed service on a booted machine, and clients of it in the test's own process."""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from lab.hil.clients import Sockets, picture, run_one
from tests.support.bundles import BundleMaker, TinyModel
from tests.systemd.machine import Machine, until

UNIT = "fenced.service"
SOCKET_UNITS = tuple(f"fenced-{role}.socket" for role in ("camera", "consumer", "control"))
MODELS = "/var/lib/fenced-models"
FIRST = TinyModel("add")
SECOND = TinyModel("add", version="2.0.0", release=2, number=9)
CONFIG = """\
state_directory = "/var/lib/fenced"
image_manifest_path = "/opt/fenced/image.json"
root_paths = ["/run/credentials/fenced.service/root.json"]
bundle_paths = ["/var/lib/fenced-models/lane.fenced"]
[limits]
max_age_ms = 60000
probation_frames = 4
[activation]
crash_limit = 2
[stream.road]
uids = [0]
[subscribe]
uids = [0]
[control]
uids = [0]
"""


DROP_INS = f"/etc/systemd/system/{UNIT}.d"
PATIENT = "[Service]\nWatchdogSec=60s\nTimeoutStartSec=300s\nTimeoutStopSec=60s\n"
"""What a machine that stands still for seconds needs, to end nothing that is in order."""


class Vehicle(Sockets):
    """`machine` with the package; `maker` is the lab whose root it trusts.

    Its service has more time than the unit gives it, but within `in_a_hurry`.
    """

    def __init__(self, machine: Machine, maker: BundleMaker) -> None:
        super().__init__(machine.path("/run/fenced"))
        self.machine = machine
        self.maker = maker
        self._cursor = ""

    def install(self, package: Path) -> None:
        """Installs it as a person would; the dependencies are on the machine, but not in its empty database."""
        shutil.copy(package, self.machine.path("/root/fenced.deb"))
        self.machine.run("dpkg", "--force-depends", "--install", "/root/fenced.deb")
        shutil.copy(self.maker.root_path, self.machine.path("/etc/fenced/root.json"))
        self.machine.path("/etc/fenced/fenced.toml").write_text(CONFIG)
        self.machine.path(DROP_INS).mkdir(exist_ok=True)
        self.machine.path(f"{DROP_INS}/patient.conf").write_text(PATIENT)
        self.machine.run("systemctl", "daemon-reload")

    @contextlib.contextmanager
    def in_a_hurry(self) -> Iterator[None]:
        """The service started again with the unit's own times."""
        patient = self.machine.path(f"{DROP_INS}/patient.conf")
        try:
            patient.unlink()
            self.machine.run("systemctl", "daemon-reload")
            self.machine.run("systemctl", "restart", UNIT)
            yield
        finally:
            patient.write_text(PATIENT)
            self.machine.run("systemctl", "daemon-reload")

    def begin(self) -> None:
        """A vehicle as it comes from the factory, serving FIRST."""
        self.machine.run("systemctl", "stop", UNIT, *SOCKET_UNITS)
        self.machine.run("systemctl", "reset-failed", UNIT, check=False)  # of a unit that was never started: fails
        shutil.rmtree(self.machine.path("/var/lib/fenced"), ignore_errors=True)
        self.put(FIRST)
        self._cursor = self.machine.cursor()
        self.machine.run("systemctl", "start", *SOCKET_UNITS, UNIT)

    def put(self, model: TinyModel, name: str = "lane.fenced") -> str:
        """Installs a bundle, whole or not at all; returns its path on the machine."""
        made = self.maker.write(model)
        target = self.machine.path(f"{MODELS}/{name}")
        shutil.copy(made, target.with_suffix(".new"))
        target.with_suffix(".new").chmod(0o644)
        target.with_suffix(".new").rename(target)
        return f"{MODELS}/{name}"

    @property
    def pid(self) -> int:
        """The daemon's process, as the machine numbers it."""
        return int(self.machine.show(UNIT, "MainPID"))

    @property
    def restarts(self) -> int:
        """How often systemd has started it again."""
        return int(self.machine.show(UNIT, "NRestarts"))

    def kill(self, signal: str) -> None:
        """Sends a signal to the daemon alone and waits until systemd has started another in its place."""
        before = self.pid
        self.machine.run("kill", f"-{signal}", str(before))
        until(lambda: self.pid not in (0, before) and self.is_serving())

    def is_serving(self) -> bool:
        """Whether systemd was told READY."""
        return self.machine.show(UNIT, "ActiveState") == "active"

    def fenced(self, *arguments: str, check: bool = True) -> str:
        """The command on the machine."""
        return self.machine.run("/opt/fenced/bin/fenced", *arguments, check=check)

    def events(self, **fields: str) -> list[dict[str, Any]]:
        """The journal's entries of this test that the daemon wrote with these fields."""
        return self.journal(_SYSTEMD_UNIT=UNIT, **fields)

    def journal(self, **fields: str) -> list[dict[str, Any]]:
        """The journal's entries of this test with these fields."""
        return [entry for entry in self.machine.journal(self._cursor) if fields.items() <= entry.items()]

    def audited(self, event: str) -> list[dict[str, Any]]:
        """The audit log's entries of one kind; of a line that is being written there is none yet."""
        whole, _, _ = self.machine.path("/var/lib/fenced/audit.jsonl").read_text().rpartition("\n")
        return [entry for entry in map(json.loads, whole.splitlines()) if entry["event"] == event]


def runs(vehicle: Vehicle, model: TinyModel = FIRST, frames: int = 1) -> None:
    """A camera and a consumer come, frames run, the outputs are the model's."""
    with vehicle.camera() as camera, vehicle.consumer() as consumer:
        for sequence in range(1, frames + 1):
            outputs = run_one(camera, consumer, sequence, picture(sequence)).outputs
            assert np.array_equal(outputs["values"], model.values(picture(sequence)))
