"""The HCQ target: kernels as tinygrad compiles them for this machine's AMD, NV or QCOM GPU.

A bundle is for one GPU architecture, `target.arch` in the spec ("gfx1100", "sm_89", "a630"), of which the compiling
machine must have a GPU, for the checks run the kernels. Which one is opened, and by what compiler, `DEV` says in
tinygrad's words ("KFD+AMD:LLVM"); where it says nothing, the GPU whose kernel driver is there.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from hal.error import HalError
from hal.hcq_device import HcqDevice
from hal.hcq_executable import ALIGN_BYTES
from lab.compile import hcq
from lab.compile.refusal import CompileRefusal, CompileRefused
from lab.compile.spec import TargetSpec
from lab.compile.toolchain import open_cpu_device
from signing import statement

if TYPE_CHECKING:
    from lab.compile.capture import Capture, Kernel

_COMPILERS = {"AMD": "LLVM"}  # the others have one that they look for themselves


def local_arch() -> str:
    """The architecture of this machine's GPU. Raises CompileRefused where it has none."""
    return _open().arch


def _open() -> HcqDevice:
    machine = os.uname().machine
    open_cpu_device(machine, "x86_64_v3" if machine == "x86_64" else "generic")
    try:
        return HcqDevice("")
    except HalError as error:
        raise CompileRefused(
            CompileRefusal.TARGET, "target.driver", expected="the vehicle's GPU in this machine",
            found=str(error), todo="compile where the GPU and its kernel driver are",
        ) from error  # fmt: skip


class HcqTarget:
    """See `lab.compile.target.Target`."""

    driver = "hcq"
    exact = True
    runs_here = True
    align_bytes = ALIGN_BYTES

    def __init__(self, spec: TargetSpec) -> None:
        device = _open()
        if device.arch != spec.arch:
            raise CompileRefused(
                CompileRefusal.TARGET, "target.arch", expected=f"{device.arch}, this machine's GPU", found=spec.arch,
                todo=f"compile on a machine with {spec.arch}: the checks run the kernels",
            )  # fmt: skip
        self._spec, self._device = spec, device
        self.tinygrad_device = device.backend
        self.text = f"hcq {device.identity}"
        self._symbols: tuple[str, ...] = ()
        self._places: tuple[tuple[int, int], ...] = ()

    @contextmanager
    def context(self) -> Iterator[None]:
        from tinygrad.helpers import Context  # noqa: PLC0415 (after the environment is set)

        with Context(DEV=self._dev, JIT=2, BEAM=0, NOOPT=0, SPLIT_REDUCEOP=0):
            yield

    def rewrite(self, network: Any) -> None:
        """Nothing: tinygrad's own operators and order suit devices of many kinds."""

    def code(self, capture: Capture) -> bytes:
        blob, self._places = hcq.lay_out(capture.kernels)
        self._symbols = tuple(one.name for one in capture.kernels)
        return blob

    def symbol(self, index: int) -> str:
        """A binary knows its kernel by the name that tinygrad gave it."""
        return self._symbols[index]

    def code_range(self, index: int, code_bytes: int) -> tuple[int, int]:
        return self._places[index]

    def launch_size(self, kernel: Kernel) -> tuple[tuple[int, ...], tuple[int, ...]]:
        return kernel.groups, kernel.items

    def stated(self, memory_bytes: int) -> statement.Target:
        return statement.Target("hcq", self._spec.arch, (), memory_bytes)

    def options(self) -> tuple[tuple[str, statement.OptionValue], ...]:
        return (("compiler", self._compiler),)

    @property
    def _compiler(self) -> str:
        return _COMPILERS.get(self._device.backend, "default")

    @property
    def _dev(self) -> str:
        """The device's DEV, with the compiler named where there is a choice."""
        first, _, more = self._device.dev.partition(";")
        named = f"{first}:{self._compiler}" if self._device.backend in _COMPILERS else first
        return f"{named};{more}" if more else named
