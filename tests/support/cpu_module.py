"""A module on the CPU driver, bound and ready to be submitted, for tests of the driver."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from hal.bindings import Bindings
from hal.cpu import CpuAccelerator
from hal.cpu_executable import CpuExecutable
from hal.error import HalError
from hal.fence import Fence, FenceStatus
from tests.conformance import subject

__all__ = ["LIMIT_NS", "Loaded", "refusal"]

LIMIT_NS = 60_000_000_000


class Loaded:
    """The subject on a device, with one frame, one aux value and one output bound to an entrypoint."""

    def __init__(self, cpu: CpuAccelerator, entrypoint: int, threads: int = 2, code: memoryview | None = None) -> None:
        self.cpu = cpu
        module = subject.module(threads)
        self.executable: CpuExecutable = cpu.load(module if code is None else replace(module, code=code))
        self.bindings: Bindings = self.executable.bindings(entrypoint)
        self.frame = cpu.allocate("frame", subject.COUNT)
        self.output = cpu.allocate("output", subject.OUT_BYTES)
        self.bindings.bind_frame(0, self.frame)
        self.bindings.bind_output(0, self.output)

    def submit(self) -> Fence:
        """Hands one run over."""
        return self.cpu.submit(self.executable, self.bindings)

    def let_work(self, rounds: int) -> None:
        """Rounds of the entrypoints that work for long; while one runs, 0 ends it."""
        self.frame.mapping.array[:4].view(np.uint32)[0] = rounds

    def run(self) -> np.ndarray:
        """One run to its end; its output, float32."""
        fence = self.submit()
        assert fence.wait(time.monotonic_ns() + LIMIT_NS) is FenceStatus.SIGNALED, fence.error
        return np.frombuffer(self.output.view, np.float32)


def refusal(act: Callable[[], object]) -> HalError:
    """How the HAL refuses it."""
    with pytest.raises(HalError) as caught:
        act()
    return caught.value
