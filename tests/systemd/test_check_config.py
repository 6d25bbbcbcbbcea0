"""`fenced check-config` on an installed machine: as the daemon's user, as root, and with what a start would refuse."""

from __future__ import annotations

import json
from typing import Any

from tests.systemd.vehicle import FIRST, SECOND, Vehicle, runs

CONFIG, ROOT = "/etc/fenced/fenced.toml", "/etc/fenced/root.json"
COMMAND = ("/opt/fenced/bin/fenced", "check-config", CONFIG, "--root", ROOT, "--json")

AS_DAEMON = ("setpriv", "--reuid=fenced", "--regid=fenced", "--init-groups", "--")  # runuser wants PAM


def checked(vehicle: Vehicle, *before: str) -> Any:
    return json.loads(vehicle.machine.run(*before, *COMMAND, check=False))


def test_what_serves_passes_for_the_daemons_user_and_root_is_told_who_to_be(vehicle: Vehicle) -> None:
    runs(vehicle, FIRST, 6)  # it is confirmed: there is a floor
    own = checked(vehicle, *AS_DAEMON)
    assert (own["passed"], own["findings"]) == (True, [])
    assert own["models"][0]["name"] == FIRST.name
    root = checked(vehicle)
    assert root["passed"] is True
    assert [one["name"] for one in root["findings"]] == ["state_directory"]
    assert "runuser" in root["findings"][0]["todo"]


def test_a_release_below_the_floor_is_found_before_a_start_refuses_it(vehicle: Vehicle) -> None:
    vehicle.put(SECOND)
    vehicle.machine.run("systemctl", "restart", "fenced.service")
    runs(vehicle, SECOND, 6)
    vehicle.put(FIRST)
    found = checked(vehicle, *AS_DAEMON)
    assert found["passed"] is False
    assert [one["name"] for one in found["findings"]] == ["bundle_paths"]
    assert "rollback" in found["findings"][0]["what"]
