"""The benchmark of the driving example: what it reports is what ran."""

import os
import re
import statistics
from pathlib import Path

import pytest

from lab.bench import driving
from tests.support.vehicle import program


@pytest.mark.skipif(not os.environ.get("FENCED_SLOW"), reason="set FENCED_SLOW=1: compiles and serves")
def test_pairs_of_both_cameras_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[float] = []
    drive = driving.drive

    def noted(sockets: Path, pairs: int) -> list[float]:
        taken.extend(drive(sockets, pairs))
        return taken

    monkeypatch.setattr(driving, "drive", noted)
    (row,) = driving.run(tmp_path / "bench", pairs=8, vehicle=program(tmp_path))
    assert (row.name, row.theirs) == ("driving example, 20 Hz", driving.DEADLINE_NS)
    told = re.search(r"(\d) of 8 pairs ran", row.note)
    assert told is not None
    assert 2 <= len(taken) <= int(told[1]) <= 8  # a busy machine makes some late, and they are told of
    assert row.ours == statistics.median(taken)
