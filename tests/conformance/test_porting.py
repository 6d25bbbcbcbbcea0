"""The worked example of docs/hal-porting.md keeps every promise that the guide asks for."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import replace

import pytest

from examples.hal.board import BoardAccelerator
from hal.accelerator import Module
from hal.conformance import CHECKS, Subject, Verdict, run_check, run_checks
from tests.conformance import subject


def board_module() -> Module:
    """The subject, with one instruction for each program."""
    graph = subject.graph()
    programs = tuple(replace(one, code_offset=4 * i, code_bytes=4) for i, one in enumerate(graph.programs))
    launches = tuple(replace(one, global_size=(1, 1, 1), local_size=(1, 1, 1)) for one in graph.launches)
    code = struct.pack(f"<{len(programs)}I", *range(len(programs)))
    graph = replace(graph, driver="board", programs=programs, launches=launches)
    return Module(graph, memoryview(code), memoryview(bytes(subject.OUT_BYTES)))


@pytest.fixture(scope="module")
def board() -> Iterator[BoardAccelerator]:
    accelerator = BoardAccelerator()
    yield accelerator
    accelerator.close()


@pytest.mark.parametrize("check", CHECKS)
def test_the_example_port_conforms(board: BoardAccelerator, check: str) -> None:
    finding = run_check(board, Subject(board_module(), subject.RUN, subject.LONG, many=500), check)
    assert finding.verdict is Verdict.PASSED, finding.detail


@pytest.mark.parametrize("entrypoint", [subject.STATEFUL, subject.AUXILIARY])
def test_its_state_and_aux_inputs_conform(board: BoardAccelerator, entrypoint: int) -> None:
    findings = run_checks(board, Subject(board_module(), entrypoint, many=50))
    assert not [finding for finding in findings if finding.verdict is Verdict.FAILED]
