"""In a child process: tinygrad's emulated AMD GPU, below the driver, made to work beside the host as a GPU does.

The emulator executes what a doorbell announces before the write to the doorbell returns. Here a thread executes it, so
that a submit returns while the run goes on. Everything above (queues, packets, signals) is tinygrad's and ours. Where
tinygrad compiles in the same process the emulator stays as it is: tinygrad's settings are shared by all threads.
"""

from __future__ import annotations

import os
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hal.hcq_environment import prepare_environment
from lab.compile.toolchain import cache_folder, compiler_script
from tests.support.hcq import VARIABLE

DEV = "MOCKKFD:0+AMD;CPU:LLVM"
_POLL_S = 0.0005


class _SteadySet(set[Any]):
    """A set that one thread may change while another goes through it."""

    def __iter__(self) -> Iterator[Any]:
        return iter(tuple(super().__iter__()))


class EmulatedGpu:
    """The emulated kernel driver, executing on a thread. `failure`: what a queue stopped at; it then does no more.

    paused: as if the GPU stood still. beside: whether the thread executes, or whoever rings the doorbell.
    """

    def __init__(self, beside: bool) -> None:
        from test.mockgpu import mockgpu  # type: ignore[import-not-found]  # noqa: PLC0415 (of the checkout)

        self.driver: Any = mockgpu.drivers[0]
        for one in self.driver.gpus.values():
            one.mapped_ranges = _SteadySet(one.mapped_ranges)
        self.failure = ""
        self.paused = False
        self._rung = threading.Event()
        self.beside = beside
        self._execute = self.driver._emulate_execute
        self.driver._emulate_execute = self._ring
        threading.Thread(target=self._work, name="emulated-gpu", daemon=True).start()

    def _ring(self) -> None:
        if self.beside:
            self._rung.set()
        else:
            self._execute()

    def _work(self) -> None:
        while True:
            self._rung.wait(_POLL_S)
            self._rung.clear()
            if self.failure or self.paused or not self.beside:
                continue
            try:
                self._execute()
            except Exception as error:  # a GPU does not end the process either
                self.failure = str(error)


def start(*, vehicle: bool = True) -> EmulatedGpu:
    """Put the emulator under tinygrad. vehicle: as in a vehicle process, in which nothing else uses tinygrad."""
    os.environ["DEV"] = DEV
    folder = Path(tempfile.mkdtemp(prefix="fenced-emulator-"))
    for name in ("test", "extra"):  # not the checkout's tinygrad: the wheel's is what is tried
        (folder / name).symlink_to(Path(os.environ[VARIABLE]) / name)
    sys.path.insert(0, str(folder))
    if vehicle:
        prepare_environment("AMD")
    # The emulator compiles the instructions it meets with tinygrad's CPU device: it stands for the silicon.
    script = compiler_script()
    os.environ.update(CC=str(script), CACHEDB=str(cache_folder() / f"emulator-{script.name}.db"))
    from tinygrad.device import Compiler, Device  # noqa: PLC0415 (after the environment is set)
    from tinygrad.runtime.support.compiler_cpu import ClangCompiler  # noqa: PLC0415
    from tinygrad.runtime.support.compiler_llvm import CPULLVMCompiler  # noqa: PLC0415

    for compiler in (ClangCompiler, CPULLVMCompiler):
        compiler.compile_cached = compiler.compile  # exempt from ASSERT_COMPILE
    assert Compiler.compile_cached is not ClangCompiler.compile_cached
    assert Device["CPU"]  # opens it: its helpers are compiled now
    import tinygrad.runtime.ops_amd  # noqa: F401, PLC0415 (which loads the emulator, by DEV)
    from test.mockgpu.amd import emu  # type: ignore[import-not-found]  # noqa: PLC0415

    emu._get_ftz_lib()
    return EmulatedGpu(beside=vehicle)
