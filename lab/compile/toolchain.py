"""The lab's C compiler, and tinygrad's CPU device opened with it.

tinygrad compiles its CPU kernels, and four helpers when the device opens, by running the one word in `CC`. This file
makes that word a small script around the pinned `ziglang` wheel, so that no system compiler is needed and the kernels
of the checks are built by the compiler that links the bundle. It must run before tinygrad reads `CC`.
"""

from __future__ import annotations

import hashlib
import os
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

from lab.refusal import LabRefusal, LabRefused

# tinygrad names a bare-metal target and clang's spelling of a CPU; zig wants its own spelling of both.
_SCRIPT = """#!/bin/sh
for argument do
  shift
  case "$argument" in
    --target=*) continue ;;
    -march=*) argument="-mcpu=$(printf %s "${{argument#-march=}}" | tr - _)" ;;
  esac
  set -- "$@" "$argument"
done
export ZIG_GLOBAL_CACHE_DIR="${{ZIG_GLOBAL_CACHE_DIR:-{cache}}}" ZIG_LOCAL_CACHE_DIR="${{ZIG_LOCAL_CACHE_DIR:-{cache}}}"
exec '{zig}' cc -target {target} "$@" -g0
"""
# Kernels that are rendered for another architecture, built for this one: what belongs to the other is left out.
_CROSS_SCRIPT = """#!/bin/sh
for argument do
  shift
  case "$argument" in
    --target=*|-march=*|-mcpu=*|-ffixed-x18) continue ;;
  esac
  set -- "$@" "$argument"
done
export ZIG_GLOBAL_CACHE_DIR="${{ZIG_GLOBAL_CACHE_DIR:-{cache}}}" ZIG_LOCAL_CACHE_DIR="${{ZIG_LOCAL_CACHE_DIR:-{cache}}}"
exec '{zig}' cc -target {target} -mcpu={cpu} "$@" -g0
"""
HOST_CPUS = {"x86_64": "x86_64_v3", "aarch64": "generic"}
"""For which CPU kernels are built that only the checks run."""
GLIBC_TARGETS = {"x86_64": "x86_64-linux-gnu.2.31", "aarch64": "aarch64-linux-gnu.2.31"}


def zig_path() -> Path:
    """The zig executable of the pinned wheel. Raises LabRefused where the wheel is missing."""
    spec = find_spec("ziglang")
    if spec is None or spec.origin is None:
        raise LabRefused(
            LabRefusal.TOOL_MISSING, "compiling", expected="the package ziglang", found="it is not installed",
            todo="pip install ziglang==0.17.1",
        )  # fmt: skip
    return Path(spec.origin).with_name("zig")


def cache_folder() -> Path:
    """Where compiled kernels are kept between runs: XDG_CACHE_HOME or ~/.cache, else a temporary folder."""
    base = os.environ.get("XDG_CACHE_HOME")
    folder = (Path(base) if base else Path.home() / ".cache") / "fenced-lab"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        folder = Path(tempfile.gettempdir()) / f"fenced-lab-{os.getuid()}"
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return folder


def compiler_script(arch: str = "x86_64") -> Path:
    """Writes the one-word C compiler for `CC` once, by content, and returns its path."""
    return _written(_SCRIPT.format(zig=zig_path(), cache=cache_folder() / "zig", target=GLIBC_TARGETS[arch]))


def compiler_for_this_machine(machine: str) -> Path:
    """As `compiler_script`, for kernels of any architecture: they are built for `machine`, as `uname -m` says it."""
    cache, cpu = cache_folder() / "zig", HOST_CPUS[machine]
    return _written(_CROSS_SCRIPT.format(zig=zig_path(), cache=cache, target=GLIBC_TARGETS[machine], cpu=cpu))


def _written(text: str) -> Path:
    cache = cache_folder()
    path = cache / f"cc-{hashlib.sha256(text.encode()).hexdigest()[:16]}"
    if not path.exists():
        with tempfile.NamedTemporaryFile("w", dir=cache, delete=False) as file:
            file.write(text)
        os.chmod(file.name, stat.S_IRUSR | stat.S_IXUSR | stat.S_IWUSR)
        os.replace(file.name, path)
    return path


