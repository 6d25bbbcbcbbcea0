"""A daemon closes who is silent on its control socket; a replay or a recording that lasts longer goes on."""

from __future__ import annotations

import threading
import time
from pathlib import Path

from abi.messages import Refusal, Role
from abi.packet import RefusalCode
from lab.replay.log import LogReader, LogWriter
from lab.replay.played import Start, read_plan
from lab.replay.rig import Rig
from lab.replay.snapshots import Snapshots
from tests.lab.replay.recording import drive, recording
from tests.support.bundles import BundleMaker, TinyModel
from tests.support.daemons import LIMIT_S, DaemonThread
from tests.support.raw_peer import RawPeer


def close_the_silent(daemon: DaemonThread) -> None:
    """Until the daemon has closed one that said nothing, and so every other that fell silent before it."""
    with RawPeer(daemon, Role.CONTROL) as silent:
        daemon.allow_silence(20)
        refusal = silent.answer()
        assert isinstance(refusal, Refusal)
        assert refusal.code is RefusalCode.IDLE
        daemon.allow_silence(3_600_000)


class Pause(threading.Event):
    """The pause between two snapshots: it lasts until `over` is set."""

    def __init__(self) -> None:
        super().__init__()
        self.over = threading.Event()

    def wait(self, timeout: float | None = None) -> bool:
        assert self.over.wait(LIMIT_S)
        return self.is_set()


def test_a_replay_that_said_nothing_for_long_still_asks_and_sets_state(tmp_path: Path, maker: BundleMaker) -> None:
    with DaemonThread(tmp_path, [maker.write(TinyModel("total"))], maker) as daemon:
        with daemon.camera() as camera, recording(daemon, tmp_path / "r.mcap") as recorder:
            drive(camera, recorder, 1, 2)
        plan = read_plan(LogReader(tmp_path / "r.mcap"), Start(), partial=False)
        with Rig(daemon.sockets, plan.opened, list(plan.models)) as rig:
            close_the_silent(daemon)
            rig.reset_state("tiny")
            assert rig.has_state("tiny")
            status = rig.status()
            assert status is not None
            assert status["models"][0]["name"] == "tiny"


def test_snapshots_further_apart_than_a_silence_may_last_are_all_taken(tmp_path: Path, maker: BundleMaker) -> None:
    pause = Pause()
    with (
        DaemonThread(tmp_path, [maker.write(TinyModel("total"))], maker) as daemon,
        LogWriter(tmp_path / "s.mcap") as log,
        Snapshots(daemon.sockets, log, 0.01) as snapshots,
    ):
        snapshots._stop = pause
        snapshots.begin()

        def until(taken: int) -> None:
            deadline = time.monotonic() + LIMIT_S
            while snapshots.taken < taken and not snapshots.why_not:
                assert time.monotonic() < deadline
                time.sleep(0.01)

        until(1)
        close_the_silent(daemon)
        pause.over.set()
        until(2)
        assert snapshots.why_not == ""
