"""The committed lane model: small, described by its spec, and right about whole frames of roads it never saw."""

import math
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

from lab.compile.reference import preprocess
from lab.compile.spec import Spec
from lab.compile.spec_toml import load_spec
from lab.hil.road import RoadCamera

FOLDER = Path(__file__).parents[2] / "examples" / "lane"
HELD_OUT_ROADS = (101, 102, 103, 104, 105)
"""Neither trained on (1000–1047) nor in the README's table (1–20)."""
FRAMES, FRAME_STEP = 12, 53


@pytest.fixture(scope="module")
def spec() -> Spec:
    return load_spec(FOLDER / "spec.toml")


@pytest.fixture(scope="module")
def session(spec: Spec) -> onnxruntime.InferenceSession:
    return onnxruntime.InferenceSession(str(spec.model.source), providers=["CPUExecutionProvider"])


def test_the_spec_describes_the_model(spec: Spec) -> None:
    model = onnx.load(str(spec.model.source))
    onnx.checker.check_model(model, full_check=True)
    (image,) = model.graph.input
    (lane,) = model.graph.output
    assert image.name == spec.inputs[0].name
    assert tuple(side.dim_value for side in image.type.tensor_type.shape.dim) == spec.inputs[0].shape
    assert [side.dim_value for side in lane.type.tensor_type.shape.dim] == [1, 2]
    assert [(one.tensor, one.name, one.slice, one.unit) for one in spec.outputs] == [
        (lane.name, "lane_offset_m", (0, 1), "m"),
        (lane.name, "heading_rad", (1, 2), "rad"),
    ]


def test_the_model_is_small(spec: Spec) -> None:
    assert spec.model.source.stat().st_size <= 300_000


def test_held_out_frames_are_read_to_a_few_centimetres(spec: Spec, session: onnxruntime.InferenceSession) -> None:
    (given,) = spec.inputs
    errors, truths = [], []
    for seed in HELD_OUT_ROADS:
        road = RoadCamera(seed)
        frame = np.zeros(road.layout.buffer_bytes, np.uint8)
        for index in range(FRAMES):
            truth = road.render_into(frame, index * FRAME_STEP)
            (lane,) = session.run(["lane"], {given.name: preprocess(frame, given)})
            truths.append((truth.lane_offset_m, truth.heading_rad))
            errors.append(np.abs(lane[0] - np.array(truths[-1])))
    offset_m, heading_rad = np.mean(errors, axis=0)
    assert offset_m < 0.15
    assert heading_rad < math.radians(0.6)
    # A model that always said zero would be wrong by the truth's own spread; this one is far better than that.
    assert offset_m < np.mean(np.abs(truths), axis=0)[0] / 4


def test_a_mirrored_road_gives_the_mirrored_answer(spec: Spec, session: onnxruntime.InferenceSession) -> None:
    (given,) = spec.inputs
    road = RoadCamera(HELD_OUT_ROADS[0])
    frame = np.zeros(road.layout.buffer_bytes, np.uint8)
    road.render_into(frame, 40)
    image = preprocess(frame, given)
    (plain,), (mirrored,) = (session.run(["lane"], {given.name: x}) for x in (image, image[..., ::-1].copy()))
    assert plain[0, 0] == pytest.approx(-mirrored[0, 0], abs=0.15)
    assert plain[0, 1] == pytest.approx(-mirrored[0, 1], abs=0.03)
    # The lane lies well to one side, so a model that ignores its input would be seen.
    assert abs(plain[0, 0] - mirrored[0, 0]) > 0.3
