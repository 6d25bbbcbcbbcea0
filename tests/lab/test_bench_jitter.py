"""The jitter bench: both sides serve, and the camera has a priority that it gives back."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from lab.bench import jitter
from tests.support.vehicle import program


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may use SCHED_FIFO")
def test_frames_are_timed_on_both_sides_quiet_and_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    policies: list[int] = []
    batch = jitter._batch

    def noted(drive: jitter.Drive) -> list[int]:
        policies.append(os.sched_getscheduler(0) & ~os.SCHED_RESET_ON_FORK)
        return batch(drive)

    monkeypatch.setattr(jitter, "_batch", noted)
    monkeypatch.setattr(jitter, "BATCH", 3)
    rows = jitter.run(tmp_path, frames=3, vehicle=program(tmp_path))
    assert [row.name for row in rows] == ["frame p99, quiet", "frame p99, every core taken"]
    assert all(row.ours > 0 and row.theirs > 0 for row in rows)
    assert set(policies) == {os.SCHED_FIFO}  # the camera is not what is measured
    assert os.sched_getscheduler(0) & ~os.SCHED_RESET_ON_FORK == os.SCHED_OTHER
