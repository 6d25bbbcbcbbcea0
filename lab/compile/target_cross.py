"""The CPU target for another architecture than this machine's: its code is linked for the vehicle, and run there first.

Kernels are chosen, blocked and rendered for the vehicle's CPU; capture, checks and goldens run that same C, built for
this machine. So goldens are the vehicle's within a tolerance, not bit for bit: the compilers of two architectures join
multiplications and additions differently. The bundle is admitted, with the vehicle's code, and says that it has not
run; the vehicle's self-test, which must pass before it serves, is its first run (or `make arm64`, under emulation).
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from lab.compile.spec import Spec
from lab.compile.target import require_outputs
from lab.compile.target_cpu import CpuTarget, features
from lab.compile.toolchain import HOST_CPUS, compiler_for_this_machine, cross_context
from signing import statement


class CrossCpuTarget(CpuTarget):
    """See `lab.compile.target.Target`."""

    exact = False
    runs_here = False

    def __init__(self, spec: Spec) -> None:
        require_outputs(spec, "compile it on a machine of its architecture")
        self._spec = spec.target
        self._features = features(spec.target)
        self.text = f"cpu {spec.target.arch} {spec.target.cpu}, {spec.target.threads} threads, without that machine"

    @contextmanager
    def context(self) -> Iterator[None]:
        machine = os.uname().machine
        with cross_context(self._spec.arch, self._spec.cpu, self._spec.threads, compiler_for_this_machine(machine)):
            yield

    def options(self) -> tuple[tuple[str, statement.OptionValue], ...]:
        host = os.uname().machine
        return tuple(sorted((*super().options(), ("goldens", f"run on {HOST_CPUS[host]}"), ("ranOnDevice", False))))
