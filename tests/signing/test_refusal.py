"""Refusals carry their sentences everywhere and let hostile data forge none of them."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from lab.sign.refusal_table import table
from signing.refusal import RefusalCode, Refused, shown


def test_text_holds_code_and_all_sentences() -> None:
    refused = Refused(RefusalCode.ROLLBACK, "release of lane", "at least 5", "4", "Ask.")
    assert str(refused) == "rollback: release of lane: expected at least 5, found 4. Ask."
    assert refused.as_dict() == {
        "code": "rollback",
        "what": "release of lane",
        "expected": "at least 5",
        "found": "4",
        "todo": "Ask.",
    }


def test_advice_defaults_to_the_code_s_own() -> None:
    assert Refused(RefusalCode.EXPIRED, "a", "b", "c").todo == RefusalCode.EXPIRED.todo


def test_codes_are_distinct_and_explained() -> None:
    codes = [code.value for code in RefusalCode]
    assert len(set(codes)) == len(codes)
    assert all(code.meaning.endswith(".") and code.todo.endswith(".") for code in RefusalCode)
    assert RefusalCode("rollback") is RefusalCode.ROLLBACK


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("plain", "'plain'"),
        ("line\nbreak\x1b[0m", "'line\\nbreak\\x1b[0m'"),
        ("\ud800ü", "'\\ud800\\xfc'"),
        (b"\0\xff", "b'\\x00\\xff'"),
        (None, "None"),
        (12, "12"),
        ("a" * 94, "'" + "a" * 94 + "'"),
        ("a" * 95, "'" + "a" * 92 + "..."),
        ("a" * 100_000, "'" + "a" * 92 + "..."),
        (["a" * 100_000], "['" + "a" * 91 + "..."),
    ],
    ids=itertools.count(),
)
def test_shown_is_printable_and_bounded(value: object, text: str) -> None:
    assert shown(value) == text
    assert len(shown(value)) <= 96


def test_documented_table_is_generated_from_the_enum() -> None:
    page = Path(__file__).parents[2] / "docs" / "refusals.md"
    assert page.read_text() == table(), "run: python -m lab.sign.refusal_table > docs/refusals.md"
