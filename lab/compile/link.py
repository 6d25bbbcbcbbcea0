"""From kernel sources to the `code` blob of a CPU bundle: one freestanding shared object.

Kernels, a shim behind each, and the queue runtime are compiled by the pinned zig and linked without any library, so the
object needs no libc and no glibc version. Kernel i becomes the static function `k<i>` and is exported as its shim
`w<i>`: `void w<i>(void **args, int core)`. Equal inputs give equal bytes, in any folder and with any cache: names are
relative, nothing is stamped, and the order of the objects is fixed. An undefined symbol is an error, not a surprise on
the vehicle (`-z defs`).
"""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from lab.compile.cpu_features import feature_names
from lab.compile.toolchain import GLIBC_TARGETS, cache_folder, zig_path

HERE = Path(__file__).parent
COMPILE_FLAGS = [
    "-fPIC", "-ffreestanding", "-nostdlib", "-fno-math-errno", "-fno-ident", "-fvisibility=hidden",
    "-fno-stack-protector", "-fno-sanitize=undefined", "-fomit-frame-pointer", "-std=gnu11", "-g0",
]  # fmt: skip
LINK_FLAGS = [
    "-shared", "-s", "-nostdlib", "-Wl,--build-id=none", "-Wl,-z,defs", "-Wl,-z,noexecstack", "-Wl,-z,relro",
    "-Wl,-z,now",
]  # fmt: skip
KERNELS_PER_UNIT = 24


class LinkError(Exception):
    """Sources that cannot become one object; the text names the kernel or symbol and says what to do."""


@dataclass(frozen=True, slots=True)
class Kernel:
    """One kernel: C `source` that defines `void function(pointers…, scalars…)`, as tinygrad's ClangRenderer writes it.

    core_parameter: position of the parameter that takes the core index, or None where the kernel runs on one core.
    """

    source: str
    function: str
    core_parameter: int | None = None


def symbol(index: int) -> str:
    """The exported name of kernel `index`: what `Program.symbol` says in the graph."""
    return f"w{index}"


def link(kernels: Sequence[Kernel], *, arch: str, cpu: str, optimize: str = "-O2", jobs: int = 2) -> bytes:
    """The bytes of the shared object for `arch` (x86_64, aarch64) and `cpu` (a zig CPU name such as x86_64_v3).

    `optimize` is -O2 or -O3: zig drops any other level's vectoriser defaults. Raises LinkError.
    """
    if arch not in GLIBC_TARGETS:
        raise LinkError(f"no target {arch!r}; known: {', '.join(GLIBC_TARGETS)}")
    if optimize not in ("-O2", "-O3"):
        raise LinkError(f"optimisation {optimize!r}; expected -O2 or -O3")
    units = {"queue.c": (HERE / "queue.c").read_text(), "memory.c": (HERE / "memory.c").read_text()}
    for first in range(0, len(kernels), KERNELS_PER_UNIT):
        units[f"kernels{first:05}.c"] = kernel_unit(kernels[first : first + KERNELS_PER_UNIT], first)
    machine = ["-target", GLIBC_TARGETS[arch], f"-mcpu={cpu}"]
    with tempfile.TemporaryDirectory(prefix="fenced-link-") as folder:
        where = Path(folder)
        (where / "queue.h").write_text((HERE / "queue.h").read_text())
        for name, text in units.items():
            (where / name).write_text(text)
        with ThreadPoolExecutor(max(1, jobs)) as pool:
            compiles = [
                pool.submit(zig_cc, [*machine, optimize, *COMPILE_FLAGS, "-c", name, "-o", name[:-2] + ".o"], where)
                for name in units
            ]
            for compile_ in compiles:
                compile_.result()
        objects = [name[:-2] + ".o" for name in units]
        zig_cc([*machine, *LINK_FLAGS, "-o", "code.so", *objects], where)
        return (where / "code.so").read_bytes()


