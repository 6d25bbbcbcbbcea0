"""Bundles for OpenCL: the same models as on the CPU, within stated tolerances, bit-exact to their own capture.

The compiler itself compares eager, captured and packed runs bit for bit and holds them to onnxruntime; here what the
HAL computes on OpenCL is compared with what it computes on the CPU, on camera frames.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from hal.opencl_api import OpenClApi
from hal.opencl_device import find_device
from lab.compile.compiler import compile_spec
from lab.compile.packed import open_packed
from lab.compile.refusal import CompileRefusal, CompileRefused
from lab.compile.spec_toml import load_spec
from lab.hil.road import RoadCamera
from lab.sign.pack import open_checked
from tests.lab.compile import test_public_models as public
from tests.lab.compile.python_pipelines import write_entries
from tests.lab.compile.tiny_models import random_frame, write_spec
from tests.support import opencl

CHECKOUT = Path(__file__).parents[3]
LANE = CHECKOUT / "examples/lane/spec.toml"
FOR_OPENCL = {'driver = "cpu"': 'driver = "opencl"', 'cpu = "x86_64_v3"\n': "", "threads = 2\n": ""}
TOLERANCE = 1e-3  # as the specs state it against onnxruntime


@pytest.fixture(autouse=True)
def _device() -> None:
    opencl.require_device()


def retargeted(spec: Path, folder: Path) -> Path:
    """The same spec for OpenCL, its model's path made absolute."""
    text = spec.read_text()
    for old, new in FOR_OPENCL.items():
        assert old in text
        text = text.replace(old, new)
    source = load_spec(spec).model.source
    path = folder / "opencl.toml"
    path.write_text(text.replace(f'source = "{source.name}"', f'source = "{source}"'))
    return path


def compiled(spec: Path, folder: Path, name: str) -> Path:
    compile_spec(spec, folder / name)
    return folder / name


def worst_difference(cpu: Path, other: Path, frames: Iterator[NDArray[np.uint8]]) -> tuple[float, float]:
    """The largest |difference| of any output element, and the outputs' spread over the frames."""
    worst, seen = 0.0, []
    with open_packed(cpu) as one, open_packed(other) as two:
        for frame in frames:
            for left, right in zip(one.run([frame.tobytes()]), two.run([frame.tobytes()]), strict=True):
                a, b = np.frombuffer(left, np.float32), np.frombuffer(right, np.float32)
                worst = max(worst, float(np.abs(a - b).max()))
                seen.append(float(b.mean()))
    return worst, max(seen) - min(seen)


def test_entrypoints_share_their_state_on_the_device(tmp_path: Path) -> None:
    report = compile_spec(write_entries(tmp_path, edits=FOR_OPENCL), tmp_path / "turns.fenced")
    assert report.target.startswith("opencl")
    assert report.checks[-1].name == "entrypoints in turn = eager"
    assert "bit for bit over 20 steps" in report.checks[-1].seen


def test_a_tiny_model_gives_the_cpus_results_and_names_its_device(tmp_path: Path) -> None:
    spec = write_spec(tmp_path)
    bundle = compiled(retargeted(spec, tmp_path), tmp_path, "opencl.fenced")
    size = load_spec(spec).inputs[0].buffer_bytes
    frames = (random_frame(size, seed) for seed in range(3))
    worst, spread = worst_difference(compiled(spec, tmp_path, "cpu.fenced"), bundle, frames)
    assert worst <= TOLERANCE
    assert spread > TOLERANCE
    with open_checked(bundle) as (_, _, stated):
        assert stated.target.driver == "opencl"
        assert stated.target.device_id == find_device(OpenClApi()).identity


def test_two_compiles_in_two_processes_and_folders_write_the_same_bytes(tmp_path: Path) -> None:
    (tmp_path / "spec").mkdir()
    spec = retargeted(write_spec(tmp_path / "spec"), tmp_path / "spec")
    code = "import sys, pathlib as p; from lab.compile.compiler import compile_spec as c; c(*map(p.Path, sys.argv[1:]))"
    bundles = []
    for name in ("one", "another-folder-of-other-length"):
        (tmp_path / name).mkdir()
        bundles.append(tmp_path / name / "model.fenced")
        command = [sys.executable, "-c", code, str(spec), str(bundles[-1])]
        environment = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "TMPDIR": str(tmp_path / name)}
        subprocess.run(command, cwd=CHECKOUT, env=environment, check=True, capture_output=True)
    assert bundles[0].read_bytes() == bundles[1].read_bytes()


def test_keys_of_the_cpu_target_are_refused(tmp_path: Path) -> None:
    spec = write_spec(tmp_path, edits={'driver = "cpu"': 'driver = "opencl"'})
    with pytest.raises(CompileRefused) as caught:
        load_spec(spec)
    assert caught.value.code is CompileRefusal.SPEC_KEY_UNKNOWN


def test_another_machines_architecture_is_refused(tmp_path: Path) -> None:
    spec = retargeted(write_spec(tmp_path), tmp_path)
    spec.write_text(spec.read_text().replace('arch = "x86_64"', 'arch = "aarch64"'))
    with pytest.raises(CompileRefused) as caught:
        compile_spec(spec, tmp_path / "model.fenced")
    assert caught.value.code is CompileRefusal.TARGET
    assert not (tmp_path / "model.fenced").exists()


def road(count: int) -> Iterator[NDArray[np.uint8]]:
    camera = RoadCamera(seed=77)
    frame = np.empty(camera.layout.buffer_bytes, np.uint8)
    for index in range(0, 40 * count, 40):
        camera.render_into(frame, index)
        yield frame


def test_the_lane_example_gives_the_cpus_results(tmp_path: Path) -> None:
    cpu = compiled(LANE, tmp_path, "cpu.fenced")
    worst, spread = worst_difference(cpu, compiled(retargeted(LANE, tmp_path), tmp_path, "opencl.fenced"), road(5))
    assert worst <= TOLERANCE
    assert spread > TOLERANCE


@pytest.mark.skipif(not public.DATA.is_dir(), reason=f"{public.DATA} is absent: models and video are not shipped")
@pytest.mark.parametrize("model", sorted(public.MODELS))
def test_public_models_give_the_cpus_results(tmp_path: Path, model: str) -> None:
    spec = public.write(tmp_path, model)
    cpu = compiled(spec, tmp_path, "cpu.fenced")
    other = compiled(retargeted(spec, tmp_path), tmp_path, "opencl.fenced")
    worst, spread = worst_difference(cpu, other, public.road_frames())
    assert worst <= TOLERANCE
    assert spread > 0.0
