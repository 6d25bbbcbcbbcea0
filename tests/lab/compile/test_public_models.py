"""Two public detectors over a real drive: what the HAL computes from NV12 bytes is what onnxruntime computes from the
reference's pixels, on every tenth frame, within 1e-3. Needs the shared data folder."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
from numpy.typing import NDArray

from lab.compile.compiler import compile_spec
from lab.compile.packed import open_packed
from lab.compile.reference import preprocess
from lab.compile.spec_toml import load_spec

DATA = Path(__file__).parents[3] / "../shared/data"
EVERY = 10
TOLERANCE = 1e-3
pytestmark = pytest.mark.skipif(not DATA.is_dir(), reason=f"{DATA} is absent: public models and video are not shipped")

SPEC = """
[model]
name = "{name}"
version = "1.0.0"
source = "{source}"
release = 1
[target]
driver = "cpu"
arch = "x86_64"
cpu = "x86_64_v3"
threads = 2
[[input]]
name = "{input}"
stream = "road"
format = "NV12"
width = 960
height = 540
range = "limited"
matrix = "bt601"
primaries = "bt709"
transfer = "bt709"
chroma_site = "left"
{pixels}
[check]
onnxruntime_tolerance = 1e-3
steps = 2
"""
OUTPUT = '[[output]]\ntensor = "{0}"\nname = "{1}"\nunit = "1"\nnan = "refuse"\n'
MODELS = {
    "FastestDet": ("input.1", 'resize = [352, 352]\nmean = [0, 0, 0]\nstd = [255, 255, 255]\nchannels = "BGR"',
                   {"758": "detections"}),
    "RFB320": ("input", "resize = [320, 240]\nmean = [127, 127, 127]\nstd = [128, 128, 128]",
               {"scores": "scores", "boxes": "boxes"}),
}  # fmt: skip


def road_frames() -> Iterator[NDArray[np.uint8]]:
    """Every tenth frame of the drive as the bytes of a tight NV12 buffer."""
    with av.open(str(DATA / "road.mp4")) as video:
        for index, frame in enumerate(video.decode(video=0)):
            if index % EVERY == 0:
                yield frame.reformat(format="nv12").to_ndarray().reshape(-1).astype(np.uint8)


def write(folder: Path, model: str) -> Path:
    input_, pixels, outputs = MODELS[model]
    path = folder / "spec.toml"
    text = SPEC.format(name=model.lower(), source=(DATA / f"{model}.onnx").resolve(), input=input_, pixels=pixels)
    path.write_text(text + "".join(OUTPUT.format(*one) for one in outputs.items()))
    return path


def onnxruntime_session(model: str) -> Any:
    import onnxruntime  # noqa: PLC0415 (only where the models are)

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    return onnxruntime.InferenceSession(str(DATA / f"{model}.onnx"), options, providers=["CPUExecutionProvider"])


@pytest.mark.parametrize("model", sorted(MODELS))
def test_outputs_on_road_frames_are_onnxruntimes(tmp_path: Path, model: str) -> None:
    spec_path, bundle = write(tmp_path, model), tmp_path / "model.fenced"
    compile_spec(spec_path, bundle)
    image = load_spec(spec_path).inputs[0]
    names, session = list(MODELS[model][2]), onnxruntime_session(model)
    frames = 0
    with open_packed(bundle) as packed:
        for frame in road_frames():
            expected = session.run(names, {image.name: preprocess(frame, image)})
            for name, wanted, raw in zip(names, expected, packed.run([frame.tobytes()]), strict=True):
                found = np.frombuffer(raw, np.float32).reshape(wanted.shape)
                worst = float(np.abs(found - wanted).max())
                assert worst <= TOLERANCE, f"frame {frames * EVERY}, output {name}: {worst}"
                assert found.std() > 0.0
            frames += 1
    assert frames == 23
