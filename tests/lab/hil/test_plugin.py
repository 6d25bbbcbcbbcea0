"""The pytest plugin, in a pytest of its own: fixtures, markers, JUnit properties and the page."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path
from xml.etree import ElementTree as Xml

import pytest

from lab.hil.bench import PROBES, Bench
from lab.hil.probe_lab import ProbeLab

REPOSITORY = Path(__file__).parents[3]
LIMIT_S = 600
TESTS = """
import pytest


def test_the_daemon_serves(fenced_daemon):
    assert fenced_daemon.status()["state"] == "serving"


def test_a_camera_and_its_results(fenced_camera, fenced_clock):
    camera = fenced_camera("noise", seed=3)
    camera.due.drop = 2
    for index in fenced_clock.periods(seconds=1, rate_hz=20):
        camera.step(index)
    assert camera.trace.statuses() == {"dropped": 2, "run": 18}
    assert fenced_clock.now_s == 0.95


def test_a_consumer(fenced_camera, fenced_consumer):
    panel = fenced_consumer()
    fenced_camera().step(0)
    assert panel.recv(timeout_s=10).receipt.frames[0].sequence == 1


@pytest.mark.fenced_row("frames/24")
@pytest.mark.fenced_needs("own")
def test_a_scenario(fenced_scenario):
    assert fenced_scenario("good.toml").passed


@pytest.mark.fenced_needs("own")
def test_a_scenario_that_fails(fenced_scenario):
    fenced_scenario("bad.toml")


@pytest.mark.parametrize("row", ["frames/13", "runtime/1", "runtime/9"])
def test_a_fault(fenced_fault, row):
    assert fenced_fault(row).words
"""
SCENARIO = (
    '[scenario]\nname = "{name}"\nduration_s = 0.5\n[daemon]\nprobe = "tiny"\n[expect.frames]\nresults = {results}\n'
)


def run(folder: Path, *options: str) -> tuple[subprocess.CompletedProcess[str], dict[str, Xml.Element]]:
    """Runs pytest on TESTS; its output, and the test cases of its JUnit XML by name."""
    (folder / "test_bench.py").write_text(TESTS)
    (folder / "pytest.ini").write_text("[pytest]\naddopts = --strict-markers -p no:cacheprovider\n")
    for name, results in (("good", 10), ("bad", 11)):
        (folder / f"{name}.toml").write_text(SCENARIO.format(name=name, results=results))
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:fenced-hil", "-p", "lab.hil.plugin",
               f"--junit-xml={folder / 'j.xml'}", f"--rootdir={folder}", str(folder), *options]  # fmt: skip
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False, timeout=LIMIT_S)
    cases = Xml.parse(folder / "j.xml").getroot().iter("testcase") if (folder / "j.xml").exists() else ()
    return done, {str(case.get("name")): case for case in cases}


def properties(case: Xml.Element) -> dict[str, str]:
    return {str(one.get("name")): str(one.get("value")) for one in case.iter("property")}


def outcomes(cases: dict[str, Xml.Element]) -> dict[str, str]:
    """How each test came out, by what JUnit says of it."""
    words = {name: [child.tag for child in case if child.tag != "properties"] for name, case in cases.items()}
    return {name.removeprefix("test_"): (tags or ["passed"])[0] for name, tags in words.items()}


def test_a_daemon_of_the_harness_is_tried(tmp_path: Path, vehicle_program: Path) -> None:
    page = tmp_path / "out" / "page.html"
    done, cases = run(tmp_path, f"--fenced-vehicle={vehicle_program}", f"--fenced-report={page}")
    assert outcomes(cases) == {
        "the_daemon_serves": "passed", "a_camera_and_its_results": "passed", "a_consumer": "passed",
        "a_scenario": "passed", "a_scenario_that_fails": "failure", "a_fault[frames/13]": "passed",
        "a_fault[runtime/1]": "passed", "a_fault[runtime/9]": "passed",
    }, done.stdout  # fmt: skip
    assert "frames.results == 11: 10" in done.stdout
    told = properties(cases["test_a_scenario"])
    assert (told["fenced_row"], told["fenced_model"], len(told["fenced_model_digest"])) == ("frames/24", "tiny", 64)
    assert 0 < float(told["fenced_latency_ms_p50"]) <= float(told["fenced_latency_ms_p99"])
    assert properties(cases["test_a_camera_and_its_results"])["fenced_model"] == "tiny"
    text = page.read_text()
    assert "7 passed, 1 failed" in text
    assert text.count("<svg") >= 4  # latency and ends of both scenarios
    assert "identical times" in text


def test_a_daemon_that_serves_already_is_tried_as_far_as_it_can_be(tmp_path: Path, bench: Bench) -> None:
    done, cases = run(tmp_path, f"--fenced-socket-dir={bench.sockets}")
    found = outcomes(cases)
    assert {name for name, word in found.items() if word == "skipped"} == {
        "a_scenario", "a_scenario_that_fails", "a_fault[runtime/1]", "a_fault[runtime/9]",
    }, done.stdout  # fmt: skip
    assert {word for word in found.values() if word != "skipped"} == {"passed"}, done.stdout


def test_a_bundle_of_ones_own_is_served(tmp_path: Path, vehicle_program: Path) -> None:
    lab = ProbeLab(tmp_path / "lab")
    bundle = lab.write(PROBES["slow"])
    options = [f"--fenced-bundle={bundle}", f"--fenced-root={lab.root_path}", f"--fenced-vehicle={vehicle_program}"]
    done, cases = run(tmp_path, *options, "-k", "camera or fault")
    assert properties(cases["test_a_camera_and_its_results"])["fenced_model"] == "slow", done.stdout
    assert outcomes(cases)["a_fault[runtime/1]"] == "skipped"
    assert outcomes(cases)["a_fault[runtime/9]"] == "passed"


def test_a_bundle_without_its_root_is_wrong_usage(tmp_path: Path) -> None:
    done, _ = run(tmp_path, "--fenced-bundle=x.fenced")
    assert done.returncode == pytest.ExitCode.USAGE_ERROR
    assert "--fenced-root" in done.stderr


def test_the_plugin_is_installed_with_the_extra() -> None:
    project = tomllib.loads((REPOSITORY / "lab" / "pyproject.toml").read_text())["project"]
    assert project["entry-points"]["pytest11"] == {"fenced-hil": "lab.hil.plugin"}
    assert any(one.startswith("pytest") for one in project["optional-dependencies"]["hil"])
