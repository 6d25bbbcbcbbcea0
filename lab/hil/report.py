"""What came of a scenario, for people and for machines: one self-contained HTML page, JUnit XML, and JSON.

JUnit's schema is the de-facto one of Ant and pytest: a testcase an expectation, a failure with what was expected and
found, and properties for the model's digest, the latency's quantiles and the ledger.
"""

from __future__ import annotations

import html
import math
import platform
from collections.abc import Mapping, Sequence
from typing import Any
from xml.etree import ElementTree as Xml

from lab.hil import plots
from lab.hil.faults.fault import Finding, Outcome
from lab.hil.html import Mark, page, svg, table
from lab.hil.measure import Check
from lab.hil.run import Report
from lab.json_text import json_text

__all__ = [
    "finding_rows",
    "findings_junit",
    "findings_page",
    "scenario_junit",
    "scenario_page",
    "scenario_parts",
    "scenario_summary",
]

_MET = {True: Mark("met", "good"), False: Mark("not met", "bad")}
_KINDS = {Outcome.RIGHT: "good", Outcome.WRONG: "bad", Outcome.UNAVAILABLE: "none"}


def shown(value: float) -> str:
    """A measure as a person reads it."""
    if not math.isfinite(value):
        return "none" if math.isnan(value) else f"{value:g}"
    return f"{value:.4g}" if value != round(value) else f"{value:.0f}"


def scenario_page(played: Sequence[Report]) -> str:
    """The page of the scenarios that were played."""
    if len(played) == 1:
        return page(f"fenced HIL: {played[0].scenario.name}", scenario_parts(played[0]))
    rows = [(one.scenario.name, f"{one.seconds:.1f} s", _MET[one.passed]) for one in played]
    parts = [table("Scenarios", ("scenario", "took", ""), rows)]
    for one in played:
        parts += [f"<h1>{html.escape(one.scenario.name)}</h1>", *scenario_parts(one)]
    return page("fenced HIL: scenarios", parts)


def scenario_parts(report: Report) -> list[str]:
    """Verdict, pictures and tables of one scenario, as HTML parts."""
    scenario, trace = report.scenario, report.trace
    verdict = "every expectation was met" if report.passed else "NOT every expectation was met"
    parts = [
        f"<p>{html.escape(scenario.about)}</p>",
        f'<p class="verdict"><span class="{"good" if report.passed else "bad"}">{verdict}</span>: '
        f"{len(trace.frames)} frame periods at {scenario.rate_hz:g} Hz ({scenario.duration_s:g} s of the scenario's "
        f"clock, {scenario.pace.value}) in {report.seconds:.1f} s.</p>",
    ]
    if trace.frames:
        parts += _pictures(report)
    parts += [
        table("Expectations", ("measure", "expected", "found", ""), [_check_row(one) for one in report.checks]),
        table("Events", ("at", "event", "the daemon's answer"),
              [(f"{one.at_s:g} s", one.event, one.answer or "done") for one in trace.requests]),
        table("All measures", ("measure", "value"),
              [(name, shown(value)) for name, value in sorted(report.measures.items())]),
        _circumstances(report),
    ]  # fmt: skip
    return parts


def _pictures(report: Report) -> list[str]:
    trace, parts = report.trace, []
    if trace.lateral_m():
        limits = [one.bound.number for one in report.checks if one.measure == "car.max_lateral_m"]
        parts += ["<h2>Trajectory</h2>", svg(plots.trajectory(trace, limits[0] if limits else None))]
    for name in trace.results()[0].outputs if trace.results() else ():
        parts += [f"<h2>{html.escape(name)}</h2>", svg(plots.output(trace, name))]
    deadline_ms = report.model.deadline_ns / 1e6
    parts += ["<h2>Latency: start of frame to published</h2>", svg(plots.latency(trace, deadline_ms or None))]
    return [*parts, "<h2>How frame periods ended</h2>", svg(plots.statuses(trace))]


def _check_row(check: Check) -> tuple[object, ...]:
    return check.measure, check.bound, check.why or shown(check.found), _MET[check.passed]


def _circumstances(report: Report) -> str:
    status, model = report.status, report.model
    digests = dict.fromkeys(one.digest for one in report.trace.results())
    rows = [
        ("model", f"{model.name} {model.version}"),
        *(("digest that gave results", digest) for digest in digests),
        ("daemon", f"{status['version']}, {status['state']}"),
        ("device", f"{status['device']['driver']}: {status['device']['name']}, {status['device']['cores']} cores"),
        ("audit log", f"{status['audit']['entries']} entries, head {status['audit']['sha256']}"),
        ("machine", platform.platform()),
        ("Python", platform.python_version()),
    ]
    return table("Circumstances", ("", ""), rows)


