"""A synthetic road camera with known truth: a pinhole picture of an endless drive, as NV12 bytes.

`RoadCamera(seed).render_into(buffer, i)` writes frame i into the caller's buffer and returns its truth. Every
byte is a function of (seed, camera, layout, i). Colour is ITU-R BT.709, limited range, chroma sited left.
Numpy only, and cheap enough to run at 20 Hz beside the daemon: the ground is copied row by row from strips drawn
once (`lab.hil.road_surface`), then one pass in 16 bits adds light and sensor noise.

Truth is exact up to drawing: each row's strip is placed to the nearest whole pixel, so paint is at most half a
pixel from where the truth puts it, and the strips are drawn for the mean pitch.
"""

import enum
import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lab.hil.nv12 import (
    CHROMA_HIGH,
    CHROMA_LOW,
    CHROMA_ZERO,
    LUMA_BLACK,
    LUMA_WHITE,
    U8,
    BytesLike,
    Nv12Error,
    Nv12Layout,
    Nv12Refusal,
)
from lab.hil.road_backdrop import TURN_PX, Backdrop
from lab.hil.road_drive import MAX_LANE_OFFSET_M, RoadDrive, RoadScene, RoadTruth
from lab.hil.road_surface import SHADED, SUNNY, RoadStyle, RoadSurface
from lab.hil.road_way import RoadWay

__all__ = ["Camera", "Nv12Layout", "RoadCamera", "RoadError", "RoadRefusal", "RoadScene", "RoadTruth"]

F64 = NDArray[np.float64]
I64 = NDArray[np.int64]
U16 = NDArray[np.uint16]

GAIN_ONE = 128
MAX_GAIN = 1.6
BLOCK_ROWS = 32
"""Rows developed at a time, so that the 16-bit scratch stays in the cache."""
NOISE_WORDS = 1 << 20
FAR_M = 250.0
"""Beyond this the road's shape is held: it is less than six rows of the picture."""
PITCH_ROWS_LIMIT = 8
POST_EVERY_M, POST_FAR_M, POST_HIGH_M, POST_WIDE_M = 50.0, 130.0, 1.0, 0.12
POST_LUMA, POST_BAND_LUMA = 178, 24
"""Y − 16."""
DASH_TRACE = 0.02
"""Dash cover that is not worth mixing."""


class RoadRefusal(enum.Enum):
    """Why a camera or a scene was refused."""

    HORIZON = "road-horizon"
    OFFSET = "road-offset"
    PITCH = "road-pitch"
    EXPOSURE = "road-exposure"
    LAYOUT = "road-layout"


class RoadError(ValueError):
    """A camera or scene that cannot be drawn; `code` names the rule it broke."""

    def __init__(self, code: RoadRefusal, message: str) -> None:
        super().__init__(f"{code.value}: {message}")
        self.code = code


@dataclass(frozen=True)
class Camera:
    """A pinhole camera looking ahead and down: principal point in the middle, square pixels, no distortion."""

    width: int = 1928
    height: int = 1208
    focal_px: float = 1400.0
    height_m: float = 1.4
    pitch_rad: float = 0.06
    """Angle of the optical axis below the horizontal; drawn to the nearest whole row of the horizon."""

    @classmethod
    def of_size(cls, width: int, height: int) -> "Camera":
        """The default camera's view in another size: the same horizontal angle of view."""
        return cls(width, height, focal_px=1400.0 * width / 1928.0)

    @property
    def horizon_row(self) -> int:
        """Rows above the horizon at rest: height/2 − focal·tan(pitch), rounded."""
        return round(self.height / 2 - self.focal_px * math.tan(self.pitch_rad))


@dataclass(frozen=True)
class _Ground:
    """Where one frame's road lies: an entry a picture row from row `horizon` down."""

    horizon: int
    shift_px: F64
    near_m: F64
    far_m: F64


@dataclass(frozen=True)
class _Plan:
    """What each row below the horizon shows: strip start, shaded columns [first, last), dash cover 0..1."""

    starts: I64
    first: I64
    last: I64
    cover: F64


