"""What a compile target is to the compiler: how tinygrad is opened for it, and how its kernels become code.

A closed table, as the drivers of the HAL are: `cpu`, `opencl`, `hcq` and `cuda`. A target refuses a machine that is not
of its kind, because the checks run the kernels; `cuda`, and `cpu` of another architecture, can be told to do without.
"""

from __future__ import annotations

import os
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Protocol

from abi.graph import EntryRole
from lab.compile.refusal import CompileRefusal, CompileRefused
from signing import statement

if TYPE_CHECKING:
    from lab.compile.capture import Capture, Kernel
    from lab.compile.spec import Spec, TargetSpec

TARGETS = ("cpu", "opencl", "hcq", "cuda")


class Target(Protocol):
    """One target on this machine. tinygrad_device: where tinygrad's tensors live in its context.

    align_bytes: what weights, arena and bound buffers are aligned to. text: for reports. exact: whether tinygrad's own
    runs give the device's very bits. runs_here: whether the packed bundle can be run on this machine.
    """

    driver: str
    tinygrad_device: str
    align_bytes: int
    text: str
    exact: bool
    runs_here: bool

    def context(self) -> AbstractContextManager[None]:
        """Within it tinygrad compiles and runs for this target."""
        ...

    def rewrite(self, network: Any) -> None:
        """Give the network the layout and the operators that suit the target."""
        ...

    def code(self, capture: Capture) -> bytes:
        """The `code` blob: every kernel of the capture."""
        ...

    def symbol(self, index: int) -> str:
        """What kernel `index` is called in the code."""
        ...

    def code_range(self, index: int, code_bytes: int) -> tuple[int, int]:
        """Program.codeOffset and codeBytes of kernel `index`, after `code`; 0, 0 for one linked object."""
        ...

    def launch_size(self, kernel: Kernel) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Launch.global and Launch.local."""
        ...

    def stated(self, memory_bytes: int) -> statement.Target:
        """What the statement says of the machine."""
        ...

    def options(self) -> tuple[tuple[str, statement.OptionValue], ...]:
        """What the statement says of the compiler, sorted."""
        ...


def require_outputs(spec: Spec, todo: str) -> None:
    """Raise CompileRefused TARGET for an entrypoint whose goldens could not have a tolerance."""
    for entry in spec.entries:
        if entry.role is EntryRole.STATE_ONLY:
            raise CompileRefused(
                CompileRefusal.TARGET, f"entrypoint {entry.name!r}",
                expected="entrypoints with outputs, which have a tolerance",
                found="one that writes state only, whose goldens are equal bits", todo=todo,
            )  # fmt: skip


def open_target(spec: Spec, *, without_device: bool = False) -> Target:
    """The spec's target on this machine. Raises CompileRefused TARGET where the machine is of another kind.

    without_device: compile for a GPU, or for a CPU of another architecture, that is not here.
    """
    wanted: TargetSpec = spec.target
    if wanted.driver == "cuda":
        from lab.compile.target_cuda import CudaTarget  # noqa: PLC0415 (a target is loaded only where it is named)

        return CudaTarget(spec, without_device=without_device)
    if wanted.driver == "cpu" and without_device and wanted.arch != os.uname().machine:
        from lab.compile.target_cross import CrossCpuTarget  # noqa: PLC0415

        return CrossCpuTarget(spec)
    if without_device:
        raise CompileRefused(
            CompileRefusal.TARGET, "--without-device", expected='driver = "cuda", or "cpu" of another architecture',
            found=f"{wanted.driver} {wanted.arch}",
            todo="compile on a machine that has the device",
        )  # fmt: skip
    if wanted.driver == "opencl":
        from lab.compile.target_opencl import OpenClTarget  # noqa: PLC0415

        return OpenClTarget(wanted)
    if wanted.driver == "hcq":
        from lab.compile.target_hcq import HcqTarget  # noqa: PLC0415

        return HcqTarget(wanted)
    from lab.compile.target_cpu import CpuTarget  # noqa: PLC0415

    return CpuTarget(wanted)
