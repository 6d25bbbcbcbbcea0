"""The CPU target: C kernels by the blocking rule, channels last, linked with the queue runtime by the pinned zig."""

from __future__ import annotations

import os
from contextlib import AbstractContextManager
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from hal.features import machine_features, missing_features
from lab.compile import link
from lab.compile.refusal import CompileRefusal, CompileRefused
from lab.compile.spec import TargetSpec
from lab.compile.toolchain import compile_context, tinygrad_arch
from signing import statement

if TYPE_CHECKING:
    from lab.compile.capture import Capture, Kernel


class CpuTarget:
    """See `lab.compile.target.Target`."""

    driver = "cpu"
    exact = True
    runs_here = True
    tinygrad_device = "CPU"
    align_bytes = 64
    """A cache line, as tinygrad's vector loads and stores need it."""
    tuning = ""
    """Digest of the choices that timing made for this compile; empty where the rule made all of them."""

    def __init__(self, spec: TargetSpec) -> None:
        if os.uname().machine != spec.arch:
            raise CompileRefused(
                CompileRefusal.TARGET, "target.arch", expected=f"{os.uname().machine}, this machine's",
                found=spec.arch, todo=f"compile on a machine with {spec.arch}, where the checks run the code; or with "
                "--without-device, which leaves its first run to the vehicle's self-test",
            )  # fmt: skip
        self._features = features(spec)
        missing = missing_features(self._features, machine_features())
        if missing:
            raise CompileRefused(
                CompileRefusal.TARGET, "target.cpu", expected=f"the CPU features of {spec.cpu}",
                found=f"a machine without {', '.join(missing)}", todo="compile on a machine that has them",
            )  # fmt: skip
        self._spec = spec
        self.text = f"cpu {spec.arch} {spec.cpu}, {spec.threads} threads"

    def context(self) -> AbstractContextManager[None]:
        return compile_context(self._spec.arch, self._spec.cpu, self._spec.threads)

    def rewrite(self, network: Any) -> None:
        from lab.compile.activations import use_fast_activations  # noqa: PLC0415 (they import tinygrad)
        from lab.compile.attention import use_pieces  # noqa: PLC0415
        from lab.compile.layout import use_channels_last  # noqa: PLC0415
        from lab.compile.schedule import registers  # noqa: PLC0415

        use_channels_last(network, registers(tinygrad_arch(self._spec.arch, self._spec.cpu)).lanes)
        use_fast_activations(network)
        use_pieces(network)

    def code(self, capture: Capture) -> bytes:
        kernels = [
            link.Kernel(one.source, one.name, len(one.access) if one.takes_core else None) for one in capture.kernels
        ]
        return link.link(kernels, arch=self._spec.arch, cpu=self._spec.cpu)

    def symbol(self, index: int) -> str:
        return link.symbol(index)

    def code_range(self, index: int, code_bytes: int) -> tuple[int, int]:
        return 0, 0

    def launch_size(self, kernel: Kernel) -> tuple[tuple[int, ...], tuple[int, ...]]:
        return (kernel.cores,), ()

    def stated(self, memory_bytes: int) -> statement.Target:
        return statement.Target("cpu", self._spec.arch, tuple(self._features), memory_bytes)

    def options(self) -> tuple[tuple[str, statement.OptionValue], ...]:
        from lab.compile.schedule import RULE_VERSION  # noqa: PLC0415 (imports tinygrad)

        compiled = (("cpu", self._spec.cpu), ("scheduleRule", RULE_VERSION), ("threads", self._spec.threads))
        tuned = (("tuned", self.tuning),) if self.tuning else ()
        return (*compiled, *tuned, ("ziglang", version("ziglang")))


def features(spec: TargetSpec) -> tuple[str, ...]:
    """What code for the spec's CPU may use, in the words of /proc/cpuinfo. Raises CompileRefused for an unknown CPU."""
    try:
        return link.features(spec.arch, spec.cpu)
    except link.LinkError as error:
        if "unknown CPU" not in str(error):
            raise
        raise CompileRefused(
            CompileRefusal.TARGET, "target.cpu", expected="a CPU that zig knows, such as x86_64_v3 or cortex_a78",
            found=spec.cpu, todo="choose one of `python -m ziglang targets`",
        ) from None  # fmt: skip
