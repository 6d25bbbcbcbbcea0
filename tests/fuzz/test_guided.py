"""The coverage-guided fuzzer finds what it should, keeps its corpus, and finds nothing in the ABI in a short run."""

from __future__ import annotations

from pathlib import Path

import pytest

from abi import packet
from tests.fuzz import guided, harness


def brittle(data: bytes) -> None:
    """Breaks on a packet of the right version, which random bytes rarely are."""
    try:
        kind = packet.decode_header(data[:9], 0)
    except packet.RemoteProtocolError:
        return
    if kind is packet.Kind.RESULT:
        raise AssertionError("found")


def test_guidance_finds_a_defect_behind_checks(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="found"):
        guided.fuzz(brittle, [b"\0" * 8], tmp_path, seed=1, most_runs=300_000)
    (crash,) = tmp_path.glob("crash-*")
    with pytest.raises(AssertionError, match="found"):
        brittle(crash.read_bytes())
    assert len(list(tmp_path.iterdir())) > 2  # the steps on the way are kept


@pytest.mark.parametrize("target", sorted(harness.TARGETS))
def test_seeds_are_taken_and_reach_far(tmp_path: Path, target: str) -> None:
    for data in harness.seeds(target):  # what is done once in a process is done: it would be arcs of the first run only
        harness.TARGETS[target](data)
    runs, kept, arcs = guided.fuzz(harness.TARGETS[target], harness.seeds(target), tmp_path, seed=1, most_runs=0)
    assert runs == len(harness.seeds(target))
    assert 1 <= kept == len(list(tmp_path.iterdir())) <= runs
    assert arcs > 12
    again, kept_again, arcs_again = guided.fuzz(harness.TARGETS[target], [], tmp_path, seed=1, most_runs=0)
    assert (again, arcs_again) == (kept, arcs)
    assert kept_again <= kept
