"""From a capture to the blobs of an unsigned bundle: graph, code, weights, goldens, and the statement over them.

Everything here is a function of the capture and the spec, so two compiles of one spec give equal bytes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib.metadata import version
from math import prod
from pathlib import Path
from types import MappingProxyType

import numpy as np

from abi import golden
from abi.graph import (
    HAL_VERSION,
    Argument,
    AuxInput,
    Buffer,
    BufferKind,
    DType,
    Entrypoint,
    FrameInput,
    GoldenVector,
    Graph,
    Launch,
    NanPolicy,
    Output,
    OutputView,
    Program,
    StateBuffer,
)
from abi.packet import ABI_VERSION
from lab.compile.arena import plan_arena
from lab.compile.attachments import Attached
from lab.compile.capture import ARENA_ALIGN_BYTES, Capture, CapturedBuffer
from lab.compile.checks import initial_states
from lab.compile.model import TensorInfo
from lab.compile.refusal import CompileRefusal, CompileRefused
from lab.compile.spec import EntrySpec, OutputSpec, Spec
from lab.compile.target import Target
from lab.sign.pack import describe_blob, write_bundle
from signing import statement

GOLDEN_SEEDS = (0x5EED_0001, 0x5EED_0002)
UNSTATED_TOLERANCE = 1e-3
_NS_PER_MS = 1_000_000
_INPUTS = (BufferKind.FRAME, BufferKind.AUX, BufferKind.STATE)


def output_views(
    spec: Spec, outputs: Sequence[TensorInfo], capture: Capture, tensors: Sequence[str]
) -> list[OutputView]:
    """The spec's outputs as views into their tensor's buffer. Raises CompileRefused for a slice that does not fit."""
    kinds = {one.name: one for one in outputs}
    views = []
    for index, one in enumerate(spec.outputs):
        dtype = DType[kinds[one.tensor].dtype.upper()]
        size = capture.buffers[capture.output_buffers[tensors.index(one.tensor)]].size_bytes
        first, end = one.slice or (0, size // dtype.item_bytes)
        shape = one.dims or ((end - first,) if one.slice else (kinds[one.tensor].shape or (end,)))
        if end * dtype.item_bytes > size or prod(shape) != end - first:
            raise CompileRefused(
                CompileRefusal.OUTPUT_MISMATCH, f"output[{index}] {one.name!r}",
                expected=f"a slice of the {size // dtype.item_bytes} elements of {one.tensor!r} and dims of its size",
                found=f"slice {first}..{end}, dims {list(shape)}", todo="mend slice or dims in the spec",
            )  # fmt: skip
        item = dtype.item_bytes
        views.append(OutputView(one.name, dtype, shape, one.unit, first * item, (end - first) * item, _nan_policy(one)))
    return views


def _nan_policy(output: OutputSpec) -> NanPolicy:
    return NanPolicy.REFUSE if output.nan == "refuse" else NanPolicy.FLAG


def build_graph(
    spec: Spec,
    capture: Capture,
    target: Target,
    views: Sequence[OutputView],
    tensors: Sequence[str],
    *,
    entrypoints: Sequence[Entrypoint],
) -> Graph:
    """The graph of a capture of all `entrypoints`, without code ranges and goldens."""
    buffers, launches, number = _buffers_and_launches(capture, target)
    of_input = {(one.kind, one.index): number[i] for i, one in enumerate(capture.buffers) if one.kind in _INPUTS}
    of_output = [number[capture.output_buffers[tensors.index(one.tensor)]] for one in spec.outputs]
    return Graph(
        abi_version=ABI_VERSION,
        hal_version=HAL_VERSION,
        driver=spec.target.driver,
        threads=spec.target.threads,
        arena_bytes=capture.arena_bytes,
        buffers=buffers,
        programs=tuple(
            Program(one.name, target.symbol(index), one.access, flops=one.flops)
            for index, one in enumerate(capture.kernels)
        ),
        launches=launches,
        frames=tuple(
            FrameInput(one.name, one.stream, one.stream_format, of_input[BufferKind.FRAME, index])
            for index, one in enumerate(spec.inputs)
        ),
        aux=tuple(
            AuxInput(
                one.name,
                one.dtype,
                one.shape,
                of_input[BufferKind.AUX, index],
                round(one.max_age_ms * _NS_PER_MS),
                one.default is not None,
                one.default or b"",
            )
            for index, one in enumerate(spec.aux)
        ),
        states=tuple(
            StateBuffer(one.name, one.dtype, one.shape, of_input[BufferKind.STATE, index], one.hand_over)
            for index, one in enumerate(spec.states)
        ),
        outputs=tuple(
            Output(view, buffer, *_tolerances(spec, target)) for view, buffer in zip(views, of_output, strict=True)
        ),
        entrypoints=tuple(entrypoints),
    )


def _tolerances(spec: Spec, target: Target) -> tuple[float, float]:
    """Absolute and relative, of goldens. 0 where the code is built for one CPU baseline or device and has run there:
    equal bits. Otherwise what the spec allows against onnxruntime, or where it says nothing, UNSTATED_TOLERANCE.
    """
    if target.exact:
        return 0.0, 0.0
    stated = spec.check.onnxruntime_tolerance
    return (stated, 0.0) if stated else (UNSTATED_TOLERANCE, UNSTATED_TOLERANCE)


def with_code(graph: Graph, target: Target, code_bytes: int) -> Graph:
    """The graph with each program's place in the code blob of `code_bytes`."""
    programs = []
    for index, program in enumerate(graph.programs):
        offset, size = target.code_range(index, code_bytes)
        programs.append(replace(program, code_offset=offset, code_bytes=size))
    return replace(graph, programs=tuple(programs))


