"""The OpenCL target: kernels as tinygrad renders them for `CL`, built by this machine's OpenCL driver.

A bundle is for exactly this machine's device name and driver version, which the statement names. Layout and loop
choices are tinygrad's own; batch normalisation is folded and heavy results are written to memory as for the CPU.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from hal.error import HalError
from lab.compile import opencl
from lab.compile.refusal import CompileRefusal, CompileRefused
from lab.compile.spec import TargetSpec
from lab.compile.toolchain import open_cpu_device
from signing import statement

if TYPE_CHECKING:
    from lab.compile.capture import Capture, Kernel

LEAST_ALIGN_BYTES = 256


class OpenClTarget:
    """See `lab.compile.target.Target`."""

    driver = "opencl"
    exact = True
    runs_here = True
    tinygrad_device = "CL"

    def __init__(self, spec: TargetSpec) -> None:
        if os.uname().machine != spec.arch:
            raise CompileRefused(
                CompileRefusal.TARGET, "target.arch", expected=f"{os.uname().machine}, this machine's",
                found=spec.arch, todo=f"compile on a machine with {spec.arch} and the vehicle's OpenCL device",
            )  # fmt: skip
        try:
            device = opencl.local_device()
        except HalError as error:
            raise CompileRefused(
                CompileRefusal.TARGET, "target.driver", expected="the vehicle's OpenCL device in this machine",
                found=str(error), todo="compile where the device and its driver are installed",
            ) from error  # fmt: skip
        self._spec, self._device = spec, device
        self.align_bytes = max(LEAST_ALIGN_BYTES, device.align_bytes)
        self.text = f"opencl {spec.arch}, {device.identity}"

    @contextmanager
    def context(self) -> Iterator[None]:
        open_cpu_device(self._spec.arch, "x86_64_v3" if self._spec.arch == "x86_64" else "generic")
        from tinygrad.helpers import Context  # noqa: PLC0415 (after the environment is set)

        with Context(DEV="CL", JIT=2, BEAM=0, NOOPT=0, SPLIT_REDUCEOP=0):
            yield

    def rewrite(self, network: Any) -> None:
        """Nothing: tinygrad's own operators and order suit devices of many kinds."""

    def code(self, capture: Capture) -> bytes:
        launches: list[list[opencl.OpenClLaunch]] = [[] for _ in capture.kernels]
        for launch in capture.launches:
            groups, items = self.launch_size(capture.kernels[launch.kernel])
            sizes = tuple(one.size_bytes for one in launch.arguments)
            one = opencl.OpenClLaunch(groups, items, sizes)
            if one not in launches[launch.kernel]:
                launches[launch.kernel].append(one)
        kernels = [
            opencl.OpenClKernel(kernel.source, kernel.name, tuple(uses))
            for kernel, uses in zip(capture.kernels, launches, strict=True)
        ]
        return opencl.build(kernels)

    def symbol(self, index: int) -> str:
        return opencl.symbol(index)

    def code_range(self, index: int, code_bytes: int) -> tuple[int, int]:
        return 0, code_bytes

    def launch_size(self, kernel: Kernel) -> tuple[tuple[int, ...], tuple[int, ...]]:
        return kernel.groups, kernel.items

    def stated(self, memory_bytes: int) -> statement.Target:
        return statement.Target("opencl", self._spec.arch, (), memory_bytes, self._device.identity)

    def options(self) -> tuple[tuple[str, statement.OptionValue], ...]:
        return (("device", self._device.identity),)
