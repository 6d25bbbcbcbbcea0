"""`fenced check-config`: what a start would refuse is found before it, by key, and nothing is changed."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from daemon.config import load
from daemon.config_check import check
from tests.daemon.test_process import CODE_OFFSET
from tests.simulators import flip_byte
from tests.support.bundles import BundleMaker, TinyModel
from tests.support.daemons import DaemonThread, config_text

STREAM = "[stream.road]\nuids = [0]\n"


def checked(folder: Path, bundles: list[Path], maker: BundleMaker, more: str = STREAM, **options: Any) -> Any:
    path = folder / "fenced.toml"
    path.write_text(config_text(folder, bundles, maker, more))
    return check(load(str(path)), **options)


def found(answer: Any) -> list[tuple[str, str]]:
    assert all(one["what"] and len(one["todo"].split()) > 1 for one in answer["findings"])
    return [(one["name"], one["level"]) for one in answer["findings"]]


def test_what_would_serve_passes_and_says_what_it_is(tmp_path: Path, maker: BundleMaker) -> None:
    answer = checked(tmp_path, [maker.write(TinyModel())], maker)
    assert (answer["passed"], answer["findings"]) == (True, [])
    (model,) = answer["models"]
    assert (model["name"], model["streams"]) == ("tiny", ["road"])
    assert not (tmp_path / "state").exists()  # it changes nothing
    assert not (tmp_path / "sockets").exists()


def test_every_setting_is_shown_by_the_name_that_the_file_gives_it(tmp_path: Path, maker: BundleMaker) -> None:
    answer = checked(tmp_path, [maker.write(TinyModel())], maker)
    page = (Path(__file__).parents[2] / "docs" / "operations.md").read_text()
    for table in ("limits", "activation", "realtime"):
        for key in answer[table]:
            assert f"`{table}.{key}`" in page
    again = {key: answer[key] for key in ("state_directory", "limits", "realtime", "stream")}
    text = (
        f'root_paths = ["{maker.root_path}"]\nbundle_paths = ["x"]\nstate_directory = "{again["state_directory"]}"\n'
        + "".join(
            f"[{table}]\n" + "".join(f"{key} = {json.dumps(value)}\n" for key, value in again[table].items())
            for table in ("limits", "realtime")
        )
    )
    (tmp_path / "again.toml").write_text(text)
    config = load(str(tmp_path / "again.toml"))
    assert config.limits == load(str(tmp_path / "fenced.toml")).limits
    assert config.realtime == load(str(tmp_path / "fenced.toml")).realtime


def test_what_a_start_would_refuse_is_found_by_its_key(tmp_path: Path, maker: BundleMaker) -> None:
    good = maker.write(TinyModel())
    bad = good.with_name("bad.fenced")
    bad.write_bytes(flip_byte(good.read_bytes(), CODE_OFFSET))
    bad.chmod(0o644)
    answer = checked(tmp_path, [good, bad, good.with_name("none.fenced")], maker)
    assert found(answer) == [("bundle_paths", "error")] * 2
    assert "digest-mismatch" in answer["findings"][0]["what"]
    assert "none.fenced" in answer["findings"][1]["what"]
    assert answer["passed"] is False


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ("[device]\npin_cores = [4095]\n", ("device", "error")),
        ("[realtime]\ncores = [4095]\n", ("realtime.cores", "error")),
        ("[stream.rode]\nuids = [0]\n", ("stream.rode", "note")),
        ('[[model]]\nname = "tine"\npriority = 1\n', ("model", "note")),
        ("", ("stream.road", "note")),
    ],
)
def test_a_setting_that_is_well_formed_and_wrong_is_found(
    tmp_path: Path, maker: BundleMaker, more: str, expected: tuple[str, str]
) -> None:
    answer = checked(tmp_path, [maker.write(TinyModel())], maker, more)
    assert expected in found(answer)
    assert answer["passed"] is (expected[1] == "note")


def test_a_credential_that_is_there_for_the_unit_alone_is_given_by_hand(tmp_path: Path, maker: BundleMaker) -> None:
    bundle = maker.write(TinyModel())
    checked(tmp_path, [bundle], maker)
    path = "/run/credentials/fenced.service/root.json"
    config = replace(load(str(tmp_path / "fenced.toml")), root_paths=(path,))
    (finding,) = [one for one in check(config)["findings"] if one["name"] == "root_paths"]  # type: ignore[attr-defined]
    assert "--root" in finding["todo"]
    assert check(config, [str(maker.root_path)])["passed"] is True


def test_two_bundles_of_one_model_are_found(tmp_path: Path, maker: BundleMaker) -> None:
    bundles = [maker.write(TinyModel()), maker.write(TinyModel(version="2.0.0", release=2))]
    assert ("bundle_paths", "error") in found(checked(tmp_path, bundles, maker))


def test_a_stream_that_two_models_take_is_found(tmp_path: Path, maker: BundleMaker) -> None:
    answer = checked(tmp_path, [maker.write(TinyModel()), maker.write(TinyModel(name="other"))], maker)
    assert ("bundle_paths", "error") in found(answer)
    assert "also taken by tiny" in answer["findings"][0]["what"]


def test_a_floor_that_the_vehicle_has_reached_counts(tmp_path: Path, maker: BundleMaker) -> None:
    old, new = maker.write(TinyModel()), maker.write(TinyModel(version="2.0.0", release=2))
    with DaemonThread(tmp_path, [new], maker, more=STREAM) as daemon:
        daemon.service.trust.confirm(daemon.service.roster.pipelines["tiny"].model.bundle, str(new))
        daemon.service.trust.persist()
    answer = checked(tmp_path, [old], maker)
    assert found(answer) == [("bundle_paths", "error")]
    assert "rollback" in answer["findings"][0]["what"]


def test_a_release_that_was_taken_back_is_told_of(tmp_path: Path, maker: BundleMaker) -> None:
    old, new = maker.write(TinyModel()), maker.write(TinyModel(version="2.0.0", release=2))
    with DaemonThread(tmp_path, [old], maker, more=STREAM) as daemon, daemon.control() as control:
        control.activate(new)
        control.rollback()
    answer = checked(tmp_path, [new], maker)
    assert (answer["passed"], found(answer)) == (True, [("bundle_paths", "note")])
    assert f"{new}: rolled-back: " in answer["findings"][0]["what"]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives folders away")
def test_a_state_folder_of_another_user_is_left_alone_and_said(tmp_path: Path, maker: BundleMaker) -> None:
    (tmp_path / "state").mkdir(mode=0o700)
    (tmp_path / "state" / "trust.json").write_text("not to be read")
    os.chown(tmp_path / "state", 4_000_000, -1)
    answer = checked(tmp_path, [maker.write(TinyModel())], maker)
    assert found(answer) == [("state_directory", "note")]
    assert answer["passed"] is True


def test_a_state_folder_that_others_may_write_is_found(tmp_path: Path, maker: BundleMaker) -> None:
    (tmp_path / "state").mkdir()
    (tmp_path / "state").chmod(0o777)
    assert ("state_directory", "error") in found(checked(tmp_path, [maker.write(TinyModel())], maker))
