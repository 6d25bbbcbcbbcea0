"""A graph of equal launches of known length, in C, for benchmarks of the queue runtime alone: no model, no tinygrad."""

from __future__ import annotations

import platform
import time
from dataclasses import dataclass

from abi.format import ChromaSite, Matrix, Primaries, Range, Transfer, make_format
from abi.graph import (
    HAL_VERSION,
    Access,
    Argument,
    Buffer,
    BufferKind,
    DType,
    Entrypoint,
    FrameInput,
    Graph,
    Launch,
    Output,
    OutputView,
    Program,
)
from abi.packet import ABI_VERSION
from hal.accelerator import Accelerator, DeviceBuffer, Executable, Module
from hal.bindings import Bindings
from hal.fence import FenceStatus
from lab.compile.link import Kernel, link, symbol

CPUS = {"x86_64": "x86_64_v2", "aarch64": "generic"}
FRAME_BYTES = 1024
OUT_BYTES = 4 * FRAME_BYTES
_LIMIT_NS = 5_000_000_000
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
_FRAME, _OUTPUT, _ARENA = 0, 1, 2


def module(launches: int, *, threads: int, cores: int, rounds: int) -> Module:
    """`launches` one behind the other, each over `cores`, every core `rounds` steps of a chain, on `threads` workers.

    Output element i is frame byte i + `launches`.
    """
    frame = make_format(
        "R8", FRAME_BYTES, 1, range=Range.FULL, matrix=Matrix.IDENTITY, primaries=Primaries.SENSOR_NATIVE,
        transfer=Transfer.LINEAR, chroma_site=ChromaSite.NOT_SUBSAMPLED,
    )  # fmt: skip
    chain = []
    for index in range(launches):
        written = _OUTPUT if index == launches - 1 else _ARENA + index % 2
        source = Argument(_ARENA + (index - 1) % 2, 0, OUT_BYTES) if index else Argument(_FRAME, 0, FRAME_BYTES)
        chain.append(Launch(min(index, 1), (Argument(written, 0, OUT_BYTES), source), (cores,), values=(rounds, cores)))
    graph = Graph(
        abi_version=ABI_VERSION,
        hal_version=HAL_VERSION,
        driver="cpu",
        threads=threads,
        arena_bytes=2 * OUT_BYTES,
        buffers=(
            Buffer(BufferKind.FRAME, FRAME_BYTES, align_bytes=64),
            Buffer(BufferKind.OUTPUT, OUT_BYTES, align_bytes=64),
            Buffer(BufferKind.ARENA, OUT_BYTES, 0, 64),
            Buffer(BufferKind.ARENA, OUT_BYTES, OUT_BYTES, 64),
        ),
        programs=tuple(
            Program(one.function, symbol(index), (Access.WRITE, Access.READ)) for index, one in enumerate(_KERNELS)
        ),
        launches=tuple(chain),
        frames=(FrameInput("frame", "bench", frame, 0),),
        aux=(),
        states=(),
        outputs=(Output(OutputView("values", DType.FLOAT32, (FRAME_BYTES,), "1", 0, OUT_BYTES), 1),),
        entrypoints=(Entrypoint("main", 0, launches, (0,), (), (0,), _LIMIT_NS),),
    )  # fmt: skip
    arch = platform.machine()
    code = link(_KERNELS, arch=arch, cpu=CPUS[arch])
    return Module(graph, memoryview(code), memoryview(b""))


@dataclass(frozen=True)
class Chain:
    """A loaded module with its frame (bytes 0..255, again and again) and its output bound."""

    accelerator: Accelerator
    executable: Executable
    bindings: Bindings
    output: DeviceBuffer

    def time(self) -> int:
        """Nanoseconds of one run, from submit until the fence was seen. Raises RuntimeError unless it signalled."""
        start_ns = time.perf_counter_ns()
        fence = self.accelerator.submit(self.executable, self.bindings)
        if fence.wait(fence.submitted_ns + _LIMIT_NS) is not FenceStatus.SIGNALED:
            raise RuntimeError(f"the run ended as {fence.status.name}: {fence.error}")
        return time.perf_counter_ns() - start_ns


def bind(accelerator: Accelerator, module_: Module) -> Chain:
    """Loads the module and binds memory to it. Raises what `load` does."""
    executable = accelerator.load(module_)
    bindings = executable.bindings(0)
    frame, output = accelerator.allocate("bench", FRAME_BYTES), accelerator.allocate("bench", OUT_BYTES)
    frame.view[:] = bytes(range(256)) * (FRAME_BYTES // 256)
    bindings.bind_frame(0, frame)
    bindings.bind_output(0, output)
    return Chain(accelerator, executable, bindings, output)