def entrypoint(
    entry: EntrySpec, launches: range, frames: Sequence[int], aux: Sequence[int], outputs: int
) -> Entrypoint:
    """The entrypoint of `launches`, which takes these frames and aux inputs and gives the first `outputs` outputs."""
    return Entrypoint(
        name=entry.name,
        first_launch=launches.start,
        launch_count=len(launches),
        frames=tuple(frames),
        aux=tuple(aux),
        outputs=tuple(range(outputs)),
        max_skew_ns=round(entry.timing.max_skew_ms * _NS_PER_MS),
        budget_ns=round(entry.timing.budget_ms * _NS_PER_MS),
        deadline_ns=round(entry.timing.deadline_ms * _NS_PER_MS),
        role=entry.role,
        miss_limit=entry.miss_limit,
        miss_window=entry.miss_window,
        on_misses=entry.on_misses,
    )


def _buffers_and_launches(
    capture: Capture, target: Target
) -> tuple[tuple[Buffer, ...], tuple[Launch, ...], dict[int, int]]:
    """Graph buffers, launches over them, and the graph's number of each captured buffer that is not arena."""
    plan = plan_arena(capture)
    outside = [index for index, one in enumerate(capture.buffers) if one.kind is not BufferKind.ARENA]
    number = {index: position for position, index in enumerate(outside)}
    buffers = [_buffer(capture.buffers[index], target.align_bytes) for index in outside] + [
        Buffer(BufferKind.ARENA, one.size_bytes, one.offset, ARENA_ALIGN_BYTES) for one in plan.values
    ]
    launches = []
    for index, launch in enumerate(capture.launches):
        arguments = []
        for position, span in enumerate(launch.arguments):
            value = plan.spans.get((index, position))
            if value is None:
                arguments.append(Argument(number[span.buffer], span.offset, span.size_bytes))
            else:
                arguments.append(Argument(len(outside) + value.value, value.offset, value.size_bytes))
        launches.append(Launch(launch.kernel, tuple(arguments), *target.launch_size(capture.kernels[launch.kernel])))
    return tuple(buffers), tuple(launches), number


def _buffer(captured: CapturedBuffer, align_bytes: int) -> Buffer:
    return Buffer(captured.kind, captured.size_bytes, captured.offset, align_bytes)


def golden_values(spec: Spec, seed: int) -> list[bytes]:
    """Frames, aux inputs and initial states of one self-test run, as `abi.golden` makes them from its seed."""
    frames = []
    for index, one in enumerate(spec.inputs):
        frame = np.empty(one.buffer_bytes, np.uint8)
        golden.fill(frame, golden.input_seed(seed, index))
        frames.append(frame.tobytes())
    for index, aux in enumerate(spec.aux, len(spec.inputs)):
        value = np.empty(aux.size_bytes, np.uint8)
        golden.fill_elements(value, aux.dtype, golden.input_seed(seed, index))
        frames.append(value.tobytes())
    return [*frames, *initial_states(spec)]


def view_bytes(
    views: Sequence[OutputView], spec: Spec, tensors: Sequence[str], results: Sequence[bytes]
) -> list[bytes]:
    """The named outputs of one run, cut from its tensors' bytes, in the spec's order."""
    return [
        results[tensors.index(one.tensor)][view.offset : view.offset + view.size_bytes]
        for one, view in zip(spec.outputs, views, strict=True)
    ]


def with_goldens(graph: Graph, expected: Sequence[Sequence[bytes]]) -> tuple[Graph, bytes]:
    """The graph with golden vectors, and the goldens blob.

    expected: for each entrypoint, for each of GOLDEN_SEEDS, the bytes that its self-test run has to give.
    """
    vectors, blob = [], bytearray()
    for entry, results in enumerate(expected):
        for seed, result in zip(GOLDEN_SEEDS, results, strict=True):
            vectors.append(GoldenVector(entry, seed, len(blob), len(result)))
            blob += result
    return replace(graph, goldens=tuple(vectors)), bytes(blob)


def write(
    path: Path,
    spec: Spec,
    parts: Mapping[str, bytes],
    target: Target,
    memory_bytes: int,
    *,
    attached: Mapping[str, Attached] = MappingProxyType({}),
) -> None:
    """The unsigned bundle of `parts` (graph, code, weights, goldens) and what is attached to them."""
    blobs = {**parts, **{name: one.data for name, one in attached.items()}}
    stated = statement.Statement(
        model=statement.Model(spec.model.name, spec.model.version, spec.model.release),
        abi_version=ABI_VERSION,
        hal_version=HAL_VERSION,
        target=target.stated(memory_bytes),
        compiler=statement.Compiler(version("tinygrad"), target.options()),
        blobs=tuple(describe_blob(name, data) for name, data in blobs.items()),
        attachments=tuple(statement.Attachment(name, one.media_type) for name, one in attached.items()),
    )
    write_bundle(path, stated, blobs)


def memory_bytes(graph: Graph, parts: Mapping[str, bytes]) -> int:
    """What the vehicle must have free: the arena, the state, the blobs, and two sets of frames, aux and outputs."""
    kinds = (BufferKind.FRAME, BufferKind.AUX, BufferKind.OUTPUT)
    bound = sum(one.size_bytes for one in graph.buffers if one.kind in kinds)
    state = sum(one.size_bytes for one in graph.buffers if one.kind is BufferKind.STATE)
    return graph.arena_bytes + state + sum(map(len, parts.values())) + 2 * bound