def scenario_summary(report: Report) -> dict[str, Any]:
    """The same for scripts; every value is JSON: None where nothing was measured, or no finite number."""
    return {
        "scenario": report.scenario.name, "passed": report.passed, "model": report.model.name,
        "digests": sorted({one.digest for one in report.trace.results()}), "seconds": round(report.seconds, 3),
        "checks": [
            {"measure": one.measure, "expected": str(one.bound), "passed": one.passed,
             "found": _number(one.found)} | ({"why": one.why} if one.why else {})
            for one in report.checks
        ],
        "measures": {name: _number(value) for name, value in sorted(report.measures.items())},
        "requests": [{"at_s": one.at_s, "event": one.event, "answer": one.answer} for one in report.trace.requests],
    }  # fmt: skip


def _number(value: float) -> float | None:
    return value if math.isfinite(value) else None


def scenario_junit(played: Sequence[Report]) -> str:
    """JUnit XML of the scenarios that were played: a suite each."""
    return _document(*(_scenario_suite(report) for report in played))


def _scenario_suite(report: Report) -> Xml.Element:
    suite = _suite(report.scenario.name, len(report.checks), sum(not one.passed for one in report.checks), 0)
    suite.set("time", f"{report.seconds:.3f}")
    named = {"model": report.model.name, "model_digest": ", ".join(scenario_summary(report)["digests"])}
    wanted = ("latency_ms", "ledger", "car")
    measured = {
        name: shown(value) for name, value in report.measures.items() if name.partition(".")[0] in wanted
    }  # fmt: skip
    _properties(suite, named | measured)
    for check in report.checks:
        case = Xml.SubElement(suite, "testcase", classname=report.scenario.name, name=f"{check.measure} {check.bound}")
        if not check.passed:
            text = f"{check.measure}: expected {check.bound}, found {shown(check.found)}. {check.why}"
            Xml.SubElement(case, "failure", message=text.strip()).text = json_text(scenario_summary(report)["requests"])
    return suite


def findings_page(title: str, findings: Sequence[Finding]) -> str:
    """The page of injected faults: the right answer of each row beside what was seen."""
    counts = {outcome: sum(one.outcome is outcome for one in findings) for outcome in Outcome}
    lead = ", ".join(f"{count} {outcome.value}" for outcome, count in counts.items() if count)
    columns = ("row", "seen in the field", "right answer", "what was seen", "")
    return page(
        title, [f'<p class="verdict">{html.escape(lead)}</p>', table("Faults", columns, finding_rows(findings))]
    )


def finding_rows(findings: Sequence[Finding]) -> list[tuple[object, ...]]:
    """A row for each finding: its row of the cases, title, right answer, what was seen, verdict."""
    return [
        (one.fault.row, one.fault.title, one.fault.answer, one.words, Mark(one.outcome.value, _KINDS[one.outcome]))
        for one in findings
    ]


def findings_junit(name: str, findings: Sequence[Finding]) -> str:
    """JUnit XML of injected faults: a testcase a row."""
    wrong = sum(one.outcome is Outcome.WRONG for one in findings)
    suite = _suite(name, len(findings), wrong, sum(one.outcome is Outcome.UNAVAILABLE for one in findings))
    for one in findings:
        case = Xml.SubElement(suite, "testcase", classname=name, name=f"{one.fault.row} {one.fault.title}",
                              time=f"{one.seconds:.3f}")  # fmt: skip
        if one.outcome is Outcome.WRONG:
            Xml.SubElement(case, "failure", message=one.words).text = f"right answer: {one.fault.answer}"
        elif one.outcome is Outcome.UNAVAILABLE:
            Xml.SubElement(case, "skipped", message=one.words)
    return _document(suite)


def _suite(name: str, tests: int, failures: int, skipped: int) -> Xml.Element:
    counts = {"tests": tests, "failures": failures, "errors": 0, "skipped": skipped}
    return Xml.Element("testsuite", {"name": name} | {key: str(value) for key, value in counts.items()})


def _properties(suite: Xml.Element, values: Mapping[str, str]) -> None:
    parent = Xml.SubElement(suite, "properties")
    for name, value in values.items():
        Xml.SubElement(parent, "property", name=name, value=value)


def _document(*parts: Xml.Element) -> str:
    suites = Xml.Element("testsuites")
    suites.extend(parts)
    Xml.indent(suites)
    return '<?xml version="1.0" encoding="utf-8"?>\n' + Xml.tostring(suites, encoding="unicode") + "\n"
