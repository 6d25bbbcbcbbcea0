"""The HIL commands of `fenced-lab`: hil run, hil faults, hil probes."""

# ruff: noqa: PLC0415 (the bench brings plots and the compiler in, which no other command needs)

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from lab.folder import make_anew
from lab.hil.daemon import VEHICLE
from lab.hil.scenario import Scenario, ScenarioRefusal, ScenarioRefused
from lab.json_text import json_text

if TYPE_CHECKING:
    from lab.hil.bench import Bench
    from lab.hil.faults.fault import Fault, Finding
    from lab.hil.run import Report

__all__ = ["add_commands"]

NOT_MET = 3
"""Exit status of a scenario that was not as expected, or a fault with a wrong answer: as any refusal."""


def add_commands(commands: Any) -> None:
    """Add this room's commands to the command line's subparsers."""
    hil = commands.add_parser("hil", help="try a daemon: scenarios, and every fault seen in the field")
    verbs = hil.add_subparsers(required=True, metavar="VERB")
    run = verbs.add_parser("run", help="play scenarios and hold each against what it expects")
    run.add_argument("scenarios", nargs="+", type=Path, metavar="SCENARIO")
    run.add_argument("--audit", type=Path, help="with --sockets: the daemon's audit log")
    run.set_defaults(command=_run)
    faults = verbs.add_parser("faults", help="inject the faults of the cases; all, or rows as frames/12")
    faults.add_argument("rows", nargs="*", metavar="ROW")
    faults.add_argument("--lab", type=Path, help="with --sockets: the folder of the probes that the daemon serves")
    faults.add_argument("--list", action="store_true", help="only say which there are")
    faults.set_defaults(command=_faults)
    for verb in (run, faults):
        verb.add_argument("--sockets", type=Path, help="a daemon that serves already; default: one of its own")
        verb.add_argument("--junit", type=Path, metavar="FILE", help="write JUnit XML here")
        verb.add_argument("--html", type=Path, metavar="FILE", help="write a page here")
        verb.add_argument("--vehicle", type=Path, default=VEHICLE, help="the environment that holds bin/fenced")
    probes = verbs.add_parser("probes", help="sign the probe models for a daemon that is to be tried")
    probes.add_argument("-o", "--output", type=Path, default=Path("out/probes"), help="folder, made anew")
    probes.set_defaults(command=_probes)


def _bar(total: int, what: str) -> tuple[Progress, Any]:
    bar = Progress(TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn(), transient=True,
                   console=Console(stderr=True))  # fmt: skip
    return bar, bar.add_task(what, total=total)


def _write(path: Path | None, text: str) -> None:
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


def _run(arguments: argparse.Namespace) -> int:
    from lab.hil import report as reports
    from lab.hil.scenario_toml import load_scenario
    from lab.hil.verdict import WrongAnswer

    scenarios = [load_scenario(path) for path in arguments.scenarios]
    played: list[Report] = []
    try:
        for scenario in scenarios:
            played.append(_play(scenario, arguments))
            if not arguments.json:
                _tell(played[-1])
    except WrongAnswer as wrong:
        raise ScenarioRefused(
            ScenarioRefusal.STOPPED, f"the drive came to a stop: {wrong.what}", expected=wrong.expected,
            found=wrong.found, todo="see the daemon's log: the scenario waits for what did not come",
        ) from wrong  # fmt: skip
    _write(arguments.junit, reports.scenario_junit(played))
    _write(arguments.html, reports.scenario_page(played))
    if arguments.json:
        summaries = [reports.scenario_summary(report) for report in played]
        print(json_text(summaries if len(summaries) > 1 else summaries[0], indent=2))
    return 0 if all(report.passed for report in played) else NOT_MET


def _play(scenario: Scenario, arguments: argparse.Namespace) -> Report:
    from lab.hil.run import Attached, play

    attached = Attached(arguments.sockets, arguments.audit) if arguments.sockets else None
    bar, task = _bar(scenario.frames, scenario.name)
    with bar, tempfile.TemporaryDirectory(prefix="fenced-hil-") as folder:
        return play(scenario, Path(folder), attached=attached, vehicle=arguments.vehicle,
                    on_frame=lambda index, record: bar.update(task, completed=index + 1))  # fmt: skip


