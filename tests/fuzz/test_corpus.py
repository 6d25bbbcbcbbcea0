"""What fuzzing found worth keeping is tried again in every test run, and stays small."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fuzz import guided, harness
from tests.fuzz.__main__ import CORPUS

CHECKOUT = Path(__file__).parents[2]
MOST_BYTES = 256 << 10


@pytest.mark.parametrize("target", sorted(one.name for one in CORPUS.iterdir()))
def test_the_kept_inputs_hold_and_reach_more_than_the_seeds(target: str) -> None:
    kept = [file.read_bytes() for file in sorted((CORPUS / target).iterdir())]
    assert sum(map(len, kept)) < MOST_BYTES
    reached = [set[guided.Arc]().union(*(guided.arcs_of(harness.TARGETS[target], one) for one in inputs))
               for inputs in (harness.seeds(target), kept)]  # fmt: skip
    assert reached[1] - reached[0]


def test_what_only_repeats_the_seeds_is_not_kept(tmp_path: Path) -> None:
    found, corpus = tmp_path / "found", tmp_path / "corpus"
    found.mkdir()
    target, seeds = harness.TARGETS["canonical"], harness.seeds("canonical")
    for index, data in enumerate((*seeds[:3], b"", b"\0" * 8)):
        (found / str(index)).write_bytes(data)
    assert guided.keep(target, seeds, found, corpus) > 0
    assert {one.read_bytes() for one in corpus.iterdir()}.isdisjoint(seeds)
    assert guided.keep(target, seeds, found, corpus) == 0  # nothing is new any more


@pytest.mark.skipif(importlib.util.find_spec("atheris") is None, reason="atheris has no wheel for this machine")
def test_atheris_runs_a_target(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.fuzz", "--seconds", "1", "--target", "flat", "--found", str(tmp_path)]
    done = subprocess.run(command, cwd=CHECKOUT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "engine atheris" in done.stdout
    assert "no defect" in done.stdout
