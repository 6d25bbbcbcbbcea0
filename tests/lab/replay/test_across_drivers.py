"""A log that was recorded on one driver, replayed on another: the same values within a stated tolerance."""

from __future__ import annotations

from pathlib import Path

from lab.compile import opencl as compiler
from lab.replay.compare import Tolerance, Tolerances
from lab.replay.replay import Options, replay
from tests.daemon.test_opencl_process import write
from tests.lab.replay.recording import drive, recording
from tests.support import opencl
from tests.support.bundles import BundleMaker, TinyModel
from tests.support.daemons import DaemonThread


def test_what_ran_on_the_cpu_runs_on_opencl_within_the_tolerance(tmp_path: Path, maker: BundleMaker) -> None:
    opencl.require_device()
    log, model = tmp_path / "r.mcap", TinyModel()
    with (
        DaemonThread(tmp_path, [maker.write(model)], maker) as daemon,
        daemon.camera() as camera,
        recording(daemon, log) as recorder,
    ):
        drive(camera, recorder, 1, 4)
    (tmp_path / "other").mkdir()
    bundle = write(maker, TinyModel(version="2.0.0"), compiler.local_device().identity)
    near = Options(Tolerances(outputs={"values": Tolerance(relative=1e-6)}), any_model=True)
    with DaemonThread(tmp_path / "other", [bundle], maker, more='[device]\ndriver = "opencl"\n') as daemon:
        report = replay(daemon.sockets, log, options=near)
        assert daemon.status()["device"]["driver"] == "opencl"
    assert report.passed
    assert report.compared.compared == 4
    assert report.logged_digest != report.served_digest
