"""The accelerator image and its drop-in on a booted machine: a model for OpenCL serves inside the sandbox."""

from __future__ import annotations

import shutil
from pathlib import Path

from lab.compile import opencl as compiler
from lab.image.sign import sign_image
from tests.daemon.test_opencl_process import OLD, write
from tests.simulators import RoleKeys
from tests.support import opencl
from tests.support.image import built_image
from tests.systemd.vehicle import CONFIG, MODELS, UNIT, Vehicle, runs


def test_a_model_for_opencl_serves_with_the_drop_in(vehicle: Vehicle, tmp_path: Path) -> None:
    opencl.require_device()
    machine = vehicle.machine
    tree, installed = tmp_path / "image", machine.path("/opt/fenced")
    shutil.copytree(built_image(accelerator=True).tree, tree)
    sign_image(tree, RoleKeys.make().release[0])
    kept = installed.with_name("fenced.kept")
    shutil.copytree("/etc/OpenCL", machine.path("/etc/OpenCL"))
    folder, config = machine.path(f"/etc/systemd/system/{UNIT}.d"), machine.path("/etc/fenced/fenced.toml")
    folder.mkdir(exist_ok=True)
    drop_in = folder / "opencl.conf"
    try:
        machine.run("systemctl", "stop", UNIT)
        installed.rename(kept)
        shutil.copytree(tree, installed)
        drop_in.symlink_to("/opt/fenced/share/systemd/fenced-opencl.conf")
        config.write_text(f'{CONFIG}\n[device]\ndriver = "opencl"\n')
        shutil.copy(write(vehicle.maker, OLD, compiler.local_device().identity), machine.path(f"{MODELS}/lane.fenced"))
        machine.run("systemctl", "daemon-reload")
        machine.run("systemctl", "restart", UNIT)
        runs(vehicle, OLD)
        assert vehicle.status()["device"]["driver"] == "opencl"
    finally:
        machine.run("systemctl", "stop", UNIT)
        drop_in.unlink(missing_ok=True)
        config.write_text(CONFIG)
        shutil.rmtree(installed)
        kept.rename(installed)
        machine.run("systemctl", "daemon-reload")