def tinygrad_arch(arch: str, cpu: str) -> str:
    """tinygrad's spelling of an architecture and a zig CPU name, for instance "x86_64,x86-64-v3"."""
    clang_cpu = cpu.replace("x86_64", "x86-64").replace("_v", "-v") if cpu.startswith("x86_64") else cpu
    return f"{'arm64' if arch == 'aarch64' else arch},{clang_cpu}"


def open_cpu_device(arch: str = "x86_64", cpu: str = "x86_64_v3") -> None:
    """Opens tinygrad's CPU device with the zig compiler, as the default device of the process where none is chosen.

    Idempotent. Kernels are generated for the `DEV` in force when they are compiled: see `compile_context`.
    """
    script = compiler_script(arch)
    os.environ.setdefault("CC", str(script))
    # tinygrad keeps compiled kernels by their source alone: another compiler must not answer for this one
    os.environ.setdefault("CACHEDB", str(script.with_name(f"kernels-{script.name}.db")))
    os.environ.setdefault("DEV", f"CPU:CLANG:{tinygrad_arch(arch, cpu)}")
    from tinygrad import Device, helpers  # noqa: PLC0415 (tinygrad reads CC and DEV when it is imported)

    helpers.getenv.cache_clear()
    with helpers.Context(DEV=f"CPU:CLANG:{tinygrad_arch(arch, cpu)}"):
        device = Device["CPU"]
    from lab.compile import program_cache  # noqa: PLC0415 (they import tinygrad)
    from lab.compile.renderer import FencedRenderer  # noqa: PLC0415

    program_cache.install(cache_folder() / "programs", script.name)
    if FencedRenderer not in device.renderers:
        device.renderers.append(FencedRenderer)


@contextmanager
def compile_context(arch: str, cpu: str, threads: int, renderer: str = "FENCED") -> Iterator[None]:
    """Within it tinygrad compiles for this target: `threads` cores, calls not batched (JIT=2), and by `renderer`:

    FENCED by the lab's blocking rule, CLANG by tinygrad's own choices. Reductions are not split in two kernels: that is
    for GPUs, and would keep a gather by index from becoming a load. SPEC=0: tinygrad's check of its own intermediate
    code is a fifth of the compile's time, and what it would find the checks of the results find too.
    """
    open_cpu_device(arch, cpu)
    from tinygrad.helpers import Context  # noqa: PLC0415 (after the environment is set)

    target = f"CPU:{renderer}:{tinygrad_arch(arch, cpu)}"
    with Context(DEV=target, NUM_CPU_THREADS=threads, JIT=2, BEAM=0, NOOPT=0, SPLIT_REDUCEOP=0, SPEC=0):
        yield


@contextmanager
def cross_context(arch: str, cpu: str, threads: int, compiler: Path) -> Iterator[None]:
    """As `compile_context`, for an architecture that this machine is not of: `compiler` builds what the checks run."""
    machine = os.uname().machine
    open_cpu_device(machine, HOST_CPUS[machine])
    from tinygrad.helpers import Context  # noqa: PLC0415 (after the environment is set)

    before = os.environ["CC"]
    _change_compiler(str(compiler))
    try:
        target = f"CPU:FENCED:{tinygrad_arch(arch, cpu)}"
        with Context(DEV=target, NUM_CPU_THREADS=threads, JIT=2, BEAM=0, NOOPT=0, SPLIT_REDUCEOP=0, SPEC=0):
            yield
    finally:
        _change_compiler(before)


def _change_compiler(compiler: str) -> None:
    """For this process and its workers, which keep the environment that they began with: new ones begin when needed."""
    from tinygrad import helpers  # noqa: PLC0415 (after the environment is set)
    from tinygrad.engine import worker  # noqa: PLC0415

    os.environ["CC"] = compiler
    helpers.getenv.cache_clear()
    worker.terminate_worker_pool()
