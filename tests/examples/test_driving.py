"""The driving example compiles, runs as its Python does, and warps as numpy does."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from lab.compile import checks
from lab.compile.compiler import compile_spec
from lab.compile.packed import PackedModel, open_packed
from lab.compile.spec import Spec
from lab.compile.spec_toml import load_spec
from lab.compile.toolchain import compile_context

FOLDER = Path(__file__).parents[2] / "examples" / "driving"
WIDTH, HEIGHT = 1928, 1208
WARP_ONLY = 1  # the entrypoint


@pytest.fixture(scope="module")
def spec() -> Spec:
    return load_spec(FOLDER / "spec.toml")


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("driving") / "driving.fenced"
    report = compile_spec(FOLDER / "spec.toml", path)
    assert "bit for bit over 20 steps" in report.checks[0].seen
    assert report.checks[-1].name == "entrypoints in turn = eager"
    return path


@pytest.fixture
def packed(bundle: Path) -> Iterator[PackedModel]:
    with open_packed(bundle) as opened:
        yield opened


def eager_steps(spec: Spec) -> Iterator[list[bytes]]:
    """Output tensors and next states of the example's Python, called step by step without the compiler's wrappers."""
    from tinygrad import Tensor  # noqa: PLC0415 (after the compiler's environment is set)

    loader = importlib.util.spec_from_file_location("driving_pipeline", FOLDER / "pipeline.py")
    assert loader is not None
    assert loader.loader is not None
    module = importlib.util.module_from_spec(loader)
    loader.loader.exec_module(module)
    drive = module.build()
    states = {"images": np.zeros((5, 2, 6, 64, 128), np.uint8), "features": np.zeros((100, 128), np.float32)}
    shapes = {one.name: one.shape for one in spec.aux}
    for step in range(20):
        values = dict(zip(spec.names, checks.step_inputs(spec, step), strict=False))
        given = {
            name: Tensor(np.frombuffer(data, np.float32).reshape(shapes[name]) if name in shapes
                         else np.frombuffer(data, np.uint8)).realize()
            for name, data in values.items()
        }  # fmt: skip
        outputs, nexts = drive(**given, **{name: Tensor(value).realize() for name, value in states.items()})
        Tensor.realize(*outputs.values(), *nexts.values())
        states = {name: nexts[name].numpy() for name in states}
        yield [outputs["plan"].numpy().tobytes(), outputs["ego_motion"].numpy().tobytes(),
               *(value.tobytes() for value in states.values())]  # fmt: skip


def test_twenty_recurrent_steps_are_the_eager_pythons_bit_for_bit(spec: Spec, packed: PackedModel) -> None:
    target = spec.target
    with compile_context(target.arch, target.cpu, target.threads):
        plans = []
        for step, (plan, ego_motion, images, features) in enumerate(eager_steps(spec)):
            found = packed.run(checks.step_inputs(spec, step))
            assert b"".join(found[:4]) == plan
            assert b"".join(found[4:]) == ego_motion
            assert packed.states() == [images, features]
            assert np.isfinite(np.frombuffer(plan, np.float32)).all()
            plans.append(plan)
    assert len(set(plans)) == 20


def warped(frame: NDArray[np.uint8], homography: NDArray[np.float32]) -> NDArray[np.uint8]:
    """The model's view, in float64 and point by point as README.md defines it."""
    luma = frame[: WIDTH * HEIGHT].reshape(HEIGHT, WIDTH)
    chroma = frame[WIDTH * HEIGHT :].reshape(HEIGHT // 2, WIDTH // 2, 2)

    def at(plane: NDArray[np.uint8], width: int, height: int) -> NDArray[np.uint8]:
        x, y = (np.arange(width) + 0.5) * 2 / width - 1, (np.arange(height) + 0.5) * 2 / height - 1
        points = np.stack([*np.meshgrid(x, y), np.ones((height, width))])
        u, v, w = np.einsum("ij,jhw->ihw", homography.astype(np.float64), points)
        rows = np.clip((v / w + 1) / 2 * plane.shape[0], 0, plane.shape[0] - 1).astype(int)
        columns = np.clip((u / w + 1) / 2 * plane.shape[1], 0, plane.shape[1] - 1).astype(int)
        return plane[rows, columns]

    full = at(luma, 256, 128)
    return np.stack([full[row::2, column::2] for row in (0, 1) for column in (0, 1)]
                    + [at(chroma[..., part], 128, 64) for part in (0, 1)])  # fmt: skip


def test_the_newest_picture_in_the_queue_is_the_warped_frame(spec: Spec, packed: PackedModel) -> None:
    random = np.random.default_rng(4)
    # smooth pictures: a point that float32 rounds to the neighbouring pixel differs by little
    frame = (np.add.outer(np.arange(HEIGHT * 3 // 2), np.arange(WIDTH)) // 16 % 251).astype(np.uint8).reshape(-1)
    other = frame[::-1].copy()
    tilted = np.array([[0.5, 0.02, 0.1], [0.01, 0.4, -0.05], [0.0, 0.2, 1.0]], np.float32)
    shifted = np.array([[0.9, 0.0, 0.4], [0.0, 0.9, 0.3], [0.0, 0.0, 1.0]], np.float32)
    facts = [random.standard_normal(8).astype(np.float32), np.array([1, 0], np.float32)]
    packed.run([frame.tobytes(), other.tobytes(), *(one.tobytes() for one in (tilted, shifted, *facts))])
    images = np.frombuffer(packed.states()[0], np.uint8).reshape(5, 2, 6, 64, 128)
    assert not images[:4].any()
    for found, expected in ((images[4, 0], warped(frame, tilted)), (images[4, 1], warped(other, shifted))):
        assert (found == expected).mean() > 0.99


def test_pictures_of_pairs_without_a_plan_are_in_the_queue_all_the_same(spec: Spec, packed: PackedModel) -> None:
    steps = [checks.step_inputs(spec, step) for step in range(6)]
    for values in steps:
        packed.run(values)
    images, features = packed.states()
    packed.reset_state()
    for step, values in enumerate(steps):
        if step in (0, 3, 5):
            packed.run(values)
        else:
            assert packed.run(values[:4], WARP_ONLY) == []
    found_images, found_features = packed.states()
    assert found_images == images
    assert found_features != features  # vision did not see them


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 3e38, 0.0])
def test_a_homography_of_any_numbers_reads_inside_the_picture(spec: Spec, packed: PackedModel, value: float) -> None:
    values = checks.step_inputs(spec, 1)
    bad = np.full((3, 3), value, np.float32).tobytes()
    found = packed.run([*values[:2], bad, bad, *values[4:]])
    assert np.isfinite(np.frombuffer(b"".join(found), np.float32)).all()


def test_calibration_has_a_default_and_the_traffic_convention_has_none(spec: Spec) -> None:
    aux: dict[str, Any] = {one.name: one.default for one in spec.aux}
    assert np.frombuffer(aux["wide_homography"], np.float32).reshape(3, 3).tolist() == np.eye(3).tolist()
    assert aux["desire_pulse"] == bytes(32)
    assert aux["traffic_convention"] is None