def _tell(report: Report) -> None:
    from lab.hil.report import shown

    console = Console(highlight=False, soft_wrap=True)
    for one in report.checks:
        verdict = "[green]met    [/green]" if one.passed else "[red]NOT MET[/red]"
        console.print(f"{verdict} {one.measure} {one.bound}: {one.why or shown(one.found)}")
    met = sum(one.passed for one in report.checks)
    console.print(f"{report.scenario.name}: {met} of {len(report.checks)} expectations met, {report.seconds:.1f} s")


def _faults(arguments: argparse.Namespace) -> int:
    from lab.hil import report as reports
    from lab.hil.faults.fault import Outcome

    chosen = _chosen(arguments.rows)
    if arguments.list:
        for fault in chosen:
            print(f"{fault.row:12} {fault.title}: {fault.answer}")
        return 0
    bar, task = _bar(len(chosen), "faults")
    with bar, tempfile.TemporaryDirectory(prefix="fenced-hil-") as folder:
        findings = _inject(arguments, chosen, Path(folder), lambda: bar.advance(task))
    _write(arguments.junit, reports.findings_junit("fenced faults", findings))
    _write(arguments.html, reports.findings_page("fenced HIL: faults seen in the field", findings))
    _tell_findings(findings, as_json=arguments.json)
    return NOT_MET if any(one.outcome is Outcome.WRONG for one in findings) else 0


def _chosen(rows: list[str]) -> list[Fault]:
    from lab.hil.faults.index import FAULTS

    chosen = [fault for fault in FAULTS if not rows or fault.row in rows]
    unknown = set(rows) - {fault.row for fault in chosen}
    if unknown:
        raise ScenarioRefused(
            ScenarioRefusal.VALUE, "rows", expected="rows that have an injector", found=", ".join(sorted(unknown)),
            todo="see `fenced-lab hil faults --list`; rows of the compiler are tested at compile time",
        )  # fmt: skip
    return chosen


def _inject(
    arguments: argparse.Namespace, chosen: list[Fault], folder: Path, done: Callable[[], object]
) -> list[Finding]:
    from lab.hil.faults.fault import try_fault

    findings = []
    with _bench(arguments, folder) as bench:
        for fault in chosen:
            findings.append(try_fault(fault, bench))
            done()
    return findings


def _bench(arguments: argparse.Namespace, folder: Path) -> AbstractContextManager[Bench]:
    from lab.hil.bench import Bench

    if arguments.sockets:
        return Bench.attached(arguments.sockets, folder, arguments.lab, arguments.vehicle)
    return Bench.started(folder, vehicle=arguments.vehicle)


def _tell_findings(findings: list[Finding], *, as_json: bool) -> None:
    from lab.hil.faults.fault import Outcome

    if as_json:
        rows = [{"row": one.fault.row, "outcome": one.outcome.value, "words": one.words} for one in findings]
        print(json_text(rows, indent=2))
        return
    console = Console(highlight=False, soft_wrap=True)
    colours = {Outcome.RIGHT: "green", Outcome.WRONG: "red", Outcome.UNAVAILABLE: "yellow"}
    for one in findings:
        console.print(f"[{colours[one.outcome]}]{one.outcome.value:11}[/] {one.fault.row:11} {one.fault.title}")
        if one.outcome is not Outcome.RIGHT:
            console.print(f"            {one.words}", markup=False)
    right = sum(one.outcome is Outcome.RIGHT for one in findings)
    console.print(f"{right} of {len(findings)} answered rightly")


def _probes(arguments: argparse.Namespace) -> int:
    from lab.hil.bench import PROBES
    from lab.hil.probe_lab import ProbeLab

    make_anew(arguments.output)
    lab = ProbeLab(arguments.output.resolve())
    for model in PROBES.values():
        print(lab.write(model))
    streams = "\n".join(f"[stream.{stream}]" for model in PROBES.values() for stream in model.streams)
    print(f"\nServe them with root_paths = [{json_text(str(lab.root_path))}] and the streams\n{streams}")
    print(f"then: fenced-lab hil faults --sockets DIR --lab {arguments.output}")
    return 0
