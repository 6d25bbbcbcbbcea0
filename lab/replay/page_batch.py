"""One page about many replays: logs by bundles, each output over all logs, and every replay's own page folded in."""

from __future__ import annotations

import html
from collections.abc import Sequence

from lab.hil.html import Mark, page, table
from lab.replay.batch import BatchReport, Outcome
from lab.replay.page import verdict
from lab.replay.record import counted

__all__ = ["batch_page"]

_STYLE = "<style>details{margin:.6rem 0;border-top:1px solid #dde3ea;padding-top:.4rem}summary{cursor:pointer}</style>"


def batch_page(batch: BatchReport) -> str:
    """The page as HTML text."""
    bad = sum(not one.passed for one in batch.outcomes)
    word = Mark("all reproduced", "good") if batch.passed else Mark(f"{bad} NOT reproduced", "bad")
    hosts = sorted({one.host for one in batch.outcomes if one.host})
    lead = f"{len(batch.outcomes)} replays on {', '.join(hosts) or 'no machine'}"
    again = sum(one.attempts > 1 for one in batch.outcomes)
    lead += f"; {again} were tried again" if again else ""
    parts = [_STYLE, f'<p class="verdict"><span class="{word.kind}">{word}</span>: {html.escape(lead)}.</p>']
    parts += [_matrix(batch.outcomes), _outputs(batch), _list(batch.outcomes)]
    parts += ["<h2>Each replay</h2>", *map(_folded, batch.outcomes)]
    return page("fenced replay: many logs, many bundles", parts)


def _bundle(one: Outcome) -> str:
    return one.unit.bundle.name if one.unit.bundle else str(one.unit.sockets)


def _mark(one: Outcome) -> Mark:
    if one.refusal is not None:
        return Mark(one.refusal.code, "bad")
    assert one.report is not None
    compared = one.report.against or one.report.compared
    word, idle = verdict(one.report), counted(one.report.not_run)
    left = f"; of the rest: {idle}" if idle else ""
    return Mark(f"{word}: {compared.mismatched} of {compared.compared} outside{left}", word.kind)


def _matrix(outcomes: Sequence[Outcome]) -> str:
    bundles = list(dict.fromkeys(_bundle(one) for one in outcomes))
    cells = {(one.unit.log, _bundle(one)): _mark(one) for one in outcomes}
    rows = [
        (log.name, *(cells.get((log, bundle), "") for bundle in bundles))
        for log in dict.fromkeys(one.unit.log for one in outcomes)
    ]
    return table("Logs by bundles", ("log", *bundles), rows)


def _outputs(batch: BatchReport) -> str:
    rows = [
        (bundle, name, f"{one.largest:.4g}", f"{one.mean:.4g}",
         Mark(f"{one.outside} of {one.frames}", "bad" if one.outside else "good"))
        for bundle, outputs in batch.merged().items() for name, one in outputs.items()
    ]  # fmt: skip
    head = ("bundle", "output", "largest |difference|", "mean of frames", "frames outside")
    return table("Each output over all logs", head, rows)


def _list(outcomes: Sequence[Outcome]) -> str:
    rows = [
        (
            one.unit.name,
            one.host,
            f"{one.seconds:.1f}\u00a0s",
            one.attempts,
            one.refusal.text if one.refusal else _mark(one),
        )
        for one in outcomes
    ]
    return table("Where and how", ("replay", "machine", "took", "attempts", ""), rows)


def _folded(one: Outcome) -> str:
    mark = _mark(one)
    body = "".join(one.parts) or f"<p>{html.escape(one.refusal.text if one.refusal else '')}</p>"
    head = f'{html.escape(one.unit.name)}: <span class="{mark.kind}">{html.escape(mark)}</span>'
    return f"<details><summary>{head}</summary>{body}</details>"
