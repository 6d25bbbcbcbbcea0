"""A CUDA device for tinygrad where there is no GPU: its kernels' own CUDA C, built for and run on the host's processor.

It lets a bundle for a GPU be captured, checked and given goldens in a machine without one. What runs is the source that
nvcc makes the cubin from, with its grid, blocks, shared memory and barriers (`emulated_cuda.h`); what it cannot show
is what nvcc made of it, and a GPU's rounding. Slow: one thread, scalar code.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import re
import stat
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tinygrad.device import Allocator, BufferSpec, Compiled, Device, Program, TinyELF
from tinygrad.renderer.cstyle import CStyleLanguage, CUDARenderer

from lab.compile.refusal import CompileRefusal, CompileRefused
from lab.compile.toolchain import cache_folder, zig_path

RENDERER = "EMULATED"
"""How `DEV` selects it: tinygrad drops "Renderer" from the class's name."""
_HEADER = Path(__file__).with_suffix(".h")
_FLAGS = ("-x", "c++", "-O2", "-g0", "-w", "-fPIC", "-shared", "-fno-exceptions", "-fno-rtti", "-ffp-contract=off")
_ALIGN_BYTES = 256


class EmulatedRenderer(CUDARenderer):  # type: ignore[misc]
    """tinygrad's CUDA C for the architecture in `DEV`; the "binary" of a kernel is its source.

    Without tensor cores: their instructions are inline PTX, and round float inputs.
    """

    def __init__(self, target: Any) -> None:
        CStyleLanguage.__init__(self, target)  # CUDARenderer's own looks for NVRTC
        self.tensor_cores: list[Any] = []


class _Memory(Allocator):  # type: ignore[misc]
    """Host memory, aligned as a GPU's is."""

    def _alloc(self, size: int, options: BufferSpec) -> NDArray[np.uint8]:
        room: NDArray[np.uint8] = np.zeros(size + _ALIGN_BYTES, np.uint8)
        start = -room.ctypes.data % _ALIGN_BYTES
        return room[start : start + size]

    def _copyin(self, dest: NDArray[np.uint8], src: memoryview) -> None:
        dest[:] = np.frombuffer(src, np.uint8)

    def _copyout(self, dest: memoryview, src: NDArray[np.uint8]) -> None:
        np.frombuffer(dest, np.uint8)[:] = src

    def _offset(self, buf: NDArray[np.uint8], size: int, offset: int) -> NDArray[np.uint8]:
        return buf[offset : offset + size]


class _Kernel(Program):  # type: ignore[misc]
    def __init__(self, device: Any, program: TinyELF) -> None:
        path = host_library(program.lib.decode(), [program.name])
        self._run = ctypes.CDLL(str(path))[f"{program.name}_emulate"]

    def __call__(
        self, *buffers: NDArray[np.uint8], global_size: Any = (1, 1, 1), local_size: Any = (1, 1, 1),
        vals: tuple[int, ...] = (), wait: bool = False, **_: Any,
    ) -> float | None:  # fmt: skip
        if vals:
            raise RuntimeError("scalar arguments are not emulated")  # lab.compile.capture refuses them too
        addresses = (ctypes.c_void_p * max(1, len(buffers)))(*(one.ctypes.data for one in buffers))
        self._run(addresses, (ctypes.c_uint32 * 3)(*global_size), (ctypes.c_uint32 * 3)(*(local_size or (1, 1, 1))))
        return 0.0 if wait else None


class CUDADevice(Compiled):  # type: ignore[misc]
    """What `Device["CUDA"]` opens after `install`."""

    def __init__(self, device: str) -> None:
        super().__init__(device, _Memory(self, supports_transfer=False), [EmulatedRenderer], _Kernel)


def install() -> None:
    """Let tinygrad open the emulated device as "CUDA". Raises RuntimeError where it has opened a real one."""
    name = "tinygrad.runtime.ops_cuda"  # tinygrad imports its own when it looks for a device, also where there is none
    if "CUDA" in Device._opened_devices and not isinstance(Device["CUDA"], CUDADevice):
        raise RuntimeError("this process has opened a GPU")
    stand_in = ModuleType(name)
    stand_in.CUDADevice = CUDADevice  # type: ignore[attr-defined]
    sys.modules[name] = stand_in
    type(Device).get_class.cache_clear()  # it may remember the class that it found no GPU with


def _is_private(path: Path) -> bool:
    """Whether the file is there and this user alone may write it: it will be run."""
    try:
        state = path.stat(follow_symlinks=False)
    except OSError:
        return False
    return state.st_uid == os.getuid() and not state.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


def host_library(source: str, functions: Sequence[str]) -> Path:
    """The kernels of `source` as a shared object for the host, from the cache where it has been built.

    Each exports `NAME_emulate(void **arguments, const unsigned *grid, const unsigned *block)`. Raises CompileRefused.
    """
    meets = str("__syncthreads" in source).lower()
    kernels = re.sub(r"^#include <cuda_\w+\.h>$", "", source, flags=re.MULTILINE)  # the header stands in for them
    text = "\n".join([_HEADER.read_text(), kernels, *(f"FENCED_ENTRY({one}, {meets})" for one in functions), ""])
    zig = zig_path()
    digest = hashlib.sha256("\0".join([text, *_FLAGS, str(zig)]).encode()).hexdigest()
    folder = cache_folder() / "emulated-cuda"
    folder.mkdir(mode=0o700, exist_ok=True)
    path = folder / f"{digest}.so"
    if _is_private(path):
        return path
    with tempfile.TemporaryDirectory(dir=folder) as name:
        (Path(name) / "kernel.cpp").write_text(text)
        command = [str(zig), "cc", *_FLAGS, "-o", "kernel.so", "kernel.cpp"]
        caches = {f"ZIG_{which}_CACHE_DIR": str(cache_folder() / "zig") for which in ("GLOBAL", "LOCAL")}
        done = subprocess.run(command, cwd=name, env=caches, capture_output=True, text=True, check=False)
        if done.returncode:
            lines = [line for line in done.stderr.splitlines() if "error" in line] or done.stderr.splitlines()
            raise CompileRefused(
                CompileRefusal.TARGET, f"kernel {functions[0]}", expected="CUDA C of floats and integers, emulated",
                found=lines[0] if lines else f"exit status {done.returncode}", todo="compile where the GPU is",
            )  # fmt: skip
        (Path(name) / "kernel.so").replace(path)
    return path
