"""Bundles for CUDA, where there is no GPU: real cubins by nvcc, and kernels that run in two ways on the host.

The compiler emulates the kernels' own source. The whole bundle also runs through the HAL's driver over a fake libcuda
whose kernels are that source, so launch tables, addresses, weights and state are the real ones. What a GPU would make
of the cubin is not shown.
"""

from __future__ import annotations

import ctypes
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest

from abi.graph import decode
from hal.cuda_code import check_cubin
from lab.compile import cuda
from lab.compile.compiler import compile_spec
from lab.compile.packed import open_packed
from lab.compile.refusal import CompileRefusal, CompileRefused
from lab.compile.spec_toml import load_spec
from lab.sign.pack import open_checked
from tests.lab.compile.python_pipelines import write_entries, write_pipeline
from tests.lab.compile.tiny_models import random_frame, write_spec
from tests.support.cuda import FakeGpu, library

FOR_CUDA = {'driver = "cpu"': 'driver = "cuda"', 'arch = "x86_64"': 'arch = "sm_90"', 'cpu = "x86_64_v3"\n': "",
            "threads = 2\n": ""}  # fmt: skip
TOLERANCE = 1e-3  # as the spec states it
FILL = """
extern "C" __global__ void __launch_bounds__(4) fill(float* out, int* in) {
  __shared__ __align__(16) int seen[4];
  seen[threadIdx.x] = in[blockIdx.x*4 + threadIdx.x];
  __syncthreads();
  out[blockIdx.x*4 + threadIdx.x] = exp2((float)seen[3 - threadIdx.x]);
}
"""


def has_nvcc() -> bool:
    try:
        cuda.find_toolkit()
    except CompileRefused:
        return False
    return True


needs_nvcc = pytest.mark.skipif(not has_nvcc(), reason="nvcc is not installed: cubins cannot be built")


def spec_for_cuda(folder: Path) -> Path:
    return write_spec(folder, edits=FOR_CUDA)


HALVES = """#include <cuda_fp16.h>
extern "C" __global__ void __launch_bounds__(4) halves(float* out, half* in) {
  out[threadIdx.x] = (float)hexp2(in[threadIdx.x]*(half)2);
}
"""


@pytest.fixture
def fake_gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeGpu]:
    """A GPU of sm_90 in this machine, which is given the kernels of each cubin that nvcc makes."""
    from lab.compile import emulated_cuda  # noqa: PLC0415 (imports tinygrad)

    gpu, program_source = FakeGpu(), cuda.program_source

    def linked(kernels: Sequence[cuda.CudaKernel]) -> str:
        source = program_source(kernels)
        gpu.link(str(emulated_cuda.host_library(source, [cuda.symbol(index) for index in range(len(kernels))])))
        return source

    monkeypatch.setattr(cuda, "program_source", linked)
    monkeypatch.setattr("hal.cuda_api.FOLDERS", (str(Path(library()).parent),))
    yield gpu
    gpu.link(None)
    gpu.heal()


@needs_nvcc
def test_a_cubin_holds_every_kernel_and_no_text(tmp_path: Path) -> None:
    other = FILL.replace("exp2", "log2")
    twice = [cuda.CudaKernel(FILL, "fill"), cuda.CudaKernel(other, "fill"), cuda.CudaKernel(HALVES, "halves")]
    toolkit = cuda.find_toolkit()
    cubin = cuda.build(twice, "sm_90", toolkit)
    check_cubin(memoryview(cubin), "the test's")
    assert cuda.functions(cubin) >= {"w0", "w1", "w2"}
    assert b".version" not in cubin  # PTX begins so
    assert cubin == cuda.build(twice, "sm_90", toolkit)


@needs_nvcc
def test_what_nvcc_refuses_is_told(tmp_path: Path) -> None:
    with pytest.raises(CompileRefused, match="sm_11") as caught:
        cuda.build([cuda.CudaKernel(FILL, "fill")], "sm_11", cuda.find_toolkit())
    assert caught.value.code is CompileRefusal.TARGET


