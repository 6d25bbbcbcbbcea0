"""Fixtures of the recording and replay tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.bundles import BundleMaker


@pytest.fixture
def maker(tmp_path: Path) -> BundleMaker:
    """A lab that writes signed bundles into a folder that the daemon may read."""
    (tmp_path / "models").mkdir()
    return BundleMaker(tmp_path / "models")
