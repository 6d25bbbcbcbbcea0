"""Admission: what is refused and in which words, what is accepted at each limit, and what is reported."""

from __future__ import annotations

from dataclasses import fields, is_dataclass, replace
from enum import IntEnum
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from abi.graph import Access, Argument, Buffer, BufferKind, EntryRole, Graph, Launch, MissPolicy
from hal.admit import Admission, AdmissionRefused, ArenaRange, EntryReport, Limits, Target, admit
from hal.limits import MAX_FRAMES_PER_RUN
from tests.hal.admission_cases import CASES, MISSES, STATE_ONLY
from tests.support.graphs import (
    AUX,
    FIRST,
    FRAME,
    GOLDENS_BYTES,
    LATER,
    OUT,
    SECOND,
    STATE,
    WEIGHTS_BYTES,
    code_for,
    edit,
    edit_all,
    grey,
    valid_graph,
)

TARGET = Target("cpu", "x86_64")


def admitted(graph: Graph, limits: Limits | None = None, target: Target = TARGET) -> Admission:
    return admit(graph, code_for(graph), WEIGHTS_BYTES, target, goldens_bytes=GOLDENS_BYTES, limits=limits)


def refused(graph: Graph, limits: Limits | None = None, target: Target = TARGET) -> AdmissionRefused:
    with pytest.raises(AdmissionRefused) as caught:
        admit(graph, code_for(valid_graph()), WEIGHTS_BYTES, target, goldens_bytes=GOLDENS_BYTES, limits=limits)
    return caught.value


@pytest.mark.parametrize(("edits", "launch", "text"), CASES, ids=[" ".join(case[0]) for case in CASES])
def test_one_wrong_field_is_refused_in_these_words(edits: dict[str, Any], launch: int | None, text: str) -> None:
    error = refused(edit_all(valid_graph(), edits))
    assert str(error) == text
    assert error.launch == launch
    assert text == f"{error.code.value}: {error.where}: {error.what}" + (
        f"; expected {error.expected}" if error.expected else ""
    ) + (f"; found {error.found}" if error.found else "")


def test_a_valid_graph_is_reported_whole() -> None:
    graph = valid_graph()
    code = code_for(graph)
    arena = (ArenaRange(FIRST, 0, 64, 0, 1), ArenaRange(LATER, 32, 32, 2, 3), ArenaRange(SECOND, 64, 64, 1, 4))
    assert admitted(graph) == Admission(
        graph=graph,
        driver="cpu",
        entrypoints=(EntryReport("main", 5, 368, 288, 140, arena), EntryReport("light", 2, 64, 64, 20, ())),
        arena=arena,
        arena_bytes=128,
        weights_bytes=WEIGHTS_BYTES,
        state_bytes=64,
        code_bytes=len(code),
        bound_bytes=64 + 16 + 64,
    )
    assert admitted(graph).memory_bytes == 128 + WEIGHTS_BYTES + 64 + len(code) + 144


def test_a_buffer_lives_in_each_entrypoint_from_its_first_to_its_last_use_there() -> None:
    """`light` runs the first launches here, through FIRST and a buffer of its own; `main` comes after it."""
    graph, own = valid_graph(), 8
    light = (
        Launch(0, (Argument(FIRST, 0, 64), Argument(FRAME, 0, 64))),
        Launch(3, (Argument(OUT, 0, 32), Argument(FIRST, 0, 32))),
        Launch(0, (Argument(own, 0, 64), Argument(FRAME, 0, 64))),
        Launch(3, (Argument(OUT, 32, 32), Argument(own, 32, 32))),
    )
    admission = admitted(edit_all(graph, {
        "buffers": (*graph.buffers, Buffer(BufferKind.ARENA, 64, 0, 64)), "launches": (*light, *graph.launches[:5]),
        "entrypoints.0.first_launch": 4, "entrypoints.1.first_launch": 0, "entrypoints.1.launch_count": 4,
    }))  # fmt: skip
    assert [entry.arena for entry in admission.entrypoints] == [
        (ArenaRange(FIRST, 0, 64, 4, 5), ArenaRange(LATER, 32, 32, 6, 7), ArenaRange(SECOND, 64, 64, 5, 8)),
        (ArenaRange(FIRST, 0, 64, 0, 1), ArenaRange(own, 0, 64, 2, 3)),
    ]
    assert admission.arena == (
        ArenaRange(FIRST, 0, 64, 0, 5), ArenaRange(own, 0, 64, 2, 3), ArenaRange(LATER, 32, 32, 6, 7),
        ArenaRange(SECOND, 64, 64, 5, 8),
    )  # fmt: skip


