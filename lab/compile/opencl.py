"""From OpenCL C kernels to the `code` blob of an OpenCL bundle: one program binary, built by the device's own driver.

A binary is good for one device name and driver version, which the statement binds, so this runs where such a device is.
Kernel i becomes `w<i>`. Each is launched once with its real group counts and sizes before the binary is taken: PoCL
specialises and links a kernel when it first meets a size, and the binary then holds the linked code, so the vehicle
needs neither a linker nor a compiler. It is done in a process of its own with an empty cache: what other compiles left
there would get in. Equal inputs give equal bytes: see `lab.compile.poclbin`.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from hal.opencl_api import OpenClApi
from hal.opencl_device import OpenClDevice, find_device
from hal.opencl_environment import prepare_environment
from lab.compile.poclbin import canonical
from lab.json_text import json_text


class OpenClBuildError(Exception):
    """Kernels that the device's compiler does not take; the text says what it found."""


@dataclass(frozen=True, slots=True)
class OpenClLaunch:
    """How a kernel is launched: work groups and items a group in x, y, z; bytes of each buffer; scalars."""

    groups: tuple[int, ...]
    items: tuple[int, ...]
    buffer_bytes: tuple[int, ...]
    values: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class OpenClKernel:
    """OpenCL C `source` that defines `__kernel void function(…)`, and every launch of it."""

    source: str
    function: str
    launches: tuple[OpenClLaunch, ...]


def local_device() -> OpenClDevice:
    """The device that this machine compiles for. Raises HalError DRIVER_UNAVAILABLE."""
    prepare_environment()
    return find_device(OpenClApi())


def symbol(index: int) -> str:
    """The entry of kernel `index` in the binary: what `Program.symbol` says in the graph."""
    return f"w{index}"


def build(kernels: Sequence[OpenClKernel]) -> bytes:
    """The program binary of `kernels` for this machine's device. Raises OpenClBuildError."""
    with tempfile.TemporaryDirectory(prefix="fenced-opencl-build-") as name:
        folder = Path(name)
        (folder / "cache").mkdir()
        (folder / "program.cl").write_text(program_source(kernels))
        launches = [{"symbol": symbol(i), **asdict(one)} for i, kernel in enumerate(kernels) for one in kernel.launches]
        (folder / "launches.json").write_text(json_text(launches))
        environment = os.environ | {"POCL_CACHE_DIR": str(folder / "cache")}
        command = [sys.executable, "-m", "lab.compile.opencl_build", str(folder)]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        if done.returncode:
            lines = done.stderr.strip().splitlines() or [f"exit status {done.returncode}"]
            raise OpenClBuildError(f"the OpenCL compiler refused the kernels: {lines[-1]}")
        return canonical((folder / "program.bin").read_bytes())


def program_source(kernels: Sequence[OpenClKernel]) -> str:
    """One source with every kernel under its symbol; lines before a kernel (pragmas) once. Raises OpenClBuildError."""
    before: dict[str, None] = {}
    bodies = []
    for index, kernel in enumerate(kernels):
        found = re.search(rf"^.*\bvoid\s+{re.escape(kernel.function)}\s*\(", kernel.source, re.MULTILINE)
        if found is None:
            raise OpenClBuildError(f"kernel {kernel.function}: its source does not define `void {kernel.function}(…)`")
        before.update(dict.fromkeys(line for line in kernel.source[: found.start()].splitlines() if line.strip()))
        body = kernel.source[found.start() :]
        bodies.append(re.sub(rf"\b{re.escape(kernel.function)}\b", symbol(index), body, count=1))
    return "\n".join([*before, *bodies]) + "\n"
