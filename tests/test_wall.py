"""The wall between the vehicle and the lab, shown to hold and shown to be able to fail (DESIGN §1)."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from client.camera import Camera
from client.consumer import Consumer
from lab.hil.clients import LIMIT_S
from lab.hil.daemon import PATIENT, VEHICLE, DaemonProcess
from tests.support.bundles import PIXELS, BundleMaker, TinyModel, frame_format

ROOT = Path(__file__).parents[1]
FORBIDDEN = ("lab", "onnx", "onnxruntime", "torch", "tinygrad", "ziglang")


def lint_imports(folder: Path) -> subprocess.CompletedProcess[str]:
    command = [str(Path(sys.executable).with_name("lint-imports")), "--no-cache"]
    return subprocess.run(
        command, cwd=folder, capture_output=True, text=True, check=False, env={"PYTHONPATH": str(folder)}
    )


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A copy of the packages that a violation may be planted in."""
    for package in ("abi", "hal", "signing", "client", "daemon", "lab"):
        shutil.copytree(ROOT / package, tmp_path / package, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    return tmp_path


def test_the_packages_keep_their_contracts(checkout: Path) -> None:
    done = lint_imports(checkout)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize(
    ("file", "line", "contract"),
    [
        ("daemon/server.py", "import lab.cli", "the vehicle domain never imports the lab"),
        ("hal/fence.py", "import pickle", "the vehicle domain never imports the lab"),
        ("client/camera.py", "import subprocess", "the vehicle domain never imports the lab"),
        ("abi/lease.py", "import hal.memory", "abi imports no other package here"),
        ("signing/trust.py", "import abi.schema", "signing imports no other package here"),
        ("hal/memory.py", "import daemon.loop", "hal imports abi only"),
        ("client/tap.py", "import daemon.loop", "the client imports neither daemon nor signing"),
    ],
)
def test_a_planted_violation_breaks_its_contract(checkout: Path, file: str, line: str, contract: str) -> None:
    with (checkout / file).open("a") as source:
        source.write(f"\n{line}\n")
    done = lint_imports(checkout)
    assert done.returncode != 0
    assert f"{contract} BROKEN" in done.stdout


def vehicle_python(code: str) -> subprocess.CompletedProcess[str]:
    if not VEHICLE.is_dir():
        pytest.skip("no vehicle environment; `make vehicle` builds it")
    python = VEHICLE / "bin" / "python"
    return subprocess.run([python, "-I", "-c", code], capture_output=True, text=True, check=False)


@pytest.mark.parametrize("module", FORBIDDEN)
def test_the_vehicle_environment_cannot_import(module: str) -> None:
    done = vehicle_python(f"import {module}")
    assert done.returncode == 1
    assert "ModuleNotFoundError" in done.stderr


def test_the_wheel_alone_serves_a_frame(tmp_path: Path) -> None:
    if not VEHICLE.is_dir():
        pytest.skip("no vehicle environment; `make vehicle` builds it")
    maker = BundleMaker(tmp_path)
    model = TinyModel()
    frame_pixels = np.arange(PIXELS, dtype=np.uint8)
    with (
        DaemonProcess(tmp_path / "daemon", [maker.write(model)], maker.root_path, ["road"], limits=PATIENT) as daemon,
        Consumer.subscribe(daemon.sockets / "consumer.sock", model.name, timeout_s=LIMIT_S) as consumer,
        Camera.open(daemon.sockets / "camera.sock", "road", frame_format(), timeout_s=LIMIT_S) as camera,
    ):
        if os.geteuid() == 0:  # to others the daemon's memory is closed (daemon.privacy)
            assert Path(f"/proc/{daemon.pid}/exe").resolve() == Path(sys.executable).resolve()
            maps = Path(f"/proc/{daemon.pid}/maps").read_text()
            assert str(VEHICLE) in maps
            assert not any(f"/{module}/" in maps for module in ("onnxruntime", "ziglang", "tinygrad"))
        frame = camera.acquire(LIMIT_S)
        frame.pixels[:] = frame_pixels
        camera.submit(frame, 1, time.monotonic_ns())
        delivery = consumer.recv(LIMIT_S)
    assert np.array_equal(delivery.outputs["values"].reshape(-1), model.values(frame_pixels).reshape(-1))
