"""The page of one run of pytest on a bench: its tests, the scenarios it played with their pictures, the faults."""

from __future__ import annotations

import html
from collections.abc import Sequence

from lab.hil.faults.fault import Finding
from lab.hil.html import Mark, page, table
from lab.hil.report import finding_rows, scenario_parts
from lab.hil.run import Report

__all__ = ["session_page"]

_KINDS = {"passed": "good", "failed": "bad", "error": "bad", "skipped": "none"}


def session_page(
    outcomes: Sequence[tuple[str, str, float]], reports: Sequence[Report], findings: Sequence[Finding]
) -> str:
    """The page as HTML text. `outcomes`: of each test its name, how it came out, and its seconds."""
    counts = {word: sum(one[1] == word for one in outcomes) for word in _KINDS}
    lead = ", ".join(f"{count} {word}" for word, count in counts.items() if count) or "no tests"
    rows = [(name, f"{seconds:.2f} s", Mark(word, _KINDS[word])) for name, word, seconds in outcomes]
    parts = [f'<p class="verdict">{html.escape(lead)}</p>', table("Tests", ("test", "took", ""), rows)]
    for report in reports:
        parts += [f"<h1>{html.escape(report.scenario.name)}</h1>", *scenario_parts(report)]
    parts.append(table("Faults", ("row", "seen in the field", "right answer", "what was seen", ""),
                       finding_rows(findings)))  # fmt: skip
    return page("fenced HIL", parts)
