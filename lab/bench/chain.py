"""A chain of launches, each reading what the one before wrote: its graph, and one loaded with its memory bound."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from abi.format import ChromaSite, Matrix, Primaries, Range, Transfer, make_format
from abi.graph import (
    HAL_VERSION,
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

FRAME_BYTES = 1024
OUT_BYTES = 4 * FRAME_BYTES
FRAME = bytes(range(256)) * (FRAME_BYTES // 256)
LIMIT_NS = 5_000_000_000
_FRAME, _OUTPUT, _ARENA = 0, 1, 2  # the frame, the output, two arena buffers


@dataclass(frozen=True)
class Step:
    """One launch of the chain: its program, its size, its scalars."""

    program: int
    global_size: tuple[int, ...]
    local_size: tuple[int, ...] = ()
    values: tuple[int, ...] = ()


def chain_graph(
    programs: Sequence[Program], steps: Sequence[Step], *, driver: str = "cpu", threads: int = 1, align_bytes: int = 64
) -> Graph:
    """The first step reads the frame (FRAME_BYTES bytes), the last writes the output (as many floats).

    In between they write two arena buffers in turn. Each program takes what it writes, then what it reads.
    """
    frame = make_format(
        "R8", FRAME_BYTES, 1, range=Range.FULL, matrix=Matrix.IDENTITY, primaries=Primaries.SENSOR_NATIVE,
        transfer=Transfer.LINEAR, chroma_site=ChromaSite.NOT_SUBSAMPLED,
    )  # fmt: skip
    launches = []
    for index, step in enumerate(steps):
        written = _OUTPUT if index == len(steps) - 1 else _ARENA + index % 2
        source = Argument(_ARENA + (index - 1) % 2, 0, OUT_BYTES) if index else Argument(_FRAME, 0, FRAME_BYTES)
        arguments = (Argument(written, 0, OUT_BYTES), source)
        launches.append(Launch(step.program, arguments, step.global_size, step.local_size, step.values))
    return Graph(
        abi_version=ABI_VERSION,
        hal_version=HAL_VERSION,
        driver=driver,
        threads=threads,
        arena_bytes=2 * OUT_BYTES,
        buffers=(
            Buffer(BufferKind.FRAME, FRAME_BYTES, align_bytes=align_bytes),
            Buffer(BufferKind.OUTPUT, OUT_BYTES, align_bytes=align_bytes),
            Buffer(BufferKind.ARENA, OUT_BYTES, 0, align_bytes),
            Buffer(BufferKind.ARENA, OUT_BYTES, OUT_BYTES, align_bytes),
        ),
        programs=tuple(programs),
        launches=tuple(launches),
        frames=(FrameInput("frame", "bench", frame, _FRAME),),
        aux=(),
        states=(),
        outputs=(Output(OutputView("values", DType.FLOAT32, (FRAME_BYTES,), "1", 0, OUT_BYTES), _OUTPUT),),
        entrypoints=(Entrypoint("main", 0, len(launches), (0,), (), (0,), LIMIT_NS),),
    )


@dataclass(frozen=True)
class Chain:
    """A loaded module with its frame (FRAME) and its output bound."""

    accelerator: Accelerator
    executable: Executable
    bindings: Bindings
    output: DeviceBuffer

    def run(self) -> None:
        """One run, until its fence was seen. Raises RuntimeError unless it signalled."""
        fence = self.accelerator.submit(self.executable, self.bindings)
        if fence.wait(fence.submitted_ns + LIMIT_NS) is not FenceStatus.SIGNALED:
            raise RuntimeError(f"the run ended as {fence.status.name}: {fence.error}")

    def time(self) -> int:
        """Nanoseconds of one run."""
        start_ns = time.perf_counter_ns()
        self.run()
        return time.perf_counter_ns() - start_ns


def bind(accelerator: Accelerator, module_: Module) -> Chain:
    """Loads the module and binds memory to it. Raises what `load` does."""
    executable = accelerator.load(module_)
    bindings = executable.bindings(0)
    frame, output = accelerator.allocate("bench", FRAME_BYTES), accelerator.allocate("bench", OUT_BYTES)
    frame.view[:] = FRAME
    bindings.bind_frame(0, frame)
    bindings.bind_output(0, output)
    return Chain(accelerator, executable, bindings, output)
