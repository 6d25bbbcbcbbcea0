"""A bench for the harness's own tests: its daemon runs from the wheel of this checkout."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from lab.hil.bench import Bench
from tests.support import vehicle

SLOW = bool(os.environ.get("FENCED_SLOW"))
QUICK_MEMORY_FRAMES = 1_000


@pytest.fixture(scope="session")
def vehicle_program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A vehicle environment with `bin/fenced`, made from the wheel of this checkout."""
    return vehicle.program(tmp_path_factory.mktemp("vehicle"))


@pytest.fixture(scope="package")
def bench(tmp_path_factory: pytest.TempPathFactory, vehicle_program: Path) -> Iterator[Bench]:
    """A bench with a daemon of its own."""
    with Bench.started(tmp_path_factory.mktemp("bench"), vehicle=vehicle_program) as started:
        if not SLOW:
            started.memory_frames = QUICK_MEMORY_FRAMES
        yield started
