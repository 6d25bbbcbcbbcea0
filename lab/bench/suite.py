"""`make bench`: every row beside its peer, and what costs do as things grow, in one run.

Printed as a table, written as `bench.json` after each benchmark and as one page, `bench.html`. A ratio is the peer's
time over ours: above 1 we are faster. Absolute times say more about the machine than about us.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Console

from lab.bench import table
from lab.bench.curve import Curve
from lab.bench.result import Result, this_machine
from lab.bench.row import Row, merge
from lab.compile.refusal import CompileRefusal, CompileRefused
from lab.folder import make_anew
from lab.refusal import LabRefused


@dataclass(frozen=True)
class Setting:
    """What a benchmark may need: a new folder of its own, and the folder with the public models, or None."""

    folder: Path
    models: Path | None = None


def _room(name: str) -> Any:
    """The module; each brings its own heavy libraries in."""
    return importlib.import_module(f"lab.bench.{name}")


def _dispatch(driver: str) -> list[Row]:
    try:
        rows: list[Row] = _room("dispatch").run(driver=driver)
        return rows + _room("submit").run() if driver == "hcq" else rows
    except CompileRefused as refused:
        if refused.code is not CompileRefusal.TARGET:
            raise
        print(f"dispatch {driver}: left out: {refused.what}: {refused.found}", file=sys.stderr)
        return []


ROWS: dict[str, Callable[[Setting], list[Row]]] = {
    "calls": lambda at: _room("calls").run(at.folder),
    "barrier": lambda _: _room("barrier").run(),
    "dispatch": lambda _: _room("dispatch").run(),
    "dispatch-opencl": lambda _: _dispatch("opencl"),
    "dispatch-hcq": lambda _: _dispatch("hcq"),
    "driving": lambda at: _room("driving").run(at.folder),
    "end-to-end": lambda at: _room("end_to_end").run(at.folder, at.models),
    "guard": lambda at: _room("guard").run(at.folder),
    "handoff": lambda at: _room("handoff").run(at.folder),
    "jitter": lambda at: _room("jitter").run(at.folder),
    "kernels": lambda at: _room("kernels").run(at.folder, at.models),
    "service": lambda at: _room("service").run(at.folder),
    "start": lambda at: _room("start").run(at.folder),
    "stress": lambda _: _room("stress").run(),
    "tap": lambda at: _room("tap").run(at.folder),
    "verify": lambda at: _room("verify").run(at.folder),
}
CURVES: dict[str, Callable[[Setting], list[Curve]]] = {
    "growth-launches": lambda _: _room("growth").launches(),
    "growth-frames": lambda at: _room("growth_served").frame_sizes(at.folder),
    "growth-streams": lambda at: _room("growth_served").streams(at.folder),
    "growth-consumers": lambda at: _room("growth_served").consumers(at.folder),
    "growth-bundles": lambda at: _room("growth").bundle_sizes(at.folder),
}

WIDTH = 180
"""Columns of the table where there is no terminal to ask."""


def run(folder: Path, names: Sequence[str], *, as_json: bool, models: Path | None = None, repeat: int = 1) -> int:
    """Run the named benchmarks, or all, in `folder`, which is made anew. Returns an exit code: 1 where one failed.

    models: the folder with the public models. repeat: how often rows are measured; curves are once.
    """
    unknown = set(names) - {*ROWS, *CURVES}
    if unknown:
        known = ", ".join((*ROWS, *CURVES))
        raise LabRefused.options("benchmarks", expected=f"names of {known}", found=", ".join(sorted(unknown)))
    if models is not None and not models.is_dir():
        raise LabRefused.options(
            "--models", expected="a folder with the public models", found=f"{models}, which is none"
        )
    make_anew(folder)
    console = Console(stderr=as_json)
    if not console.is_terminal:
        console.width = WIDTH
    result = Result(this_machine(), (), (), ())
    own = folder.absolute()  # a daemon works elsewhere
    for name in dict.fromkeys(names or (*ROWS, *CURVES)):
        try:
            with console.status(f"measuring {name}"):
                result = _measured(result, name, Setting(own / name, models), repeat)
        except Exception as error:  # whatever one ends in: the others go on
            console.print(f"{name} failed: {error!r}", highlight=False, markup=False)
            result = replace(result, failed=(*result.failed, name))
        _write(folder, result)
    if as_json:
        print(result.to_json())
    else:
        table.show(console, result)
        console.print(f"page {folder / 'bench.html'}", highlight=False)
    return 1 if result.failed else 0


def _measured(result: Result, name: str, at: Setting, repeat: int) -> Result:
    """The result with what the named benchmark found."""
    load = os.getloadavg()[0]
    if name in CURVES:
        curves = (replace(one, bench=name, load=load) for one in CURVES[name](at))
        return replace(result, curves=(*result.curves, *curves))
    found: dict[tuple[str, str], list[Row]] = {}
    for again in range(repeat):
        folder = at.folder / str(again) if repeat > 1 else at.folder
        for row in ROWS[name](replace(at, folder=folder)):
            found.setdefault((row.name, row.peer), []).append(row)
    rows = (replace(merge(repetitions), bench=name, load=load) for repetitions in found.values())
    return replace(result, rows=(*result.rows, *rows))


def _write(folder: Path, result: Result) -> None:
    from lab.bench.page import bench_page  # noqa: PLC0415 (matplotlib)

    (folder / "bench.json").write_text(result.to_json() + "\n")
    (folder / "bench.html").write_text(bench_page(result), encoding="utf-8")
