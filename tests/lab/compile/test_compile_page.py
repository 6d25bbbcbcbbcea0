"""The compile's HTML page: everything in it, nothing outside it, and a real browser shows it."""

import io
import re
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console
from rich.progress import Progress

from lab.cli import main
from lab.compile.compiler import compile_spec
from lab.compile.page import compile_page
from lab.compile.report import CompileReport
from tests.lab.compile.python_pipelines import write_pipeline
from tests.lab.compile.tiny_models import write_spec
from tests.support.browser import shown

HEADINGS = ("Contract", "Checks", "Accuracy", "Launch timeline", "Time per launch", "Arena map", "Sizes",
            "Time to compile")  # fmt: skip


@pytest.fixture(scope="module")
def progress() -> Progress:
    """What the command shows while it works."""
    return Progress(console=Console(file=io.StringIO()))


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory, progress: Progress) -> CompileReport:
    folder = tmp_path_factory.mktemp("page")
    return compile_spec(write_spec(folder), folder / "tiny.fenced", progress=progress)


def test_the_progress_bar_is_full_when_every_stage_is_done(report: CompileReport, progress: Progress) -> None:
    (bar,) = progress.tasks
    assert bar.completed == bar.total == len(report.stages)


@pytest.fixture(scope="module")
def stateful(tmp_path_factory: pytest.TempPathFactory) -> CompileReport:
    folder = tmp_path_factory.mktemp("stateful")
    return compile_spec(write_pipeline(folder), folder / "rolling.fenced")


def test_the_page_shows_contract_checks_launches_and_plots(report: CompileReport) -> None:
    page = compile_page(report)
    assert re.findall(r"<h2>(.*?)</h2>", page) == list(HEADINGS)
    assert page.count("<svg") == 3  # accuracy of one tensor, timeline, arena
    for text in ("offset_m", "NV12", "33x21", "limited, bt709", *(one.kernel for one in report.launches)):
        assert text in page
    for one in report.checks:
        assert one.name in page


def test_the_page_is_self_contained(report: CompileReport) -> None:
    page = compile_page(report)
    assert not re.search(r"<(script|link|img|iframe)\b|@import|url\((?!#)", page)
    assert not re.search(r'(?:src|href)="(?!#)', page)


def test_a_pipelines_aux_inputs_and_state_are_in_its_contract(stateful: CompileReport) -> None:
    page = compile_page(stateful)
    for text in ("gain", "250 ms", "the default stands in", "handed over", "its own eager run is the reference"):
        assert text in page


def test_what_a_spec_says_is_text_and_no_markup(report: CompileReport) -> None:
    spec = report.details.spec
    loud = replace(spec, outputs=(replace(spec.outputs[0], unit="<script>alert(1)</script>"),))
    page = compile_page(replace(report, details=replace(report.details, spec=loud)))
    assert "<script" not in page
    assert "&lt;script&gt;" in page


def test_every_launch_has_a_time_and_they_follow_one_another(report: CompileReport) -> None:
    spans = report.details.launch_spans_ns
    assert len(spans) == len(report.launches)
    assert spans[0][0] == 0
    assert all(start <= end for start, end in spans)
    assert all(one[1] == other[0] for one, other in pairwise(spans))


def test_a_device_without_launch_times_says_so(report: CompileReport) -> None:
    page = compile_page(replace(report, details=replace(report.details, launch_spans_ns=())))
    assert "no times of single launches" in page


def test_the_command_writes_the_page_beside_the_bundle(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compile", str(write_spec(tmp_path)), "-o", str(tmp_path / "out.fenced")]) == 0
    assert "<h2>Contract</h2>" in (tmp_path / "out.html").read_text()
    assert str(tmp_path / "out.html") in capsys.readouterr().out


def test_a_browser_shows_the_page(report: CompileReport, tmp_path: Path) -> None:
    picture = shown(compile_page(report), tmp_path, 2600)
    blue = np.abs(picture - np.array([0x0B, 0x63, 0xC5]) / 255).max(axis=2) < 0.02  # launches, points and the arena
    assert blue.any(axis=1).sum() > 100
    dark = (picture < 0.4).all(axis=2)  # text from the top to near the end of the page
    assert dark.any(axis=1)[:200].any()
    assert dark.any(axis=1).nonzero()[0].max() > 1200
