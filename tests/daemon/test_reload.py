"""A reload: newer roots and changed bundles are taken up between two frames; what is refused changes nothing."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from daemon.audit import verify
from daemon.health import Notifier
from daemon.serve import _Signals
from tests.simulators import RoleKeys, make_root, sign_root
from tests.support.bundles import BundleMaker, TinyModel
from tests.support.daemons import DaemonThread, picture, run_one

OLD, NEW = TinyModel("add"), TinyModel("add", version="2.0.0", release=2, number=9)
CODE_OFFSET = 9000  # of these bundles: the envelope and the graph take a page each, the code begins at 8192


class Manager(Notifier):
    """What a service manager is told."""

    def __init__(self) -> None:
        super().__init__(None)
        self.told: list[dict[str, str | int]] = []

    def send(self, **fields: str | int) -> None:
        self.told.append(fields)


@dataclass(frozen=True)
class Bench:
    """A daemon that serves OLD from `bundle`, and what its manager hears."""

    daemon: DaemonThread
    manager: Manager
    maker: BundleMaker
    bundle: Path

    def reload(self) -> dict[str, str | int]:
        """Reloads as SIGHUP does; returns what READY came with."""
        done = sum("READY" in told for told in self.manager.told)
        self.daemon.service.request_reload()
        self.daemon.wait_for(lambda status: sum("READY" in told for told in self.manager.told) > done)
        return [told for told in self.manager.told if "READY" in told][-1]

    def serving(self) -> str:
        """Name and version of the model."""
        return " ".join(str(self.daemon.status()["models"][0][key]) for key in ("name", "version"))


@pytest.fixture
def bench(tmp_path: Path, maker: BundleMaker) -> Iterator[Bench]:
    bundle = maker.write(OLD, "named.fenced")
    manager = Manager()
    with DaemonThread(tmp_path, [bundle], maker, notifier=manager) as daemon:
        yield Bench(daemon, manager, maker, bundle)


def test_a_bundle_that_changed_serves_after_a_reload_and_no_frame_is_lost(bench: Bench) -> None:
    with bench.daemon.camera() as camera, bench.daemon.consumer() as consumer:
        assert (run_one(camera, consumer, 1, picture(1)).outputs["values"] == OLD.values(picture(1))).all()
        bench.maker.write(NEW, bench.bundle.name)
        assert bench.reload()["STATUS"] == "serving what the configuration names"
        assert (run_one(camera, consumer, 2, picture(2)).outputs["values"] == NEW.values(picture(2))).all()
        assert camera.ledger.as_dict()["lost"] == 0
    told = [fields for fields in bench.manager.told if "RELOADING" in fields]
    assert len(told) == 1
    assert int(told[0]["MONOTONIC_USEC"]) > 0


def test_a_bundle_that_did_not_change_is_left_as_it_is(bench: Bench) -> None:
    entries = bench.daemon.status()["audit"]["entries"]
    bench.reload()
    assert bench.daemon.status()["audit"]["entries"] == entries + 1  # daemon.reloaded, and no bundle.accepted


@pytest.mark.parametrize("model", [OLD, NEW])
def test_a_damaged_bundle_leaves_the_old_one_serving_and_is_told(bench: Bench, model: TinyModel) -> None:
    whole = bench.maker.write(model, bench.bundle.name).read_bytes()
    bench.bundle.write_bytes(whole[:CODE_OFFSET] + bytes([whole[CODE_OFFSET] ^ 1]) + whole[CODE_OFFSET + 1 :])
    assert "reloaded, but: " in str(bench.reload()["STATUS"])
    assert bench.serving() == "tiny 1.0.0"
    assert {"MESSAGE_ID": "RELOAD_REFUSED"} in bench.daemon.log.fields
    bench.bundle.unlink()
    assert "unreadable-file" in str(bench.reload()["STATUS"])


def test_a_wrong_configuration_changes_nothing(bench: Bench, tmp_path: Path) -> None:
    config = tmp_path / "fenced.toml"
    text = config.read_text()
    config.write_text(text + "\n[limit]\nslots = 2\n")
    bench.maker.write(NEW, bench.bundle.name)
    assert "limit" in str(bench.reload()["STATUS"])
    assert bench.serving() == "tiny 1.0.0"
    config.write_text(text.replace("[limits]\n", "[limits]\nslots = 2\n"))
    assert "only a restart takes up limits" in str(bench.reload()["STATUS"])
    assert bench.serving() == "tiny 2.0.0"
    config.write_text(text.replace(str(bench.maker.root_path), "/elsewhere/root.json"))
    assert "until a restart" in str(bench.reload()["STATUS"])


def test_two_bundles_of_one_model_are_refused_at_a_start_and_change_nothing_at_a_reload(
    bench: Bench, tmp_path: Path
) -> None:
    another = bench.maker.write(NEW, "another.fenced")
    config = tmp_path / "fenced.toml"
    config.write_text(config.read_text().replace(f'"{bench.bundle}"]', f'"{another}", "{bench.bundle}"]'))
    for _ in range(2):
        assert "one bundle of each model, found 'two of tiny'" in str(bench.reload()["STATUS"])
        assert bench.serving() == "tiny 1.0.0"
    (tmp_path / "start").mkdir()
    start = DaemonThread(tmp_path / "start", [bench.bundle, another], bench.maker)
    assert start.run_to_the_end() == 3
    assert any("model-twice: model tiny in bundle_paths: expected one bundle" in line for line in start.log.lines)
    verify(str(tmp_path / "start" / "state" / "audit.jsonl"))


def test_a_newer_root_is_followed_and_outlives_the_process(bench: Bench, tmp_path: Path) -> None:
    keys = RoleKeys.make()
    newer = make_root(keys, version=2, minimum_releases={"tiny": 2})
    root = bench.maker.root_path.with_name("root-2.json")
    root.write_bytes(sign_root(newer, keys.root))
    root.chmod(0o644)
    config = tmp_path / "fenced.toml"
    one = f'"{bench.maker.root_path}"'
    config.write_text(config.read_text().replace(one, f'{one}, "{root}"'))
    bench.maker.write(NEW, bench.bundle.name)
    bench.reload()
    assert bench.daemon.status()["trust"]["root_version"] == 2
    assert bench.serving() == "tiny 2.0.0"
    bench.maker.write(TinyModel("add", version="1.1.0", release=1), bench.bundle.name)
    assert "rollback" in str(bench.reload()["STATUS"])
    bench.daemon.stop()
    shutil.copy(bench.maker.write(NEW), bench.bundle)
    bench.bundle.chmod(0o644)
    root.unlink()
    config.write_text(config.read_text().replace(f', "{root}"', ""))
    with DaemonThread(tmp_path, [bench.bundle], bench.maker) as again:
        assert again.status()["trust"]["root_version"] == 2


def test_a_bundle_that_a_newer_root_revokes_is_told_of_and_serves_on(bench: Bench) -> None:
    keys = RoleKeys.make()
    digest = bench.daemon.status()["models"][0]["digest"]
    root = bench.maker.root_path
    root.write_bytes(sign_root(make_root(keys, version=2, revoked_bundles=frozenset({digest})), keys.root))
    assert "tiny 1.0.0 (release 1) serves and would be refused (revoked:" in str(bench.reload()["STATUS"])
    assert bench.serving() == "tiny 1.0.0"
    bench.maker.write(NEW, bench.bundle.name)
    assert bench.reload()["STATUS"] == "serving what the configuration names"
    assert bench.serving() == "tiny 2.0.0"


def test_a_root_that_does_not_follow_is_refused_and_no_bundle_is_touched(bench: Bench, tmp_path: Path) -> None:
    stranger = RoleKeys.make(generation=2)
    root = bench.maker.root_path
    trusted = root.read_bytes()
    root.write_bytes(sign_root(make_root(stranger, version=2), stranger.root))
    bench.maker.write(NEW, bench.bundle.name)
    assert "root-chain-broken" in str(bench.reload()["STATUS"])
    assert (bench.daemon.status()["trust"]["root_version"], bench.serving()) == (1, "tiny 1.0.0")
    root.write_bytes(trusted)
    bench.reload()
    assert bench.serving() == "tiny 2.0.0"
    assert verify(str(tmp_path / "state/audit.jsonl")).entries > 0


def test_reloads_that_come_together_are_one_after_the_other(bench: Bench) -> None:
    for _ in range(3):
        bench.daemon.service.request_reload()
    bench.daemon.wait_for(lambda status: sum("READY" in told for told in bench.manager.told) >= 3)
    words = ["READY" if "READY" in told else "RELOADING" for told in bench.manager.told
             if "READY" in told or "RELOADING" in told]  # fmt: skip
    assert words == ["READY", "RELOADING", "READY", "RELOADING", "READY"]


def test_a_hangup_before_there_is_a_service_ends_nothing() -> None:
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)}
    try:
        _Signals()
        os.kill(os.getpid(), signal.SIGHUP)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
