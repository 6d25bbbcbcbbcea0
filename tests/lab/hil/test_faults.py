"""Every fault of the cases is injected into a real daemon and answered rightly; no row is without its answer."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from lab.hil.bench import Bench, Need
from lab.hil.faults.fault import CompileCheck, Fault, Outcome, try_fault
from lab.hil.faults.index import FAULTS, ROWS
from lab.hil.faults.times import not_rising
from lab.hil.verdict import Unavailable
from tests.support.named_tests import missing

TABLES = ("frames", "runtime")


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.row)
def test_a_fault_gets_the_right_answer(bench: Bench, fault: Fault) -> None:
    finding = try_fault(fault, bench)
    assert finding.outcome is Outcome.RIGHT, finding.words
    assert finding.words


def test_every_row_of_the_cases_is_injected_or_named_with_its_compile_check(shared_dir: Path) -> None:
    rows = {
        f"{table}/{number}"
        for table in TABLES
        for number in re.findall(r"^\| (\d+) \|", (shared_dir / "cases" / f"{table}.md").read_text(), re.MULTILINE)
    }
    assert rows == set(ROWS)


def test_the_tests_of_a_compile_check_are_there() -> None:
    checks = [one for one in ROWS.values() if isinstance(one, CompileCheck)]
    assert not missing(name for check in checks for name in check.tests)
    assert all(check.refusals for check in checks)


def test_a_daemon_that_answers_otherwise_is_found_out(bench: Bench) -> None:
    honest = replace(FAULTS[0], need=Need.SERVING, inject=not_rising([(1, 0), (2, 1)], {"time_not_rising": 1}))
    finding = try_fault(honest, bench)
    assert finding.outcome is Outcome.WRONG
    assert "expected {'time_not_rising': 1}, found {}" in finding.words


def test_an_answer_that_nobody_expected_is_wrong_and_no_fault_of_the_harness(bench: Bench) -> None:
    def unknown(bench: Bench) -> str:
        bench.camera("nobody").close()
        return "opened"

    finding = try_fault(replace(FAULTS[0], need=Need.SERVING, inject=unknown), bench)
    assert (finding.outcome, "UNKNOWN_STREAM" in finding.words) == (Outcome.WRONG, True)


def test_a_daemon_that_serves_already_is_tried_as_far_as_it_can_be(bench: Bench, tmp_path: Path) -> None:
    stranger = Bench.attached(bench.sockets, tmp_path)
    outcomes = {need: try_fault(next(one for one in FAULTS if one.need is need), stranger).outcome for need in Need}
    assert outcomes == {
        Need.SERVING: Outcome.RIGHT, Need.PROBES: Outcome.UNAVAILABLE, Need.OWN: Outcome.UNAVAILABLE,
    }  # fmt: skip
    assert bench.lab is not None
    friend = Bench.attached(bench.sockets, tmp_path, bench.lab.folder)
    by_row = {one.row: one for one in FAULTS}
    assert try_fault(by_row["runtime/10"], friend).outcome is Outcome.RIGHT
    with pytest.raises(Unavailable, match="daemons of the harness's own"):
        friend.require(Need.OWN)
