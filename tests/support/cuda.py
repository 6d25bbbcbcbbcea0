"""A GPU in tests: a fake libcuda below the driver, built once a session, and the conformance subject for it.

The fake (`fake_cuda/libcuda.c`) stands where NVIDIA's library would: the driver's own code runs, the GPU's does not.
"""

from __future__ import annotations

import ctypes
import os
import struct
import subprocess
import tempfile
from dataclasses import replace
from functools import cache
from pathlib import Path

from abi.graph import Launch
from hal.accelerator import DeviceOptions, Module
from hal.cuda import CudaAccelerator
from lab.compile.toolchain import cache_folder, zig_path
from tests.conformance import subject

SOURCE = Path(__file__).with_name("fake_cuda") / "libcuda.c"
SYMBOLS = ("widen", "add", "rounds", "total", "scale")
"""In the order of `subject.KERNELS`."""
BLOCK = 64
ARCH_FLAGS = 90  # sm_90, as a cubin's e_flags say it
LIMIT_NS = 20_000_000_000


@cache
def library() -> str:
    """The fake's path."""
    folder = Path(tempfile.mkdtemp(prefix="fenced-fake-cuda-"))
    path = folder / "libcuda.so.1"
    zig = str(cache_folder() / "zig")
    environment = os.environ | {"ZIG_GLOBAL_CACHE_DIR": zig, "ZIG_LOCAL_CACHE_DIR": zig}
    command = [str(zig_path()), "cc", "-shared", "-fPIC", "-O1", "-g0", "-o", str(path), str(SOURCE), "-lpthread"]
    subprocess.run(command, check=True, env=environment)
    return str(path)


class FakeGpu:
    """The knobs and counters of the fake."""

    def __init__(self) -> None:
        self._library = ctypes.CDLL(library())

    def get(self, name: str) -> int:
        return int(self._library.fake_get(name.encode()))

    def set(self, name: str, value: int) -> None:
        self._library.fake_set(name.encode(), value)

    def fail(self, call: str, status: int, after: int = 0) -> None:
        """Let a call fail once, after `after` good ones."""
        self._library.fake_fail(call.encode(), status, after)

    def link(self, path: str | None) -> None:
        """Let modules find the kernels of a shared object (`lab.compile.emulated_cuda.host_library`); None: no more."""
        if self._library.fake_link(None if path is None else path.encode()):
            raise RuntimeError(f"{path} cannot be loaded")

    def heal(self) -> None:
        """No failures any more, planted or of kernels, and the usual knobs."""
        self._library.fake_heal()
        for name, value in {"devices": 1, "version": 12040, "host_register": 1, "read_only_register": 1}.items():
            self.set(name, value)


def open_fake(options: DeviceOptions | None = None) -> CudaAccelerator:
    """The driver over the fake."""
    return CudaAccelerator(options or DeviceOptions(), library())


def cubin(machine: int = 190, flags: int = ARCH_FLAGS) -> bytes:
    """An ELF header as a cubin has it; the fake has the kernels themselves."""
    identity = b"\x7fELF\x02\x01\x01\x33" + bytes(8)
    return struct.pack("<16sHHIQQQIHHHHHH", identity, 2, machine, 1, 0, 0, 0, flags, 64, 0, 0, 0, 0, 0)


def module(budget_ns: int = 5_000_000_000, code: bytes = cubin()) -> Module:
    """`subject.module` for the fake: the same graph and entrypoints, all kernels in one cubin."""
    graph = subject.graph(1, budget_ns)
    programs = tuple(
        replace(one, symbol=symbol, code_offset=0, code_bytes=len(code))
        for one, symbol in zip(graph.programs, SYMBOLS, strict=True)
    )
    launches = tuple(sized(one, SYMBOLS[one.program]) for one in graph.launches)
    graph = replace(graph, driver="cuda", programs=programs, launches=launches)
    return Module(graph, memoryview(code), memoryview(bytes(subject.OUT_BYTES)))


def sized(launch: Launch, symbol: str) -> Launch:
    """The launch with one thread an element; the kernel of adjustable length has one block."""
    blocks = subject.COUNT // BLOCK
    return replace(launch, global_size=(blocks, 1, 1), local_size=(BLOCK, 1, 1))
