"""A valid graph with every kind of buffer, and ways to spoil one field of it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

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
    GoldenVector,
    Graph,
    Launch,
    Output,
    OutputView,
    Program,
    StateBuffer,
)
from abi.packet import ABI_VERSION
from hal.cpu_layout import RUNTIME_SYMBOLS
from tests.support.elf import Elf

READ, WRITE, BOTH = Access.READ, Access.WRITE, Access.READ_WRITE
FRAME, FIRST, SECOND, OUT, STATE, AUX, WEIGHTS, LATER = range(8)
WEIGHTS_BYTES, GOLDENS_BYTES = 256, 192


def grey(width: int = 64, height: int = 1) -> StreamFormat:
    """A contract for one byte a pixel, tight rows."""
    return make_format(
        "R8", width, height, range=Range.FULL, matrix=Matrix.IDENTITY, primaries=Primaries.SENSOR_NATIVE,
        transfer=Transfer.LINEAR, chroma_site=ChromaSite.NOT_SUBSAMPLED,
    )  # fmt: skip


def valid_graph() -> Graph:
    """Two entrypoints. `main`: frame -> FIRST -> SECOND -> LATER (which takes FIRST's bytes) -> OUT, with aux, weights
    and state; `light`: frame -> OUT in two halves.
    """
    return Graph(
        abi_version=ABI_VERSION,
        hal_version=HAL_VERSION,
        driver="cpu",
        threads=2,
        arena_bytes=128,
        buffers=(
            Buffer(BufferKind.FRAME, 64, align_bytes=64),
            Buffer(BufferKind.ARENA, 64, 0, 64),
            Buffer(BufferKind.ARENA, 64, 64, 64),
            Buffer(BufferKind.OUTPUT, 64, align_bytes=64),
            Buffer(BufferKind.STATE, 64, align_bytes=64, initial_offset=192, initial_from_weights=True),
            Buffer(BufferKind.AUX, 16, align_bytes=16),
            Buffer(BufferKind.WEIGHTS, 64, 64, 64),
            Buffer(BufferKind.ARENA, 32, 32, 32),
        ),
        programs=(
            Program("load", "w0", (WRITE, READ), flops=10),
            Program("mix", "w1", (WRITE, READ, READ, READ), flops=20),
            Program("step", "w2", (BOTH, WRITE, READ), flops=30),
            Program("store", "w3", (WRITE, READ), flops=40),
        ),
        launches=(
            Launch(0, (Argument(FIRST, 0, 64), Argument(FRAME, 0, 64)), (2,)),
            Launch(
                1, (Argument(SECOND, 0, 64), Argument(FIRST, 0, 64), Argument(AUX, 0, 16), Argument(WEIGHTS, 0, 64))
            ),
            Launch(2, (Argument(STATE, 0, 64), Argument(LATER, 0, 32), Argument(SECOND, 32, 32)), values=(-5,)),
            Launch(3, (Argument(OUT, 0, 32), Argument(LATER, 0, 32))),
            Launch(3, (Argument(OUT, 32, 32), Argument(SECOND, 0, 32))),
            Launch(0, (Argument(OUT, 0, 32), Argument(FRAME, 0, 32))),
            Launch(0, (Argument(OUT, 32, 32), Argument(FRAME, 32, 32))),
        ),
        frames=(FrameInput("image", "road", grey(), FRAME),),
        aux=(AuxInput("gain", DType.FLOAT32, (4,), AUX, has_default=True, default_value=bytes(16)),),
        states=(StateBuffer("past", DType.FLOAT32, (2, 8), STATE),),
        outputs=(
            Output(OutputView("offset", DType.FLOAT32, (2, 4), "m", 0, 32), OUT),
            Output(OutputView("heading", DType.FLOAT16, (16,), "rad", 32, 32), OUT, 0.5, 0.25),
        ),
        entrypoints=(
            Entrypoint("main", 0, 5, (0,), (0,), (0, 1), 1000),
            Entrypoint("light", 5, 2, (0,), (), (0, 1), 1000, role=EntryRole.LIGHTER),
        ),
        goldens=(GoldenVector(0, 1, 0, 64), GoldenVector(0, 2, 64, 64), GoldenVector(1, 1, 128, 64)),
    )  # fmt: skip


def code_for(graph: Graph, machine: int = 62) -> memoryview:
    """An object that exports the queue runtime's names and every program's."""
    names = list(dict.fromkeys([*RUNTIME_SYMBOLS, *(program.symbol for program in graph.programs)]))
    return memoryview(Elf(names, machine=machine).build())


def edit(graph: Graph, path: str, value: Any) -> Graph:
    """The graph with one field replaced. path: "threads", "buffers.3.size_bytes", "launches.0.arguments.1.offset"."""
    changed: Graph = _edit(graph, path.split("."), value)
    return changed


def _edit(node: Any, path: list[str], value: Any) -> Any:
    if not path:
        return value
    head, rest = path[0], path[1:]
    if isinstance(node, tuple):
        index = int(head)
        return (*node[:index], _edit(node[index], rest, value), *node[index + 1 :])
    return replace(node, **{head: _edit(getattr(node, head), rest, value)})


def edit_all(graph: Graph, edits: dict[str, Any]) -> Graph:
    """`edit` for each path, in order."""
    for path, value in edits.items():
        graph = edit(graph, path, value)
    return graph
