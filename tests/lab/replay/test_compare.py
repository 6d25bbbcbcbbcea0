"""Words and numbers of a comparison hold at their edges: outputs that are missing, places that are none."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from lab.replay.cli_replay import start_of
from lab.replay.compare import Comparison, Tolerances
from lab.replay.played import Start
from lab.replay.refusal import LogRefusal, LogRefused


def test_an_output_that_was_missing_once_is_infinitely_far_off_whatever_follows() -> None:
    compared, values = Comparison(), np.ones(2, np.float32)
    for sequence, found in enumerate([{"values": values + 1}, {}, {"values": values}, {}]):
        compared.add(sequence, found, {"values": values})
    summary = compared.outputs["values"]
    assert (summary.largest, summary.mean, summary.outside) == (math.inf, math.inf, 3)


def test_tolerances_in_a_file_that_is_not_there_are_refused(tmp_path: Path) -> None:
    with pytest.raises(LogRefused, match="No such file") as refused:
        Tolerances.load(tmp_path / "none.toml")
    assert refused.value.code is LogRefusal.TOLERANCES


@pytest.mark.parametrize("text", ["nans", "infs", "-infs", "s", "", "1.5"])
def test_a_place_that_is_none_is_no_place(text: str) -> None:
    with pytest.raises(ValueError, match=r".*"):
        Start.parse(text)


@pytest.mark.parametrize("text", ["12.5s", "1041"])
def test_a_place_is_said_as_it_was_asked_for(text: str) -> None:
    assert str(start_of(text)) == text
