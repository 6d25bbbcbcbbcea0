"""A release on trial: what kills the daemon, fails its probation or is taken back gives way until it is named again."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from abi.packet import RefusalCode
from client.errors import Refused
from daemon import device_watch
from daemon.audit import AuditLog
from daemon.trials import Trial, TrialRefused, Trials, Verdict
from hal.accelerator import Executable, Module
from hal.cpu import CpuAccelerator
from signing import store
from tests.daemon.test_process import Process
from tests.daemon.test_trust_store import confirmed, events, serve
from tests.support.bundles import BundleMaker, TinyModel
from tests.support.daemons import LIMIT_S, DaemonThread, ended, picture, run_one, submit
from tests.support.gate import BUDGET_NS, Gate, HeldModel

PROBATION = 3
MORE = f"[limits]\nprobation_frames = {PROBATION}\n[activation]\ncrash_limit = 2\nfault_limit = 2\n"
OLD = TinyModel("add", version="1.0.0", release=1, number=1)
NEW = TinyModel("add", version="2.0.0", release=2, number=2)
LAZY = TinyModel("lazy", version="3.0.0", release=3)  # leaves output unwritten where the first pixel is 255
DIGEST = "d" * 64


def release(daemon: DaemonThread | Process) -> int:
    """The release that serves."""
    found: int = daemon.status()["models"][0]["release"]
    return found


def kinds(folder: Path) -> list[str]:
    """The events of the audit log."""
    return [str(one["event"]) for one in events(folder)]


def confirm_old(folder: Path, maker: BundleMaker) -> Path:
    """A vehicle on which OLD has proved itself; returns its bundle."""
    old = maker.write(OLD)
    with DaemonThread(folder, [old], maker, more=MORE) as daemon:
        serve(daemon, OLD, PROBATION)
        confirmed(daemon, OLD.release)
    return old


def killed(process: Process) -> subprocess.Popen[str]:
    """The next process after this one was killed."""
    assert process.child is not None
    process.child.send_signal(signal.SIGKILL)
    process.child.communicate()
    return process.start()


# crash loops


def test_a_release_during_whose_trials_the_daemon_dies_gives_way_to_the_confirmed_one(
    vehicle_site: Path, tmp_path: Path, maker: BundleMaker
) -> None:
    confirm_old(tmp_path, maker)
    process = Process(vehicle_site, tmp_path, [maker.write(NEW)], maker, more=MORE)
    child = process.start()
    try:
        for _ in range(2):
            assert release(process) == NEW.release
            with process.camera() as camera, process.consumer() as consumer:
                run_one(camera, consumer, 1, picture(1))
            child = killed(process)
        assert release(process) == OLD.release
        assert set(process.status()["guard"]["refused"].values()) == {0}
        refusal = next(one for one in events(tmp_path) if one["event"] == "bundle.refused")
        assert (refusal["step"], refusal["code"], refusal["found"]) == (
            "trial", "crash-loop", "one during whose trials the daemon died 2 times",
        )  # fmt: skip
        child = killed(process)  # the confirmed one is not on trial
        with process.control() as control:  # named again, it may try again
            assert control.activate(maker.folder / "tiny-2.0.0.fenced")["release"] == NEW.release
        serve(process, NEW, PROBATION)
        confirmed(process, NEW.release)
        assert process.stop() == 0
    finally:
        child.kill()
        child.communicate()
    assert json.loads((tmp_path / "state" / "trials.json").read_text()) == []


def test_where_nothing_else_may_serve_a_release_is_tried_again(
    vehicle_site: Path, tmp_path: Path, maker: BundleMaker
) -> None:
    process = Process(vehicle_site, tmp_path, [maker.write(NEW)], maker, more=MORE)
    child = process.start()
    try:
        for _ in range(2):
            child = killed(process)
        assert release(process) == NEW.release
    finally:
        child.kill()
        child.communicate()
    assert "bundle.tried-again" in kinds(tmp_path)


def test_a_trial_is_on_the_disk_before_any_code_of_the_release_runs(
    tmp_path: Path, maker: BundleMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = confirm_old(tmp_path, maker)
    kept, load = [], CpuAccelerator.load

    def read_then_load(self: CpuAccelerator, module: Module) -> Executable:
        kept.append(json.loads((tmp_path / "state" / "trials.json").read_text()))
        return load(self, module)

    monkeypatch.setattr(CpuAccelerator, "load", read_then_load)
    with DaemonThread(tmp_path, [old], maker, more=MORE) as daemon, daemon.control() as control:
        digest = control.activate(maker.write(NEW))["digest"]
    confirmed_start, activation = kept
    assert confirmed_start == []  # a confirmed release is not on trial
    assert [(one["digest"], one["instead"], len(one["begun_unix_s"])) for one in activation] == [(digest, str(old), 1)]


def test_a_release_never_gives_way_to_itself(tmp_path: Path, maker: BundleMaker) -> None:
    old, new = maker.write(OLD), maker.write(NEW)
    with DaemonThread(tmp_path, [old], maker, more=MORE) as daemon, daemon.control() as control:
        for _ in range(2):
            digest = control.activate(new)["digest"]
        daemon.service.switching.settle()
        kept = json.loads((tmp_path / "state" / "trials.json").read_text())
    assert [(one["instead"], len(one["begun_unix_s"])) for one in kept if one["digest"] == digest] == [(str(old), 1)]


def test_a_device_that_is_lost_is_a_death(tmp_path: Path, maker: BundleMaker, monkeypatch: pytest.MonkeyPatch) -> None:
    confirm_old(tmp_path, maker)
    monkeypatch.setattr(device_watch, "RESET_LIMIT_NS", 1)
    hanging = HeldModel(version="2.0.0", release=2, budget_ns=BUDGET_NS).write(maker)
    daemon = DaemonThread(tmp_path, [hanging], maker, more=MORE)
    with daemon.camera_when_ready() as camera, Gate() as gate:
        submit(camera, 1, gate.picture(1))
        assert daemon.lost.wait(LIMIT_S)
    daemon.join()
    (trial,) = json.loads((tmp_path / "state" / "trials.json").read_text())
    assert len(trial["begun_unix_s"]) == 1


def test_stops_in_order_are_no_deaths(tmp_path: Path, maker: BundleMaker) -> None:
    confirm_old(tmp_path, maker)
    for _ in range(3):
        with DaemonThread(tmp_path, [maker.write(NEW)], maker, more=MORE) as daemon:
            assert release(daemon) == NEW.release
    assert json.loads((tmp_path / "state" / "trials.json").read_text()) == []


# by health


def test_a_release_that_fails_its_probation_gives_way_by_itself(tmp_path: Path, maker: BundleMaker) -> None:
    old = confirm_old(tmp_path, maker)
    lazy = maker.write(LAZY)
    with (
        DaemonThread(tmp_path, [old], maker, more=MORE) as daemon,
        daemon.camera() as camera,
        daemon.consumer() as consumer,
        daemon.control() as control,
    ):
        control.activate(lazy)
        assert control.status()["models"][0]["probation_faults"]["canary"] == 0
        for sequence in range(3):
            submit(camera, sequence, picture(sequence, first=255))
            camera.wait(LIMIT_S)
        daemon.wait_for(lambda status: status["models"][0]["release"] == OLD.release)
        outputs = run_one(camera, consumer, 3, picture(3)).outputs
        assert np.array_equal(outputs["values"], OLD.values(picture(3)))
        assert ended(camera)["lost"] == 3
        digest = next(one["digest"] for one in events(tmp_path) if one["event"] == "model.unhealthy")
        assert control.status()["trust"]["refused_releases"] == {digest: "unhealthy"}
        with pytest.raises(Refused, match="a model that replaced another since the start, found none"):
            control.rollback()  # nobody goes back to it by mistake
        assert control.status()["device"]["memory"]["executables"] == 1
    (failed,) = [one for one in events(tmp_path) if one["event"] == "model.unhealthy"]
    assert (failed["release"], failed["canary"], failed["deadline_missed"]) == (LAZY.release, 3, 0)
    with DaemonThread(tmp_path, [lazy], maker, more=MORE) as daemon:  # though the configuration names it
        assert release(daemon) == OLD.release
        with daemon.control() as control:
            assert control.activate(lazy)["release"] == LAZY.release  # named again
            assert control.status()["trust"]["refused_releases"] == {}
    assert [one["code"] for one in events(tmp_path) if one["event"] == "bundle.refused"] == ["unhealthy"]


def test_a_release_that_answers_no_frame_gives_way(tmp_path: Path, maker: BundleMaker) -> None:
    silent = replace(NEW, deadline_ns=1)
    with (
        DaemonThread(tmp_path, [maker.write(OLD)], maker, more=MORE) as daemon,
        daemon.camera() as camera,
        daemon.consumer() as consumer,
        daemon.control() as control,
    ):
        control.activate(maker.write(silent))
        for sequence in range(PROBATION):
            assert release(daemon) == NEW.release
            submit(camera, sequence, picture(sequence))
            camera.wait(LIMIT_S)
        daemon.wait_for(lambda status: status["models"][0]["release"] == OLD.release)
        run_one(camera, consumer, PROBATION, picture(PROBATION))
        assert set(control.status()["trust"]["refused_releases"].values()) == {"unhealthy"}
    failed = next(one for one in events(tmp_path) if one["event"] == "model.unhealthy")
    assert (failed["unanswered"], failed["deadline_missed"]) == (PROBATION, 0)


def test_an_aux_input_that_nobody_has_set_yet_is_no_fault_of_a_release(tmp_path: Path, maker: BundleMaker) -> None:
    with (
        DaemonThread(tmp_path, [maker.write(OLD)], maker, more=MORE) as daemon,
        daemon.camera() as camera,
        daemon.control() as control,
    ):
        control.activate(maker.write(TinyModel("scale", version="2.0.0", release=2)))
        for sequence in range(2 * PROBATION):
            submit(camera, sequence, picture(sequence))
            camera.wait(LIMIT_S)
        faults = control.status()["models"][0]["probation_faults"]
        assert set(faults.values()) == {0}
        assert control.status()["models"][0]["runs"]["stale_aux"] == 2 * PROBATION


def test_frames_without_an_answer_are_no_fault_of_a_release_that_gave_one(tmp_path: Path, maker: BundleMaker) -> None:
    with DaemonThread(tmp_path, [maker.write(OLD)], maker, more=MORE) as daemon:
        serve(daemon, OLD, 1)
        daemon.service.roster.pipelines["tiny"].counters.late_arrivals += 100
        serve(daemon, OLD, PROBATION - 1)
        confirmed(daemon, OLD.release)


def test_a_release_that_fails_alone_again_and_again_fills_no_disk(tmp_path: Path, maker: BundleMaker) -> None:
    with DaemonThread(tmp_path, [maker.write(OLD)], maker, more=MORE) as daemon:
        switching = daemon.service.switching
        counters = daemon.service.roster.pipelines["tiny"].counters

        def fail() -> None:
            counters.canary += 3

        for failures in range(1, 20):
            daemon.service.loop.call_soon(fail)  # between two of its callbacks: a probation begins in one of them
            daemon.wait_for(lambda _: switching._failures.get("tiny") == failures)  # noqa: B023 (called at once)
    assert kinds(tmp_path).count("model.unhealthy") == kinds(tmp_path).count("model.stays") == 5  # 1, 2, 4, 8, 16


def test_a_release_of_the_configuration_that_fails_gives_way_to_the_confirmed_one(
    tmp_path: Path, maker: BundleMaker
) -> None:
    confirm_old(tmp_path, maker)
    with (
        DaemonThread(tmp_path, [maker.write(LAZY)], maker, more=MORE) as daemon,
        daemon.camera() as camera,
    ):
        assert release(daemon) == LAZY.release
        for sequence in range(3):
            submit(camera, sequence, picture(sequence, first=255))
            camera.wait(LIMIT_S)
        daemon.wait_for(lambda status: status["models"][0]["release"] == OLD.release)


def test_a_release_that_fails_alone_goes_on_and_is_not_confirmed(tmp_path: Path, maker: BundleMaker) -> None:
    with DaemonThread(tmp_path, [maker.write(OLD)], maker, more=MORE) as daemon:
        daemon.service.roster.pipelines["tiny"].counters.not_finite += 3
        daemon.wait_for(lambda _: "model.stays" in kinds(tmp_path))
        assert daemon.status()["models"][0]["probation_frames_left"] == PROBATION
        daemon.service.roster.pipelines["tiny"].counters.device_errors += 2  # within the limit, counted anew
        assert daemon.status()["models"][0]["probation_faults"]["device_errors"] == 2


def test_a_confirmed_release_is_not_taken_back(tmp_path: Path, maker: BundleMaker) -> None:
    old = confirm_old(tmp_path, maker)
    with DaemonThread(tmp_path, [old], maker, more=MORE) as daemon:
        daemon.service.roster.pipelines["tiny"].counters.canary += 100
        serve(daemon, OLD, PROBATION)
        daemon.wait_for(lambda status: status["models"][0]["probation_frames_left"] == 0)
    assert "model.unhealthy" not in kinds(tmp_path)


# by hand


def test_what_an_operator_took_back_does_not_come_back_by_a_restart(tmp_path: Path, maker: BundleMaker) -> None:
    old, new = maker.write(OLD), maker.write(NEW)
    with DaemonThread(tmp_path, [old], maker, more=MORE) as daemon, daemon.control() as control:
        control.activate(new)
        control.rollback(model="tiny")
    with DaemonThread(tmp_path, [new], maker, more=MORE) as daemon, daemon.control() as control:
        assert release(daemon) == OLD.release
        with pytest.raises(Refused) as refused:
            control.rollback(model="other")
        assert refused.value.code is RefusalCode.NOT_READY
    assert [one["code"] for one in events(tmp_path) if one["event"] == "bundle.refused"] == ["rolled-back"]


# the book


class Clock:
    """Unix seconds that a test sets."""

    def __init__(self) -> None:
        self.now = 1_000_000

    def __call__(self) -> int:
        return self.now


@pytest.fixture
def audit(tmp_path: Path) -> Iterator[AuditLog]:
    log = AuditLog(str(tmp_path / "audit.jsonl"))
    yield log
    log.close()


def trials(folder: Path, audit: AuditLog, clock: Clock, crash_limit: int = 2) -> Trials:
    """The book as a new process opens it."""
    return Trials(str(folder), audit, crash_limit=crash_limit, crash_window_s=100, now_unix_s=clock)


def die(folder: Path, audit: AuditLog, clock: Clock) -> None:
    """A process that begins a trial and is no more."""
    book = trials(folder, audit, clock)
    book.begin(DIGEST, "/old")
    book.persist()


@pytest.mark.parametrize(("passed_s", "lost"), [(0, True), (100, True), (101, False), (-100, True), (-101, False)])
def test_only_deaths_near_now_count(tmp_path: Path, audit: AuditLog, passed_s: int, lost: bool) -> None:
    clock = Clock()
    for _ in range(2):
        die(tmp_path, audit, clock)
    clock.now += passed_s
    book = trials(tmp_path, audit, clock)
    if lost:
        with pytest.raises(TrialRefused) as refused:
            book.require_none_lost("tiny", DIGEST)
        assert (refused.value.code, refused.value.instead, refused.value.model) == ("crash-loop", "/old", "tiny")
    else:
        book.require_none_lost("tiny", DIGEST)


def test_a_verdict_outlives_its_window_until_the_release_is_named(tmp_path: Path, audit: AuditLog) -> None:
    clock = Clock()
    for _ in range(2):
        die(tmp_path, audit, clock)
    for _ in range(2):
        with pytest.raises(TrialRefused):
            trials(tmp_path, audit, clock).require_none_lost("tiny", DIGEST)
        clock.now += 10_000
    book = trials(tmp_path, audit, clock)
    book.pardon(DIGEST)
    book.persist()
    trials(tmp_path, audit, clock).require_none_lost("tiny", DIGEST)


def test_two_trials_of_one_release_end_one_by_one(tmp_path: Path, audit: AuditLog) -> None:
    clock = Clock()
    die(tmp_path, audit, clock)
    book = trials(tmp_path, audit, clock)
    for _ in range(2):
        book.begin(DIGEST, "")
    book.end(DIGEST)
    book.end(DIGEST)
    book.end(DIGEST)  # the death of the process before stays
    book.persist()
    assert store.read_file(tmp_path / "trials.json", limit_bytes=1000).count(b"1000000") == 1
    book.begin(DIGEST, "")
    book.pardon(DIGEST)  # what goes on is no matter of the past
    book.persist()
    assert store.read_file(tmp_path / "trials.json", limit_bytes=1000).count(b"1000000") == 1


def test_the_book_keeps_the_latest_releases_only(tmp_path: Path, audit: AuditLog) -> None:
    book = trials(tmp_path, audit, Clock())
    for at in range(70):
        book.lose(f"{at:064}", Verdict.ROLLED_BACK, "")
    book.persist()
    kept = [Trial(**one).digest for one in json.loads((tmp_path / "trials.json").read_text())]
    assert kept == [f"{at:064}" for at in range(6, 70)]


@pytest.mark.parametrize("text", ["{", "[1]", "[{}]", '[{"digest": 1}]', "7",
                                  '[{"digest":"a","instead":"","begun_unix_s":["x"],"verdict":""}]',
                                  '[{"digest":"a","instead":"","begun_unix_s":[],"verdict":"guilty"}]',
                                  '[{"digest":"a","instead":"","begun_unix_s":0,"verdict":""}]'])  # fmt: skip
def test_a_book_that_cannot_be_read_is_noted_and_begun_anew(tmp_path: Path, audit: AuditLog, text: str) -> None:
    (tmp_path / "trials.json").write_text(text)
    os.chmod(tmp_path / "trials.json", 0o600)
    trials(tmp_path, audit, Clock()).require_none_lost("tiny", DIGEST)
    assert json.loads((tmp_path / "audit.jsonl").read_text().splitlines()[-1])["event"] == "trials.ignored"