def test_without_the_toolkit_nothing_is_compiled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = spec_for_cuda(tmp_path)
    monkeypatch.setattr(shutil, "which", lambda *_, **__: None)
    with pytest.raises(CompileRefused, match="no nvcc"):
        compile_spec(spec, tmp_path / "model.fenced", without_device=True)


def test_emulated_threads_meet_at_barriers(tmp_path: Path) -> None:
    from lab.compile import emulated_cuda  # noqa: PLC0415 (imports tinygrad)

    run = ctypes.CDLL(str(emulated_cuda.host_library(FILL, ["fill"]))).fill_emulate
    given, out = np.arange(8, dtype=np.int32), np.zeros(8, np.float32)
    run((ctypes.c_void_p * 2)(out.ctypes.data, given.ctypes.data), (ctypes.c_uint32 * 3)(2, 1, 1),
        (ctypes.c_uint32 * 3)(4, 1, 1))  # fmt: skip
    assert out.tolist() == [8, 4, 2, 1, 128, 64, 32, 16]


def test_emulated_halves_are_rounded_as_such() -> None:
    from lab.compile import emulated_cuda  # noqa: PLC0415 (imports tinygrad)

    run = ctypes.CDLL(str(emulated_cuda.host_library(HALVES, ["halves"]))).halves_emulate
    given, out = np.array([0, 1, 2.25, -3], np.float16), np.zeros(4, np.float32)
    one = (ctypes.c_uint32 * 3)(1, 1, 1)
    run((ctypes.c_void_p * 2)(out.ctypes.data, given.ctypes.data), one, (ctypes.c_uint32 * 3)(4, 1, 1))
    assert out.tolist() == [1, 4, float(np.float16(2**4.5)), 1 / 64]


@needs_nvcc
def test_without_a_gpu_only_the_flag_compiles(tmp_path: Path) -> None:
    with pytest.raises(CompileRefused, match="--without-device") as caught:
        compile_spec(spec_for_cuda(tmp_path), tmp_path / "model.fenced")
    assert caught.value.code is CompileRefusal.TARGET
    assert not (tmp_path / "model.fenced").exists()


def test_the_flag_is_for_devices_that_are_elsewhere_alone(tmp_path: Path) -> None:
    with pytest.raises(CompileRefused, match="without-device"):
        compile_spec(write_spec(tmp_path), tmp_path / "model.fenced", without_device=True)


@needs_nvcc
def test_a_bundle_without_a_device_says_that_it_has_not_run(tmp_path: Path) -> None:
    spec = spec_for_cuda(tmp_path)
    report = compile_spec(spec, tmp_path / "one.fenced", without_device=True)
    assert report.checks[-1].seen.startswith("not run: no device")
    with open_checked(tmp_path / "one.fenced") as (sealed, _, stated):
        assert (stated.target.driver, stated.target.arch) == ("cuda", "sm_90")
        assert dict(stated.compiler.options)["ranOnDevice"] is False
        blobs = {blob.name: sealed.view(span) for blob, span in zip(stated.blobs, sealed.layout.blobs, strict=True)}
        assert {one.absolute_tolerance for one in decode(blobs["graph"]).outputs} == {TOLERANCE}
        assert "not run: no device" in bytes(blobs["accuracy.json"]).decode()
    compile_spec(spec, tmp_path / "two.fenced", without_device=True)
    assert (tmp_path / "one.fenced").read_bytes() == (tmp_path / "two.fenced").read_bytes()


