"""A chain of equal launches of known length, in C, for benchmarks of the queue runtime alone: no model, no tinygrad."""

from __future__ import annotations

import platform

from abi.graph import Access, Program
from hal.accelerator import Module
from lab.bench.chain import FRAME_BYTES, Step, chain_graph
from lab.compile.link import Kernel, link, symbol

CPUS = {"x86_64": "x86_64_v2", "aarch64": "generic"}
_CHAIN = """  volatile unsigned int x = 1;
  for (int r = 0; r < rounds; r++) x = x * 1664525u + 1013904223u;"""
_SHARE = f"for (int i = core * ({FRAME_BYTES} / cores); i < (core + 1) * ({FRAME_BYTES} / cores); i++)"
_KERNELS = tuple(
    Kernel(f"""void {name}(float* restrict out, {kind}* restrict in, const int core, const int rounds,
                          const int cores) {{
{_CHAIN}
  {_SHARE} out[i] = in[i] + 1;
}}""", name, 2)
    for name, kind in (("first", "unsigned char"), ("work", "float"))
)  # fmt: skip


def module(launches: int, *, threads: int, cores: int, rounds: int) -> Module:
    """`launches` one behind the other, each over `cores`, every core `rounds` steps of a chain, on `threads` workers.

    Output element i is frame byte i + `launches`.
    """
    programs = [Program(one.function, symbol(index), (Access.WRITE, Access.READ)) for index, one in enumerate(_KERNELS)]
    steps = [Step(min(index, 1), (cores,), values=(rounds, cores)) for index in range(launches)]
    arch = platform.machine()
    code = link(_KERNELS, arch=arch, cpu=CPUS[arch])
    return Module(chain_graph(programs, steps, threads=threads), memoryview(code), memoryview(b""))
