"""`make bench`: every row beside its peer, in one run; printed as a table and written as JSON.

A ratio is the peer's time over ours: above 1 we are faster. Absolute times say more about the machine than about us.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path

from rich import box
from rich.console import Console
from rich.table import Table

from lab.bench.row import Row
from lab.folder import make_anew


def _calls(folder: Path) -> list[Row]:
    from lab.bench import calls  # noqa: PLC0415 (each brings its own heavy libraries in)

    return calls.run(folder)


def _barrier(_: Path) -> list[Row]:
    from lab.bench import barrier  # noqa: PLC0415 (each brings its own heavy libraries in)

    return barrier.run()


def _dispatch(_: Path) -> list[Row]:
    from lab.bench import dispatch  # noqa: PLC0415

    return dispatch.run()


def _dispatch_opencl(_: Path) -> list[Row]:
    from lab.bench import dispatch  # noqa: PLC0415
    from lab.compile.refusal import CompileRefused  # noqa: PLC0415

    try:
        return dispatch.run(driver="opencl")
    except CompileRefused:  # no such device in this machine: nothing to measure
        return []


def _dispatch_hcq(_: Path) -> list[Row]:
    from lab.bench import dispatch, submit  # noqa: PLC0415
    from lab.compile.refusal import CompileRefused  # noqa: PLC0415

    try:
        return dispatch.run(driver="hcq") + submit.run()
    except CompileRefused:  # no such device in this machine: nothing to measure
        return []


def _guard(folder: Path) -> list[Row]:
    from lab.bench import guard  # noqa: PLC0415

    return guard.run(folder)


def _handoff(folder: Path) -> list[Row]:
    from lab.bench import handoff  # noqa: PLC0415

    return handoff.run(folder)


def _jitter(folder: Path) -> list[Row]:
    from lab.bench import jitter  # noqa: PLC0415

    return jitter.run(folder)


def _service(folder: Path) -> list[Row]:
    from lab.bench import service  # noqa: PLC0415

    return service.run(folder)


def _start(folder: Path) -> list[Row]:
    from lab.bench import start  # noqa: PLC0415

    return start.run(folder)


def _stress(_: Path) -> list[Row]:
    from lab.bench import stress  # noqa: PLC0415

    return stress.run()


def _tap(folder: Path) -> list[Row]:
    from lab.bench import tap  # noqa: PLC0415

    return tap.run(folder)


def _verify(folder: Path) -> list[Row]:
    from lab.bench import verify  # noqa: PLC0415

    return verify.run(folder)


BENCHES: dict[str, Callable[[Path], list[Row]]] = {
    "calls": _calls,
    "barrier": _barrier,
    "dispatch": _dispatch,
    "dispatch-opencl": _dispatch_opencl,
    "dispatch-hcq": _dispatch_hcq,
    "guard": _guard,
    "handoff": _handoff,
    "jitter": _jitter,
    "service": _service,
    "start": _start,
    "stress": _stress,
    "tap": _tap,
    "verify": _verify,
}


def run(folder: Path, names: Sequence[str], *, as_json: bool) -> int:
    """Run the named benchmarks, or all, in `folder`, which is made anew. Returns an exit code."""
    unknown = set(names) - set(BENCHES)
    if unknown:
        raise ValueError(f"no benchmark {', '.join(sorted(unknown))}; there are: {', '.join(BENCHES)}")
    make_anew(folder)
    console, rows = Console(stderr=as_json), []
    for name in names or BENCHES:
        with console.status(f"measuring {name}"):
            rows += BENCHES[name](folder / name)
    text = json.dumps([asdict(row) for row in rows], indent=2)
    (folder / "bench.json").write_text(text + "\n")
    if as_json:
        print(text)
    else:
        console.print(_table(rows))
        console.print(_notes(rows), highlight=False)
    return 0


def _table(rows: Sequence[Row]) -> Table:
    table = Table(title="ours beside its peer, same run", box=box.SIMPLE)
    for heading in ("what", "ours", "peer", "ratio", "reach", "spread", "the peer is"):
        number = heading in ("ours", "peer", "ratio", "reach", "spread")
        table.add_column(heading, justify="right" if number else "left", no_wrap=heading != "the peer is")
    for row in rows:
        table.add_row(
            row.name, _quantity(row.ours, row.unit), _quantity(row.theirs, row.unit), f"{row.ratio:.2f}×",
            f"≥ {row.reach:.2f}×" if row.reach else "", f"{row.spread:.0%}", row.peer,
        )  # fmt: skip
    return table


def _notes(rows: Sequence[Row]) -> str:
    """Each row's note, rows with the same one together."""
    by_note: dict[str, list[str]] = {}
    for row in rows:
        if row.note:
            by_note.setdefault(row.note, []).append(row.name)
    return "\n".join(f"{', '.join(dict.fromkeys(names))}: {note}" for note, names in by_note.items())


def _quantity(value: float, unit: str) -> str:
    if unit == "calls":
        return f"{value:.1f}"
    return f"{value / 1024:.1f} MiB" if unit == "KiB" else f"{value / 1000:.1f} µs"
