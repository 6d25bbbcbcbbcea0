"""What lies on the ground: asphalt, verge and lane paint, drawn once for every row below the horizon.

Seen from a camera at fixed height, a picture row k rows below the horizon has one lateral scale, so the road in
that row is always the same strip of pixels, only shifted by where the lane's centre is. `RoadSurface` draws
these strips, wider than the picture, antialiased by exact pixel coverage, in four variants: dashes off or on, in
the sun or in shade. A frame then costs one copy a row. What changes along the road (`lab.hil.road_way`) is
looked up by distance.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lab.hil.nv12 import CHROMA_ZERO, LUMA_BLACK, U8, Rgb, encode_bt709_limited
from lab.hil.road_way import smooth_noise

F32 = NDArray[np.float32]

SUNNY, SHADED = 0, 2
"""First strip variant in each light; add 1 for dashes on."""
SHADE_GAIN = 0.52
HAZE_M = 450.0
PAINT_OPACITY = 0.92
TRACK_M, TRACK_WIDTH_M = 0.78, 0.28
"""Tyres polish two tracks, this far from the lane's middle."""


@dataclass(frozen=True)
class Line:
    """One painted line: lateral place of its middle in metres from the lane's centre, left positive."""

    centre_m: float
    width_m: float
    dashed: bool
    colour: Rgb


@dataclass(frozen=True)
class RoadStyle:
    """What one seed's road looks like; lengths in metres, laterals from the lane's centre, left positive."""

    lane_width_m: float
    lines: tuple[Line, ...]
    edge_left_m: float
    edge_right_m: float
    dash_m: float
    dash_period_m: float
    asphalt: Rgb
    verge: Rgb
    haze: Rgb
    noise_codes: float

    @classmethod
    def drawn(cls, seed: int) -> "RoadStyle":
        """The style of `seed`: line kinds, widths and colours, neighbour lanes, asphalt, verge, haze and noise."""
        rng = np.random.default_rng([seed, 0x57E1])
        width, paint = float(rng.uniform(3.3, 3.75)), float(rng.uniform(0.12, 0.18))
        level = float(rng.uniform(0.80, 0.95))
        white = (level, level, level)
        lines: list[Line] = []
        edges: list[float] = []
        for side in (1.0, -1.0):
            dashed = bool(rng.random() < 0.5)
            neighbour = dashed or bool(rng.random() < 0.2)
            yellow = side > 0 and not dashed and bool(rng.random() < 0.4)
            lines.append(Line(side * width / 2, paint, dashed, (0.86, 0.70, 0.24) if yellow else white))
            if neighbour:
                lines.append(Line(side * width * 1.5, paint, False, white))
            edges.append(width * (1.5 if neighbour else 0.5) + float(rng.uniform(0.5, 1.8)))
        grey = float(rng.uniform(0.30, 0.46))
        green, dry = float(rng.uniform(0.34, 0.48)), float(rng.uniform(0.0, 0.16))
        haze = float(rng.uniform(0.72, 0.84))
        return cls(
            lane_width_m=width,
            lines=tuple(lines),
            edge_left_m=edges[0],
            edge_right_m=-edges[1],
            dash_m=float(rng.uniform(3.0, 6.0)),
            dash_period_m=float(rng.uniform(9.0, 15.0)),
            asphalt=(grey, grey * 0.995, grey * 1.02),
            verge=(green * 0.78 + dry, green, green * 0.46),
            haze=(haze * 0.95, haze * 0.98, haze),
            noise_codes=float(rng.uniform(1.2, 3.0)),
        )


