"""`fenced verify` judges as the daemon would: under roots in their order, and under the vehicle's stored floors."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from client import cli
from signing import store
from signing.state import Floor, VehicleState
from signing.statement import Attachment
from tests.simulators import BundleSimulator, make_root, sign_root
from tests.support.bundles import BundleMaker, TinyModel

MODEL = TinyModel("add", release=5)


def verify(capsys: pytest.CaptureFixture[str], *words: object) -> tuple[int, dict[str, Any]]:
    status = cli.main(["verify", *map(str, words), "--json"])
    return status, json.loads(capsys.readouterr().out)


def second_root(maker: BundleMaker, **changes: Any) -> Path:
    """Version 2, held by the same keys."""
    keys = maker._simulator.keys
    path = maker.folder / "2.json"
    path.write_bytes(sign_root(make_root(keys, version=2, **changes), keys.root))
    path.chmod(0o644)
    return path


def test_the_newest_root_of_the_chain_decides(maker: BundleMaker, capsys: pytest.CaptureFixture[str]) -> None:
    bundle = maker.write(MODEL)
    first, second = maker.root_path, second_root(maker, minimum_releases={"tiny": 6})
    assert verify(capsys, bundle, "--root", first)[0] == 0
    status, told = verify(capsys, bundle, "--root", first, "--root", second)
    assert (status, told["refused"]["code"], told["refused"]["expected"]) == (
        3,
        "rollback",
        "at least the root's minimum 6",
    )
    status, told = verify(capsys, bundle, "--root", second, "--root", first)  # a later one may be provisioned alone
    assert (status, told["refused"]["code"]) == (3, "rollback")


def test_the_vehicles_floor_is_held_and_its_root_followed(
    maker: BundleMaker, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bundle, state = maker.write(MODEL), tmp_path / "trust.json"
    store.write_state(state, VehicleState(maker.root_path.read_bytes(), 1, {"tiny": Floor(6, "0" * 64)}))
    before = state.read_bytes()
    status, told = verify(capsys, bundle, "--root", maker.root_path, "--state", state)
    assert (status, told["refused"]["expected"]) == (3, "at least the confirmed 6")
    reset = second_root(maker, minimum_releases={"tiny": 5}, reset_floors=("tiny",))
    status, told = verify(capsys, bundle, "--root", maker.root_path, "--root", reset, "--state", state)
    assert (status, told["verified"]) == (0, True)
    assert state.read_bytes() == before  # looking changes nothing


def test_inspect_lists_what_is_attached(maker: BundleMaker, capsys: pytest.CaptureFixture[str]) -> None:
    def attach(simulator: BundleSimulator) -> None:
        simulator.blobs["sbom.json"] = b"{}"
        simulator.statement = replace(simulator.statement, attachments=(Attachment("sbom.json", "application/json"),))

    bundle = maker.write(MODEL, edit=attach)
    assert cli.main(["inspect", str(bundle), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["attachments"] == {"sbom.json": "application/json"}
