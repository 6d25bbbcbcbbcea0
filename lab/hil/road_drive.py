"""An endless, smooth drive along a road, and the truth of each of its frames.

Axes are those of ISO 8855: x forward, y to the left, z up; angles count counter-clockwise. The lane's centre
line, seen from the car, is y(x) = lane_offset_m + tan(heading_rad)·x + curvature_per_m·x²/2 +
curvature_rate_per_m2·x³/6, where x = 0 lies straight below the camera. The drive obeys kinematics: the offset's
rate of change is the car's speed times tan(heading_rad), and the road's direction is its curvature's integral.
Everything is a function of (seed, frame index): there is no state, so frames may be asked for in any order.
"""

import math
from dataclasses import dataclass

import numpy as np

MAX_LANE_OFFSET_M = 1.5


@dataclass(frozen=True)
class RoadTruth:
    """What a perfect lane finder would say of one frame.

    `lane_offset_m`: y of the lane's centre at the car, positive when it lies to the car's left.
    `heading_rad`: direction of the lane at the car relative to the car's, positive when the lane turns left.
    `curvature_per_m`: curvature of the lane at the car, positive in a left-hand bend.
    """

    lane_offset_m: float
    heading_rad: float
    curvature_per_m: float


@dataclass(frozen=True)
class RoadScene:
    """Everything that changes from frame to frame."""

    truth: RoadTruth
    curvature_rate_per_m2: float = 0.0
    """Change of the curvature per metre of road ahead."""
    distance_m: float = 0.0
    """Way driven along the lane: moves dashes, patches, shadows and posts towards the car."""
    road_yaw_rad: float = 0.0
    """Direction of the lane at the car in the world: turns the panorama."""
    pitch_rows: int = 0
    """Rows by which the body's pitching moves the horizon down."""
    exposure: float = 1.0
    """Gain on the picture's signal above black."""


@dataclass(frozen=True)
class Wave:
    """A smooth signal: a sum of sines a·sin(w·x + p), with its exact slope and integral."""

    amplitude: tuple[float, ...]
    rate: tuple[float, ...]
    phase: tuple[float, ...]

    @classmethod
    def drawn(cls, rng: np.random.Generator, parts: tuple[tuple[float, float, float], ...]) -> "Wave":
        """One sine a part (amplitude, shortest period, longest period), its period and phase drawn from `rng`."""
        return cls(
            tuple(part[0] for part in parts),
            tuple(2 * math.pi / float(rng.uniform(part[1], part[2])) for part in parts),
            tuple(float(rng.uniform(0, 2 * math.pi)) for _ in parts),
        )

    def value(self, x: float) -> float:
        """The signal at `x`; never beyond the sum of the amplitudes."""
        return sum(a * math.sin(w * x + p) for a, w, p in self._parts())

    def slope(self, x: float) -> float:
        """The derivative at `x`."""
        return sum(a * w * math.cos(w * x + p) for a, w, p in self._parts())

    def integral(self, x: float) -> float:
        """The bounded antiderivative at `x`."""
        return sum(-a / w * math.cos(w * x + p) for a, w, p in self._parts())

    def _parts(self) -> "zip[tuple[float, float, float]]":
        return zip(self.amplitude, self.rate, self.phase, strict=True)


class RoadDrive:
    """The drive of one seed at `rate_hz` frames a second."""

    def __init__(self, seed: int, rate_hz: float = 20.0) -> None:
        rng = np.random.default_rng([seed, 0xD21E])
        self.rate_hz = rate_hz
        self.speed_m_per_s = float(rng.uniform(15.0, 25.0))
        # (m, s, s): slow drift, correction, weave. The sum stays inside the lane: at most 0.9 m.
        self._offset_m = Wave.drawn(rng, ((0.45, 14.0, 25.0), (0.30, 8.0, 14.0), (0.15, 5.0, 8.0)))
        # (1/m, m, m): bends of at most 1/250 m⁻¹.
        self._curvature_per_m = Wave.drawn(
            rng, ((0.0022, 900.0, 1600.0), (0.0012, 500.0, 900.0), (0.0006, 300.0, 500.0))
        )
        self._pitch_rows = Wave.drawn(rng, ((2.5, 1.2, 2.0), (2.5, 0.7, 1.2)))
        self._exposure = Wave.drawn(rng, ((0.18, 17.0, 31.0), (0.07, 6.0, 11.0)))

    def scene(self, frame: int) -> RoadScene:
        """The scene of frame `frame` ≥ 0."""
        time_s = frame / self.rate_hz
        heading_rad = math.atan(self._offset_m.slope(time_s) / self.speed_m_per_s)
        return self.scene_from(time_s, self.speed_m_per_s * time_s, self._offset_m.value(time_s), heading_rad)

    def scene_from(self, time_s: float, distance_m: float, lane_offset_m: float, heading_rad: float) -> RoadScene:
        """The scene at `time_s` ≥ 0 of a car that is `distance_m` along this road, wherever in the lane it is.

        `lane_offset_m` and `heading_rad` are those of its RoadTruth.
        """
        return RoadScene(
            truth=RoadTruth(lane_offset_m, heading_rad, self._curvature_per_m.value(distance_m)),
            curvature_rate_per_m2=self._curvature_per_m.slope(distance_m),
            distance_m=distance_m,
            road_yaw_rad=self._curvature_per_m.integral(distance_m),
            pitch_rows=round(self._pitch_rows.value(time_s)),
            exposure=0.95 + self._exposure.value(time_s),
        )
