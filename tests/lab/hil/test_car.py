"""The simulated car obeys its equations, and the driver keeps it in the lane by what it is told."""

from __future__ import annotations

import math

import numpy as np
import pytest

from lab.hil.car import WHEELBASE_M, Car, CarState, Driver
from lab.hil.road_drive import RoadDrive

RATE_HZ = 20.0


def test_a_car_on_its_own_circle_stays_on_it() -> None:
    radius_m = 300.0
    wheel = math.atan(WHEELBASE_M / radius_m)
    car = Car(20.0, CarState(steer_rad=wheel))
    for _ in range(200):
        car.drive(0.05, wheel, 1 / radius_m)
    assert car.state.along_m == pytest.approx(200.0, rel=1e-4)
    assert car.state.left_m == pytest.approx(0.0, abs=1e-6)
    assert car.state.yaw_rad == pytest.approx(0.0, abs=1e-6)


def test_a_straight_car_leaves_a_bend_to_its_outside() -> None:
    car = Car(20.0)
    car.drive(1.0, 0.0, 1 / 250)
    assert car.state.left_m == pytest.approx(-(20.0**2) / 2 / 250, rel=0.02)  # y = -v²t²κ/2
    assert car.state.yaw_rad == pytest.approx(-20.0 / 250, rel=0.01)


def test_the_steps_are_fine_enough() -> None:
    coarse, fine = Car(25.0), Car(25.0)
    coarse.drive(0.1, 0.05, 0.004)
    for _ in range(100):
        fine.drive(0.001, 0.05, 0.004)
    assert coarse.state.left_m == pytest.approx(fine.state.left_m, abs=2e-3)


def farthest_m(driver: Driver, seed: int, noise_seed: int, sign: float = 1.0) -> float:
    """The largest distance from the lane's centre in a minute; every seventh result is missing, each is noisy."""
    road, random = RoadDrive(seed), np.random.default_rng(noise_seed)
    car, farthest, seen_s = Car(road.speed_m_per_s, CarState(left_m=0.3)), 0.0, 0.0
    for index in range(1200):
        state, now_s = car.state, (index + 1) / RATE_HZ
        if abs(state.left_m) > 5.0:
            return abs(state.left_m)
        truth = road.scene_from(index / RATE_HZ, state.along_m, -state.left_m, -state.yaw_rad).truth
        farthest = max(farthest, abs(state.left_m))
        if index % 7:
            offset_m = truth.lane_offset_m + random.normal(0.0, 0.05)
            driver.see(sign * offset_m, sign * (truth.heading_rad + random.normal(0.0, 0.007)), now_s - seen_s)
            seen_s = now_s
        car.drive(1 / RATE_HZ, driver.wheel_rad, truth.curvature_per_m)
    return farthest


@pytest.mark.parametrize("seed", range(1, 9))
def test_the_lane_is_kept_on_every_road_by_noisy_results(seed: int) -> None:
    assert farthest_m(Driver(), seed, noise_seed=seed) < 0.5


def test_a_driver_who_is_told_the_opposite_leaves_the_road() -> None:
    assert farthest_m(Driver(), 1, noise_seed=1, sign=-1.0) > 3.0
