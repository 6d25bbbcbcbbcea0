"""A simulated car on a road, and the driver that steers it by what a model says of each frame.

The car is the kinematic bicycle model (R. Rajamani, Vehicle Dynamics and Control, §2.2) in the road's own coordinates:
s along the lane's centre, d left of it, psi the car's direction left of the road's. Axes are those of ISO 8855. The
driver closes the loop: curvature asked for = a·offset + b·heading + an integral; without a result it holds the wheel.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

__all__ = ["Car", "CarState", "Driver"]

WHEELBASE_M: Final = 2.7
MAX_STEER_RAD: Final = 0.5
STEER_LAG_S: Final = 0.1
"""Of the steering actuator, first order."""
STEPS_PER_S: Final = 200
"""The car's motion is integrated in steps of at most 5 ms."""


@dataclass(frozen=True)
class CarState:
    """Where the car is: metres along and left of the lane's centre, direction and steering angle in radians."""

    along_m: float = 0.0
    left_m: float = 0.0
    yaw_rad: float = 0.0
    steer_rad: float = 0.0


class Car:
    """The car's motion at a constant speed. `state` is where it is now."""

    def __init__(self, speed_m_per_s: float, state: CarState | None = None) -> None:
        self.speed_m_per_s = speed_m_per_s
        self.state = state or CarState()

    def drive(self, seconds: float, wheel_rad: float, road_per_m: float) -> CarState:
        """Move on for `seconds` with the wheel at `wheel_rad`, on a road of curvature `road_per_m`; the new state."""
        wheel = min(max(wheel_rad, -MAX_STEER_RAD), MAX_STEER_RAD)
        steps = max(1, math.ceil(seconds * STEPS_PER_S))
        h, v, now = seconds / steps, self.speed_m_per_s, self.state
        for _ in range(steps):
            steer = now.steer_rad + (wheel - now.steer_rad) * min(1.0, h / STEER_LAG_S)
            way = v * math.cos(now.yaw_rad) / (1.0 - now.left_m * road_per_m)
            turn = v * math.tan(steer) / WHEELBASE_M - road_per_m * way
            now = CarState(
                now.along_m + h * way, now.left_m + h * v * math.sin(now.yaw_rad), now.yaw_rad + h * turn, steer
            )
        self.state = now
        return now


@dataclass
class Driver:
    """Steers by lane offset and heading, as a model gives them: metres and radians, positive to the left.

    The gains place both poles of y'' + v·b·y' + v²·a·y = v²·(road's curvature) at 20 m/s near 2 rad/s, well damped; the
    integral takes away the offset that a steady bend would leave.
    """

    offset_gain_per_m2: float = 0.008
    heading_gain_per_m: float = 0.18
    integral_gain_per_m2_s: float = 0.003
    integral_limit_per_m: float = 0.006
    wheel_rad: float = 0.0
    _integral_per_m: float = 0.0

    def see(self, lane_offset_m: float, heading_rad: float, seconds: float) -> float:
        """Take one result, `seconds` after the one before; the wheel's angle from here."""
        limit = self.integral_limit_per_m
        grown = self._integral_per_m + self.integral_gain_per_m2_s * lane_offset_m * seconds
        self._integral_per_m = min(max(grown, -limit), limit)
        curvature_per_m = (
            self.offset_gain_per_m2 * lane_offset_m + self.heading_gain_per_m * heading_rad + self._integral_per_m
        )
        self.wheel_rad = math.atan(WHEELBASE_M * curvature_per_m)
        return self.wheel_rad