def test_a_buffer_that_a_later_entrypoint_uses_again_lives_until_then() -> None:
    graph = valid_graph()
    light = (
        Launch(0, (Argument(FIRST, 0, 64), Argument(FRAME, 0, 64))),
        Launch(3, (Argument(OUT, 0, 32), Argument(FIRST, 0, 32))),
        Launch(3, (Argument(OUT, 32, 32), Argument(FIRST, 32, 32))),
    )
    graph = edit_all(graph, {"launches": (*graph.launches[:5], *light), "entrypoints.1.launch_count": 3})
    assert admitted(graph).arena[0] == ArenaRange(FIRST, 0, 64, 0, 7)


def test_buffers_at_one_arena_offset_are_reported_in_order() -> None:
    graph = edit_all(valid_graph(), {"buffers.7.offset": 0, "buffers.1.size_bytes": 64})
    graph = edit(graph, "launches.3.arguments.1", Argument(LATER, 0, 32))
    assert [(item.offset, item.buffer) for item in admitted(graph).arena] == [(0, FIRST), (0, LATER), (64, SECOND)]


def test_everything_may_be_at_its_limit() -> None:
    graph = edit_all(
        valid_graph(),
        {
            "threads": 64,
            "launches.2.global_size": (64,),
            "launches.2.values": (0,) * 16,
            "programs.2.symbol": "w" * 256,
            "programs.2.name": "é" * 128,
            "frames.0.name": "é" * 128,
            "outputs.0.view.unit": "u" * 256,
            "entrypoints.0.budget_ns": 600_000_000_000,
            "buffers.0.align_bytes": 4096,
            "buffers.6.offset": 192,
            "states.0.shape": (1, 1, 1, 1, 1, 1, 1, 16),
            "goldens.2.output_offset": 128,
        },
    )
    admitted(graph)
    admitted(edit_all(valid_graph(), {"programs.0.name": "", "aux.0.name": "g", "entrypoints.0.name": "e"}))
    admitted(edit(valid_graph(), "launches.1.arguments.2", Argument(AUX, 0, 1)))
    admitted(edit(valid_graph(), "entrypoints.0.budget_ns", 1))


COUNTED = {
    "buffers": 8, "programs": 4, "launches": 7, "frames": 1, "aux": 1, "states": 1, "outputs": 2, "entrypoints": 2,
    "goldens": 3,
}  # fmt: skip


@pytest.mark.parametrize("table", COUNTED)
def test_a_table_may_be_as_long_as_its_limit_and_no_longer(table: str) -> None:
    count = COUNTED[table]
    admitted(valid_graph(), replace(Limits(), **{table: count}))
    error = refused(valid_graph(), replace(Limits(), **{table: count - 1}))
    assert str(error) == f"limit: {table}: too many; expected at most {count - 1}; found {count}"


def test_an_aux_input_may_be_as_large_as_its_limit() -> None:
    admitted(valid_graph(), replace(Limits(), aux_bytes=16))
    refused(valid_graph(), replace(Limits(), aux_bytes=15))


def test_arguments_may_be_as_many_as_their_limit() -> None:
    admitted(valid_graph(), replace(Limits(), arguments=4))
    refused(valid_graph(), replace(Limits(), arguments=3))


def test_memory_is_bounded_by_limits_and_by_the_device() -> None:
    needed = admitted(valid_graph()).memory_bytes
    admitted(valid_graph(), target=replace(TARGET, memory_bytes=needed))
    admitted(valid_graph(), replace(Limits(), memory_bytes=needed))
    text = f"limit: memory: the graph does not fit; expected at most {needed - 1}; found {needed}"
    assert str(refused(valid_graph(), target=replace(TARGET, memory_bytes=needed - 1))) == text
    assert str(refused(valid_graph(), replace(Limits(), memory_bytes=needed - 1))) == text
    loose = replace(TARGET, memory_bytes=2 * needed)
    assert str(refused(valid_graph(), replace(Limits(), memory_bytes=needed - 1), loose)) == text


