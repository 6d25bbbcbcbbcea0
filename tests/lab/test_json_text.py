"""What the lab writes as JSON is JSON: no Infinity and no NaN, whatever was measured; null stands for them."""

from __future__ import annotations

import ast
import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from lab.bench.result import Result, this_machine
from lab.bench.row import Row
from lab.compile.report import CompileReport, Details, EntryReport, Stage
from lab.hil.measure import Check
from lab.hil.report import scenario_junit, scenario_summary
from lab.hil.run import Report
from lab.hil.scenario import Bound
from lab.json_text import json_text
from lab.replay.batch import BatchReport, Outcome
from lab.replay.compare import Comparison
from lab.replay.replay import ReplayReport
from lab.replay.unit import Unit

LAB = Path(__file__).parents[2] / "lab"
INF, NAN = math.inf, math.nan


def strictly(text: str) -> Any:
    """What a reader that keeps to RFC 8259 makes of it."""

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is no JSON")

    return json.loads(text, parse_constant=refuse)


@dataclass
class Measured:
    name: str
    values: tuple[float, ...]


def test_what_is_no_finite_number_is_null_at_any_depth() -> None:
    tree = {"a": [1.5, INF, {"b": -INF}], "c": Measured("d", (NAN, 2.0)), "e": np.float64("nan")}
    assert strictly(json_text(tree)) == {
        "a": [1.5, None, {"b": None}], "c": {"name": "d", "values": [None, 2.0]}, "e": None,
    }  # fmt: skip


def test_what_is_finite_is_written_as_json_does_it() -> None:
    tree = {"z": [1, 2.5, True, None, "ü"], "a": {"b": ()}}
    assert json_text(tree) == json.dumps(tree)
    assert json_text(tree, indent=2) == json.dumps(tree, indent=2)
    ordered = json.dumps(tree, sort_keys=True, separators=(",", ":"))
    assert json_text(tree, sort_keys=True, separators=(",", ":")) == ordered


def test_what_json_cannot_hold_is_an_error() -> None:
    with pytest.raises(TypeError):
        json_text({"path": Path("x")})


def replayed() -> ReplayReport:
    """A replay in which one output was missing and another was no number."""
    compared = Comparison()
    one = np.ones(2, np.float32)
    compared.add(7, {"a": np.array([1.0, NAN], np.float32)}, {"a": one, "b": one})
    assert compared.outputs["b"].largest == INF
    return ReplayReport("x.mcap", "00", "tiny", "11", "22", frames=1, compared=compared)


def test_an_output_that_is_infinitely_far_off_is_null_in_a_replays_report() -> None:
    tree = strictly(json_text(replayed().as_dict(), indent=2))
    assert tree["compared"]["outputs"]["b"] == {"largest": None, "mean": None, "outside": 1, "frames": 1}
    assert tree["compared"]["worst"][0]["absolute"] is None
    assert tree["compared"]["series"]["b"] == [None]
    batch = BatchReport([Outcome(Unit(Path("x.mcap"), Path("tiny.fenced")), replayed())])
    merged = strictly(json_text(batch.as_dict()))
    assert merged["outputs"]["tiny.fenced"]["b"]["largest"] is None


def scenario(found: float) -> Report:
    check = Check("output.values.max", Bound.parse("<= 1"), found, False)
    named = {
        "scenario": SimpleNamespace(name="s"), "model": SimpleNamespace(name="m"),
        "trace": SimpleNamespace(results=list, requests=[]),
    }  # fmt: skip
    return Report(**cast("Any", named), measures={"output.values.max": found}, checks=(check,), status={}, seconds=1.0)


@pytest.mark.parametrize("found", [INF, NAN])
def test_a_measure_that_is_no_finite_number_is_null_in_a_scenarios_report(found: float) -> None:
    tree = strictly(json_text(scenario_summary(scenario(found))))
    assert tree["measures"]["output.values.max"] is None
    assert tree["checks"][0]["found"] is None
    assert f"found {'inf' if found == INF else 'none'}." in scenario_junit([scenario(found)])


def test_a_ratio_without_end_is_null_in_a_benchmarks_result() -> None:
    row = Row("free", 1e-9, INF, "ns", "peer", INF, 0.0, ratios=(INF, 2.0))
    assert strictly(Result(this_machine(), (row,), ()).to_json())["rows"][0]["ratios"] == [None, 2.0]


def test_a_time_that_is_no_number_is_null_in_a_compiles_report() -> None:
    details = Details(cast("Any", None), (), (), ())
    entry, stage = EntryReport("primary", "primary", 0, 0), Stage("time", NAN)
    report = CompileReport(Path("x"), "m", "1", 1, "cpu", 0, (), (entry,), 0, 0, 0, 0, 0, (), (stage,), details)
    assert strictly(report.to_json())["stages"] == [{"name": "time", "seconds": None}]


def loose_writers(tree: ast.Module) -> Iterator[int]:
    """Lines that name `json.dumps` or `json.dump` outside a call with `allow_nan=False`."""
    strict = {
        id(part)
        for call in ast.walk(tree)
        if isinstance(call, ast.Call) and any(one.arg == "allow_nan" and _is_false(one.value) for one in call.keywords)
        for part in ast.walk(call.func)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module == "json":
            yield node.lineno
        writes = isinstance(node, ast.Attribute) and node.attr in ("dump", "dumps") and _names(node.value, "json")
        if isinstance(node, ast.Attribute) and writes and id(node) not in strict:
            yield node.lineno


def _is_false(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is False


def _names(node: ast.expr, name: str) -> bool:
    return isinstance(node, ast.Name) and node.id == name


def test_nothing_in_the_lab_writes_json_another_way() -> None:
    sources = sorted(LAB.rglob("*.py"))
    assert len(sources) > 100
    loose = [f"{path}:{line}" for path in sources for line in loose_writers(ast.parse(path.read_text()))]
    assert not loose, f"use lab.json_text: {loose}"


@pytest.mark.parametrize(
    ("source", "count"),
    [
        ("json.dumps(x)", 1), ("json.dump(x, file, indent=1)", 1), ("json.dumps(x, allow_nan=True)", 1),
        ("json.dumps(x, allow_nan=False)", 0), ("json.loads(x)", 0), ("f = json.dumps", 1),
        ("from json import dumps", 1), ("f(json.dumps(x), allow_nan=False)", 1),
    ],
)  # fmt: skip
def test_a_writer_that_is_not_strict_is_found(source: str, count: int) -> None:
    assert len(list(loose_writers(ast.parse(source)))) == count
