"""One machine for all of these tests: the package is built and installed once; each test begins with it serving."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from lab.image.deb import write_deb
from lab.image.sign import sign_image
from lab.refusal import LabRefused
from tests.simulators import RoleKeys
from tests.support.bundles import BundleMaker
from tests.support.image import built_image
from tests.systemd.machine import booted, why_not
from tests.systemd.vehicle import Vehicle


@pytest.fixture(scope="session")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The signed package of this checkout. The tests need minutes, so they run where FENCED_SLOW is set."""
    if not os.environ.get("FENCED_SLOW"):
        pytest.skip("set FENCED_SLOW=1: builds the package and boots a machine")
    reason = why_not()
    if reason is not None:
        pytest.skip(reason)
    try:
        image = built_image()
    except (OSError, LabRefused) as error:
        pytest.skip(f"the image cannot be built: {error}")
    folder = tmp_path_factory.mktemp("package")
    shutil.copytree(image.tree, folder / "image")
    sign_image(folder / "image", RoleKeys.make().release[0])
    write_deb(folder / "image", folder / "fenced.deb")
    return folder / "fenced.deb"


@pytest.fixture(scope="session")
def installed(package: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Vehicle]:
    """A booted machine with the package installed, a root and a configuration; nothing is started yet."""
    folder = tmp_path_factory.mktemp("machine")
    machine = booted(folder)
    try:
        (folder / "models").mkdir()
        vehicle = Vehicle(machine, BundleMaker(folder / "models"))
        vehicle.install(package)
        yield vehicle
    finally:
        machine.stop()


@pytest.fixture
def vehicle(installed: Vehicle) -> Vehicle:
    """The machine with a daemon that serves the first model, and no state of earlier tests."""
    installed.begin()
    return installed
