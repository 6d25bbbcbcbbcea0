"""Fixtures of the daemon's tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support import vehicle
from tests.support.bundles import BundleMaker


@pytest.fixture(scope="session")
def vehicle_site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The packages of a vehicle environment, made from the wheel of this checkout."""
    return vehicle.build_site(tmp_path_factory.mktemp("vehicle"))


@pytest.fixture
def maker(tmp_path: Path) -> BundleMaker:
    """A lab that writes signed bundles into a folder that the daemon may read."""
    (tmp_path / "models").mkdir()
    return BundleMaker(tmp_path / "models")
