"""A daemon closes who is silent on its control socket; a replay or a recording that lasts longer goes on."""

from __future__ import annotations

import time
from pathlib import Path

from client.control import Control
from lab.replay.log import LogReader, LogWriter
from lab.replay.played import Start, read_plan
from lab.replay.rig import Rig
from lab.replay.snapshots import Snapshots
from tests.lab.replay.recording import drive, recording
from tests.support.bundles import BundleMaker, TinyModel
from tests.support.daemons import LIMIT_S, DaemonThread

IDLE = "[limits]\nidle_timeout_ms = 300\n"
IDLE_S = 0.3


def wait_past_the_limit(daemon: DaemonThread) -> None:
    """Until the daemon has closed one that said nothing, and so every other that began before it."""
    with Control(daemon.sockets / "control.sock") as silent:
        deadline = time.monotonic() + LIMIT_S
        while time.monotonic() < deadline:
            with Control(daemon.sockets / "control.sock") as asking:
                if asking.status()["peers"]["control"] == 1:
                    break
            time.sleep(0.02)
        else:
            raise AssertionError(f"a silent peer was not closed: {silent}")


def test_a_replay_that_said_nothing_for_long_still_asks_and_sets_state(tmp_path: Path, maker: BundleMaker) -> None:
    with DaemonThread(tmp_path, [maker.write(TinyModel("total"))], maker, more=IDLE) as daemon:
        with daemon.camera() as camera, recording(daemon, tmp_path / "r.mcap") as recorder:
            drive(camera, recorder, 1, 2)
        plan = read_plan(LogReader(tmp_path / "r.mcap"), Start(), partial=False)
        with Rig(daemon.sockets, plan.opened, list(plan.models)) as rig:
            wait_past_the_limit(daemon)
            rig.reset_state("tiny")
            assert rig.has_state("tiny")
            status = rig.status()
            assert status is not None
            assert status["models"][0]["name"] == "tiny"


def test_snapshots_further_apart_than_a_silence_may_last_are_all_taken(tmp_path: Path, maker: BundleMaker) -> None:
    with (
        DaemonThread(tmp_path, [maker.write(TinyModel("total"))], maker, more=IDLE) as daemon,
        LogWriter(tmp_path / "s.mcap") as log,
        Snapshots(daemon.sockets, log, 2 * IDLE_S) as snapshots,
    ):
        snapshots.begin()
        deadline = time.monotonic() + LIMIT_S
        while snapshots.taken < 2 and not snapshots.why_not:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        assert (snapshots.why_not, snapshots.taken) == ("", 2)
