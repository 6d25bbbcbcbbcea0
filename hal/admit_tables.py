"""Admission, first half: every table of the graph taken alone. Indices, ranges, kinds, names, sizes and limits.

After it, a number in the graph may be used as an index or an address offset without looking. Whether the launches
make sense one after another is proved in `hal.admit_flow`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

from abi.format import FormatError, validate_contract
from abi.graph import Access, AuxInput, Buffer, BufferKind, DType, Graph, Launch, Output, OutputView, StateBuffer
from hal.limits import Limits
from hal.refusal import AdmissionCode, AdmissionRefused

READ_ONLY_KINDS = (BufferKind.WEIGHTS, BufferKind.FRAME, BufferKind.AUX)
_SYMBOL = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_RESERVED_SYMBOLS = "fenced_"


def launch_name(graph: Graph, index: int) -> str:
    """How messages call a launch: its index and what it runs."""
    program = graph.launches[index].program
    if program < len(graph.programs):
        return f"launch {index} ({graph.programs[program].symbol} {graph.programs[program].name!r})"
    return f"launch {index}"


def check_counts(graph: Graph, limits: Limits) -> None:
    counts = {
        "buffers": (len(graph.buffers), limits.buffers),
        "programs": (len(graph.programs), limits.programs),
        "launches": (len(graph.launches), limits.launches),
        "frames": (len(graph.frames), limits.frames),
        "aux": (len(graph.aux), limits.aux),
        "states": (len(graph.states), limits.states),
        "outputs": (len(graph.outputs), limits.outputs),
        "entrypoints": (len(graph.entrypoints), limits.entrypoints),
        "goldens": (len(graph.goldens), limits.goldens),
    }
    for table, (count, most) in counts.items():
        if count > most:
            raise AdmissionRefused(AdmissionCode.LIMIT, table, "too many", expected=f"at most {most}", found=str(count))
    if not graph.entrypoints:
        raise AdmissionRefused(AdmissionCode.LIMIT, "entrypoints", "none", expected="at least 1", found="0")


def check_buffers(graph: Graph, weights_bytes: int, limits: Limits) -> None:
    for index, buffer in enumerate(graph.buffers):
        where = f"buffer {index}"
        if buffer.kind is BufferKind.UNSPECIFIED:
            raise AdmissionRefused(AdmissionCode.BUFFER_KIND, where, "its kind is not stated")
        align = buffer.align_bytes
        if align < 1 or align & (align - 1) or align > limits.align_bytes:
            raise AdmissionRefused(AdmissionCode.BUFFER_ALIGNMENT, where, "alignment",
                                   expected=f"a power of two up to {limits.align_bytes}", found=str(align))  # fmt: skip
        if buffer.offset % align:
            raise AdmissionRefused(AdmissionCode.BUFFER_ALIGNMENT, where, "its offset is not aligned",
                                   expected=f"a multiple of {align}", found=str(buffer.offset))  # fmt: skip
        _check_range(where, buffer, graph.arena_bytes, weights_bytes, limits)


def _check_range(where: str, buffer: Buffer, arena_bytes: int, weights_bytes: int, limits: Limits) -> None:
    holds = limits.memory_bytes
    if buffer.kind is BufferKind.ARENA:
        holds = arena_bytes
    elif buffer.kind is BufferKind.WEIGHTS:
        holds = weights_bytes
    if buffer.size_bytes < 1 or buffer.offset + buffer.size_bytes > holds:
        raise AdmissionRefused(AdmissionCode.BUFFER_RANGE, where, f"{buffer.kind.name.lower()} range",
                               expected=f"1.. bytes that end by {holds}",
                               found=f"{buffer.offset} + {buffer.size_bytes}")  # fmt: skip
    if buffer.kind not in (BufferKind.ARENA, BufferKind.WEIGHTS) and buffer.offset:
        raise AdmissionRefused(AdmissionCode.BUFFER_UNUSED_FIELD, where, "offset", expected="0",
                               found=str(buffer.offset))  # fmt: skip
    if buffer.initial_from_weights:
        if buffer.kind is not BufferKind.STATE:
            raise AdmissionRefused(AdmissionCode.BUFFER_UNUSED_FIELD, where, "only state has an initial value")
        if buffer.initial_offset + buffer.size_bytes > weights_bytes:
            raise AdmissionRefused(AdmissionCode.BUFFER_RANGE, where, "its initial value lies outside the weights",
                                   expected=f"ends by {weights_bytes}",
                                   found=f"{buffer.initial_offset} + {buffer.size_bytes}")  # fmt: skip
    elif buffer.initial_offset:
        raise AdmissionRefused(AdmissionCode.BUFFER_UNUSED_FIELD, where, "initialOffset", expected="0",
                               found=str(buffer.initial_offset))  # fmt: skip


def check_programs(graph: Graph, code_bytes: int, limits: Limits) -> None:
    seen: set[str] = set()
    for index, program in enumerate(graph.programs):
        where = f"program {index} ({program.symbol})"
        if not _SYMBOL.fullmatch(program.symbol) or len(program.symbol) > limits.name_bytes:
            raise AdmissionRefused(
                AdmissionCode.SYMBOL, f"program {index}", "not a symbol", found=ascii(program.symbol)
            )
        if len(program.name.encode()) > limits.name_bytes or not program.name.isprintable():
            raise AdmissionRefused(AdmissionCode.NAME, where, "name", found=ascii(program.name[:64]),
                                   expected=f"0..{limits.name_bytes} bytes of printable text")  # fmt: skip
        if program.symbol.startswith(_RESERVED_SYMBOLS):
            raise AdmissionRefused(AdmissionCode.SYMBOL, where, "the queue runtime's own names are no kernels")
        if Access.UNSPECIFIED in program.argument_access:
            argument = program.argument_access.index(Access.UNSPECIFIED)
            raise AdmissionRefused(AdmissionCode.ACCESS, where, f"access of argument {argument} is not stated")
        if len(program.argument_access) > limits.arguments:
            raise AdmissionRefused(AdmissionCode.LIMIT, where, "too many arguments",
                                   expected=f"at most {limits.arguments}",
                                   found=str(len(program.argument_access)))  # fmt: skip
        if graph.driver == "cpu":
            if program.symbol in seen:
                raise AdmissionRefused(AdmissionCode.DUPLICATE, where, "two programs share a symbol")
            if program.code_offset or program.code_bytes:
                raise AdmissionRefused(AdmissionCode.CODE_RANGE, where, "cpu code is one object", expected="0 + 0",
                                       found=f"{program.code_offset} + {program.code_bytes}")  # fmt: skip
        elif program.code_bytes < 1 or program.code_offset + program.code_bytes > code_bytes:
            raise AdmissionRefused(AdmissionCode.CODE_RANGE, where, "its binary lies outside the code",
                                   expected=f"1.. bytes that end by {code_bytes}",
                                   found=f"{program.code_offset} + {program.code_bytes}")  # fmt: skip
        seen.add(program.symbol)


def check_launches(graph: Graph, limits: Limits) -> None:
    for index, launch in enumerate(graph.launches):
        where = launch_name(graph, index)
        check_index(launch.program, graph.programs, where, "program", launch=index)
        access = graph.programs[launch.program].argument_access
        if len(launch.arguments) != len(access):
            raise AdmissionRefused(AdmissionCode.ARGUMENT_COUNT, where, "arguments", expected=str(len(access)),
                                   found=str(len(launch.arguments)), launch=index)  # fmt: skip
        for position, argument in enumerate(launch.arguments):
            check_index(argument.buffer, graph.buffers, where, f"buffer of argument {position}", launch=index)
            buffer = graph.buffers[argument.buffer]
            if argument.size_bytes < 1 or argument.offset + argument.size_bytes > buffer.size_bytes:
                raise AdmissionRefused(
                    AdmissionCode.ARGUMENT_RANGE, where, f"argument {position} leaves buffer {argument.buffer}",
                    expected=f"1.. bytes that end by {buffer.size_bytes}",
                    found=f"{argument.offset} + {argument.size_bytes}", launch=index,
                )  # fmt: skip
            if access[position] is not Access.READ and buffer.kind in READ_ONLY_KINDS:
                raise AdmissionRefused(
                    AdmissionCode.READ_ONLY, where,
                    f"argument {position} writes {buffer.kind.name.lower()} buffer {argument.buffer}", launch=index,
                )  # fmt: skip
        _check_grid(graph, index, launch, limits)


def _check_grid(graph: Graph, index: int, launch: Launch, limits: Limits) -> None:
    where = launch_name(graph, index)
    if graph.driver == "cpu":
        good = len(launch.global_size) == 1 and 1 <= launch.global_size[0] <= limits.cores and not launch.local_size
        expected = f"one axis of 1..{limits.cores} cores and no groups"
    else:
        good = len(launch.global_size) == len(launch.local_size) == 3
        good = good and all(1 <= size <= limits.grid for size in launch.global_size)
        good = good and min(launch.local_size) >= 1 and math.prod(launch.local_size) <= limits.group
        expected = f"three axes of 1..{limits.grid} groups, each of 1..{limits.group} items"
    if not good:
        raise AdmissionRefused(AdmissionCode.GRID, where, "launch size", expected=expected,
                               found=f"{launch.global_size} x {launch.local_size}", launch=index)  # fmt: skip
    if len(launch.values) > limits.values:
        raise AdmissionRefused(AdmissionCode.LIMIT, where, "too many scalar arguments",
                               expected=f"at most {limits.values}", found=str(len(launch.values)),
                               launch=index)  # fmt: skip


def check_inputs_and_outputs(graph: Graph, limits: Limits) -> None:
    """Frames, aux inputs, states and outputs: named, of the right size, each over a buffer of its own kind."""
    _check_names("frame", [frame.name for frame in graph.frames], limits)
    _check_names("stream of frame", [frame.stream for frame in graph.frames], limits)
    _check_names("aux", [aux.name for aux in graph.aux], limits)
    _check_names("state", [state.name for state in graph.states], limits)
    _check_names("output", [output.view.name for output in graph.outputs], limits)
    for index, frame in enumerate(graph.frames):
        where = f"frame {index} ({frame.name})"
        _check_role(graph, where, frame.buffer, BufferKind.FRAME)
        try:
            validate_contract(frame.format)
        except FormatError as error:
            raise AdmissionRefused(AdmissionCode.FORMAT, where, str(error)) from error
        _check_size(where, frame.format.buffer_bytes, graph.buffers[frame.buffer].size_bytes)
    for index, aux in enumerate(graph.aux):
        _check_aux(graph, f"aux {index} ({aux.name})", aux, limits)
    for index, state in enumerate(graph.states):
        where = f"state {index} ({state.name})"
        _check_role(graph, where, state.buffer, BufferKind.STATE)
        _check_size(where, _tensor_bytes(where, state, limits), graph.buffers[state.buffer].size_bytes)
    for index, output in enumerate(graph.outputs):
        _check_output(graph, f"output {index} ({output.view.name})", output, limits)
    _check_every_buffer_described(graph)


def _check_aux(graph: Graph, where: str, aux: AuxInput, limits: Limits) -> None:
    _check_role(graph, where, aux.buffer, BufferKind.AUX)
    size = _tensor_bytes(where, aux, limits)
    if size > limits.aux_bytes:
        raise AdmissionRefused(AdmissionCode.LIMIT, where, "too large for an aux input",
                               expected=f"at most {limits.aux_bytes}", found=str(size))  # fmt: skip
    _check_size(where, size, graph.buffers[aux.buffer].size_bytes)
    default = size if aux.has_default else 0
    if len(aux.default_value) != default:
        raise AdmissionRefused(AdmissionCode.SIZE_MISMATCH, where, "default value", expected=f"{default} bytes",
                               found=str(len(aux.default_value)))  # fmt: skip


def _check_output(graph: Graph, where: str, output: Output, limits: Limits) -> None:
    _check_role(graph, where, output.buffer, BufferKind.OUTPUT)
    view = output.view
    _check_size(where, _tensor_bytes(where, view, limits), view.size_bytes)
    holds = graph.buffers[output.buffer].size_bytes
    if view.offset + view.size_bytes > holds:
        raise AdmissionRefused(AdmissionCode.BUFFER_RANGE, where, "its slice leaves its buffer",
                               expected=f"ends by {holds}", found=f"{view.offset} + {view.size_bytes}")  # fmt: skip
    if view.offset % view.dtype.item_bytes:
        raise AdmissionRefused(AdmissionCode.BUFFER_ALIGNMENT, where, "its slice starts inside an element",
                               found=str(view.offset))  # fmt: skip
    if not 1 <= len(view.unit.encode()) <= limits.name_bytes or not view.unit.isprintable():
        raise AdmissionRefused(AdmissionCode.NAME, where, "unit", expected='an SI symbol, "1" for a pure number',
                               found=ascii(view.unit[:64]))  # fmt: skip
    for name, value in (("absolute", output.absolute_tolerance), ("relative", output.relative_tolerance)):
        if not 0 <= value < math.inf:
            raise AdmissionRefused(AdmissionCode.TOLERANCE, where, f"{name} tolerance", expected="finite, 0 or more",
                                   found=str(value))  # fmt: skip


def _check_every_buffer_described(graph: Graph) -> None:
    """A bound or state buffer that no table describes could never be bound, shown or reset."""
    inputs = [frame.buffer for frame in graph.frames] + [aux.buffer for aux in graph.aux]
    inputs += [state.buffer for state in graph.states]
    twice = sorted({buffer for buffer in inputs if inputs.count(buffer) > 1})
    if twice:
        raise AdmissionRefused(AdmissionCode.BUFFER_ROLE, f"buffer {twice[0]}", "two inputs or states share it")
    described = {*inputs, *(output.buffer for output in graph.outputs)}
    for index, buffer in enumerate(graph.buffers):
        if buffer.kind not in (BufferKind.ARENA, BufferKind.WEIGHTS) and index not in described:
            raise AdmissionRefused(AdmissionCode.BUFFER_ROLE, f"buffer {index}",
                                   f"no {buffer.kind.name.lower()} describes it")  # fmt: skip


def check_index(index: int, table: Sequence[object], where: str, what: str, launch: int | None = None) -> None:
    if index >= len(table):
        raise AdmissionRefused(AdmissionCode.INDEX, where, what, expected=f"below {len(table)}", found=str(index),
                               launch=launch)  # fmt: skip


def _check_role(graph: Graph, where: str, buffer: int, kind: BufferKind) -> None:
    check_index(buffer, graph.buffers, where, "buffer")
    found = graph.buffers[buffer].kind
    if found is not kind:
        raise AdmissionRefused(AdmissionCode.BUFFER_ROLE, where, f"kind of buffer {buffer}",
                               expected=kind.name.lower(), found=found.name.lower())  # fmt: skip


def _check_size(where: str, expected: int, found: int) -> None:
    if expected != found:
        raise AdmissionRefused(AdmissionCode.SIZE_MISMATCH, where, "size", expected=f"{expected} bytes",
                               found=str(found))  # fmt: skip


def _tensor_bytes(where: str, tensor: AuxInput | StateBuffer | OutputView, limits: Limits) -> int:
    if tensor.dtype is DType.UNSPECIFIED:
        raise AdmissionRefused(AdmissionCode.DTYPE, where, "its element type is not stated")
    if len(tensor.shape) > limits.axes:
        raise AdmissionRefused(AdmissionCode.LIMIT, where, "axes", expected=f"at most {limits.axes}",
                               found=str(len(tensor.shape)))  # fmt: skip
    return math.prod(tensor.shape) * tensor.dtype.item_bytes


def _check_names(what: str, names: list[str], limits: Limits) -> None:
    seen: set[str] = set()
    for index, name in enumerate(names):
        check_name(f"{what} {index}", name, limits)
        if name in seen:
            raise AdmissionRefused(AdmissionCode.DUPLICATE, f"{what} {index}", "name", found=ascii(name))
        seen.add(name)


def check_name(where: str, name: str, limits: Limits) -> None:
    if not 1 <= len(name.encode()) <= limits.name_bytes or not name.isprintable():
        raise AdmissionRefused(AdmissionCode.NAME, where, "name", found=ascii(name[:64]),
                               expected=f"1..{limits.name_bytes} bytes of printable text")  # fmt: skip
