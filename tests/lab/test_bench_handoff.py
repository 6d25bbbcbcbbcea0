"""The parts of the hand-off bench and of the soak that decide something: ranks, counted calls, peers, verdicts."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lab.bench import handoff, peers
from lab.bench.row import quantile
from lab.bench.soak import RESIDENT_SLACK_KIB, Sample, sample, verdict
from lab.bench.syscalls import count_calls, parse_summary

PICTURE = np.zeros(1 << 16, np.uint8)
SUMMARY = """syscall              calls
--------------- ---------
sendto                 20
epoll_wait             11
--------------- ---------
total                  31
"""


def test_a_quantile_is_a_sample_that_was_measured() -> None:
    samples = [5.0, 1.0, 9.0, 3.0]
    assert [quantile(samples, share) for share in (0.0, 0.5, 0.99, 1.0)] == [1.0, 5.0, 9.0, 9.0]


def test_straces_summary_is_read_without_its_total() -> None:
    assert parse_summary(SUMMARY) == {"sendto": 20, "epoll_wait": 11}


def test_the_calls_of_another_process_are_counted() -> None:
    if shutil.which("strace") is None:
        pytest.skip("strace is not installed")
    script = "import os, sys\nfor line in sys.stdin:\n    [os.getppid() for _ in range(25)]\n    print(flush=True)"
    with subprocess.Popen([sys.executable, "-c", script], stdin=-1, stdout=-1, text=True) as child:
        assert child.stdin is not None
        assert child.stdout is not None

        def work() -> None:
            for _ in range(4):
                print("go", file=child.stdin, flush=True)
                child.stdout.readline()  # type: ignore[union-attr]

        counted = count_calls(child.pid, work)
        child.stdin.close()
    if counted is None:
        pytest.skip("strace may not attach here")
    assert counted["getppid"] == 100


@pytest.mark.parametrize("name", ["ping", "copy", "iceoryx2"])
def test_a_peer_gives_one_way_times(name: str) -> None:
    if name == "iceoryx2" and peers.iceoryx2_module() is None:
        pytest.skip("iceoryx2 is not installed: pip install 'fenced-lab[bench]'")
    with getattr(peers, name)(PICTURE) as one_way:
        assert all(one_way() > 0 for _ in range(3))


def test_ctrl_c_is_for_the_bench_and_not_for_its_peers() -> None:
    before = set(multiprocessing.active_children())
    with peers.ping(PICTURE) as one_way:
        (process,) = set(multiprocessing.active_children()) - before
        assert one_way() > 0  # it has begun
        assert process.pid is not None
        os.kill(process.pid, signal.SIGINT)
        assert one_way() > 0
        assert process.is_alive()


SAMPLES = [Sample(float(index), 900 + 100 * (index > 9), 20, 290 + 10 * (index > 9)) for index in range(20)]
LEDGER: dict[str, Any] = {"submitted": 9, "run": 8, "superseded": 1, "late": 0, "torn": 0, "refused": 0, "lost": 0,
                          "held": 0, "reasons": {}, "refusals": {}}  # fmt: skip


def test_a_soak_that_held_has_no_fault() -> None:
    assert verdict(SAMPLES, {"front": LEDGER}, 9) == []


@pytest.mark.parametrize(
    ("ledger", "last", "text"),
    [
        ({"run": 7}, {}, "the ledger says"),
        ({"submitted": 10}, {}, "the ledger says"),
        ({"run": 7, "lost": 1}, {}, "'lost': 1"),
        ({"run": 7, "torn": 1}, {}, "'torn': 1"),
        ({}, {"descriptors": 21}, "descriptors: 20"),
        ({}, {"mappings": 301}, "mappings: 300"),
        ({}, {"resident_kib": 1001 + RESIDENT_SLACK_KIB}, "resident memory"),
    ],
)
def test_a_soak_names_what_did_not_hold(ledger: dict[str, int], last: dict[str, int], text: str) -> None:
    samples = [*SAMPLES[:-1], replace(SAMPLES[-1], **last)]
    (fault,) = verdict(samples, {"front": {**LEDGER, **ledger}}, 9)
    assert text in fault


def test_a_process_is_sampled_from_proc() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=-1) as child:
        found = sample(child.pid, 1.5)
        assert found.at_s == 1.5
        assert min(found.resident_kib, found.descriptors, found.mappings) > 0
        child.communicate(b"\n")


def test_the_hand_off_is_measured_in_a_folder_named_from_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    rows = handoff.run(Path("bench"), {200.0: 2})
    assert {"hand-off p50, 200 Hz", "to the device, 200 Hz"} <= {row.name for row in rows}
    assert all(row.ours > 0 for row in rows)
