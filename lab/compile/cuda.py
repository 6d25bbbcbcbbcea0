"""From CUDA C kernels to the `code` blob of a CUDA bundle: one cubin for one architecture, by NVIDIA's nvcc.

The toolkit alone is needed, no GPU. Kernel i becomes `w<i>`. The vehicle loads the cubin as it is; it holds no PTX,
so nothing can be compiled there. Equal kernels give equal bytes: the source has the same name in every build, and no
debug information.
"""

from __future__ import annotations

import os
import re
import shutil
import struct
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from hal.cuda_code import check_cubin
from lab.compile.refusal import CompileRefusal, CompileRefused

_SHT_SYMTAB, _STT_FUNC = 2, 2
_PLACES = ("/usr/local/cuda/bin", "/opt/cuda/bin")
_VERSION = re.compile(r"release \d+\.\d+, V(\d+\.\d+\.\d+)")


@dataclass(frozen=True, slots=True)
class CudaKernel:
    """CUDA C `source` that defines `extern "C" __global__ void function(…)`."""

    source: str
    function: str


@dataclass(frozen=True, slots=True)
class Toolkit:
    """nvcc, and its version as bundles state it."""

    nvcc: Path
    version: str


def find_toolkit() -> Toolkit:
    """nvcc of CUDA_PATH, PATH or the usual folders. Raises CompileRefused TARGET."""
    folders = [f"{os.environ['CUDA_PATH']}/bin"] if os.environ.get("CUDA_PATH") else []
    found = shutil.which("nvcc", path=os.pathsep.join([*folders, os.environ.get("PATH", ""), *_PLACES]))
    if found is None:
        raise _no_toolkit("no nvcc")
    told = subprocess.run([found, "--version"], capture_output=True, text=True, check=False)
    match = _VERSION.search(told.stdout)
    if match is None:
        raise _no_toolkit(f"{found}, which does not tell its version")
    return Toolkit(Path(found), match.group(1))


def symbol(index: int) -> str:
    """The entry of kernel `index` in the cubin: what `Program.symbol` says in the graph."""
    return f"w{index}"


def build(kernels: Sequence[CudaKernel], arch: str, toolkit: Toolkit) -> bytes:
    """The cubin of `kernels`. Raises CompileRefused TARGET for an architecture or kernels that nvcc does not take."""
    with tempfile.TemporaryDirectory(prefix="fenced-cuda-build-") as name:
        folder = Path(name)
        (folder / "program.cu").write_text(program_source(kernels))
        command = [str(toolkit.nvcc), "-cubin", f"-arch={arch}", "-o", "program.cubin", "program.cu"]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
        if done.returncode:
            lines = (done.stderr or done.stdout).strip().splitlines() or [f"exit status {done.returncode}"]
            raise CompileRefused(
                CompileRefusal.TARGET, "target.arch", expected=f"kernels that nvcc {toolkit.version} builds for {arch}",
                found=lines[0], todo="name the GPU's architecture, or install a toolkit that knows it",
            )  # fmt: skip
        cubin = (folder / "program.cubin").read_bytes()
    check_cubin(memoryview(cubin), "what nvcc made")
    return cubin


def functions(cubin: bytes) -> set[str]:
    """The names of the functions that a cubin's symbol table defines (System V ABI, "Symbol Table")."""
    header = struct.unpack_from("<16sHHIQQQIHHHHHH", cubin, 0)
    at, count = header[6], header[12]
    sections = [struct.unpack_from("<IIQQQQIIQQ", cubin, at + 64 * index) for index in range(count)]
    found = set()
    for section in sections:
        if section[1] != _SHT_SYMTAB:
            continue
        names = sections[section[6]][4]
        for offset in range(section[4], section[4] + section[5], 24):
            name, info, _, index, _, _ = struct.unpack_from("<IBBHQQ", cubin, offset)
            if info & 15 == _STT_FUNC and index:
                found.add(cubin[names + name : cubin.index(0, names + name)].decode())
    return found


def program_source(kernels: Sequence[CudaKernel]) -> str:
    """One source with every kernel under its symbol; what stands before kernels (types, includes) once, in order."""
    before: dict[str, None] = {}
    bodies = []
    for index, kernel in enumerate(kernels):
        head = re.compile(rf'^extern "C" __global__ void [^;{{]*?\b{re.escape(kernel.function)}(?=\()', re.MULTILINE)
        found = head.search(kernel.source)
        if found is None:
            raise ValueError(f"kernel {kernel.function}: its source does not define it")
        before.update(dict.fromkeys(line for line in kernel.source[: found.start()].splitlines() if line.strip()))
        named = found.group().removesuffix(kernel.function) + symbol(index)
        bodies.append(named + kernel.source[found.end() :])
    return "\n".join([*before, *bodies]) + "\n"


def _no_toolkit(found: str) -> CompileRefused:
    return CompileRefused(
        CompileRefusal.TARGET, "target.driver", expected="NVIDIA's CUDA toolkit (nvcc), no GPU", found=found,
        todo="install the toolkit and put its bin folder into PATH, or name its folder in CUDA_PATH",
    )  # fmt: skip
