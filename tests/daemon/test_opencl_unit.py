"""The drop-ins: well formed, and still within the exposure that the design allows a GPU node."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.daemon.test_units import UNITS, run, tool

EXPOSURE_LIMIT = 9  # of 100: 0.9, for a node with an accelerator


@pytest.mark.parametrize("name", ["opencl", "realtime"])
def test_the_service_with_the_drop_in_verifies_and_stays_tight(tmp_path: Path, name: str) -> None:
    for unit in UNITS.iterdir():
        (tmp_path / unit.name).write_text(unit.read_text().replace("/opt/fenced/bin/fenced", "/bin/true"))
    folder = tmp_path / "fenced.service.d"
    folder.mkdir()
    shutil.move(tmp_path / f"fenced-{name}.conf", folder / f"{name}.conf")
    service = tmp_path / "fenced.service"
    done = run(tool("systemd-analyze"), "verify", "--man=no", service, *tmp_path.glob("*.socket"))
    assert (done.returncode, done.stderr) == (0, "")
    merged = service.read_text().replace("[Install]", (folder / f"{name}.conf").read_text() + "\n[Install]")
    service.write_text(merged)
    done = run("systemd-analyze", "security", "--offline=true", f"--threshold={EXPOSURE_LIMIT}", service)
    assert done.returncode == 0, done.stdout.splitlines()[-1]
