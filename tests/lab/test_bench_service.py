"""A line through resident memory tells a leak from noise."""

from __future__ import annotations

import numpy as np
import pytest

from lab.bench.service import fit

FRAMES = range(10_000, 50_001, 250)


@pytest.mark.parametrize(("kib_per_1000", "is_zero"), [(0.0, True), (1.0, False), (-1.0, False), (0.02, True)])
def test_a_leak_is_told_from_noise(kib_per_1000: float, is_zero: bool) -> None:
    noise = np.random.default_rng(1).integers(-8, 9, len(FRAMES))
    seen = [(at, round(55_000 + kib_per_1000 * at / 1000 + off)) for at, off in zip(FRAMES, noise, strict=True)]
    slope = fit(seen, FRAMES[-1])
    assert slope.is_zero is is_zero
    assert abs(slope.kib_per_1000 - kib_per_1000) <= 4 * slope.error_kib


def test_memory_that_never_changes_has_no_slope_and_no_error() -> None:
    slope = fit([(at, 55_820) for at in FRAMES], FRAMES[-1])
    assert slope.is_zero
    assert (slope.warm_kib, slope.last_kib) == (55_820, 55_820)
