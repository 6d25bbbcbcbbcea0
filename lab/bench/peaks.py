"""This machine's peaks as they can be measured in a second: float32 multiply-adds, and bytes moved to and from memory.

Multiply-adds on registers alone, as many independent ones as hide their latency, run as one launch over the workers of
the HAL; and a copy of memory that no cache holds, by as many threads. The fastest of several counts, for what other
processes take is not the machine's.
"""

from __future__ import annotations

import platform
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np

from abi.graph import Access, Program
from hal.accelerator import Module, open_accelerator
from lab.bench.chain import FRAME_BYTES, Step, bind, chain_graph
from lab.compile.link import Kernel, link, symbol

CPUS = {"x86_64": "x86_64_v3", "aarch64": "generic"}
_LANES = {"x86_64": 8, "aarch64": 4}
_SUMS, _ROUNDS = 12, 400_000
"""Accumulators: two units with a latency of four or five cycles each."""
_COPY_BYTES, _TRIES = 64 << 20, 40
_KERNEL = """void fma(float* restrict out, unsigned char* restrict in,
                      const int core, const int rounds, const int cores) {{
  typedef float lanes __attribute__((vector_size({lane_bytes})));
  lanes sum[{sums}], factor = {{0}}, total = {{0}};
  for (int s = 0; s < {sums}; s++) sum[s] = factor + (float)(in[s] + core);
  factor += (float)in[1] * 0.5f;
  for (int r = 0; r < rounds; r++) {{
    _Pragma("clang loop unroll(full)")
    for (int s = 0; s < {sums}; s++) sum[s] = __builtin_elementwise_fma(sum[s], factor, factor);
  }}
  for (int s = 0; s < {sums}; s++) total += sum[s];
  for (int i = core * ({floats} / cores); i < (core + 1) * ({floats} / cores); i++) out[i] = total[i % {lanes}];
}}"""


@dataclass(frozen=True)
class Peaks:
    """gflops: operations a nanosecond, a multiply-add being two. gbytes: bytes read and written a nanosecond."""

    gflops: float
    gbytes: float


def measure(threads: int) -> Peaks:
    """Of so many threads, which the scheduler puts on as many cores as there are."""
    return Peaks(_gflops(threads), _gbytes(threads))


def _gflops(threads: int) -> float:
    arch = platform.machine()
    lanes = _LANES[arch]
    source = _KERNEL.format(lanes=lanes, lane_bytes=4 * lanes, sums=_SUMS, floats=FRAME_BYTES)
    code = link([Kernel(source, "fma", 2)], arch=arch, cpu=CPUS[arch])
    programs = [Program("fma", symbol(0), (Access.WRITE, Access.READ))]
    graph = chain_graph(programs, [Step(0, (threads,), values=(_ROUNDS, threads))], threads=threads)
    accelerator = open_accelerator("cpu")
    try:
        chain = bind(accelerator, Module(graph, memoryview(code), memoryview(b"")))
        return 2 * _SUMS * lanes * _ROUNDS * threads / min(chain.time() for _ in range(_TRIES))
    finally:
        accelerator.close()


def _gbytes(threads: int) -> float:
    pairs = [(np.ones(_COPY_BYTES, np.uint8), np.zeros(_COPY_BYTES, np.uint8)) for _ in range(threads)]
    with ThreadPoolExecutor(threads) as pool:
        return 2 * threads * _COPY_BYTES / _fastest(lambda: list(pool.map(lambda pair: np.copyto(*pair), pairs)))


def _fastest(work: Callable[[], object]) -> int:
    taken = []
    for _ in range(_TRIES):
        began_ns = time.perf_counter_ns()
        work()
        taken.append(time.perf_counter_ns() - began_ns)
    return min(taken)
