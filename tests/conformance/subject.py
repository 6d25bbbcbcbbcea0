"""A graph with every kind of buffer and C kernels of known meaning, linked as a bundle's code would be.

Entrypoints: `run` (frame -> two arena buffers that share bytes in turn -> output, on several cores), `long` (works for
as many rounds as the frame's first u32 says, which it goes on reading), `state` (adds the frame to a running sum),
`aux` (scales by an aux input), `steps` (eight long launches one after another, to be cancelled in between).
"""

from __future__ import annotations

from functools import cache

from abi.format import ChromaSite, Matrix, Primaries, Range, StreamFormat, Transfer, make_format
from abi.graph import (
    HAL_VERSION,
    Access,
    Argument,
    AuxInput,
    Buffer,
    BufferKind,
    DType,
    Entrypoint,
    EntryRole,
    FrameInput,
    Graph,
    Launch,
    Output,
    OutputView,
    Program,
    StateBuffer,
)
from abi.packet import ABI_VERSION
from hal.accelerator import Module
from hal.broken import Fault
from lab.compile.link import Kernel, link, symbol

WIDTH, HEIGHT = 64, 16
COUNT = WIDTH * HEIGHT  # bytes of a frame, elements of the output
OUT_BYTES = 4 * COUNT
CORES = 2
STEPS = 8
RUN, LONG, STATEFUL, AUXILIARY, STEPPED = range(5)  # entrypoints

_HALF = f"for (int i = core * {COUNT // CORES}; i < (core + 1) * {COUNT // CORES}; i++)"
KERNELS = (
    Kernel(f"void widen(float* restrict o, unsigned char* restrict a, const int core) {{ {_HALF} o[i] = a[i]; }}",
           "widen", 2),
    Kernel(f"""void add(float* restrict o, float* restrict a, const int core, const int n) {{
      {_HALF} o[i] = a[i] + n; }}""", "add", 2),
    Kernel(f"""void rounds(float* restrict o, unsigned int* restrict a) {{
      volatile unsigned int* rounds = a;
      volatile unsigned int x = 1;
      for (unsigned int r = 0; r < *rounds; r++) for (int i = 0; i < 1000; i++) x = x * 1664525u + 1013904223u;
      for (int i = 0; i < {COUNT}; i++) o[i] = (float)a[0] + i; }}""", "rounds"),
    Kernel(f"""void total(float* restrict s, float* restrict o, unsigned char* restrict a) {{
      for (int i = 0; i < {COUNT}; i++) {{ s[i] += a[i]; o[i] = s[i]; }} }}""", "total"),
    Kernel(f"""void scale(float* restrict o, unsigned char* restrict a, float* restrict k) {{
      for (int i = 0; i < {COUNT}; i++) o[i] = a[i] * k[0]; }}""", "scale"),
)  # fmt: skip
FRAME, ONE, TWO, OUT, STATE, AUX, WEIGHT, LAST = range(8)


def quick_for(fault: Fault) -> int:
    """The quick entrypoint with which `fault` shows: one that keeps state, where it is about state."""
    return STATEFUL if fault is Fault.KEEPS_STATE else RUN


def frame_format() -> StreamFormat:
    return make_format(
        "R8", WIDTH, HEIGHT, range=Range.FULL, matrix=Matrix.IDENTITY, primaries=Primaries.SENSOR_NATIVE,
        transfer=Transfer.LINEAR, chroma_site=ChromaSite.NOT_SUBSAMPLED,
    )  # fmt: skip


