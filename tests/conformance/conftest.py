"""Runs that a broken driver leaves behind have time to end, however busy the machine: unloading waits for them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from hal import driver

LIMIT_NS = 60_000_000_000


@pytest.fixture(scope="package", autouse=True)
def _patience() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(driver, "_UNLOAD_LIMIT_NS", LIMIT_NS)
        yield
