"""A shadow by command: what cannot be one, what it may do in a sealed daemon, and how it is begun and ended."""

from __future__ import annotations

import json
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from client import cli
from client.errors import Refused
from tests.daemon.test_models import delay_loads
from tests.daemon.test_process import Process
from tests.support.bundles import BundleMaker, TinyModel
from tests.support.daemons import DaemonThread, ended, picture, run_one

OLD = TinyModel("add", number=3)
NEW = TinyModel("add", version="2.0.0", release=2, number=5)
SUM = TinyModel("total")


REFUSALS = {
    "another model": (TinyModel("add", name="other", streams=("wide",)), "shadow-model: .*found other"),
    "another stream": (replace(NEW, streams=("wide",)), "shadow-stream: .*one of road, found wide"),
    "an aux input that nobody sets": (TinyModel("scale", version="2.0.0", release=2), "shadow-aux: aux input gain"),
}


def test_a_shadow_that_ends_while_a_bundle_is_being_loaded_is_unloaded_once_that_is_over(
    tmp_path: Path, maker: BundleMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    serving, gate = maker.write(OLD, "named.fenced"), threading.Event()
    with DaemonThread(tmp_path, [serving], maker) as daemon, daemon.control() as control:
        control.shadow(maker.write(NEW))
        maker.write(TinyModel("add", version="3.0.0", release=3, number=9), serving.name)
        delay_loads(monkeypatch, gate)
        daemon.service.request_reload()
        daemon.wait_for(lambda status: daemon.service.switching.activator.busy)
        assert control.end_shadow()["ended"] == "by command"
        assert control.status()["device"]["memory"]["executables"] == 2  # taking it apart would wait for the load
        gate.set()
        daemon.wait_for(lambda status: status["models"][0]["version"] == "3.0.0")
        assert control.status()["device"]["memory"]["executables"] == 2  # what serves, and what served before


@pytest.mark.parametrize("case", REFUSALS)
def test_what_cannot_be_compared_is_refused_by_name(tmp_path: Path, maker: BundleMaker, case: str) -> None:
    model, words = REFUSALS[case]
    bundle = maker.write(model)
    with DaemonThread(tmp_path, [maker.write(OLD)], maker) as daemon, daemon.control() as control:
        with pytest.raises(Refused, match=words):
            control.shadow(bundle)
        assert control.status()["device"]["memory"]["executables"] == 1
        assert control.status()["models"][0]["shadow"] is None
        with pytest.raises(Refused, match="NOT_PERMITTED"):
            control.shadow(tmp_path / "elsewhere.fenced")


def test_a_sealed_daemon_shadows_and_keeps_state_without_a_forbidden_act(
    vehicle_site: Path, tmp_path: Path, maker: BundleMaker
) -> None:
    new = maker.write(replace(SUM, version="2.0.0", release=2))
    process = Process(vehicle_site, tmp_path, [maker.write(SUM)], maker)
    child = process.start()
    try:
        with process.camera() as camera, process.consumer() as consumer, process.control() as control:
            control.shadow(new)
            for sequence in range(3):
                run_one(camera, consumer, sequence, picture(sequence))
                ended(camera)
            control.restore_state(control.snapshot_state())
            found = control.end_shadow()
            assert (found["compared"], found["within"]) == (3, 3)
        status = process.status()
        assert status["guard"]["sealed"]
        assert set(status["guard"]["refused"].values()) == {0}
        assert status["faults"]["internal_errors"] == 0
        assert process.stop() == 0
    finally:
        child.kill()
        child.communicate()


def test_the_command_begins_and_ends_a_shadow(
    tmp_path: Path, maker: BundleMaker, capsys: pytest.CaptureFixture[str]
) -> None:
    new = str(maker.write(NEW))
    with DaemonThread(tmp_path, [maker.write(OLD)], maker) as daemon:
        sockets = ("--sockets", str(daemon.sockets), "--json")
        assert cli.main(["activate", new, "--shadow", "--frames", "7", *sockets]) == 0
        assert json.loads(capsys.readouterr().out)["shadow"] is True
        assert cli.main(["activate", "--shadow", "off", *sockets]) == 0
        assert json.loads(capsys.readouterr().out)["compared"] == 0
        for wrong in ([], [new, "--shadow", "off"], ["--shadow"], ["--frames", "3", "--shadow", "off"],
                      [new, "--frames", "3"], [new, "--shadow", "--frames", "-1"]):  # fmt: skip
            with pytest.raises(SystemExit) as usage:
                cli.main(["activate", *wrong, *sockets])
            assert usage.value.code == 2
        assert daemon.status()["models"][0]["release"] == OLD.release  # a count without its --shadow activates nothing
