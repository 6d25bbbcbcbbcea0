"""docs/threat-model.md claims nothing that no test shows."""

from __future__ import annotations

import re

from tests.support.named_tests import ROOT, missing

PAGE = (ROOT / "docs" / "threat-model.md").read_text()
NAME = re.compile(r"`(tests/[\w/]+\.py::\w+)`")


def claims() -> list[tuple[str, str]]:
    """The claim and the tests' cell of each row of the defended tables."""
    defended = PAGE.split("## What is defended")[1].split("## What is not defended")[0]
    rows = [line.strip("|").split("|") for line in defended.splitlines() if line.startswith("| T")]
    return [(cells[1].strip(), cells[2]) for cells in rows]


def test_every_claim_names_its_tests() -> None:
    found = claims()
    assert len(found) > 35
    assert [claim for claim, tests in found if not NAME.findall(tests)] == []


def test_every_test_that_the_page_names_is_there() -> None:
    names = NAME.findall(PAGE)
    assert len(names) == PAGE.count("::")  # none is written in another form
    assert missing(names) == []


def test_every_asset_has_claims_and_every_attacker_is_met() -> None:
    for asset in re.findall(r"^\| (A\d) \|", PAGE, re.MULTILINE):
        assert f"### {asset}: " in PAGE
    attackers = set(re.findall(r"^\| (T\d) \| [a-z]", PAGE.split("## What is defended")[0], re.MULTILINE))
    met = {line[2:4] for line in PAGE.split("## What is defended")[1].splitlines() if line.startswith("| T")}
    assert attackers == met
