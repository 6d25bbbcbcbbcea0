"""The captured graph: its values (`abi.graph_values`) and their canonical bytes.

`encode` is deterministic: one segment, lists and texts laid out in field order, so equal graphs give equal
bytes. `decode` accepts exactly what `encode` writes and raises `GraphError` for anything else; it bounds the
bytes, the traversal and the nesting, and re-encodes to refuse any second spelling of the same graph.
It proves nothing about what the graph says: indices, sizes and access are proved by `hal.admit`.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any

import capnp

from abi import schema
from abi.format import FormatError, StreamFormat
from abi.graph_tables import Tables
from abi.graph_values import (
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
    MissPolicy,
    NanPolicy,
    Output,
    OutputView,
    Program,
    StateBuffer,
)

__all__ = [
    "HAL_VERSION",
    "MAX_GRAPH_BYTES",
    "Access",
    "Argument",
    "AuxInput",
    "Buffer",
    "BufferKind",
    "DType",
    "EntryRole",
    "Entrypoint",
    "FrameInput",
    "GoldenVector",
    "Graph",
    "GraphError",
    "GraphErrorCode",
    "Launch",
    "MissPolicy",
    "NanPolicy",
    "Output",
    "OutputView",
    "Program",
    "StateBuffer",
    "decode",
    "encode",
]

HAL_VERSION = int(schema.graph.halVersion)
MAX_GRAPH_BYTES = 16 * 1024 * 1024  # a 1000-launch graph is about 0.3 MB
NESTING_LIMIT = 16  # Graph -> frames -> format -> planes is the deepest
_SEGMENT_TABLE_BYTES = 8
_FIRST_SEGMENT_WORDS = 1 << 13


class GraphErrorCode(IntEnum):
    """Why bytes are not a graph, or a value cannot become one."""

    TOO_LARGE = 1
    TRUNCATED = 2
    SEGMENTS = 3
    MALFORMED = 4
    NOT_CANONICAL = 5
    VALUE = 6


class GraphError(ValueError):
    """Bytes or values that are not a graph. `code` says which rule was broken; the text says what was found."""

    def __init__(self, code: GraphErrorCode, what: str) -> None:
        super().__init__(f"{code.name.lower().replace('_', '-')}: {what}")
        self.code = code
        self.what = what


def encode(graph: Graph) -> bytes:
    """The canonical bytes of `graph`: one Cap'n Proto segment behind its 8-byte table.

    Raises GraphError VALUE for a value that its field cannot hold, TOO_LARGE above MAX_GRAPH_BYTES.
    """
    return _encode(graph, _FIRST_SEGMENT_WORDS)


def _encode(graph: Graph, words: int) -> bytes:
    """As `encode`; `words` is a first guess of the size: where it is too small all is written again."""
    while True:
        message = schema.graph.Graph.new_message(num_first_segment_words=words)
        try:
            _write_graph(message, graph)
        except (capnp.KjException, OverflowError, TypeError, ValueError, LookupError, AttributeError) as error:
            raise GraphError(GraphErrorCode.VALUE, f"a field cannot hold its value: {_first_line(error)}") from error
        if len(message.to_segments()) == 1:
            data: bytes = message.to_bytes()
            if len(data) > MAX_GRAPH_BYTES:
                raise GraphError(GraphErrorCode.TOO_LARGE, f"{len(data)} bytes, at most {MAX_GRAPH_BYTES}")
            return data
        if words * 8 > MAX_GRAPH_BYTES:
            raise GraphError(GraphErrorCode.TOO_LARGE, f"more than {MAX_GRAPH_BYTES} bytes")
        words *= 8


def decode(data: bytes | bytearray | memoryview) -> Graph:
    """The graph in `data`, whose every byte is accounted for. Raises GraphError; never another exception."""
    view = memoryview(data)
    size = view.nbytes
    if size > MAX_GRAPH_BYTES:
        raise GraphError(GraphErrorCode.TOO_LARGE, f"{size} bytes, at most {MAX_GRAPH_BYTES}")
    if size < 2 * _SEGMENT_TABLE_BYTES:
        raise GraphError(GraphErrorCode.TRUNCATED, f"{size} bytes, a message has at least {2 * _SEGMENT_TABLE_BYTES}")
    raw = bytes(view)
    if raw[:4] != b"\0\0\0\0":
        raise GraphError(GraphErrorCode.SEGMENTS, f"{int.from_bytes(raw[:4], 'little') + 1} segments, exactly one")
    stated = int.from_bytes(raw[4:8], "little") * 8
    if stated != size - _SEGMENT_TABLE_BYTES:
        what = f"the segment table states {stated} bytes, {size - _SEGMENT_TABLE_BYTES} follow"
        raise GraphError(GraphErrorCode.TRUNCATED, what)
    try:
        # Every list is read twice at most (its length, then its items): four passes bound any honest graph.
        words = 4 * (size // 8) + 64
        with schema.graph.Graph.from_bytes(raw, traversal_limit_in_words=words, nesting_limit=NESTING_LIMIT) as reader:
            graph = _read_graph(reader, Tables(raw))
    except (capnp.KjException, ValueError, FormatError) as error:
        raise GraphError(GraphErrorCode.MALFORMED, _first_line(error)) from error
    if _encode(graph, size // 8) != raw:
        raise GraphError(GraphErrorCode.NOT_CANONICAL, "the bytes are not the canonical encoding of their graph")
    return graph


def _first_line(error: BaseException) -> str:
    lines = str(error).splitlines()
    return lines[0][:200] if lines else type(error).__name__


# Writing. Pointer fields are initialised in the schema's order, so that the layout is a function of the values.


def _write_graph(m: Any, graph: Graph) -> None:
    m.abiVersion, m.halVersion = graph.abi_version, graph.hal_version
    m.driver = graph.driver
    m.threads, m.arenaBytes = graph.threads, graph.arena_bytes
    for name, items, write in (
        ("buffers", graph.buffers, _write_buffer),
        ("programs", graph.programs, _write_program),
        ("launches", graph.launches, _write_launch),
        ("frames", graph.frames, _write_frame),
        ("aux", graph.aux, _write_aux),
        ("states", graph.states, _write_state),
        ("outputs", graph.outputs, _write_output),
        ("entrypoints", graph.entrypoints, _write_entrypoint),
        ("goldens", graph.goldens, _write_golden),
    ):
        _write_list(m, name, items, write)


def _write_list(m: Any, name: str, items: tuple[Any, ...], write: Any) -> None:
    builder = m.init(name, len(items))
    for index, item in enumerate(items):
        write(builder[index], item)


def _scalars(m: Any, name: str, items: tuple[int, ...]) -> None:
    builder = m.init(name, len(items))
    for index, item in enumerate(items):
        builder[index] = int(item)


def _write_buffer(m: Any, b: Buffer) -> None:
    m.kind, m.sizeBytes, m.offset, m.alignBytes = int(b.kind), b.size_bytes, b.offset, b.align_bytes
    m.initialOffset, m.initialFromWeights = b.initial_offset, b.initial_from_weights


def _write_program(m: Any, p: Program) -> None:
    m.name, m.symbol = p.name, p.symbol
    m.codeOffset, m.codeBytes, m.flops = p.code_offset, p.code_bytes, p.flops
    access = m.init("argumentAccess", len(p.argument_access))
    for index, item in enumerate(p.argument_access):
        access[index] = _ACCESS_NAMES[item]  # pycapnp takes enumerants in a list by name only


def _write_launch(m: Any, launch: Launch) -> None:
    m.program = launch.program
    _write_list(m, "arguments", launch.arguments, _write_argument)
    _scalars(m, "global", launch.global_size)
    _scalars(m, "local", launch.local_size)
    _scalars(m, "values", launch.values)


def _write_argument(m: Any, a: Argument) -> None:
    m.buffer, m.offset, m.sizeBytes = a.buffer, a.offset, a.size_bytes


def _write_frame(m: Any, f: FrameInput) -> None:
    m.name, m.stream, m.buffer = f.name, f.stream, f.buffer
    f.format.to_message(m.init("format"))


def _write_aux(m: Any, a: AuxInput) -> None:
    m.name, m.dtype, m.buffer = a.name, int(a.dtype), a.buffer
    _scalars(m, "shape", a.shape)
    m.maxAgeNs, m.hasDefault, m.defaultValue = a.max_age_ns, a.has_default, a.default_value


def _write_state(m: Any, s: StateBuffer) -> None:
    m.name, m.dtype, m.buffer, m.handOver = s.name, int(s.dtype), s.buffer, s.hand_over
    _scalars(m, "shape", s.shape)


def _write_output(m: Any, o: Output) -> None:
    view = m.init("view")
    view.name, view.dtype = o.view.name, int(o.view.dtype)
    _scalars(view, "shape", o.view.shape)
    view.unit, view.offset, view.sizeBytes, view.nan = o.view.unit, o.view.offset, o.view.size_bytes, int(o.view.nan)
    m.buffer, m.absoluteTolerance, m.relativeTolerance = o.buffer, o.absolute_tolerance, o.relative_tolerance


def _write_entrypoint(m: Any, e: Entrypoint) -> None:
    m.name, m.firstLaunch, m.launchCount = e.name, e.first_launch, e.launch_count
    _scalars(m, "frames", e.frames)
    _scalars(m, "aux", e.aux)
    _scalars(m, "outputs", e.outputs)
    m.maxSkewNs, m.deadlineNs, m.budgetNs = e.max_skew_ns, e.deadline_ns, e.budget_ns
    m.role, m.onMisses = int(e.role), int(e.on_misses)
    m.missLimit, m.missWindow = e.miss_limit, e.miss_window


def _write_golden(m: Any, g: GoldenVector) -> None:
    m.entrypoint, m.seed, m.outputOffset, m.outputBytes = g.entrypoint, g.seed, g.output_offset, g.output_bytes


_ACCESS_NAMES = {
    Access.UNSPECIFIED: "unspecified",
    Access.READ: "read",
    Access.WRITE: "write",
    Access.READ_WRITE: "readWrite",
}


# Reading. `.raw` of an enum is its number; the IntEnum raises ValueError for an enumerant it does not know.


def _read_graph(m: Any, tables: Tables) -> Graph:
    return Graph(
        abi_version=m.abiVersion,
        hal_version=m.halVersion,
        driver=m.driver,
        threads=m.threads,
        arena_bytes=m.arenaBytes,
        buffers=tables.buffers,
        programs=tables.programs,
        launches=tables.launches,
        frames=tuple(FrameInput(f.name, f.stream, StreamFormat.from_message(f.format), f.buffer) for f in m.frames),
        aux=tuple(_read_aux(a) for a in m.aux),
        states=tuple(StateBuffer(s.name, DType(s.dtype.raw), tuple(s.shape), s.buffer, s.handOver) for s in m.states),
        outputs=tuple(_read_output(o) for o in m.outputs),
        entrypoints=tuple(_read_entrypoint(e) for e in m.entrypoints),
        goldens=tuple(GoldenVector(g.entrypoint, g.seed, g.outputOffset, g.outputBytes) for g in m.goldens),
    )


def _read_aux(a: Any) -> AuxInput:
    dtype = DType(a.dtype.raw)
    return AuxInput(a.name, dtype, tuple(a.shape), a.buffer, a.maxAgeNs, a.hasDefault, bytes(a.defaultValue))


def _read_output(o: Any) -> Output:
    v = o.view
    view = OutputView(v.name, DType(v.dtype.raw), tuple(v.shape), v.unit, v.offset, v.sizeBytes, NanPolicy(v.nan.raw))
    return Output(view, o.buffer, o.absoluteTolerance, o.relativeTolerance)


def _read_entrypoint(e: Any) -> Entrypoint:
    return Entrypoint(
        name=e.name,
        first_launch=e.firstLaunch,
        launch_count=e.launchCount,
        frames=tuple(e.frames),
        aux=tuple(e.aux),
        outputs=tuple(e.outputs),
        budget_ns=e.budgetNs,
        max_skew_ns=e.maxSkewNs,
        deadline_ns=e.deadlineNs,
        role=EntryRole(e.role.raw),
        miss_limit=e.missLimit,
        miss_window=e.missWindow,
        on_misses=MissPolicy(e.onMisses.raw),
    )
