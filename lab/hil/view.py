"""What a scenario's camera sees: the synthetic road (with a car on it that may be steered), noise, a file or a log.

A view writes frame after frame into a slot and says what is known of the scene. With a car the loop is closed: the
scene follows from where the car is, and the car from what the driver was told.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from abi import messages
from abi.format import mismatches
from abi.packet import Kind
from abi.stream_format import StreamFormat
from lab.hil.car import Car, CarState, Driver
from lab.hil.nv12 import Nv12Layout
from lab.hil.road import Camera, RoadCamera
from lab.hil.road_drive import MAX_LANE_OFFSET_M, RoadScene
from lab.hil.scenario import CameraPlan, CarPlan, ScenarioRefusal, ScenarioRefused
from lab.replay.log import LogReader

__all__ = ["FileView", "LogView", "NoiseView", "RoadView", "View", "make_view"]

Pixels = NDArray[np.uint8]


class View(Protocol):
    """One camera's view. `index`: the frame period, from 0."""

    def fill(self, pixels: Pixels, index: int) -> Mapping[str, float]:
        """Writes the frame, uint8 [bufferBytes]; returns what is known of the scene."""
        ...

    def advance(self, index: int, outputs: Mapping[str, float] | None) -> float:
        """The period is over; `outputs`: what came of its frame, None for nothing. The car's place left of the
        lane's centre in metres, NaN without a car.
        """
        ...


class NoiseView:
    """Seeded noise, another frame each period."""

    def __init__(self, seed: int) -> None:
        self._seed = seed

    def fill(self, pixels: Pixels, index: int) -> Mapping[str, float]:
        """See View."""
        pixels[:] = np.random.default_rng([self._seed, index]).integers(1, 255, pixels.size, dtype=np.uint8)
        return {}

    def advance(self, index: int, outputs: Mapping[str, float] | None) -> float:
        """See View."""
        return float("nan")


class FileView(NoiseView):
    """Frames from a file that holds one buffer after another; played round and round."""

    def __init__(self, path: Path, frame_bytes: int) -> None:
        """Raises ScenarioRefused where the file is not made of such frames."""
        super().__init__(0)
        size = path.stat().st_size
        if not size or size % frame_bytes:
            todo = "write frames as the model's contract lays them out, padding included"
            raise _refused("camera.frames", f"whole frames of {frame_bytes} bytes, at least one", f"{size} bytes", todo)
        self._frames = np.memmap(path, np.uint8, "r", shape=(size // frame_bytes, frame_bytes))

    def fill(self, pixels: Pixels, index: int) -> Mapping[str, float]:
        """See View."""
        pixels[:] = self._frames[index % len(self._frames)]
        return {}


class LogView(NoiseView):
    """The frames of a recorded log of one camera, in its order; played round and round."""

    def __init__(self, path: Path, format: StreamFormat) -> None:
        """Raises LogRefused for what is no log, ScenarioRefused for one without frames of this format."""
        super().__init__(0)
        self._reader = LogReader(path)
        self._frames = self._pixels()
        opened = {one.topic: one.data for one in self._reader.messages() if one.kind == "format"}
        if len(opened) > 1:
            found, todo = ", ".join(topic.split("/")[2] for topic in opened), "record or import one camera alone"
            raise _refused("camera.frames", "a log of one camera", found, todo)
        declared = messages.decode(Kind.OPEN_STREAM, *opened.values()) if opened else None
        if not isinstance(declared, messages.OpenStream) or next(self._pixels(), None) is None:
            raise _refused("camera.frames", "a log that holds frames", "none", "record it with its pixels")
        for field, expected, found in mismatches(format, declared.format):
            todo = "play a log of a camera that the model was compiled for"
            raise _refused(f"camera.frames, {field}", f"{expected}, as the model's", found, todo)

    def _pixels(self) -> Iterator[bytes]:
        return (message.data for message in self._reader.messages() if message.kind == "pixels")

    def fill(self, pixels: Pixels, index: int) -> Mapping[str, float]:
        """See View."""
        frame = next(self._frames, None)
        if frame is None:
            self._frames = self._pixels()
            frame = next(self._frames)
        pixels[:] = np.frombuffer(frame, np.uint8)
        return {}


class RoadView:
    """The synthetic road. Without a car it is driven as `RoadDrive` drives; with one, as the outputs steer it."""

    def __init__(self, format: StreamFormat, seed: int, rate_hz: float, plan: CarPlan | None) -> None:
        """`format`: NV12, limited BT.709, as the road is drawn. Raises ScenarioRefused for another."""
        named = (format.pixel.name, format.range.name, format.matrix.name)
        if named != ("NV12", "LIMITED", "BT709"):
            expected, todo = "a model of NV12 frames, limited range, bt709", 'use source = "noise" or "file"'
            raise _refused("camera.source", expected, ", ".join(named), todo)
        luma, chroma = format.planes
        layout = Nv12Layout(format.width, format.height, luma.stride, chroma.offset, chroma.stride, luma.offset)
        self.camera = RoadCamera(seed, Camera.of_size(format.width, format.height), layout)
        self._rate_hz, self._plan = rate_hz, plan
        drive = self.camera.drive
        self._car = Car(drive.speed_m_per_s, CarState(left_m=plan.left_m)) if plan else None
        self._driver = Driver()
        self._seen_at_s = 0.0

    def _scene(self, index: int) -> RoadScene:
        if self._car is None:
            return self.camera.drive.scene(index)
        state, limit = self._car.state, MAX_LANE_OFFSET_M  # the road is not drawn beyond it
        offset_m = min(max(-state.left_m, -limit), limit)
        return self.camera.drive.scene_from(index / self._rate_hz, state.along_m, offset_m, -state.yaw_rad)

    def fill(self, pixels: Pixels, index: int) -> Mapping[str, float]:
        """See View. Truth: lane_offset_m, heading_rad, curvature_per_m."""
        scene = self._scene(index)
        self.camera.render_scene_into(pixels, scene, index)
        return asdict(scene.truth)

    def advance(self, index: int, outputs: Mapping[str, float] | None) -> float:
        """See View: the driver sees the outputs, if there are any, and the car moves on for one period."""
        if self._car is None or self._plan is None:
            return float("nan")
        left_m = self._car.state.left_m
        if outputs is not None:
            now_s = (index + 1) / self._rate_hz
            offset_m, heading_rad = outputs[self._plan.offset_output], outputs[self._plan.heading_output]
            self._driver.see(offset_m, heading_rad, now_s - self._seen_at_s)
            self._seen_at_s = now_s
        curvature = self._scene(index).truth.curvature_per_m
        self._car.drive(1.0 / self._rate_hz, self._driver.wheel_rad, curvature)
        return left_m


def make_view(plan: CameraPlan, car: CarPlan | None, format: StreamFormat, rate_hz: float) -> View:
    """The view that a scenario asks for. Raises ScenarioRefused."""
    if plan.source == "road":
        return RoadView(format, plan.seed, rate_hz, car)
    if car is not None:
        raise _refused("car", 'a camera with source = "road"', plan.source, "a car drives on the synthetic road only")
    if plan.frames is None:
        return NoiseView(plan.seed)
    return LogView(plan.frames, format) if plan.source == "log" else FileView(plan.frames, format.buffer_bytes)


def _refused(what: str, expected: str, found: str, todo: str) -> ScenarioRefused:
    return ScenarioRefused(ScenarioRefusal.VALUE, what, expected=expected, found=found, todo=todo)
