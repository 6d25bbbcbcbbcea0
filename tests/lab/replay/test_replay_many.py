"""Many logs through many bundles: the same unit as a single replay, here or on a Ray cluster, and one merged report."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from client.errors import ConnectionLost
from lab import cli
from lab.hil.daemon import VEHICLE
from lab.replay.batch import BatchReport, Outcome, attempt, run_here
from lab.replay.compare import OutputSummary
from lab.replay.page_batch import batch_page
from lab.replay.ray_cluster import on_ray
from lab.replay.refusal import LogRefusal, LogRefused
from lab.replay.replay import Options, ReplayReport
from lab.replay.unit import Unit, run_unit
from tests.lab.replay.recording import drive, recording
from tests.support.bundles import BundleMaker, TinyModel
from tests.support.daemons import DaemonThread

FRAMES = 3


@dataclass(frozen=True)
class Drives:
    """Two logs of one bundle, that bundle, one that adds another number, and the root of both."""

    logs: tuple[Path, Path]
    bundle: Path
    other: Path
    root: Path

    def units(self) -> list[Unit]:
        options = Options(any_model=True)
        return [Unit(log, bundle, root=self.root, options=options)
                for log in self.logs for bundle in (self.bundle, self.other)]  # fmt: skip


@pytest.fixture(scope="module")
def drives(tmp_path_factory: pytest.TempPathFactory) -> Drives:
    if not VEHICLE.is_dir():
        pytest.skip("no vehicle environment; `make vehicle` builds it")
    folder = tmp_path_factory.mktemp("drives")
    (folder / "models").mkdir()
    maker = BundleMaker(folder / "models")
    bundle, other = maker.write(TinyModel("add")), maker.write(TinyModel("add", version="2.0.0", release=2, number=5))
    logs = folder / "first.mcap", folder / "second.mcap"
    with DaemonThread(folder, [bundle], maker) as daemon:
        for number, log in enumerate(logs):
            with daemon.camera() as camera, recording(daemon, log) as recorder:
                drive(camera, recorder, 10 * number + 1, FRAMES)
    return Drives(logs, bundle, other, maker.root_path)


def counts(outcome: Outcome) -> tuple[int, int]:
    assert outcome.report is not None, outcome.refusal
    return outcome.report.equal, outcome.report.mismatched


def test_every_log_goes_through_every_bundle(
    drives: Drives, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    report, page = tmp_path / "r.json", tmp_path / "r.html"
    bundles = ["--bundle", str(drives.bundle), "--bundle", str(drives.other), "--root", str(drives.root)]
    arguments = ["replay", *map(str, drives.logs), *bundles, "--any-model", "--report", str(report)]
    assert cli.main([*arguments, "--html", str(page)]) == 3
    said = capsys.readouterr()
    assert "2 of 4 replays reproduced" in said.out
    assert "replay-mismatch" in said.err
    tree = json.loads(report.read_text())
    assert [(one["passed"], one["report"]["equal"], one["report"]["mismatched"]) for one in tree["units"]] == [
        (True, FRAMES, 0), (False, 0, FRAMES), (True, FRAMES, 0), (False, 0, FRAMES),
    ]  # fmt: skip
    merged = tree["outputs"][drives.other.name]["values"]
    assert (merged["largest"], merged["outside"], merged["frames"]) == (2.0, 2 * FRAMES, 2 * FRAMES)
    text = page.read_text()
    assert "2 NOT reproduced" in text
    assert text.count("<details>") == 4
    assert text.count("NOT reproduced: 3 of 3 outside") == 6  # in the matrix, in the list, above each page
    assert text.count("data:image/jpeg") == 4 * FRAMES


def failing(kind: type[Exception], times: int, calls: list[Path]) -> Callable[[Unit], ReplayReport]:
    def work(unit: Unit) -> ReplayReport:
        calls.append(unit.log)
        if len(calls) <= times:
            raise kind("the daemon has gone")
        return run_unit(unit)

    return work


def test_what_failed_is_tried_again_and_what_is_refused_is_not(drives: Drives) -> None:
    unit, calls = drives.units()[0], list[Path]()
    (outcome,) = run_here([unit], retries=2, with_page=False, work=failing(ConnectionLost, 2, calls))
    assert (outcome.attempts, counts(outcome)) == (3, (FRAMES, 0))
    (given_up,) = run_here([unit], retries=1, with_page=False, work=failing(OSError, 5, calls := []))
    assert len(calls) == given_up.attempts == 2
    assert given_up.refusal is not None
    assert (given_up.refusal.code, given_up.refusal.text) == ("failed", "OSError: the daemon has gone")
    strict = replace(drives.units()[1], options=Options())
    (refused,) = run_here([strict], retries=5, with_page=False)
    assert refused.refusal is not None
    assert (refused.refusal.code, refused.attempts) == (LogRefusal.MODEL.value, 1)
    batch = BatchReport([outcome, given_up, refused])
    assert not batch.passed
    page = batch_page(batch)
    assert "the daemon has gone" in page
    assert LogRefusal.MODEL.value in page
    with pytest.raises(ZeroDivisionError):  # a defect of ours is no outcome
        attempt(unit, with_page=False, work=failing(ZeroDivisionError, 1, []))


def test_errors_of_several_logs_are_one() -> None:
    one, other = OutputSummary(2.0, 1.0, 1, 4), OutputSummary(3.0, 4.0, 0, 2)
    one.merge(other)
    assert one == OutputSummary(3.0, 2.0, 1, 6)
    empty = OutputSummary()
    empty.merge(OutputSummary())
    assert empty == OutputSummary()


def test_without_ray_the_refusal_says_what_to_install(
    drives: Drives, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    bundle = ["--bundle", str(drives.bundle), "--root", str(drives.root)]
    assert cli.main(["replay", str(drives.logs[0]), *bundle, "--ray"]) == 3
    assert "fenced-lab[ray]" in capsys.readouterr().err
    assert cli.main(["replay", str(drives.logs[0]), "--ray"]) == 2  # sockets are on one machine
    assert "--bundle" in capsys.readouterr().err


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """Two nodes on this machine, one CPU each."""
    if not os.environ.get("FENCED_SLOW"):
        pytest.skip("starting a Ray cluster takes half a minute: FENCED_SLOW=1")
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    pytest.importorskip("ray", reason="Ray is not installed: make ray")
    started = two_nodes(tries=6)
    yield started
    started.shutdown()


def two_nodes(tries: int) -> Any:
    """Ray gives a node 30 s to start, which a busy machine may not keep."""
    from ray.cluster_utils import Cluster  # noqa: PLC0415 (an extra)

    started = Cluster()
    try:
        started.add_node(num_cpus=1, include_dashboard=False)
        started.add_node(num_cpus=1)
        started.wait_for_nodes(timeout=300)
    except Exception as error:  # Ray raises no class of its own
        started.shutdown()
        if tries == 1 or "timed out" not in str(error).lower():
            raise
        return two_nodes(tries - 1)
    return started


def die_once(marker: Path, unit: Unit) -> ReplayReport:
    """Kills its worker the first time."""
    try:
        marker.touch(exist_ok=False)
    except FileExistsError:
        return run_unit(unit)
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError


def die_always(unit: Unit) -> ReplayReport:
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError


def test_a_cluster_of_two_nodes_gives_what_one_machine_gives(
    cluster: Any, drives: Drives, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page, report = tmp_path / "r.html", tmp_path / "r.json"
    bundles = ["--bundle", str(drives.bundle), "--bundle", str(drives.other), "--root", str(drives.root)]
    arguments = ["replay", *map(str, drives.logs), *bundles, "--any-model", "--html", str(page)]
    assert cli.main([*arguments, "--report", str(report), "--ray", cluster.address]) == 3
    assert "2 of 4 replays reproduced" in capsys.readouterr().out
    here = [one.as_dict() for one in run_here(drives.units(), retries=0, with_page=False)]
    there = json.loads(report.read_text())["units"]
    for one, other in zip(there, here, strict=True):
        assert one["log"] == other["log"]
        for same in ("log_sha256", "served_digest", "equal", "mismatched", "ledgers", "passed"):
            assert one["report"][same] == other["report"][same]
        assert one["report"]["compared"]["series"] == other["report"]["compared"]["series"]
    assert page.read_text().count("data:image/jpeg") == 4 * FRAMES
    assert len({one["host"] for one in there}) == 2


def test_a_worker_that_dies_costs_one_attempt(cluster: Any, drives: Drives, tmp_path: Path) -> None:
    work = partial(die_once, tmp_path / "died")
    found = list(on_ray(drives.units()[::2], cluster.address, retries=1, with_page=False, work=work))
    assert sorted(one.attempts for one in found) == [1, 2]
    assert [counts(one) for one in found] == [(FRAMES, 0)] * 2
    (lost,) = on_ray(drives.units()[:1], cluster.address, retries=1, with_page=False, work=die_always)
    assert lost.refusal is not None
    assert (lost.refusal.code, lost.attempts) == ("failed", 2)


def test_a_unit_that_no_machine_can_take_is_refused(cluster: Any, drives: Drives) -> None:
    with pytest.raises(LogRefused, match="no machine of the cluster"):
        list(on_ray(drives.units(), cluster.address, retries=0, with_page=False, cpus=2))
