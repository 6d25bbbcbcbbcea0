"""docs/hil.md is true: its scenario is played, its tests run, every event, measure, option and fixture is explained."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from lab.hil import plugin
from lab.hil.bench import Bench
from lab.hil.run import play
from lab.hil.scenario_toml import EVENT_PARAMS, MEASURES, load_scenario

REPOSITORY = Path(__file__).parents[3]
PAGE = (REPOSITORY / "docs" / "hil.md").read_text()
LIMIT_S = 600


def block(language: str) -> str:
    (found,) = re.findall(rf"^```{language}\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    return str(found)


def test_the_scenario_of_the_page_is_played_as_it_says(tmp_path: Path, vehicle_program: Path) -> None:
    (tmp_path / "scenario.toml").write_text(block("toml"))
    report = play(load_scenario(tmp_path / "scenario.toml"), tmp_path / "run", vehicle=vehicle_program)
    assert {one.measure: one.passed for one in report.checks}["ledger.torn"]
    assert len({one.digest for one in report.trace.results()}) == 2


def test_the_tests_of_the_page_run(tmp_path: Path, vehicle_program: Path) -> None:
    (tmp_path / "test_mine.py").write_text(block("python"))
    plugins = ["-p", "no:fenced-hil", "-p", "lab.hil.plugin", "-p", "no:cacheprovider"]
    options = [f"--rootdir={tmp_path}", f"--fenced-vehicle={vehicle_program}", str(tmp_path)]
    command = [sys.executable, "-m", "pytest", "-q", *plugins, *options]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False, timeout=LIMIT_S)
    assert "3 passed" in done.stdout, done.stdout


def test_every_event_with_its_parameters_and_every_measure_is_explained() -> None:
    words = set(re.findall(r"`([^`]+)`", " ".join(re.findall(r"^\|(.*)\|$", PAGE, re.MULTILINE))))
    for kind, params in EVENT_PARAMS.items():
        assert {kind.value, *params} <= words, kind
    for section, keys in MEASURES.items():
        assert any(word.startswith(f"expect.{section}") for word in words), section
        assert set(keys) - {"*", "chain_holds", "balanced"} <= words, section
    assert "`chain_holds = 1`" in PAGE
    assert "`balanced = 1`" in PAGE


def test_every_fixture_and_option_of_the_plugin_is_explained(bench: Bench) -> None:
    source = Path(str(plugin.__file__)).read_text()
    fixtures = set(re.findall(r"^def (fenced_\w+)\(", source, re.MULTILINE))
    options = set(re.findall(r'addoption\("(--fenced-[a-z-]+)"', source))
    assert len(fixtures) == 6
    for name in fixtures | options:
        assert f"`{name}" in PAGE or f" {name}" in PAGE, name
