"""Frames to learn from: random scenes of many roads, and what the network gets of each.

A drive is smooth, so its frames are alike; training draws every scene alone and a little wider than any drive goes.
Each road (one seed: its lines, colours, light and noise) gives the same number of scenes. Pictures are kept as the
preprocessed tensor on the scale 0..255, rounded to bytes.
"""

import math
from multiprocessing import get_context
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from lab.compile.reference import preprocess
from lab.compile.spec import InputSpec
from lab.compile.spec_toml import load_spec
from lab.hil.road import RoadCamera, RoadScene, RoadTruth

U8 = NDArray[np.uint8]
F32 = NDArray[np.float32]

SPEC = Path(__file__).with_name("spec.toml")


def lane_input() -> InputSpec:
    """The road camera's input, as spec.toml states it."""
    return load_spec(SPEC).inputs[0]


def random_scene(rng: np.random.Generator) -> RoadScene:
    """A scene anywhere on a road: offset ±1.1 m, heading ±0.055 rad, curvature ±1/220 m⁻¹, any light."""
    return RoadScene(
        truth=RoadTruth(
            lane_offset_m=float(rng.uniform(-1.1, 1.1)),
            heading_rad=float(rng.uniform(-0.055, 0.055)),
            curvature_per_m=float(rng.uniform(-0.0045, 0.0045)),
        ),
        curvature_rate_per_m2=float(rng.normal(0.0, 1.2e-5)),
        distance_m=float(rng.uniform(0.0, 1.0e5)),
        road_yaw_rad=float(rng.uniform(-math.pi, math.pi)),
        pitch_rows=int(rng.integers(-6, 7)),
        exposure=float(rng.uniform(0.6, 1.3)),
    )


def road_samples(seed: int, count: int) -> tuple[U8, F32]:
    """`count` scenes of road `seed`: pictures uint8 [count, 3, H, W], truths float32 [count, 2] in m and rad."""
    spec, camera = lane_input(), RoadCamera(seed)
    rng = np.random.default_rng([seed, 0x7EAC])
    mean, std = np.array(spec.mean)[:, None, None], np.array(spec.std)[:, None, None]
    frame = np.zeros(camera.layout.buffer_bytes, np.uint8)
    pictures = np.empty((count, *spec.shape[1:]), np.uint8)
    truths = np.empty((count, 2), np.float32)
    for index in range(count):
        scene = random_scene(rng)
        camera.render_scene_into(frame, scene, index)
        pictures[index] = np.rint(preprocess(frame, spec)[0] * std + mean)
        truths[index] = scene.truth.lane_offset_m, scene.truth.heading_rad
    return pictures, truths


def draw(seeds: range, count: int, processes: int) -> tuple[U8, F32]:
    """`count` scenes of each road of `seeds`, in the order of the seeds whatever the number of processes."""
    with get_context("spawn").Pool(processes) as pool:
        parts = pool.starmap(road_samples, [(seed, count) for seed in seeds], chunksize=1)
    return np.concatenate([part[0] for part in parts]), np.concatenate([part[1] for part in parts])
