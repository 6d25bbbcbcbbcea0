"""The status: all of it, and where that is more than a packet holds, what matters most and what was left out."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from client import cli
from daemon.status import TEXT_LIMIT_BYTES, status_text
from signing.utc import LIMIT_UNIX_S
from tests.simulators import BundleSimulator
from tests.support.bundles import BundleMaker, TinyModel
from tests.support.daemons import DaemonThread


def state(models: int, outputs: int) -> dict[str, Any]:
    """As of a daemon whose models have many outputs, each followed by a shadow."""
    shadow = {"compared": 1, "outputs": [{"name": f"output-{at}", "worst": 0.0} for at in range(outputs)]}
    return {
        "models": [
            {
                "name": f"model-{at}",
                "shadow": {**shadow} if at else None,
                "outputs": ["output"] * outputs,
                "runs": {"torn": 1},
            }
            for at in range(models)
        ],
        "trust": {"root_version": 1, "rollback_floors": {}},
        "streams": {},
    }


def test_what_fits_is_told_whole() -> None:
    whole = state(2, 3)
    assert json.loads(status_text(state(2, 3))) == {**whole, "left_out": []}


def test_what_a_packet_does_not_hold_is_left_out_by_name_the_longest_first() -> None:
    text = status_text(state(3, 900))
    assert len(text) <= TEXT_LIMIT_BYTES
    told = json.loads(text)
    assert told["left_out"] == ["models.shadow.outputs"]
    assert [one["shadow"] for one in told["models"]] == [None, *[{"compared": 1, "outputs": []}] * 2]
    assert [len(one["outputs"]) for one in told["models"]] == [900] * 3
    told = json.loads(status_text(state(3, 9000)))
    assert told["left_out"] == ["models.shadow.outputs", "models.outputs"]
    assert [(one["name"], one["outputs"], one["runs"]) for one in told["models"]] == [
        (f"model-{at}", [], {"torn": 1}) for at in range(3)
    ]


def test_a_bundle_with_an_end_says_when_it_is(tmp_path: Path, maker: BundleMaker) -> None:
    def ending(sim: BundleSimulator) -> None:
        sim.statement = replace(sim.statement, expires_unix_s=LIMIT_UNIX_S)

    bundles = [
        maker.write(TinyModel(), edit=ending),
        maker.write(TinyModel(name="other", streams=("wide",)), "other.fenced"),
    ]
    with DaemonThread(tmp_path, bundles, maker) as daemon:
        assert [one["expires"] for one in daemon.status()["models"]] == ["9999-12-31T23:59:59Z", None]


def test_an_operator_of_very_many_models_sees_them_all(tmp_path: Path, maker: BundleMaker, capsys: Any) -> None:
    one = maker.write(TinyModel())
    with DaemonThread(tmp_path, [one], maker) as daemon:
        models = daemon.service.status()["models"]
        assert isinstance(models, list)
        text = status_text(daemon.service.status() | {"models": models * 80})
        assert len(text) <= TEXT_LIMIT_BYTES
        told = json.loads(text)
        assert (len(told["models"]), told["left_out"][-1]) == (80, "models.runs")
        assert cli.main(["status", "--sockets", str(daemon.sockets), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["left_out"] == []