def features(arch: str, cpu: str) -> tuple[str, ...]:
    """What code for this CPU may use, in /proc/cpuinfo's words: for the statement's cpuFeatures. Raises LinkError."""

    def macros_of(name: str) -> str:
        arguments = ["-target", GLIBC_TARGETS[arch], f"-mcpu={name}", "-E", "-dM", "-x", "c", "-"]
        return zig_cc(arguments, Path(tempfile.gettempdir()))

    if arch not in GLIBC_TARGETS:
        raise LinkError(f"no target {arch!r}; known: {', '.join(GLIBC_TARGETS)}")
    try:
        return feature_names(arch, cpu, macros_of)
    except ValueError as error:
        raise LinkError(f"{cpu}: {error}") from error


def kernel_unit(kernels: Sequence[Kernel], first: int = 0) -> str:
    """One C file: the kernels' types once, then each kernel as static `k<i>` with its exported shim `w<i>`."""
    prefix: dict[str, None] = {}
    bodies = []
    for index, kernel in enumerate(kernels, first):
        before, parameters, body = _split(kernel)
        prefix.update(dict.fromkeys(line for line in before.splitlines() if line.strip()))
        bodies.append(f"static __attribute__((noinline)) void k{index}({parameters}) {body.rstrip()}")
        bodies.append(_shim(index, parameters, kernel))
    return "\n".join([*prefix, *bodies]) + "\n"


def _split(kernel: Kernel) -> tuple[str, str, str]:
    """What stands before the kernel's definition, its parameters, and its body with everything behind."""
    found = re.search(rf"\bvoid\s+{re.escape(kernel.function)}\s*\(([^()]*)\)\s*(?=\{{)", kernel.source)
    if found is None:
        raise LinkError(f"kernel {kernel.function}: its source does not define `void {kernel.function}(…)`")
    return kernel.source[: found.start()], found.group(1).strip(), kernel.source[found.end() :]


def _shim(index: int, parameters: str, kernel: Kernel) -> str:
    """args holds the pointers in order, then the scalars; the core index comes as the shim's own parameter."""
    listed = [p.strip() for p in parameters.split(",")] if parameters and parameters != "void" else []
    pointers = sum("*" in p for p in listed)
    taken, scalars = 0, pointers
    passed = []
    for position, parameter in enumerate(listed):
        if position == kernel.core_parameter:
            if "*" in parameter:
                raise LinkError(f"kernel {kernel.function}: its core index is a pointer: {parameter}")
            passed.append("core")
        elif "*" in parameter:
            passed.append(f"args[{taken}]")
            taken += 1
        else:
            passed.append(f"({_type_of(parameter)})(long)args[{scalars}]")
            scalars += 1
    return (
        f'__attribute__((visibility("default"))) void {symbol(index)}(void **args, int core) '
        f"{{ (void)args; (void)core; k{index}({', '.join(passed)}); }}"
    )


def _type_of(parameter: str) -> str:
    return re.sub(r"\bconst\b", "", parameter).rsplit(None, 1)[0].strip()


def zig_cc(arguments: Sequence[str], folder: Path, stdin: str = "") -> str:
    """Run `zig cc` in `folder` with the lab's own cache and return what it printed. Raises LinkError."""
    cache = str(cache_folder() / "zig")
    environment = os.environ | {"ZIG_GLOBAL_CACHE_DIR": cache, "ZIG_LOCAL_CACHE_DIR": cache}
    command = [str(zig_path()), "cc", *arguments]
    done = subprocess.run(
        command, cwd=folder, env=environment, input=stdin, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise LinkError(_explain(done.stderr))
    return done.stdout


def _explain(stderr: str) -> str:
    missing = sorted(set(re.findall(r"undefined symbol: (\S+)", stderr)))
    if missing:
        return (
            f"the kernels call functions that no bundle has: {', '.join(missing)}; "
            "use an operation or a CPU that needs no library call"
        )
    lines = [line for line in stderr.splitlines() if "error:" in line] or stderr.splitlines()
    return "the compiler refused the kernels: " + " | ".join(lines[:5])
