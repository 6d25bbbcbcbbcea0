"""A lane model's numbers on the synthetic road's pictures, whose camera is known: the lane, drawn on the ground.

The lane's centre at x metres ahead is at y = offset + heading * x to the left; its edges half a lane to both sides. The
camera is the pinhole of `lab.hil.road`. Of other cameras the log knows no geometry, and nothing is drawn.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from numpy.typing import NDArray

from abi.stream_format import StreamFormat
from lab.hil.plots import LANE_HALF_M
from lab.hil.road import Camera

__all__ = ["CAMERA_NAME", "draw_lane", "lane_columns"]

CAMERA_NAME = "synthetic-road"
OFFSET, HEADING = "lane_offset_m", "heading_rad"
NEAR_M, FAR_M, STEPS = 4.0, 40.0, 40


def lane_columns(
    camera: Camera, offset_m: float, heading_rad: float, left_m: float
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Columns and rows (float64 [STEPS], pixels) of the line `left_m` left of the lane's centre, from near to far."""
    ahead_m = np.geomspace(NEAR_M, FAR_M, STEPS)
    aside_m = offset_m + heading_rad * ahead_m + left_m
    below = np.arctan2(camera.height_m, ahead_m) - camera.pitch_rad
    rows = camera.height / 2 + camera.focal_px * np.tan(below)
    depth_m = ahead_m * math.cos(camera.pitch_rad) + camera.height_m * math.sin(camera.pitch_rad)
    return camera.width / 2 - camera.focal_px * aside_m / depth_m, rows


def draw_lane(axes: Axes, format: StreamFormat, outputs: Mapping[str, NDArray[Any]], colour: str, line: float) -> None:
    """The lane that the outputs tell of, where they are a lane's and the camera is the synthetic road's."""
    known = all(name in outputs and outputs[name].size == 1 for name in (OFFSET, HEADING))
    if not known or format.camera_name != CAMERA_NAME:
        return
    offset_m, heading_rad = (float(outputs[name].reshape(-1)[0]) for name in (OFFSET, HEADING))
    camera = Camera.of_size(format.width, format.height)
    for left_m, style in ((-LANE_HALF_M, "-"), (0.0, ":"), (LANE_HALF_M, "-")):
        columns, rows = lane_columns(camera, offset_m, heading_rad, left_m)
        axes.plot(columns - format.crop.x, rows - format.crop.y, color=colour, linewidth=line, linestyle=style)
