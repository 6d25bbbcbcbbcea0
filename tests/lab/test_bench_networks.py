"""The networks that the kernels benchmark writes: whole, of the sizes it says, and the same each time."""

from pathlib import Path

import numpy as np
import onnxruntime
import pytest

from lab.bench.kernels import written
from lab.bench.networks import INPUT, NETWORKS, OUTPUT


@pytest.mark.parametrize(("name", "shape"), [("swish", (1, 64, 40, 40)), ("attention", (1, 880, 64))])
def test_a_written_network_runs_on_a_picture_of_its_size(tmp_path: Path, name: str, shape: tuple[int, ...]) -> None:
    (subject,) = [one for one in written(tmp_path) if one.name == name]
    session = onnxruntime.InferenceSession(str(subject.path), providers=["CPUExecutionProvider"])
    picture = np.random.default_rng(1).standard_normal((1, 3, subject.height, subject.width)).astype(np.float32)
    (result,) = session.run([OUTPUT], {INPUT: picture})
    assert result.shape == shape
    assert 1e-3 < float(np.abs(result).mean()) < 1e3  # neither dies out nor explodes


def test_they_are_the_same_each_time(tmp_path: Path) -> None:
    for folder in (tmp_path / "once", tmp_path / "again"):
        folder.mkdir()
        written(folder)
    for name in NETWORKS:
        assert (tmp_path / "once" / f"{name}.onnx").read_bytes() == (tmp_path / "again" / f"{name}.onnx").read_bytes()
