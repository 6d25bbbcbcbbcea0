"""Fixtures of the daemon's tests."""

from pathlib import Path

import pytest

from tests.support import vehicle


@pytest.fixture(scope="session")
def vehicle_site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The packages of a vehicle environment, made from the wheel of this checkout."""
    return vehicle.build_site(tmp_path_factory.mktemp("vehicle"))
