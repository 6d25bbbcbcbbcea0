"""Admission where code is one binary a program, and of the flow of bytes from launch to launch."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from abi.graph import Access, Argument, Entrypoint, Graph, Launch, Program
from hal.admit import AdmissionRefused, Limits, Target, admit
from hal.admit_flow import Flow
from tests.support.graphs import (
    AUX,
    BOTH,
    FIRST,
    FRAME,
    LATER,
    OUT,
    READ,
    SECOND,
    STATE,
    WEIGHTS,
    WEIGHTS_BYTES,
    WRITE,
    edit,
    edit_all,
    valid_graph,
)

# Where code is one binary a program, and launches have three axes.

GPU = Target("opencl", "x86_64")


def device_graph() -> Graph:
    graph = replace(valid_graph(), driver="opencl", threads=0)
    programs = tuple(replace(p, code_offset=10 * i, code_bytes=10) for i, p in enumerate(graph.programs))
    launches = tuple(replace(one, global_size=(4, 2, 1), local_size=(8, 4, 2)) for one in graph.launches)
    return replace(graph, programs=programs, launches=launches)


def device_refusal(edits: dict[str, Any]) -> str:
    with pytest.raises(AdmissionRefused) as caught:
        admit(edit_all(device_graph(), edits), memoryview(bytes(40)), WEIGHTS_BYTES, GPU)
    return str(caught.value)


def test_a_graph_for_another_driver_is_admitted_there() -> None:
    assert admit(device_graph(), memoryview(bytes(40)), WEIGHTS_BYTES, GPU).driver == "opencl"
    most = (Limits().grid, 1, 1)
    graph = edit_all(device_graph(), {"launches.0.global_size": most, "launches.0.local_size": (1024, 1, 1)})
    graph = edit(graph, "programs.1.symbol", "w0")  # names are only labels where each program has its own binary
    admit(graph, memoryview(bytes(40)), WEIGHTS_BYTES, GPU)


@pytest.mark.parametrize(
    "edits",
    [
        {"launches.0.global_size": (1, 1)},
        {"launches.0.local_size": (1, 1)},
        {"launches.0.global_size": (1, 1), "launches.0.local_size": (1, 1)},
        {"launches.0.global_size": (0, 1, 1)},
        {"launches.0.global_size": (1, 1, 1 << 31)},
        {"launches.0.local_size": (1, 0, 1)},
        {"launches.0.local_size": (1025, 1, 1)},
        {"launches.0.local_size": (32, 32, 2)},
    ],
)  # fmt: skip
def test_a_launch_of_impossible_size_is_refused(edits: dict[str, Any]) -> None:
    launch = edit_all(device_graph(), edits).launches[0]
    assert device_refusal(edits) == (
        "grid: launch 0 (w0 'load'): launch size; expected three axes of 1..2147483647 groups, each of 1..1024 items; "
        f"found {launch.global_size} x {launch.local_size}"
    )


@pytest.mark.parametrize(("offset", "size"), [(31, 10), (30, 11), (0, 0)])
def test_a_program_outside_the_code_is_refused(offset: int, size: int) -> None:
    assert device_refusal({"programs.3.code_offset": offset, "programs.3.code_bytes": size}) == (
        "code-range: program 3 (w3): its binary lies outside the code; expected 1.. bytes that end by 40; "
        f"found {offset} + {size}"
    )


# The flow of bytes.


def flow_graph(launches: list[tuple[tuple[Access, int, int, int], ...]]) -> Graph:
    """An entrypoint of launches given as arguments (access, buffer, offset, size), over valid_graph's buffers."""
    graph = valid_graph()
    programs = tuple(Program(f"p{i}", f"w{i}", tuple(a[0] for a in args)) for i, args in enumerate(launches))
    table = tuple(Launch(i, tuple(Argument(*a[1:]) for a in args)) for i, args in enumerate(launches))
    return replace(
        graph, programs=programs, launches=table, entrypoints=(Entrypoint("e", 0, len(table), (0,), (), (0, 1), 1),)
    )


def follow(launches: list[tuple[tuple[Access, int, int, int], ...]]) -> str:
    """ "" where the flow is admitted, else the refusal."""
    graph = flow_graph(launches)
    try:
        Flow(graph, 0, (FRAME, OUT)).follow()
    except AdmissionRefused as error:
        return str(error)
    return ""


LOAD = ((WRITE, FIRST, 0, 64), (READ, FRAME, 0, 64))
SAVE = ((WRITE, OUT, 0, 64), (READ, FIRST, 0, 64))