def test_goldens_are_not_looked_at_where_none_will_run() -> None:
    graph = edit(valid_graph(), "goldens.0.output_bytes", 1)
    admit(graph, code_for(graph), WEIGHTS_BYTES, TARGET)


def test_one_seed_may_serve_two_entrypoints() -> None:
    admitted(edit_all(valid_graph(), {"goldens.1.seed": 7, "goldens.2.seed": 7}))


def test_code_without_a_kernel_is_refused() -> None:
    graph = edit(valid_graph(), "programs.1.symbol", "other")
    error = refused(graph)
    assert str(error) == "code: code: exports no function 'other' in executable pages"


def test_code_of_another_machine_is_refused() -> None:
    graph = valid_graph()
    with pytest.raises(AdmissionRefused, match="made for ELF machine 183"):
        admit(graph, code_for(graph, machine=183), WEIGHTS_BYTES, TARGET)


def test_a_bound_buffer_that_nothing_describes_is_refused() -> None:
    graph = replace(valid_graph(), buffers=(*valid_graph().buffers, Buffer(BufferKind.STATE, 4)))
    assert str(refused(graph)) == "buffer-role: buffer 8: no state describes it"
    for kind in (BufferKind.ARENA, BufferKind.WEIGHTS):
        admitted(replace(valid_graph(), buffers=(*valid_graph().buffers, Buffer(kind, 4))))


def test_two_inputs_over_one_buffer_are_refused() -> None:
    graph = valid_graph()
    frames = (*graph.frames, replace(graph.frames[0], name="again", stream="wide"))
    error = refused(replace(graph, frames=frames))
    assert str(error) == "buffer-role: buffer 0: two inputs or states share it"


def test_a_run_may_take_eight_frames_and_no_more() -> None:
    assert MAX_FRAMES_PER_RUN == 8
    for count in (8, 9):
        graph = _with_frames(count)
        if count == 8:
            admitted(graph)
        else:
            assert str(refused(graph)) == "limit: entrypoint 0 ('main'): frames; expected 1..8; found 9"


def _with_frames(count: int) -> Graph:
    """`main` reads `count` frames: one launch more for each beyond the first, into a state buffer."""
    graph = valid_graph()
    extra = range(8, 8 + count - 1)
    frames = tuple(replace(graph.frames[0], name=f"f{i}", stream=f"s{i}", buffer=i) for i in extra)
    launches = tuple(Launch(2, (Argument(STATE, 0, 64), Argument(LATER, 0, 32), Argument(i, 0, 32))) for i in extra)
    main = graph.entrypoints[0]
    return replace(
        graph,
        buffers=(*graph.buffers, *(graph.buffers[FRAME] for _ in extra)),
        frames=(*graph.frames, *frames),
        launches=(*graph.launches[:3], *launches, *graph.launches[3:]),
        entrypoints=(
            replace(main, launch_count=main.launch_count + len(extra), frames=tuple(range(count))),
            replace(graph.entrypoints[1], first_launch=main.launch_count + len(extra), role=EntryRole.UNSCHEDULED),
        ),
    )


# Roles of entrypoints.


def test_an_entrypoint_may_do_nothing_but_keep_state_in_step() -> None:
    graph = edit_all(valid_graph(), STATE_ONLY)
    assert [report.name for report in admitted(graph).entrypoints] == ["main", "light"]
    admitted(edit(graph, "entrypoints.1.frames", (0,)))
    text = "golden: golden 2: size; expected 64 bytes of written state; found 32"
    assert str(refused(edit(graph, "goldens.2.output_bytes", 32))) == text


def test_a_lighter_entrypoint_may_take_fewer_aux_inputs_and_all() -> None:
    graph = edit(valid_graph(), "launches.5.arguments.1", Argument(AUX, 0, 16))
    assert str(refused(graph)).startswith("not-bound: launch 5")
    admitted(edit(graph, "entrypoints.1.aux", (0,)))


