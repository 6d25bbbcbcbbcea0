"""Measures lane.onnx on drives along roads it was never trained on.

    python examples/lane/evaluate.py

Whole 1928×1208 NV12 frames go through the compiler's definition of preprocessing and onnxruntime. Prints mean,
95th percentile and largest absolute error of both outputs, and the mean of each road.
"""

from pathlib import Path

import numpy as np
import onnxruntime
from numpy.typing import NDArray

from lab.compile.reference import preprocess
from lab.compile.spec_toml import load_spec
from lab.hil.road import RoadCamera

HELD_OUT_ROADS = range(1, 21)
FRAMES_PER_ROAD, FRAME_STEP = 50, 37
FOLDER = Path(__file__).parent

F64 = NDArray[np.float64]


def road_errors(seed: int, session: onnxruntime.InferenceSession) -> F64:
    """Absolute errors [frames, 2] in m and rad along the drive of road `seed`."""
    spec, camera = load_spec(FOLDER / "spec.toml").inputs[0], RoadCamera(seed)
    frame = np.zeros(camera.layout.buffer_bytes, np.uint8)
    errors = np.empty((FRAMES_PER_ROAD, 2))
    for row in range(FRAMES_PER_ROAD):
        truth = camera.render_into(frame, row * FRAME_STEP)
        (lane,) = session.run(["lane"], {spec.name: preprocess(frame, spec)})
        errors[row] = lane[0] - np.array([truth.lane_offset_m, truth.heading_rad])
    return np.abs(errors)


def main() -> None:
    """Evaluates every held-out road and prints the table."""
    session = onnxruntime.InferenceSession(str(FOLDER / "lane.onnx"), providers=["CPUExecutionProvider"])
    roads = {}
    for seed in HELD_OUT_ROADS:
        roads[seed] = road_errors(seed, session)
        print(f"road {seed:2d}: mean {roads[seed][:, 0].mean():.3f} m, {roads[seed][:, 1].mean():.4f} rad", flush=True)
    errors = np.concatenate(list(roads.values()))
    print(f"{len(errors)} frames of {len(roads)} roads")
    for column, unit in enumerate(("m", "rad")):
        of = errors[:, column]
        print(f"{unit:>4}: mean {of.mean():.4f}, p95 {np.percentile(of, 95):.4f}, largest {of.max():.4f}")


if __name__ == "__main__":
    main()