@needs_nvcc
def test_with_the_gpu_the_packed_bundle_runs_through_the_driver(tmp_path: Path, fake_gpu: FakeGpu) -> None:
    spec, before = spec_for_cuda(tmp_path), fake_gpu.get("launches")
    report = compile_spec(spec, tmp_path / "cuda.fenced")
    assert report.checks[-1].seen.startswith("within tolerance")
    assert fake_gpu.get("launches") - before == load_spec(spec).check.steps * len(report.launches)
    (tmp_path / "cpu").mkdir()
    compile_spec(write_spec(tmp_path / "cpu"), tmp_path / "cpu.fenced")
    size = load_spec(spec).inputs[0].buffer_bytes
    seen = set()
    with open_packed(tmp_path / "cuda.fenced") as one, open_packed(tmp_path / "cpu.fenced") as two:
        for seed in range(3):
            frame = random_frame(size, seed)
            for a, b in zip(one.run([frame.tobytes()]), two.run([frame.tobytes()]), strict=True):
                left, right = np.frombuffer(a, np.float32), np.frombuffer(b, np.float32)
                assert np.abs(left - right).max() <= TOLERANCE
                seen.add(a)
    assert len(seen) > 3


@needs_nvcc
def test_state_and_aux_inputs_go_through_the_driver(tmp_path: Path, fake_gpu: FakeGpu) -> None:
    """Integers, so equal: a queue that rolls in the GPU's memory, with a gain of its own for each picture."""
    bundles = []
    for name, edits in (("cuda", FOR_CUDA), ("cpu", {})):
        (tmp_path / name).mkdir()
        spec = write_pipeline(tmp_path / name, edits=edits)
        compile_spec(spec, tmp_path / f"{name}.fenced")
        bundles.append(tmp_path / f"{name}.fenced")
    with open_packed(bundles[0]) as one, open_packed(bundles[1]) as two:
        for gain in (1, -4, 9):
            inputs = [random_frame(96, gain + 10).tobytes(), np.int32(gain).tobytes()]
            assert one.run(inputs) == two.run(inputs)
            assert one.states() == two.states()


@needs_nvcc
def test_entrypoints_that_write_state_only_are_refused(tmp_path: Path) -> None:
    with pytest.raises(CompileRefused, match="writes state only") as caught:
        compile_spec(write_entries(tmp_path, edits=FOR_CUDA), tmp_path / "model.fenced", without_device=True)
    assert caught.value.code is CompileRefusal.TARGET


@needs_nvcc
def test_a_gpu_that_computes_something_else_is_refused(tmp_path: Path, fake_gpu: FakeGpu) -> None:
    link = fake_gpu.link
    doubled = cuda.program_source

    def other(kernels: Sequence[cuda.CudaKernel]) -> str:
        return doubled([cuda.CudaKernel(one.source.replace("0.0f", "9.0f"), one.function) for one in kernels])

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cuda, "program_source", other)
        with pytest.raises(CompileRefused, match="packed bundle") as caught:
            compile_spec(spec_for_cuda(tmp_path), tmp_path / "model.fenced")
    link(None)
    assert caught.value.code is CompileRefusal.CAPTURE_DIFFERS
    assert not (tmp_path / "model.fenced").exists()


def test_a_kernel_in_the_cache_that_others_may_write_is_built_anew() -> None:
    from lab.compile import emulated_cuda  # noqa: PLC0415 (imports tinygrad)

    source = FILL.replace("exp2", "trunc")  # of no other test: what is loaded must not be overwritten
    path = emulated_cuda.host_library(source, ["fill"])
    good = path.read_bytes()
    path.write_bytes(b"not what was built")
    path.chmod(0o666)
    assert emulated_cuda.host_library(source, ["fill"]) == path
    assert path.read_bytes() == good


def test_tinygrads_own_look_for_a_gpu_does_not_stand_in_the_way() -> None:
    script = (
        "from tinygrad import Device\n"
        "assert Device.get_class('CUDA').__module__ == 'tinygrad.runtime.ops_cuda'\n"  # as it looks for a device
        "from lab.compile import emulated_cuda as emulated\n"
        "emulated.install()\n"
        "print(type(Device['CUDA']) is emulated.CUDADevice)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert (done.stdout, done.returncode) == ("True\n", 0), done.stderr