def test_a_limit_of_misses_is_as_wide_as_its_window_allows() -> None:
    for limit, window in ((0, 1), (65535, 65536)):
        edits = {**MISSES, "entrypoints.0.miss_limit": limit, "entrypoints.0.miss_window": window}
        admitted(edit_all(valid_graph(), edits))


def test_every_policy_is_open_to_a_primary_and_all_but_falling_back_to_the_lighter() -> None:
    for policy in (MissPolicy.NONE, MissPolicy.SKIP, MissPolicy.LIGHTER, MissPolicy.STOP):
        admitted(edit_all(valid_graph(), {**MISSES, "entrypoints.0.on_misses": policy}))
        edits = {path.replace(".0.", ".1."): value for path, value in MISSES.items()}
        edits["entrypoints.1.on_misses"] = policy
        if policy is not MissPolicy.LIGHTER:
            admitted(edit_all(valid_graph(), edits))


def test_harnesses_may_have_entrypoints_of_their_own() -> None:
    other = {"entrypoints.1.role": EntryRole.UNSCHEDULED, "entrypoints.1.outputs": (1, 0),
             "entrypoints.1.deadline_ns": 5, "entrypoints.1.max_skew_ns": 7}  # fmt: skip
    admitted(edit_all(valid_graph(), other))


# Any field at all.

FREE = {"flops", "deadline_ns", "max_skew_ns", "max_age_ns", "seed", "values", "hand_over", "period_ns"}
"""Fields whose every value is good to the HAL."""


def leaves(node: Any, path: str = "") -> list[tuple[str, Any]]:
    if is_dataclass(node) and not isinstance(node, type):
        found = []
        for item in fields(node):
            found += leaves(getattr(node, item.name), f"{path}.{item.name}" if path else item.name)
        return found
    if isinstance(node, tuple) and node and is_dataclass(node[0]):
        return [leaf for index, item in enumerate(node) for leaf in leaves(item, f"{path}.{index}")]
    return [(path, node)]


NUMBERS = [
    path for path, value in leaves(valid_graph())
    if isinstance(value, int) and not isinstance(value, bool) and type(value) is int
    and path.rsplit(".", 1)[-1] not in FREE and ".format." not in path
]  # fmt: skip


@pytest.mark.parametrize("path", NUMBERS)
def test_no_number_may_be_absurd(path: str) -> None:
    error = refused(edit(valid_graph(), path, 1 << 40))
    if path.startswith("launches."):
        assert error.launch == int(path.split(".")[1])
        assert error.where.startswith(f"launch {error.launch}")


@given(st.data())
def test_a_graph_spoiled_anywhere_is_refused_or_admitted_and_nothing_else(data: st.DataObject) -> None:
    graph = valid_graph()
    for _ in range(data.draw(st.integers(1, 3))):
        path, value = data.draw(st.sampled_from(leaves(graph)))
        graph = edit(graph, path, data.draw(_other(value)))
    try:
        admit(graph, code_for(valid_graph()), WEIGHTS_BYTES, TARGET, goldens_bytes=GOLDENS_BYTES)
    except AdmissionRefused as error:
        assert error.todo  # noqa: PT017 (either outcome is right; a refusal must say what to do)


def _other(value: Any) -> st.SearchStrategy[Any]:
    """Another value that the field's Cap'n Proto type could hold."""
    if isinstance(value, bool):
        return st.booleans()
    if type(value) is int:
        return st.integers(0, 300) | st.integers(0, (1 << 64) - 1)
    if isinstance(value, IntEnum):
        return st.sampled_from(list(type(value)))
    if isinstance(value, float):
        return st.floats()
    if isinstance(value, str):
        return st.text(max_size=4)
    if isinstance(value, bytes):
        return st.binary(max_size=20)
    if value and isinstance(value[0], Access):
        return st.lists(st.sampled_from(list(Access)), max_size=5).map(tuple)
    return st.lists(st.integers(0, 8), max_size=4).map(tuple)


def test_a_frame_of_another_size_than_its_contract_is_refused() -> None:
    error = refused(edit(valid_graph(), "frames.0.format", grey(65)))
    assert str(error) == "size-mismatch: frame 0 (image): size; expected 65 bytes; found 64"