class RoadSurface:
    """The strips of `rows` rows, each `width` + 2·`margin` pixels.

    `luma` is [4, rows, width + 2·margin] of Y − 16 and `chroma` [4, rows, pairs, 2] of codes, uint8. In strip
    row k, pixel j shows the point (width/2 + margin − j − 0.5) · metre_rows / (k + 0.5) left of the lane's centre.
    Chroma row k belongs to the pair of picture rows k and k + 1.
    """

    def __init__(
        self, style: RoadStyle, seed: int, *, rows: int, width: int, margin: int, metre_rows: float, focal_px: float
    ) -> None:
        """`metre_rows`: metres per pixel times rows below the horizon, a constant of the camera."""
        rng = np.random.default_rng([seed, 0x5F4C])
        self._style = style
        self._depth_rows = metre_rows * focal_px
        self._grain = rng.standard_normal(1 << 16, np.float32)
        # Worn and dusty places, and tufts on the verge: 1/8 m a step across, another stretch of it every row.
        self._blots = smooth_noise(rng, 1 << 12, 5).astype(np.float32)
        self._codes = {colour: encode_bt709_limited(colour) for colour in _colours(style)}
        pixels, pairs = width + 2 * margin, (width + 1) // 2 + margin
        middle = width / 2 + margin
        columns = (middle - 0.5 - np.arange(pixels)).astype(np.float32)
        pair_columns = (middle - 1.0 - 2 * np.arange(pairs)).astype(np.float32)
        self.luma: U8 = np.empty((4, rows, pixels), np.uint8)
        self.chroma: U8 = np.empty((4, rows, pairs, 2), np.uint8)
        for k in range(rows):
            scale = metre_rows / (k + 0.5)
            self._draw_luma(k, columns * np.float32(scale), scale)
            self._draw_chroma(k, pair_columns * np.float32(metre_rows / (k + 1.0)), 2 * metre_rows / (k + 1.0))

    def _draw_luma(self, k: int, lateral_m: F32, scale: float) -> None:
        style = self._style
        haze, veil = np.float32(self._codes[style.haze][0] - LUMA_BLACK), self._veil(k)
        factor = self._texture(k, lateral_m, scale)
        for dashes, codes in enumerate(self._paint(0, lateral_m, scale)):
            row = (codes - LUMA_BLACK) * factor
            for light, gain in ((SUNNY, 1.0), (SHADED, SHADE_GAIN)):
                shown = row * ((1 - veil) * np.float32(gain)) + (haze * veil + np.float32(0.5))
                self.luma[light + dashes, k] = np.clip(shown, 0, 219)

    def _draw_chroma(self, k: int, lateral_m: F32, scale: float) -> None:
        veil = self._veil(k)
        for plane in (1, 2):
            haze = np.float32(self._codes[self._style.haze][plane] - CHROMA_ZERO)
            for dashes, codes in enumerate(self._paint(plane, lateral_m, scale)):
                row = codes - CHROMA_ZERO
                for light, gain in ((SUNNY, 1.0), (SHADED, SHADE_GAIN)):
                    shown = row * ((1 - veil) * np.float32(gain)) + (haze * veil + np.float32(CHROMA_ZERO + 0.5))
                    self.chroma[light + dashes, k, :, plane - 1] = np.clip(shown, 16, 240)

    def _paint(self, plane: int, lateral_m: F32, scale: float) -> tuple[F32, F32]:
        """Codes of one plane (0 Y, 1 Cb, 2 Cr) along a row of pixels `scale` metres wide: without and with dashes."""
        style = self._style
        row = np.full(lateral_m.shape, self._codes[style.verge][plane], np.float32)
        asphalt = self._codes[style.asphalt][plane]
        _cover(row, lateral_m, scale, low=style.edge_right_m, high=style.edge_left_m, code=asphalt, opacity=1.0)
        self._lay_lines(row, lateral_m, scale, plane, dashed=False)
        with_dashes = row.copy()
        self._lay_lines(with_dashes, lateral_m, scale, plane, dashed=True)
        return row, with_dashes

    def _lay_lines(self, row: F32, lateral_m: F32, scale: float, plane: int, *, dashed: bool) -> None:
        for line in self._style.lines:
            if line.dashed == dashed:
                low, high = line.centre_m - line.width_m / 2, line.centre_m + line.width_m / 2
                code = self._codes[line.colour][plane]
                _cover(row, lateral_m, scale, low=low, high=high, code=code, opacity=PAINT_OPACITY)

    def _texture(self, k: int, lateral_m: F32, scale: float) -> F32:
        """Gain of each pixel's brightness: tyre tracks, worn places and grain on the road, tufts on the verge."""
        style = self._style
        on_road = (lateral_m < style.edge_left_m) & (lateral_m > style.edge_right_m)
        tracks = np.exp(-np.square((np.abs(lateral_m) - np.float32(TRACK_M)) / np.float32(TRACK_WIDTH_M)))
        start = (k * 7919) % (self._grain.size - lateral_m.size)
        # A pixel that covers much ground averages its grain away.
        grain = self._grain[start : start + lateral_m.size] * np.float32(1.0 / (1.0 + 12.0 * scale))
        # Blots change slowly from row to row, about as fast as the ground's depth does.
        place = (lateral_m * 8.0).astype(np.int64) + int(3.0 * math.log(k + 1.0) * 40.0)
        blots = self._blots[place & (self._blots.size - 1)]
        road = 1 - np.float32(0.06) * tracks + np.float32(0.035) * grain + np.float32(0.012) * blots
        verge = 1 + np.float32(0.07) * grain + np.float32(0.08) * blots
        return np.asarray(np.where(on_road, road, verge), np.float32)

    def _veil(self, k: int) -> np.float32:
        """Share of haze in strip row k: the ground there is depth_rows / (k + 0.5) metres away."""
        return np.float32(1.0 - np.exp(-self._depth_rows / (k + 0.5) / HAZE_M))


def _colours(style: RoadStyle) -> set[Rgb]:
    return {style.asphalt, style.verge, style.haze, *(line.colour for line in style.lines)}


def _cover(row: F32, lateral_m: F32, scale: float, *, low: float, high: float, code: float, opacity: float) -> None:
    """Lays a band from `low` to `high` over a row, each pixel by the part of it that the band covers.

    `lateral_m` falls by `scale` from pixel to pixel.
    """
    first = max(0, math.floor((float(lateral_m[0]) - high) / scale - 1.0))
    last = min(row.size, math.ceil((float(lateral_m[0]) - low) / scale + 2.0))
    if last <= first:
        return
    here, half = lateral_m[first:last], np.float32(scale / 2)
    alpha = np.minimum(here + half, np.float32(high)) - np.maximum(here - half, np.float32(low))
    alpha = np.clip(alpha / np.float32(scale), 0.0, 1.0) * np.float32(opacity)
    row[first:last] += (np.float32(code) - row[first:last]) * alpha
