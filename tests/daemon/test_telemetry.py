"""Whoever asks for metrics or status, or keeps the log, and stops reading: no frame waits for it."""

from __future__ import annotations

import contextlib
import os
import threading
from pathlib import Path

import pytest

from abi import messages as m
from abi.messages import CommandKind, Role
from client.errors import Refused
from daemon.log import Log
from tests.support import daemons
from tests.support.bundles import BundleMaker, TinyModel
from tests.support.daemons import DaemonThread, ended, picture, run_one
from tests.support.raw_peer import RawPeer

FRAMES = 20


@pytest.mark.parametrize("command", [CommandKind.METRICS, CommandKind.STATUS])
def test_a_metrics_reader_that_stops_reading_stalls_no_frame(
    tmp_path: Path, maker: BundleMaker, command: CommandKind
) -> None:
    model = TinyModel()
    asks = m.encode(m.Command(command))
    with (
        DaemonThread(tmp_path, [maker.write(model)], maker) as daemon,
        daemon.camera() as camera,
        daemon.consumer() as consumer,
        RawPeer(daemon, Role.CONTROL) as reader,
    ):

        def ask_on() -> None:
            try:
                while True:
                    reader.send(asks)
            except OSError:
                return  # the daemon has closed it

        asking = threading.Thread(target=ask_on, daemon=True)
        asking.start()
        for sequence in range(FRAMES):
            run_one(camera, consumer, sequence, picture(sequence))
        asking.join(daemons.LIMIT_S)
        assert not asking.is_alive()
        assert ended(camera)["run"] == FRAMES
        status = daemon.wait_for(lambda status: status["peers"]["control"] == 1)  # the one that asks this
        assert status["faults"]["internal_errors"] == 0


def test_a_log_reader_that_stops_reading_stalls_no_frame(
    tmp_path: Path, maker: BundleMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader, writer = os.pipe()  # nobody ever reads it
    os.set_blocking(writer, False)
    with contextlib.suppress(BlockingIOError):
        while True:
            os.write(writer, bytes(4096))
    os.set_blocking(writer, True)  # so that a daemon that just writes would wait for ever
    monkeypatch.setattr(daemons, "KeptLog", lambda: Log(writer))
    with (
        DaemonThread(tmp_path, [maker.write(TinyModel())], maker) as daemon,
        daemon.camera() as camera,
        daemon.consumer() as consumer,
        daemon.control() as control,
    ):
        for sequence in range(FRAMES):
            with pytest.raises(Refused):
                control.activate("/not/allowed")  # which the log is told of
            run_one(camera, consumer, sequence, picture(sequence))
        assert ended(camera)["run"] == FRAMES
        assert control.status()["faults"]["log_lines_dropped"] >= FRAMES
    os.close(writer)
    os.close(reader)
