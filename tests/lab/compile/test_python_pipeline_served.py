"""A compiled Python pipeline in the daemon: aux inputs are set, state goes on, is handed over, and is reset."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest
from numpy.typing import NDArray

from abi.colour import ClockId, TimeMark
from client.camera import Camera
from client.consumer import Consumer
from lab.compile.compiler import compile_spec
from lab.compile.spec_toml import load_spec
from lab.sign.sign import sign_bundle
from lab.sign.throwaway import sign_throwaway
from tests.lab.compile.python_pipelines import ENTRIES_PIPELINE, PIPELINE, write_entries, write_pipeline
from tests.support.bundles import BundleMaker
from tests.support.daemons import LIMIT_S, DaemonThread, run_one, submit

AGELESS = {"max_age_ms = 250.0": "max_age_ms = 0"}  # how long a loaded machine takes is not what is tested


@dataclass
class Rolling:
    """What numpy makes of the frames so far."""

    gain: int = 3
    queue: NDArray[np.int64] = field(default_factory=lambda: np.zeros((5, 96), np.int64))

    def step(self, pixels: NDArray[np.uint8]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The outputs `oldest` and `sums`."""
        self.queue = np.concatenate([self.queue[1:], (pixels.astype(np.int64) * self.gain)[None]])
        return self.queue[0], self.queue.sum(axis=1)


@pytest.fixture
def served(tmp_path: Path) -> Iterator[tuple[DaemonThread, Path, Camera, Consumer]]:
    """A daemon with release 1, the bundle of release 2, a camera and a consumer."""
    paths = []
    for release in (1, 2):
        place = tmp_path / f"release{release}"
        place.mkdir()
        paths.append(tmp_path / f"rolling{release}.fenced")
        compile_spec(write_pipeline(place, PIPELINE, AGELESS | {"release = 1": f"release = {release}"}), paths[-1])
    root = sign_throwaway(paths[0], tmp_path)
    for role in ("build", "release"):
        sign_bundle(paths[1], tmp_path / "keys" / role, role)
    for path in paths:
        path.chmod(0o644)
    stream = replace(load_spec(tmp_path / "release1" / "spec.toml").inputs[0].stream_format, clock=ClockId.MONOTONIC,
                     mark=TimeMark.EXPOSURE_START, period_ns=50_000_000, camera_name="field")  # fmt: skip
    maker = cast(BundleMaker, SimpleNamespace(root_path=root, folder=tmp_path))
    with (
        DaemonThread(tmp_path, paths[:1], maker) as daemon,
        daemon.camera("road", format=stream) as camera,
        daemon.consumer("rolling") as consumer,
    ):
        yield daemon, paths[1], camera, consumer


def run(served: tuple[DaemonThread, Path, Camera, Consumer], truth: Rolling, sequences: range) -> int:
    """Frames through the daemon, each result equal to numpy's; returns the last state epoch."""
    epoch = 0
    for sequence in sequences:
        pixels = np.random.default_rng(sequence).integers(0, 256, 96, dtype=np.uint8)
        delivery = run_one(served[2], served[3], sequence, pixels)
        oldest, sums = truth.step(pixels)
        assert np.array_equal(delivery.outputs["oldest"], oldest)
        assert np.array_equal(delivery.outputs["sums"], sums)
        epoch = delivery.receipt.state_epoch
    return epoch


def test_aux_and_state_serve_across_a_release_and_a_reset(served: tuple[DaemonThread, Path, Camera, Consumer]) -> None:
    daemon, second, camera, _ = served
    truth = Rolling()
    first_epoch = run(served, truth, range(1, 8))  # nobody has set the gain: the signed default
    camera.set_aux("gain", time.monotonic_ns(), np.int32(7).tobytes())
    truth.gain = 7
    assert run(served, truth, range(8, 12)) == first_epoch
    with daemon.control() as control:
        control.activate(second)
    assert run(served, truth, range(12, 16)) == first_epoch  # gain and queue were handed over
    assert daemon.status()["models"][0]["release"] == 2
    with daemon.control() as control:
        control.reset_state()
    truth.queue[:] = 0
    assert run(served, truth, range(16, 22)) > first_epoch


# A full run takes some milliseconds more, by a product that is added as 0: frames that come meanwhile are superseded.
HEAVY = ENTRIES_PIPELINE.replace(
    "    def full(", "    big = Tensor(np.full((512, 512), 0.01, np.float32)).realize()\n\n    def full("
).replace(
    "        outputs = {",
    """        heavy = (big * (road[0].cast("float32") + 1)).contiguous().dot(big).contiguous()
        runs = runs + (heavy.sum() > 1e30).cast("int32")
        outputs = {""",
)
NO_DEADLINE = {
    "deadline_ms = 60\n": "", 'miss_limit = 3\nmiss_window = 20\non_misses = "lighter"\n': "",
    "max_age_ms = 250.0": "max_age_ms = 0",
}  # fmt: skip


def _settled(stream: dict[str, int], submitted: int) -> bool:
    return stream["submitted"] == submitted and stream["held"] == 0


def test_frames_that_were_superseded_are_in_the_compiled_models_state(tmp_path: Path) -> None:
    bundle = tmp_path / "turns.fenced"
    spec_path = write_entries(tmp_path, HEAVY, NO_DEADLINE)
    compile_spec(spec_path, bundle)
    root = sign_throwaway(bundle, tmp_path)
    bundle.chmod(0o644)
    stream = replace(load_spec(spec_path).inputs[0].stream_format, clock=ClockId.MONOTONIC,
                     mark=TimeMark.EXPOSURE_START, period_ns=50_000_000, camera_name="field")  # fmt: skip
    maker = cast(BundleMaker, SimpleNamespace(root_path=root, folder=tmp_path))
    table = np.random.default_rng(5).integers(1, 99, (5, 96))
    frames = [np.random.default_rng(one).integers(0, 256, 96, dtype=np.uint8) for one in range(8)]
    with (
        DaemonThread(tmp_path, [bundle], maker) as daemon,
        daemon.camera("road", format=stream, slots=8) as camera,
        daemon.consumer("turns") as consumer,
    ):
        for sequence, pixels in enumerate(frames[:-1]):
            submit(camera, sequence, pixels)
        daemon.wait_for(lambda status: _settled(status["streams"]["road"], len(frames) - 1))
        runs = daemon.status()["models"][0]["runs"]
        assert runs["published"] + runs["state_only"] == len(frames) - 1
        assert runs["state_only"] > 0
        while consumer.recv(timeout_s=LIMIT_S).receipt.frames[0].sequence != len(frames) - 2:
            pass
        outputs = run_one(camera, consumer, len(frames) - 1, frames[-1]).outputs
    queue = np.stack(frames[-5:]).astype(np.int64) * 3
    assert np.array_equal(outputs["oldest"], queue[0] + runs["published"])
    assert np.array_equal(outputs["sums"], (queue * table).sum(axis=1) + runs["published"])
