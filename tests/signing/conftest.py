"""What most tests of this folder begin with."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.simulators import BundleSimulator


@pytest.fixture
def sim(tmp_path: Path) -> BundleSimulator:
    """A signed bundle, written to its file."""
    simulator = BundleSimulator(tmp_path)
    simulator.write()
    return simulator
