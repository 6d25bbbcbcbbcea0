"""The way to READY: as long as it takes, nothing believed before it is checked, and the device warm when it is said."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from abi import schema
from client.errors import Refused
from daemon import models, service
from daemon.health import Notifier
from daemon.models import ModelLoader
from daemon.selftest import WARM_UP_RUNS
from tests.simulators import BundleSimulator
from tests.support.bundles import BundleMaker, TinyModel
from tests.support.daemons import LIMIT_S, DaemonThread, picture, run_one

OLD = TinyModel("add", number=3)
NEW = TinyModel("add", version="2.0.0", release=2, number=50)


class Manager(Notifier):
    """What a service manager is told; `extended` once it was asked for more time three times."""

    def __init__(self) -> None:
        super().__init__(None)
        self.told: list[str] = []
        self.extended = threading.Event()

    def send(self, **fields: str | int) -> None:
        self.told += fields
        if self.told.count("EXTEND_TIMEOUT_USEC") >= 3:
            self.extended.set()


def test_a_slow_load_asks_for_more_time_and_is_not_ready_until_it_serves(
    tmp_path: Path, maker: BundleMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate, manager, load = threading.Event(), Manager(), ModelLoader.load
    monkeypatch.setattr(service, "_EXTEND_EVERY_NS", 5_000_000)
    monkeypatch.setattr(ModelLoader, "load", lambda self, path, **how: (gate.wait(LIMIT_S), load(self, path, **how))[1])
    seen: list[dict[str, Any]] = []
    daemon = DaemonThread(tmp_path, [maker.write(OLD)], maker, notifier=manager)

    def look() -> None:
        assert manager.extended.wait(LIMIT_S)
        seen.append({**daemon.status(), "told": list(manager.told)})  # the control socket answers meanwhile
        gate.set()

    observer = threading.Thread(target=look)
    observer.start()
    with daemon:
        observer.join()
        (early,) = seen
        assert (early["state"], "READY" in early["told"]) == ("loading", False)
        ready = manager.told.index("READY")
        with daemon.camera() as camera, daemon.consumer() as consumer:
            run_one(camera, consumer, 1, picture(1))
        assert "EXTEND_TIMEOUT_USEC" not in manager.told[ready:]


def test_the_device_has_run_everything_before_ready(tmp_path: Path, maker: BundleMaker) -> None:
    with DaemonThread(tmp_path, [maker.write(OLD)], maker) as daemon:
        model = daemon.service.roster.pipelines["tiny"].model
        runs = len(model.graph.goldens) + WARM_UP_RUNS
        assert model.executable.launches_done() >= runs * len(model.graph.launches)
        assert min(model.report.fastest_run_ns) > 0


def garbage_for_another_hal(simulator: BundleSimulator) -> None:
    """A graph and code that nobody could read, signed for another HAL interface."""
    simulator.statement = replace(simulator.statement, hal_version=2)
    simulator.blobs = {**simulator.blobs, "graph": b"\xff" * 64, "code": b"\xff" * 64}


def without_outputs(simulator: BundleSimulator) -> None:
    """A graph whose bytes are well formed and lack a field."""
    with schema.graph.Graph.from_bytes(bytes(simulator.blobs["graph"])) as reader:
        builder = reader.as_builder()
    builder.init("outputs", 0)
    data = builder.copy().to_bytes()
    simulator.blobs = {**simulator.blobs, "graph": bytes(data)}


def without_target(simulator: BundleSimulator) -> None:
    """A statement without the field that says what it was built for."""
    simulator.edit_statement = lambda document: document["predicate"].pop("target")


def without_goldens(simulator: BundleSimulator) -> None:
    """A bundle without its golden vectors."""
    simulator.blobs = {name: blob for name, blob in simulator.blobs.items() if name != "goldens"}


MISSING = {
    without_outputs: "buffer-role: buffer 1: no output describes it",
    without_target: "bad-statement: .*target",
    without_goldens: "unknown-blob: .*goldens",
}


@pytest.mark.parametrize("edit", MISSING, ids=lambda edit: edit.__name__)
def test_a_bundle_that_lacks_a_field_is_refused_and_the_old_model_serves_on(
    tmp_path: Path, maker: BundleMaker, edit: Any
) -> None:
    bad = maker.write(NEW, "bad.fenced", edit=edit)
    with (
        DaemonThread(tmp_path, [maker.write(OLD)], maker) as daemon,
        daemon.camera() as camera,
        daemon.consumer() as consumer,
        daemon.control() as control,
    ):
        with pytest.raises(Refused, match=MISSING[edit]):
            control.activate(bad)
        assert np.array_equal(run_one(camera, consumer, 1, picture(1)).outputs["values"], OLD.values(picture(1)))


def test_a_bundle_for_another_hal_interface_is_refused_before_anything_of_it_is_parsed(
    tmp_path: Path, maker: BundleMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    bad = maker.write(NEW, "bad.fenced", edit=garbage_for_another_hal)
    with DaemonThread(tmp_path, [maker.write(OLD)], maker) as daemon, daemon.control() as control:
        parsed: list[object] = []
        monkeypatch.setattr(models, "decode", parsed.append)
        with pytest.raises(Refused, match=r"target-mismatch: .*(HAL|halVersion)"):
            control.activate(bad)
        assert parsed == []
        assert control.status()["models"][0]["release"] == 1
