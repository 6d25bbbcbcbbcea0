"""What is in a bundle is what was checked: run where nothing was captured, on another device's numbers, on no device
but its own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from abi.graph import decode
from daemon.refusal import ModelRefused
from daemon.selftest import self_test
from hal.accelerator import Module, open_accelerator
from lab.compile.compiler import compile_spec
from lab.compile.packed import PackedModel
from lab.compile.refusal import CompileRefusal, CompileRefused
from lab.sign.pack import open_checked
from tests.lab.compile.python_pipelines import PIPELINE, write_pipeline

LIMIT_S = 600
FRESH = """
import sys
from pathlib import Path
from lab.compile.packed import open_packed
with open_packed(Path(sys.argv[1])) as packed:
    for frame in (bytes(range(96)), bytes(range(96, 0, -1))):
        oldest, sums = packed.run([frame, (2).to_bytes(4, "little")])
        print(packed.states()[0][-384:].hex(), sums.hex())
assert not {"tinygrad", "onnx"} & set(sys.modules)
"""
HALF = PIPELINE.replace('"sums": rolled.sum(axis=1)', '"sums": (road.cast("float16") / 7).reshape(4, 24).sum(axis=1)')


def compiled(folder: Path, text: str = PIPELINE) -> Path:
    bundle = folder / "rolling.fenced"
    compile_spec(write_pipeline(folder, text), bundle)
    return bundle


def test_a_process_that_captured_nothing_gets_each_inputs_own_result(tmp_path: Path) -> None:  # runtime.md row 1
    bundle = compiled(tmp_path)
    done = subprocess.run([sys.executable, "-c", FRESH, str(bundle)], check=False, capture_output=True, text=True,
                          timeout=LIMIT_S)  # fmt: skip
    assert done.returncode == 0, done.stderr
    first, second = np.arange(96, dtype=np.int32) * 2, np.arange(96, 0, -1, dtype=np.int32) * 2
    sums = [np.array([0, 0, 0, 0, first.sum()], np.int32), np.array([0, 0, 0, first.sum(), second.sum()], np.int32)]
    expected = [f"{row.tobytes().hex()} {one.tobytes().hex()}" for row, one in zip((first, second), sums, strict=True)]
    assert done.stdout.splitlines() == expected


def test_a_packed_bundle_that_gives_other_bits_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = PackedModel.run

    def one_bit_off(packed: PackedModel, *arguments: object) -> list[bytes]:
        oldest, sums = real(packed, *arguments)  # type: ignore[arg-type]
        return [oldest, bytes([sums[0] ^ 1]) + sums[1:]]

    monkeypatch.setattr(PackedModel, "run", one_bit_off)
    with pytest.raises(CompileRefused) as refused:
        compiled(tmp_path)
    assert (refused.value.code, refused.value.what) == (
        CompileRefusal.CAPTURE_DIFFERS, "step 0: packed bundle, output 'sums'",
    )  # fmt: skip
    assert not (tmp_path / "rolling.fenced").exists()


def test_a_device_that_rounds_half_precision_otherwise_fails_the_self_test(tmp_path: Path) -> None:  # row 6
    bundle = compiled(tmp_path, HALF)
    with open_checked(bundle) as (sealed, _, stated):
        spans = zip(stated.blobs, sealed.layout.blobs, strict=True)
        parts = {one.name: bytes(sealed.view(span)) for one, span in spans}
    module = Module(decode(parts["graph"]), memoryview(parts["code"]), memoryview(parts["weights"]))
    sums = np.frombuffer(parts["goldens"], np.float16, 4, offset=4 * 96).copy()
    assert np.isfinite(sums).all()
    assert sums.any()
    blob = bytearray(parts["goldens"])
    accelerator = open_accelerator("cpu")
    try:
        executable = accelerator.load(module)
        assert self_test(accelerator, executable, memoryview(blob)).vectors == 2
        wrong = np.nextafter(sums, np.float16(np.inf))  # what a device with another rounding gives
        blob[4 * 96 : 4 * 96 + 8] = wrong.tobytes()
        with pytest.raises(ModelRefused) as refused:
            self_test(accelerator, executable, memoryview(blob))
    finally:
        accelerator.close()
    assert refused.value.code == "self-test-golden"
    assert "output sums" in refused.value.what


def test_a_value_that_leaves_the_device_is_refused(tmp_path: Path) -> None:  # row 15
    text = PIPELINE.replace("rolled = ", 'road = (road.to("PYTHON") + 1).to("CPU")\n        rolled = ')
    with pytest.raises(CompileRefused) as refused:
        compiled(tmp_path, text)
    assert refused.value.code is CompileRefusal.FOREIGN_DEVICE
    assert not (tmp_path / "rolling.fenced").exists()
