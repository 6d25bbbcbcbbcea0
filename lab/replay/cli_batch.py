"""`fenced-lab replay` of many logs or bundles: the same units here or on a Ray cluster, and one merged report."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.progress import Progress

from lab.json_text import json_text
from lab.refusal import LabRefused
from lab.replay.batch import BatchReport, Outcome, run_here
from lab.replay.record import counted
from lab.replay.refusal import LogRefusal, LogRefused
from lab.replay.unit import Unit


def play(arguments: argparse.Namespace, units: Sequence[Unit]) -> int:
    """Run the units and tell what came of them. Raises LogRefused (MISMATCH) unless all were reproduced."""
    names = [unit.bundle.name for unit in units if unit.bundle]
    if arguments.ray is not None and len(names) < len(units):
        raise LabRefused.options(
            "--ray", expected="a --bundle: a daemon's sockets are on one machine", found="a replay into --sockets"
        )
    with_page = arguments.html is not None
    if arguments.ray is None:
        coming = run_here(units, retries=arguments.retries, with_page=with_page)
    else:
        from lab.replay.ray_cluster import on_ray  # noqa: PLC0415 (an extra)

        cpus = arguments.ray_cpus
        coming = on_ray(units, arguments.ray, retries=arguments.retries, with_page=with_page, cpus=cpus)
    found: dict[tuple[Path, Path | None], Outcome] = {}
    with Progress(console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("replaying", total=len(units))
        for outcome in coming:
            found[outcome.unit.key] = outcome
            progress.update(task, completed=len(found))
            if not arguments.json:
                print(_line(outcome))
    return _tell(arguments, BatchReport([found[unit.key] for unit in units]))


def _line(one: Outcome) -> str:
    tries = f", attempt {one.attempts}" if one.attempts > 1 else ""
    if one.report is None:
        assert one.refusal is not None
        return f"{one.unit.name}: {one.refusal.text}{tries}"
    compared = one.report.against or one.report.compared
    counts = f"{compared.equal} equal, {compared.within} within tolerance, {compared.mismatched} mismatched"
    counts += f"; of the rest: {idle}" if (idle := counted(one.report.not_run)) else ""
    return f"{one.unit.name}: {counts}; {one.seconds:.1f} s on {one.host}{tries}"


def _tell(arguments: argparse.Namespace, batch: BatchReport) -> int:
    text = json_text(batch.as_dict(), indent=2)
    if arguments.report:
        arguments.report.write_text(text + "\n")
    if arguments.html:
        from lab.replay.page_batch import batch_page  # noqa: PLC0415 (brings matplotlib in)

        arguments.html.write_text(batch_page(batch), encoding="utf-8")
    good = sum(one.passed for one in batch.outcomes)
    print(text if arguments.json else f"{good} of {len(batch.outcomes)} replays reproduced")
    if not batch.passed:
        first = next(one for one in batch.outcomes if not one.passed)
        raise LogRefused(
            LogRefusal.MISMATCH, f"{len(batch.outcomes) - good} of {len(batch.outcomes)} replays were not reproduced",
            expected="every log through every bundle equal or within tolerance", found=_line(first),
            todo="look at the report: --html FILE, --report FILE",
        )  # fmt: skip
    return 0