def graph(threads: int = 2, budget_ns: int = 5_000_000_000) -> Graph:
    read, write, both = Access.READ, Access.WRITE, Access.READ_WRITE
    whole = Argument
    return Graph(
        abi_version=ABI_VERSION,
        hal_version=HAL_VERSION,
        driver="cpu",
        threads=threads,
        arena_bytes=2 * OUT_BYTES,
        buffers=(
            Buffer(BufferKind.FRAME, COUNT, align_bytes=64),
            Buffer(BufferKind.ARENA, OUT_BYTES, 0, 64),
            Buffer(BufferKind.ARENA, OUT_BYTES, OUT_BYTES, 64),
            Buffer(BufferKind.OUTPUT, OUT_BYTES, align_bytes=64),
            Buffer(BufferKind.STATE, OUT_BYTES, align_bytes=64),
            Buffer(BufferKind.AUX, 4, align_bytes=4),
            Buffer(BufferKind.WEIGHTS, OUT_BYTES, 0, 64),
            Buffer(BufferKind.ARENA, OUT_BYTES, 0, 64),
        ),
        programs=(
            Program("widen", symbol(0), (write, read), flops=COUNT),
            Program("add", symbol(1), (write, read), flops=COUNT),
            Program("rounds", symbol(2), (write, read)),
            Program("total", symbol(3), (both, write, read), flops=COUNT),
            Program("scale", symbol(4), (write, read, read), flops=COUNT),
        ),
        launches=(
            Launch(0, (whole(ONE, 0, OUT_BYTES), whole(FRAME, 0, COUNT)), (CORES,)),
            Launch(1, (whole(TWO, 0, OUT_BYTES), whole(ONE, 0, OUT_BYTES)), (CORES,), values=(1,)),
            Launch(1, (whole(LAST, 0, OUT_BYTES), whole(TWO, 0, OUT_BYTES)), (CORES,), values=(2,)),
            Launch(1, (whole(OUT, 0, OUT_BYTES), whole(LAST, 0, OUT_BYTES)), (CORES,), values=(-10,)),
            Launch(2, (whole(OUT, 0, OUT_BYTES), whole(FRAME, 0, COUNT))),
            Launch(3, (whole(STATE, 0, OUT_BYTES), whole(OUT, 0, OUT_BYTES), whole(FRAME, 0, COUNT))),
            Launch(4, (whole(OUT, 0, OUT_BYTES), whole(FRAME, 0, COUNT), whole(AUX, 0, 4))),
            *(Launch(2, (whole(OUT if i == STEPS - 1 else ONE, 0, OUT_BYTES), whole(FRAME, 0, COUNT)))
              for i in range(STEPS)),
        ),
        frames=(FrameInput("image", "road", frame_format(), FRAME),),
        aux=(AuxInput("gain", DType.FLOAT32, (1,), AUX, has_default=True, default_value=b"\0\0\x80\x3f"),),
        states=(StateBuffer("sum", DType.FLOAT32, (COUNT,), STATE),),
        outputs=(Output(OutputView("values", DType.FLOAT32, (COUNT,), "1", 0, OUT_BYTES), OUT),),
        entrypoints=(
            Entrypoint("run", 0, 4, (0,), (), (0,), budget_ns),
            Entrypoint("long", 4, 1, (0,), (), (0,), budget_ns, role=EntryRole.UNSCHEDULED),
            Entrypoint("state", 5, 1, (0,), (), (0,), budget_ns, role=EntryRole.UNSCHEDULED),
            Entrypoint("aux", 6, 1, (0,), (0,), (0,), budget_ns, role=EntryRole.UNSCHEDULED),
            Entrypoint("steps", 7, STEPS, (0,), (), (0,), budget_ns, role=EntryRole.UNSCHEDULED),
        ),
    )  # fmt: skip


@cache
def code(kernels: tuple[Kernel, ...] = KERNELS) -> bytes:
    """The kernels linked for the machine that runs the tests."""
    import platform  # noqa: PLC0415

    arch = platform.machine()
    return link(kernels, arch=arch, cpu={"x86_64": "x86_64_v2", "aarch64": "generic"}[arch])


def module(threads: int = 2, budget_ns: int = 5_000_000_000, driver: str = "cpu") -> Module:
    """The module for a driver; `threads` is the CPU driver's."""
    if driver == "opencl":
        from tests.support import opencl  # noqa: PLC0415 (it needs this file)

        return opencl.module(budget_ns)
    return Module(graph(threads, budget_ns), memoryview(code()), memoryview(bytes(OUT_BYTES)))
