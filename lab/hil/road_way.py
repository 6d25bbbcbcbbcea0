"""What changes along the road: dashes, patches, tar joints, the shade of overpasses and of trees.

Tables over the distance driven, looked up for the stretch of road that each picture row shows. Dashes and
brightness are averaged over the stretch, so far rows neither flicker nor alias.
"""

import numpy as np
from numpy.typing import NDArray

F64 = NDArray[np.float64]

TABLE_M, TABLE_STEP_M = 1024.0, 0.25
STEPS = int(TABLE_M / TABLE_STEP_M)
"""The surface repeats itself after TABLE_M; the truth of a drive does not."""
SHADE_REACH_M = 12.0
"""Trees stand this far from the lane's centre."""


class RoadWay:
    """The tables of one seed, for dashes of `dash_m` every `dash_period_m`."""

    def __init__(self, seed: int, dash_m: float, dash_period_m: float) -> None:
        rng = np.random.default_rng([seed, 0x3A1F])
        self._dash_m, self._dash_period_m = dash_m, dash_period_m
        self._brightness = np.concatenate(([0.0], np.cumsum(_draw_brightness(rng)) * TABLE_STEP_M))
        self._shade_right_m, self._shade_left_m = _draw_shade(rng)

    def brightness(self, from_m: F64, to_m: F64) -> F64:
        """Mean gain of the road's brightness over each stretch [from_m, to_m], to_m > from_m."""
        grid = np.arange(STEPS + 1) * TABLE_STEP_M
        start, end = (
            np.floor(at / TABLE_M) * self._brightness[-1] + np.interp(at % TABLE_M, grid, self._brightness)
            for at in (from_m, to_m)
        )
        return np.asarray((end - start) / (to_m - from_m), np.float64)

    def dash_cover(self, from_m: F64, to_m: F64) -> F64:
        """Part of each stretch [from_m, to_m] that a dashed line's paint covers, 0..1."""
        start, end = (
            np.floor(at / self._dash_period_m) * self._dash_m + np.minimum(at % self._dash_period_m, self._dash_m)
            for at in (from_m, to_m)
        )
        return np.clip((end - start) / (to_m - from_m), 0.0, 1.0)

    def shade_bounds_m(self, along_m: F64) -> tuple[F64, F64]:
        """Right and left bound of the trees' shade at each place, from the lane's centre, left positive.

        Where no shade falls the two are equal.
        """
        step = along_m / TABLE_STEP_M
        low = np.floor(step)
        weight = step - low
        here, there = low.astype(np.int64) % STEPS, (low.astype(np.int64) + 1) % STEPS
        right, left = (
            table[here] + (table[there] - table[here]) * weight for table in (self._shade_right_m, self._shade_left_m)
        )
        return right, left


def _draw_brightness(rng: np.random.Generator) -> F64:
    gain = 1.0 + 0.03 * smooth_noise(rng, STEPS, 8) + 0.02 * smooth_noise(rng, STEPS, 2)
    for _ in range(14):
        start, length = int(rng.integers(STEPS - 240)), int(rng.integers(20, 240))
        gain[start : start + length] *= rng.uniform(0.84, 1.12)
    gain[rng.integers(0, STEPS, 40)] *= 0.75
    for _ in range(2):
        start, length = int(rng.integers(STEPS - 60)), int(rng.integers(28, 56))
        gain[start : start + length] *= 0.5
    return np.asarray(gain, np.float64)


def _draw_shade(rng: np.random.Generator) -> tuple[F64, F64]:
    """Rows of trees on either side; each throws a rounded shade that reaches some way over the road."""
    right, left = np.full(STEPS, SHADE_REACH_M), np.full(STEPS, SHADE_REACH_M)
    leaves = 0.5 * smooth_noise(rng, STEPS, 3) + 0.35 * smooth_noise(rng, STEPS, 1)
    for _ in range(int(rng.integers(14, 34))):
        start, length = int(rng.integers(STEPS - 100)), int(rng.integers(12, 90))
        span = slice(start, start + length)
        round_ = np.sqrt(np.sin(np.linspace(0.0, np.pi, length)))
        depth = np.maximum((SHADE_REACH_M + float(rng.uniform(-4.0, 3.0)) + leaves[span]) * round_, 0.0)
        if rng.random() < 0.5:
            right[span], left[span] = SHADE_REACH_M - depth, SHADE_REACH_M
        else:
            right[span], left[span] = -SHADE_REACH_M, depth - SHADE_REACH_M
    return right, left


def smooth_noise(rng: np.random.Generator, size: int, width: int) -> F64:
    """Periodic noise of unit spread, smoothed over about `width` steps."""
    kernel = np.hanning(2 * width + 1)
    smooth = np.real(np.fft.ifft(np.fft.fft(rng.normal(size=size)) * np.fft.fft(kernel, size)))
    return np.asarray(smooth / smooth.std(), np.float64)
