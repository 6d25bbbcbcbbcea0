"""System calls a frame: counted in each of the three processes, and a frame makes no more of them as it goes on."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from lab.bench.calls import PACKETS, Film, count
from tests.support.bundles import BundleMaker, TinyModel, frame_format
from tests.support.daemons import DaemonThread

FRAMES = 20


def test_calls_are_counted_in_each_process(tmp_path: Path) -> None:
    if shutil.which("strace") is None:
        pytest.skip("strace is not installed")
    maker = BundleMaker(tmp_path)
    with DaemonThread(tmp_path, [maker.write(TinyModel())], maker) as daemon:
        film = Film(daemon.sockets, "road", frame_format(), "tiny", FRAMES, 200.0)
        counted = count(os.getpid(), film)  # the daemon is a thread of this process
    if counted is None:
        pytest.skip("strace may not attach here")
    assert set(counted) == set(PACKETS)
    assert counted["camera"]["sendto"] == FRAMES  # a Submit each, in one call
    assert counted["camera"]["clock_nanosleep"] <= FRAMES  # the pace
    assert FRAMES <= counted["consumer"]["recvmsg"] <= 2 * FRAMES + 2  # one that finds nothing yet, then the Result
    assert 2 * FRAMES <= counted["daemon"]["sendto"] < 3 * FRAMES  # Result and Release; a slow consumer's again