class RoadCamera:
    """The camera of one seed: its own road, light and drive.

    Not for use by two threads at once: frames are composed in scratch memory owned here.
    """

    def __init__(self, seed: int, camera: Camera | None = None, layout: Nv12Layout | None = None) -> None:
        """Draws the road once (some 0.3 s at 1928×1208).

        `camera` is the default 1928×1208 one if None; `layout` tight. Raises RoadError for a horizon outside the
        picture and a layout of another size.
        """
        self.camera = camera or Camera()
        self.layout = layout or Nv12Layout.tight(self.camera.width, self.camera.height)
        self.seed = seed
        self._check()
        width, height = self.camera.width, self.camera.height
        rows = height - self.camera.horizon_row + PITCH_ROWS_LIMIT
        self._metre_rows = self.camera.height_m / math.cos(self.camera.pitch_rad)
        self._margin = 2 * (math.ceil(max(MAX_LANE_OFFSET_M * rows / self._metre_rows, width / 2)) // 2 + 1)
        self.style = RoadStyle.drawn(seed)
        self.drive = RoadDrive(seed)
        self._way = RoadWay(seed, self.style.dash_m, self.style.dash_period_m)
        self._surface = RoadSurface(
            self.style,
            seed,
            rows=rows,
            width=width,
            margin=self._margin,
            metre_rows=self._metre_rows,
            focal_px=self.camera.focal_px,
        )
        self._backdrop = Backdrop(seed, self.style.haze, self.camera.horizon_row + PITCH_ROWS_LIMIT + 1, width)
        self._luma = np.empty((height, width), np.uint8)
        self._chroma = np.empty((self.layout.chroma_height, self.layout.chroma_width, 2), np.uint8)
        self._work = np.empty(BLOCK_ROWS * (width + 1), np.uint16)
        self._noise = self._draw_noise()

    def _check(self) -> None:
        camera, layout = self.camera, self.layout
        if (layout.width, layout.height) != (camera.width, camera.height):
            raise RoadError(
                RoadRefusal.LAYOUT,
                f"layout is for {layout.width}×{layout.height}, the camera is {camera.width}×{camera.height}; "
                "give both the same size",
            )
        if not PITCH_ROWS_LIMIT < camera.horizon_row < camera.height - PITCH_ROWS_LIMIT:
            raise RoadError(
                RoadRefusal.HORIZON,
                f"the horizon falls on row {camera.horizon_row} of {camera.height}; it must be at least "
                f"{PITCH_ROWS_LIMIT + 1} rows inside the picture: change pitch_rad or focal_px",
            )

    def _draw_noise(self) -> U16:
        """Sensor noise in 1/128 codes on top of luma's black and half a code for rounding; always positive."""
        rng = np.random.default_rng([self.seed, 0x0153])
        spread = self.style.noise_codes
        words = NOISE_WORDS + BLOCK_ROWS * (self.camera.width + 1)
        noise = np.clip(rng.normal(0.0, spread, words), -4 * spread, 4 * spread)
        return np.asarray(np.rint((noise + LUMA_BLACK + 0.5) * GAIN_ONE), np.uint16)

    def frame(self, index: int) -> RoadTruth:
        """The truth of frame `index` ≥ 0, without drawing it."""
        return self.drive.scene(index).truth

    def render_into(self, out: BytesLike, index: int) -> RoadTruth:
        """Draws frame `index` ≥ 0 into `out`, a writable buffer in this camera's layout; returns its truth.

        Padding is left as it was. Raises Nv12Error when `out` is too small.
        """
        scene = self.drive.scene(index)
        self.render_scene_into(out, scene, index)
        return scene.truth

    def render_scene_into(self, out: BytesLike, scene: RoadScene, noise_index: int = 0) -> None:
        """Draws any scene, with the sensor noise of frame `noise_index`. Raises RoadError and Nv12Error."""
        _check_scene(scene)
        luma, chroma = self.layout.planes(out)
        if not luma.flags.writeable:
            raise Nv12Error(Nv12Refusal.BUFFER, "the buffer is read-only; a frame needs a writable one")
        horizon = self.camera.horizon_row + scene.pitch_rows
        ground = self._ground(scene, horizon)
        self._copy_backdrop(scene, horizon)
        plan = self._plan(scene, ground)
        _lay(self._luma[horizon:], self._surface.luma, plan, 0, 1)
        _lay(self._chroma[(horizon + 1) // 2 :], self._surface.chroma, plan, horizon % 2, 2)
        self._draw_posts(scene, ground)
        self._develop(luma, chroma, scene, ground, noise_index)

    def _ground(self, scene: RoadScene, horizon: int) -> _Ground:
        """Exact pinhole distances of each row's middle and bounds, and the lane centre's place in it."""
        camera = self.camera
        rows = np.arange(camera.height - horizon)
        pitch = math.atan((camera.height / 2 - horizon) / camera.focal_px)
        # A row k rows below the horizon looks down by the angle a with tan(a − pitch) = (row − middle)/focal.
        below = (rows[:, None] + np.array([0.0, 0.5, 1.0]) + horizon - camera.height / 2) / camera.focal_px
        down = np.sin(pitch) + below * np.cos(pitch)
        ahead = camera.height_m * (np.cos(pitch) - below * np.sin(pitch)) / np.maximum(down, 1e-9)
        far, middle, near = np.minimum(ahead, FAR_M * np.array([1.02, 1.0, 0.98])).T
        lateral = lane_centre_m(scene, middle)
        return _Ground(horizon, lateral * (rows + 0.5) / self._metre_rows, near, far)

    def _copy_backdrop(self, scene: RoadScene, horizon: int) -> None:
        """The window of the panorama that the car looks at."""
        car_yaw = scene.road_yaw_rad - scene.truth.heading_rad
        start = round(-self.camera.focal_px * car_yaw) % TURN_PX
        top = self._backdrop.luma.shape[0] - horizon
        self._luma[:horizon] = self._backdrop.luma[top:, start : start + self.camera.width]
        pairs, pair_rows = self.layout.chroma_width, (horizon + 1) // 2
        self._chroma[:pair_rows] = self._backdrop.chroma[top::2, start // 2 : start // 2 + pairs]

    def _plan(self, scene: RoadScene, ground: _Ground) -> _Plan:
        """Which part of its strip each row shows, how much of it is dash, and where shade falls on it."""
        width, margin = self.camera.width, self._margin
        near, far = ground.near_m + scene.distance_m, ground.far_m + scene.distance_m
        starts = margin + np.clip(np.rint(ground.shift_px), -margin, margin)
        shade_right_m, shade_left_m = self._way.shade_bounds_m(near)
        pixels_per_metre = (np.arange(near.size) + 0.5) / self._metre_rows
        # The column of a point d to the left of the lane's centre is middle − d·pixels_per_metre.
        middle = width / 2 + margin - starts
        first = np.clip(np.rint(middle - shade_left_m * pixels_per_metre), 0, width)
        last = np.clip(np.rint(middle - shade_right_m * pixels_per_metre), 0, width)
        return _Plan(
            starts.astype(np.int64), first.astype(np.int64), last.astype(np.int64), self._way.dash_cover(near, far)
        )

    def _draw_posts(self, scene: RoadScene, ground: _Ground) -> None:
        """White marker posts with a black band on both verges, the farthest first."""
        camera, horizon, nearest = self.camera, ground.horizon, float(ground.near_m[-1])
        step = POST_EVERY_M - scene.distance_m % POST_EVERY_M
        for ahead in np.arange(step, POST_FAR_M, POST_EVERY_M)[::-1].tolist():
            if ahead <= nearest + 1.0:
                continue
            foot = int(np.searchsorted(-ground.near_m, -ahead))
            scale = (foot + 0.5) / self._metre_rows
            top = max(horizon + foot - round(POST_HIGH_M * scale), 0)
            band = top + round(0.2 * POST_HIGH_M * scale)
            half = max(POST_WIDE_M * scale / 2, 0.5)
            centre_m = lane_centre_m(scene, np.array([ahead]))[0]
            for edge_m in (self.style.edge_left_m + 1.0, self.style.edge_right_m - 1.0):
                middle = camera.width / 2 - (centre_m + edge_m) * scale
                a, b = (min(max(round(middle + side * half), 0), camera.width) for side in (-1, 1))
                self._luma[top : horizon + foot, a:b] = POST_LUMA
                self._luma[band : band + round(0.2 * POST_HIGH_M * scale), a:b] = POST_BAND_LUMA
                self._chroma[top // 2 : (horizon + foot) // 2, a // 2 : b // 2] = CHROMA_ZERO

    def _develop(self, luma: U8, chroma: U8, scene: RoadScene, ground: _Ground, noise_index: int) -> None:
        """Light and sensor noise over the composed picture, into the caller's planes."""
        gains = np.full(self.camera.height, scene.exposure)
        gains[ground.horizon :] *= self._way.brightness(
            ground.near_m + scene.distance_m, ground.far_m + scene.distance_m
        )
        gains = np.rint(np.clip(gains, 0.0, MAX_GAIN) * GAIN_ONE)
        luma_gain = gains.astype(np.uint16)[:, None]
        rng = np.random.default_rng([self.seed, noise_index])
        self._expose(luma, self._luma, luma_gain, None, bounds=(LUMA_BLACK, LUMA_WHITE), rng=rng)
        # Chroma turns about its zero: (c − 128)·g + 128·128. Unsigned sums wrap, and come back in range.
        offset = (CHROMA_ZERO * GAIN_ONE - CHROMA_ZERO * gains[::2, None] - LUMA_BLACK * GAIN_ONE).astype(np.int32)
        source = self._chroma.reshape(chroma.shape)
        self._expose(
            chroma, source, luma_gain[::2], offset.astype(np.uint16), bounds=(CHROMA_LOW, CHROMA_HIGH), rng=rng
        )

    def _expose(
        self,
        out: U8,
        source: U8,
        gain: U16,
        offset: U16 | None,
        *,
        bounds: tuple[int, int],
        rng: np.random.Generator,
    ) -> None:
        """out = clip((source·gain + offset + black·128 + noise) / 128), a block of rows at a time."""
        rows, width = source.shape
        words = rng.integers(0, NOISE_WORDS, -(-rows // BLOCK_ROWS)).tolist()
        for top, word in zip(range(0, rows, BLOCK_ROWS), words, strict=True):
            block = slice(top, min(top + BLOCK_ROWS, rows))
            count = block.stop - top
            work = self._work[: count * width].reshape(count, width)
            np.multiply(source[block], gain[block], out=work)
            if offset is not None:
                work += offset[block]
            work += self._noise[word : word + count * width].reshape(count, width)
            work >>= 7
            np.clip(work, bounds[0], bounds[1], out=work)
            out[block] = work


def lane_centre_m(scene: RoadScene, ahead_m: F64) -> F64:
    """y of the lane's centre, metres left of the car, at each distance ahead; held beyond FAR_M."""
    truth = scene.truth
    x = np.minimum(ahead_m, FAR_M)
    bend = truth.curvature_per_m / 2 + scene.curvature_rate_per_m2 / 6 * x
    return np.asarray(truth.lane_offset_m + (math.tan(truth.heading_rad) + bend * x) * x, np.float64)


def _lay(target: U8, strips: U8, plan: _Plan, first_row: int, step: int) -> None:
    """Copies every `step`-th strip from `first_row` on into the rows of `target`.

    An entry of a strip stands for `step` pixels across, too: 1 in luma, 2 in chroma.
    """
    width = target.shape[1]
    columns = (plan.starts[first_row::step], plan.first[first_row::step], plan.last[first_row::step])
    entries = [(column // step).tolist() for column in columns]
    covers = plan.cover[first_row::step].tolist()
    for row, (k, start, a, b, cover) in zip(
        target, zip(range(first_row, plan.cover.size, step), *entries, covers, strict=True), strict=True
    ):
        _lay_row(row, strips[SUNNY : SUNNY + 2, k, start : start + width], cover)
        if a < b:
            _lay_row(row[a:b], strips[SHADED : SHADED + 2, k, start + a : start + b], cover)


def _lay_row(row: U8, strips: U8, cover: float) -> None:
    """Mixes the strips without [0] and with dashes [1] by the dashes' cover, 0..1."""
    if cover < DASH_TRACE:
        row[:] = strips[0]
    elif cover > 1 - DASH_TRACE:
        row[:] = strips[1]
    else:
        weight = np.uint16(round(cover * 256))
        row[:] = (strips[0] * (np.uint16(256) - weight) + strips[1] * weight) >> 8


def _check_scene(scene: RoadScene) -> None:
    if not abs(scene.truth.lane_offset_m) <= MAX_LANE_OFFSET_M:
        raise RoadError(
            RoadRefusal.OFFSET,
            f"lane offset is {scene.truth.lane_offset_m} m; the road is drawn up to ±{MAX_LANE_OFFSET_M} m",
        )
    if abs(scene.pitch_rows) > PITCH_ROWS_LIMIT:
        raise RoadError(
            RoadRefusal.PITCH, f"pitch moves the horizon by {scene.pitch_rows} rows; at most {PITCH_ROWS_LIMIT} fit"
        )
    if not 0.0 < scene.exposure <= MAX_GAIN:
        raise RoadError(RoadRefusal.EXPOSURE, f"exposure gain is {scene.exposure}; it must be in (0, {MAX_GAIN}]")
