"""Operators who know nothing of each other: their commands meet in any order, and no frame pays for it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from client import cli
from client.control import Control
from client.errors import Refused
from daemon.sockets import SocketsTaken
from tests.daemon.test_models import delay_loads
from tests.support.bundles import BundleMaker, TinyModel
from tests.support.daemons import LIMIT_S, DaemonThread, ended, picture, run_one, submit
from tests.support.gate import Gate, HeldModel

FIRST = TinyModel("total", hand_over=True)
OPERATORS = 3


def test_commands_that_meet_lose_no_frame_and_break_nothing(tmp_path: Path, maker: BundleMaker) -> None:
    bundles = [maker.write(replace(FIRST, version=f"2.0.{at}", release=at + 2, number=at)) for at in range(OPERATORS)]
    faults: list[Exception] = []

    def operate(at: int) -> None:
        with daemon.control() as control:
            commands: list[Callable[[], Any]] = [
                lambda: control.activate(bundles[at]),
                lambda: control.shadow(bundles[at - 1]),
                control.reset_state,
                control.rollback,
                lambda: control.restore_state(control.snapshot_state()),
                control.end_shadow,
            ]
            for command in commands[at:] + commands[:at]:
                try:
                    command()
                except Refused:
                    pass
                except Exception as fault:  # what no command may end in
                    faults.append(fault)

    with DaemonThread(tmp_path, [maker.write(FIRST)], maker) as daemon, daemon.camera() as camera:
        operators = [threading.Thread(target=operate, args=(at,)) for at in range(OPERATORS)]
        for one in operators:
            one.start()
        sequence = 0
        while any(one.is_alive() for one in operators):
            submit(camera, sequence, picture(sequence % 200))
            camera.wait(LIMIT_S)
            sequence += 1
        assert not faults
        counted, status = ended(camera), daemon.status()
        assert (counted["run"], status["faults"]["internal_errors"]) == (sequence, 0)
        assert status["models"][0]["runs"]["published"] == sequence
        assert status["device"]["memory"]["executables"] <= 3  # what serves, what served before, a shadow


def test_a_drain_waits_for_the_shadow_that_reads_a_frame(tmp_path: Path, maker: BundleMaker) -> None:
    held = HeldModel(version="3.0.0", release=3).write(maker)
    drained: list[tuple[Any, int]] = []

    def drain() -> None:
        with daemon.control() as control:
            drained.append((control.drain(), daemon.status()["streams"]["road"]["held"]))

    with (
        DaemonThread(tmp_path, [maker.write(TinyModel())], maker) as daemon,
        daemon.camera() as camera,
        daemon.consumer() as consumer,
        daemon.control() as control,
        Gate() as gate,
    ):
        control.shadow(held)
        submit(camera, 1, gate.picture(1))
        consumer.recv(timeout_s=LIMIT_S)
        gate.wait()
        operator = threading.Thread(target=drain)
        operator.start()
        daemon.wait_for(lambda status: status["state"] == "draining")
        assert daemon.status()["streams"]["road"]["held"] == 1
        assert not drained
        gate.open()
        operator.join()
        assert drained == [({"state": "draining"}, 0)]


def test_a_second_daemon_on_one_state_directory_is_refused_and_touches_nothing(
    tmp_path: Path, maker: BundleMaker
) -> None:
    bundle = maker.write(FIRST)
    with DaemonThread(tmp_path, [bundle], maker) as daemon:
        head = daemon.status()["audit"]
        (tmp_path / "second").mkdir()
        (tmp_path / "second" / "state").symlink_to(tmp_path / "state")  # by another name too
        with pytest.raises(SocketsTaken, match=r"another daemon serves .*state; stop it first or use another folder"):
            DaemonThread(tmp_path / "second", [bundle], maker)
        assert daemon.status()["audit"] == head


def test_an_operator_who_leaves_while_a_bundle_is_loaded_changes_nothing_about_it(
    tmp_path: Path, maker: BundleMaker, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    new, gate = replace(FIRST, version="2.0.0", release=2), threading.Event()
    bundle = maker.write(new)
    with DaemonThread(tmp_path, [maker.write(FIRST)], maker) as daemon:
        delay_loads(monkeypatch, gate)
        monkeypatch.setattr(Control.activate, "__defaults__", (0.05,))
        assert cli.main(["activate", str(bundle), "--sockets", str(daemon.sockets)]) == 1
        assert "may still carry it out: `fenced status`" in capsys.readouterr().err
        gate.set()
        daemon.wait_for(lambda status: status["models"][0]["release"] == new.release)
        with daemon.camera() as camera, daemon.consumer() as consumer:
            assert np.array_equal(run_one(camera, consumer, 1, picture(1)).outputs["values"], new.values(picture(1)))
        assert daemon.status()["faults"]["internal_errors"] == 0
