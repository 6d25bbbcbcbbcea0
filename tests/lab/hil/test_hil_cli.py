"""`fenced-lab hil`: scenarios and faults from the command line, with their pages and JUnit XML."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree as Xml

import numpy as np
import pytest

from lab.cli import main
from lab.hil import report as reports
from lab.hil.bench import Bench, Need
from lab.hil.daemon import PATIENT, DaemonProcess
from lab.hil.faults.fault import try_fault
from lab.hil.faults.index import FAULTS
from lab.hil.run import Attached, play
from lab.hil.scenario_toml import load_scenario
from lab.hil.trace import FrameRecord
from tests.support.browser import need_browser, shown

HEAD = '[scenario]\nname = "short <one>"\nduration_s = 0.5\nmodel = "tiny"\n[expect.frames]\nresults = '


@pytest.fixture
def short(tmp_path: Path) -> Path:
    """A scenario of ten frames that expects eleven results."""
    path = tmp_path / "short.toml"
    path.write_text(f"{HEAD}11\nmissing = 0\n")
    return path


def test_a_scenario_that_is_not_as_expected_ends_with_status_3_and_says_why(
    bench: Bench, short: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    junit, page = tmp_path / "out" / "j.xml", tmp_path / "out" / "p.html"
    words = ["hil", "run", str(short), "--sockets", str(bench.sockets), "--junit", str(junit), "--html", str(page)]
    assert main(words) == 3
    told = capsys.readouterr().out
    assert "NOT MET frames.results == 11: 10" in told
    assert "1 of 2 expectations met" in told
    suite = Xml.parse(junit).getroot()[0]
    assert (suite.get("tests"), suite.get("failures")) == ("2", "1")
    (failure,) = suite.iter("failure")
    assert failure.get("message") == "frames.results: expected == 11, found 10."
    names = {one.get("name"): one.get("value") for one in suite.iter("property")}
    assert names["model_digest"] == bench.status()["models"][0]["digest"]
    assert float(names["latency_ms.p99"] or "nan") > 0
    text = page.read_text()
    assert "short &lt;one&gt;" in text
    assert not re.search(r'(?:src|href)="(?!#)', text)  # it needs no other file
    short.write_text(f"{HEAD}10\n")
    assert main(["--json", *words[:5]]) == 0
    assert json.loads(capsys.readouterr().out)["passed"] is True


def test_several_scenarios_give_one_page_and_a_suite_each(
    bench: Bench, short: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    good = tmp_path / "good.toml"
    good.write_text(f"{HEAD}10\n".replace("short <one>", "good one"))
    junit, page = tmp_path / "j.xml", tmp_path / "p.html"
    words = ["hil", "run", str(good), str(short), "--sockets", str(bench.sockets), "--junit", str(junit)]
    assert main(["--json", *words, "--html", str(page)]) == 3
    assert [one["passed"] for one in json.loads(capsys.readouterr().out)] == [True, False]
    assert [one.get("failures") for one in Xml.parse(junit).getroot()] == ["0", "1"]
    text = page.read_text()
    assert (text.count(">met<"), text.count(">not met<")) == (3, 2)


def test_a_scenario_that_is_none_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["hil", "run", str(tmp_path / "none.toml")]) == 3
    assert capsys.readouterr().err.startswith("refused: scenario-unreadable:")


def test_faults_are_listed_injected_and_reported(
    bench: Bench, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["hil", "faults", "--list"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == len(FAULTS)
    assert main(["hil", "faults", "frames/99"]) == 3
    assert "frames/99" in capsys.readouterr().err
    junit, page = tmp_path / "j.xml", tmp_path / "p.html"
    words = ["hil", "faults", "frames/13", "runtime/1", "--sockets", str(bench.sockets), "--junit", str(junit)]
    assert main([*words, "--html", str(page)]) == 0  # what cannot be tried is no wrong answer
    told = capsys.readouterr().out
    assert re.search(r"right +frames/13", told)
    assert re.search(r"unavailable +runtime/1", told)
    suite = Xml.parse(junit).getroot()[0]
    assert (suite.get("tests"), suite.get("failures"), suite.get("skipped")) == ("2", "0", "1")
    assert "identical times" in page.read_text()


def test_a_wrong_answer_ends_with_status_3(
    bench: Bench, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def unexpected(bench: Bench) -> str:
        bench.camera("nobody").close()
        return "opened"

    finding = try_fault(replace(FAULTS[0], need=Need.SERVING, inject=unexpected), bench)
    monkeypatch.setattr("lab.hil.faults.fault.try_fault", lambda fault, bench: finding)
    assert main(["--json", "hil", "faults", "frames/13", "--sockets", str(bench.sockets)]) == 3
    assert json.loads(capsys.readouterr().out)[0]["outcome"] == "wrong"


def test_probes_are_signed_for_a_daemon_of_ones_own(
    tmp_path: Path, vehicle_program: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "probes"
    assert main(["hil", "probes", "-o", str(folder)]) == 0
    bundles = sorted(folder.glob("*.fenced"))
    streams = re.findall(r"\[stream\.(\w+)\]", capsys.readouterr().out)
    root = folder / "root.json"
    with DaemonProcess(tmp_path / "d", bundles, root, streams, limits=PATIENT, vehicle=vehicle_program) as daemon:
        words = ["hil", "faults", "runtime/1", "runtime/6", "--sockets", str(daemon.sockets), "--lab", str(folder)]
        assert main(words) == 0
    assert "2 of 2 answered rightly" in capsys.readouterr().out


def test_the_page_of_a_closed_loop_shows_in_a_browser(bench: Bench, short: Path, tmp_path: Path) -> None:
    need_browser()
    report = play(load_scenario(short), tmp_path / "run", attached=Attached(bench.sockets))
    report.trace.frames[:] = [
        FrameRecord(index / 20, "torn" if index == 70 else "run", 1.0 + index / 100, 0.5, {"lane_offset_m": 0.1},
                    {"lane_offset_m": 0.12}, left_m=0.5 * float(np.sin(index / 20)))
        for index in range(200)
    ]  # fmt: skip
    picture = shown(reports.scenario_page([report]), tmp_path, 2400)
    blue = np.abs(picture - np.array([0x0B, 0x63, 0xC5]) / 255).max(axis=2) < 0.02
    columns = blue[200:700].any(axis=0)  # the trajectory goes from edge to edge
    assert columns[150:1000].mean() > 0.95
    red = np.abs(picture - np.array([0xB0, 0x00, 0x20]) / 255).max(axis=2) < 0.02
    assert red.any()  # NOT met
