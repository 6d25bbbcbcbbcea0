"""The CUDA target: kernels as tinygrad renders them for `CUDA`, made into a cubin by nvcc.

A bundle is for one GPU architecture, `target.arch` in the spec ("sm_90"). Capture, checks and goldens run the kernels'
own source on this machine's processor (`lab.compile.emulated_cuda`), so goldens are the GPU's within a tolerance, not
bit for bit. The packed bundle is run on the GPU where this machine has one of the architecture; where it has none, only
`--without-device` compiles, and the bundle says that it has never run. Layout and loop choices are tinygrad's own.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from hal.cuda_api import CudaApi
from hal.cuda_device import CudaDevice, list_devices, prepare_environment
from hal.cuda_executable import ALIGN_BYTES
from hal.error import HalError
from lab.compile import cuda
from lab.compile.refusal import CompileRefusal, CompileRefused
from lab.compile.spec import Spec
from lab.compile.target import require_outputs
from lab.compile.toolchain import open_cpu_device
from signing import statement

if TYPE_CHECKING:
    from lab.compile.capture import Capture, Kernel


class CudaTarget:
    """See `lab.compile.target.Target`. runs_here: whether this machine has the GPU."""

    driver = "cuda"
    tinygrad_device = "CUDA"
    align_bytes = ALIGN_BYTES
    exact = False

    def __init__(self, spec: Spec, *, without_device: bool = False) -> None:
        arch = spec.target.arch
        require_outputs(spec, "compile it for the CPU")
        self._toolkit = cuda.find_toolkit()
        self.runs_here = not without_device
        if self.runs_here:
            _require_device(arch)
        self._arch = arch
        self.text = f"cuda {arch}, nvcc {self._toolkit.version}" + ("" if self.runs_here else ", without a device")

    @contextmanager
    def context(self) -> Iterator[None]:
        machine = os.uname().machine
        open_cpu_device(machine, "x86_64_v3" if machine == "x86_64" else "generic")
        from tinygrad.helpers import Context  # noqa: PLC0415 (after the environment is set)

        from lab.compile import emulated_cuda  # noqa: PLC0415 (imports tinygrad)

        emulated_cuda.install()
        dev = f"CUDA:{emulated_cuda.RENDERER}:{self._arch}"
        with Context(DEV=dev, JIT=2, BEAM=0, NOOPT=0, SPLIT_REDUCEOP=0):
            yield

    def rewrite(self, network: Any) -> None:
        """Nothing: tinygrad's own operators and order suit devices of many kinds."""

    def code(self, capture: Capture) -> bytes:
        kernels = [cuda.CudaKernel(one.source, one.name) for one in capture.kernels]
        return cuda.build(kernels, self._arch, self._toolkit)

    def symbol(self, index: int) -> str:
        return cuda.symbol(index)

    def code_range(self, index: int, code_bytes: int) -> tuple[int, int]:
        return 0, code_bytes

    def launch_size(self, kernel: Kernel) -> tuple[tuple[int, ...], tuple[int, ...]]:
        return kernel.groups, kernel.items

    def stated(self, memory_bytes: int) -> statement.Target:
        return statement.Target("cuda", self._arch, (), memory_bytes)

    def options(self) -> tuple[tuple[str, statement.OptionValue], ...]:
        return (("goldens", "emulated"), ("nvcc", self._toolkit.version), ("ranOnDevice", self.runs_here))


def _require_device(arch: str) -> None:
    try:
        prepare_environment()
        found = [one.arch for one in _devices()]
    except HalError as error:
        found = [str(error)]
    if arch not in found:
        raise _refused(
            "target.arch", f"a GPU of {arch} in this machine, to run the bundle on", ", ".join(found) or "no GPU",
            "compile where it is; or with --without-device, which leaves that check to the vehicle's self-test",
        )  # fmt: skip


def _devices() -> list[CudaDevice]:
    return list_devices(CudaApi())


def _refused(what: str, expected: str, found: str, todo: str) -> CompileRefused:
    return CompileRefused(CompileRefusal.TARGET, what, expected=expected, found=found, todo=todo)
