"""The benchmarks beside busy processes: their chain computes what it says, and a missing right is told, not hidden."""

from __future__ import annotations

import os
import time
from pathlib import Path

import numpy as np
import pytest

from hal.accelerator import open_accelerator
from lab.bench import barrier, stress, synthetic
from lab.bench.busy import busy
from lab.bench.chain import FRAME_BYTES, bind


def refuse(pid: int, policy: int, parameters: object) -> None:
    raise PermissionError(1, "Operation not permitted")


def processor_ticks(pid: int) -> int:
    """User time that a process has had (proc(5), stat, field 14)."""
    return int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[11])


@pytest.mark.parametrize(("launches", "threads", "cores"), [(1, 1, 1), (5, 2, 2), (4, 1, 2)])
def test_the_chain_adds_one_a_launch(launches: int, threads: int, cores: int) -> None:
    accelerator = open_accelerator("cpu")
    chain = bind(accelerator, synthetic.module(launches, threads=threads, cores=cores, rounds=3))
    assert chain.time() > 0
    expected = np.tile(np.arange(256, dtype=np.float32), FRAME_BYTES // 256) + launches
    assert (np.frombuffer(chain.output.view, np.float32) == expected).all()
    accelerator.close()


def test_busy_processes_take_processor_time_only_while_they_may() -> None:
    core = max(os.sched_getaffinity(0))
    with busy([core]) as company:
        (process,) = company._processes
        company.go_on()
        while not processor_ticks(process.pid):
            time.sleep(0.001)
        company.stop()
        assert os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WNOWAIT) is not None
        stopped_at = processor_ticks(process.pid)
        assert processor_ticks(process.pid) == stopped_at
    assert process.poll() is not None


def test_each_policy_has_a_row_or_a_reason(capsys: pytest.CaptureFixture[str]) -> None:
    rows = barrier.run(turns=1)
    told = capsys.readouterr().err
    if len(os.sched_getaffinity(0)) < 2:
        assert not rows
        assert "left out: 1 core" in told
        return
    policies = ("equal shares", "the unit's weight", "the unit's weight, a core each")
    assert [row.name for row in rows[:3]] == [f"busy neighbour, {policy}" for policy in policies]
    assert (len(rows) == 4) is ("left out" not in told)
    assert all(row.ratio == row.theirs / row.ours for row in rows)


def test_without_the_right_to_a_priority_the_reason_is_told(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(os, "sched_setscheduler", refuse)
    assert stress.run(samples=1) == []
    assert "stress: left out: not-permitted" in capsys.readouterr().err


def test_the_stressed_rows_compare_the_slowest_of_both(capsys: pytest.CaptureFixture[str]) -> None:
    before = os.sched_getscheduler(0)
    rows = stress.run(samples=1)
    if not rows:
        pytest.skip(capsys.readouterr().err.strip())
    assert [row.name for row in rows] == ["stressed p99.9, worker FIFO", "stressed p99.9, both FIFO"]
    assert os.sched_getscheduler(0) & ~os.SCHED_RESET_ON_FORK == before & ~os.SCHED_RESET_ON_FORK