@pytest.mark.parametrize(
    ("launches", "text"),
    [
        ([LOAD, SAVE], ""),
        ([LOAD, ((BOTH, FIRST, 0, 64),), SAVE], ""),
        ([LOAD, ((BOTH, SECOND, 0, 64),), SAVE], "uninitialised: launch 1 (w1 'p1'): reads bytes 0..64 of buffer 2 "
            "before anything wrote them"),
        ([LOAD, ((WRITE, LATER, 0, 1),), SAVE], "clobbered: launch 2 (w2 'p2'): reads bytes 32..33 of buffer 1, which "
            "launch 1 (w1 'p1') overwrote through buffer 7"),
        ([LOAD, ((WRITE, LATER, 31, 1),), SAVE], "clobbered: launch 2 (w2 'p2'): reads bytes 63..64 of buffer 1, which "
            "launch 1 (w1 'p1') overwrote through buffer 7"),
        ([LOAD, ((WRITE, LATER, 0, 32),), ((WRITE, FIRST, 32, 32), (READ, FRAME, 0, 32)), SAVE], ""),
        ([LOAD, SAVE, ((WRITE, LATER, 0, 32),)], ""),
        ([LOAD, ((WRITE, OUT, 0, 40), (READ, FIRST, 0, 40)), ((WRITE, OUT, 40, 24), (READ, FIRST, 40, 24))], ""),
        ([LOAD, SAVE, ((READ, OUT, 0, 64), (WRITE, SECOND, 0, 64)), SAVE], ""),
        ([LOAD, SAVE, ((READ, OUT, 0, 63), (WRITE, SECOND, 0, 64)), SAVE], "overwrites-output: launch 3 (w3 'p3'): "
            "overwrites bytes 63..64 of output buffer 3 that nothing has read"),
        ([LOAD, SAVE, ((READ, OUT, 0, 64), (WRITE, SECOND, 0, 64)), SAVE, SAVE], "overwrites-output: launch 4 (w4 "
            "'p4'): overwrites bytes 0..64 of output buffer 3 that nothing has read"),
        ([LOAD, SAVE, ((BOTH, OUT, 0, 64),)], ""),
        ([LOAD, ((BOTH, OUT, 0, 64), (READ, FIRST, 0, 64))], "uninitialised: launch 1 (w1 'p1'): reads bytes 0..64 of "
            "buffer 3 before anything wrote them"),
        ([LOAD, ((WRITE, OUT, 1, 63), (READ, FIRST, 0, 64))], "output-not-covered: entrypoint 0 (e): no launch writes "
            "bytes 0..1 of output buffer 3; expected all 64 bytes written"),
        ([((WRITE, OUT, 0, 64), (READ, WEIGHTS, 0, 64))], "input-not-read: entrypoint 0 (e): no launch reads input "
            "buffer 0; expected results that depend on every input"),
        ([LOAD, ((WRITE, OUT, 0, 64), (READ, FIRST, 0, 64), (READ, AUX, 0, 16))], "not-bound: launch 1 (w1 'p1'): uses "
            "aux buffer 5, which entrypoint 0 (e) does not bind"),
        ([LOAD, ((READ, STATE, 0, 64), (WRITE, OUT, 0, 64)), ((WRITE, STATE, 0, 64), (READ, FIRST, 0, 64))], ""),
    ],
)  # fmt: skip
def test_every_byte_read_was_written_through_the_same_buffer(
    launches: list[tuple[tuple[Access, int, int, int], ...]], text: str
) -> None:
    assert follow(launches) == text


@pytest.mark.parametrize(
    ("one", "two", "overlap"),
    [
        ((WRITE, FIRST, 0, 32), (READ, FIRST, 32, 32), False),
        ((WRITE, FIRST, 0, 33), (READ, FIRST, 32, 32), True),
        ((READ, FIRST, 32, 32), (WRITE, FIRST, 0, 33), True),
        ((READ, FIRST, 32, 32), (WRITE, FIRST, 0, 32), False),
        ((READ, FIRST, 0, 64), (READ, FIRST, 0, 64), False),
        ((WRITE, STATE, 0, 64), (WRITE, STATE, 0, 64), True),
        ((BOTH, STATE, 0, 64), (READ, STATE, 63, 1), True),
        ((WRITE, LATER, 0, 32), (READ, FIRST, 0, 32), False),
        ((WRITE, LATER, 0, 32), (READ, FIRST, 32, 1), True),
        ((WRITE, SECOND, 0, 64), (READ, FIRST, 0, 64), False),
        ((WRITE, STATE, 0, 64), (READ, FRAME, 0, 64), False),
    ],
)  # fmt: skip
def test_a_launch_may_not_write_what_another_argument_covers(
    one: tuple[Access, int, int, int], two: tuple[Access, int, int, int], overlap: bool
) -> None:
    text = follow([LOAD, (one, two), LOAD, SAVE])
    if overlap:
        assert text == (
            "alias: launch 1 (w1 'p1'): argument 1 overlaps argument 0, and one of them is written; "
            "expected ranges apart, or one argument with access readWrite"
        )
    else:
        assert text == ""


def test_overlap_is_found_between_any_two_arguments() -> None:
    far = ((WRITE, STATE, 0, 32), (READ, FIRST, 0, 64), (READ, STATE, 0, 32))
    assert follow([LOAD, far, SAVE]).startswith("alias: launch 1 (w1 'p1'): argument 2 overlaps argument 0")
