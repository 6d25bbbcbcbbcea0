"""What stands above the horizon: sky, clouds, hills and a line of trees, as a panorama that closes on itself.

A frame shows a window of it, moved sideways by the car's direction in the world. One copy a frame.
"""

import numpy as np
from numpy.typing import NDArray

from lab.hil.nv12 import LUMA_BLACK, U8, Rgb, encode_bt709_limited

F32 = NDArray[np.float32]

TURN_PX = 4096
"""Width after which the panorama repeats; even, so that luma and chroma repeat together."""
ZENITH: Rgb = (0.38, 0.55, 0.82)
CLOUD: Rgb = (0.86, 0.88, 0.90)
HILL: Rgb = (0.46, 0.52, 0.52)
TREES: Rgb = (0.20, 0.27, 0.17)
NEAR_ROWS = 48
"""Hills and trees reach no higher above the horizon."""
SKY_ROWS = 520.0
"""Rows over which the sky goes from haze to the zenith's colour."""


class Backdrop:
    """`rows` picture rows above the horizon; the last row touches it.

    `luma` [rows, TURN_PX + width] holds Y − 16, `chroma` [rows, (TURN_PX + width) / 2 rounded up, 2] holds codes.
    """

    def __init__(self, seed: int, haze: Rgb, rows: int, width: int) -> None:
        rng = np.random.default_rng([seed, 0x5C1E])
        up = np.arange(rows, dtype=np.float32)[::-1, None]
        height = np.clip(up / np.float32(SKY_ROWS), 0.0, 1.0)
        # Each layer hides what lies behind it: (its colour, its cover 0..1), the farthest first.
        layers: list[tuple[Rgb, F32]] = [
            (ZENITH, np.sqrt(height)),
            (CLOUD, _clouds(rng, rows) * np.clip(height * 3.0, 0.0, 1.0)),
            (HILL, np.float32(0.45) * _cover(up, 14.0 + 12.0 * _ridge(rng, (3, 5, 9), 0.0))),
            (TREES, np.float32(0.75) * _cover(up, 5.0 + 4.0 * _ridge(rng, (11, 23, 41), 0.55))),
        ]
        luma, cb, cr = (_mix(haze, layers, plane, rows) for plane in range(3))
        columns = np.arange(TURN_PX + width + width % 2) % TURN_PX
        self.luma: U8 = np.clip(luma - (LUMA_BLACK - 0.5), 0, 219).astype(np.uint8)[:, columns]
        pairs = np.stack((cb[:, ::2], cr[:, ::2]), axis=-1)
        self.chroma: U8 = np.clip(pairs + 0.5, 16, 240).astype(np.uint8)[:, columns[::2] // 2]


def _mix(haze: Rgb, layers: list[tuple[Rgb, F32]], plane: int, rows: int) -> F32:
    """Codes of one plane (0 Y, 1 Cb, 2 Cr), not rounded, [rows, TURN_PX]."""
    picture = np.full((rows, TURN_PX), encode_bt709_limited(haze)[plane], np.float32)
    for colour, cover in layers:
        code = np.float32(encode_bt709_limited(colour)[plane])
        near = slice(max(0, rows - NEAR_ROWS), rows) if colour in (HILL, TREES) else slice(0, rows)
        picture[near] += (code - picture[near]) * cover[near]
    return picture


def _cover(up: F32, crest: F32) -> F32:
    """Cover by what stands below a skyline `crest` rows high, antialiased."""
    return np.asarray(np.clip(crest[None, :] - up + np.float32(0.5), 0.0, 1.0), np.float32)


def _ridge(rng: np.random.Generator, waves: tuple[int, ...], rough: float) -> F32:
    """A periodic skyline in about −1..1, from sines that fit the turn; `rough` adds single treetops."""
    angle = np.linspace(0.0, 2 * np.pi, TURN_PX, endpoint=False)
    ridge = rough * np.abs(rng.normal(size=TURN_PX))
    for count in waves:
        ridge += np.sin(count * angle + rng.uniform(0, 2 * np.pi)) / len(waves)
    return ridge.astype(np.float32)


def _clouds(rng: np.random.Generator, rows: int) -> F32:
    """Cloud cover 0..0.9, [rows, TURN_PX], periodic in the second axis: 1/f noise."""
    spectrum = np.fft.rfft2(rng.standard_normal((rows, TURN_PX), np.float32))
    # Clouds near the horizon look about four times as wide as they are high.
    vertical, lateral = np.fft.fftfreq(rows)[:, None], np.fft.rfftfreq(TURN_PX)[None, :] * 4.0
    spectrum *= ((vertical**2 + lateral**2 + (1.0 / 300.0) ** 2) ** -0.8).astype(np.float32)
    field = np.fft.irfft2(spectrum, s=(rows, TURN_PX)).astype(np.float32)
    amount = np.float32(rng.uniform(-0.1, 0.5))
    return np.asarray(np.clip(field * (np.float32(0.45) / field.std()) + amount, 0.0, 0.9), np.float32)
