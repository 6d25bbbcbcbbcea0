"""What the benchmarks make of their samples: ratios by block, lines with slopes, one table, one JSON, one page."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from lab.bench import suite
from lab.bench.curve import Curve, fit, make_curve
from lab.bench.kernels import subjects
from lab.bench.page import bench_page
from lab.bench.result import Result, this_machine
from lab.bench.row import BLOCKS, Row, block_ratios, make_row, merge
from lab.cli import main
from lab.compile.refusal import CompileRefusal, CompileRefused
from tests.support.browser import shown

GOOD = Row("fast <one>", 1000.0, 9000.0, "ns", "peer & co", 9.0, 0.1, 5.0, "what was done", (8.0, 9.5), "fast", 0.5)
BAD = replace(GOOD, name="slow one", theirs=2000.0, ratio=2.0, ratios=(1.5, 2.5), bench="slow")
FREE = replace(GOOD, name="free one", reach=0.0, ratios=(), unit="KiB")


def line_curve(name: str = "launches") -> Curve:
    """Ours costs 5 µs and 40 ns a launch, the peer 60 µs a launch."""
    found = {size: ([at + 40.0 * size for at in (5_000, 5_010, 5_020)], [60_000.0 * size, 60_000.0 * size])
             for size in (1000, 1, 10, 100)}  # fmt: skip
    return replace(
        make_curve(name, "launch", found, cost="submit to fence", peer="TinyJit", note="a thread"), bench="g"
    )


RESULT = Result(this_machine(), (GOOD, BAD, FREE), (line_curve(), line_curve("bundles")))


def test_a_line_is_found_with_its_slope_and_its_start() -> None:
    curve = line_curve()
    assert [one.size for one in curve.points] == [1, 10, 100, 1000]
    assert curve.ours.slope == pytest.approx(40)
    assert curve.ours.start == pytest.approx(5000)
    assert curve.theirs.at(7) == pytest.approx(7 * 60_000)
    assert (curve.points[0].low, curve.points[0].ours, curve.points[0].high) == (5_040, 5_050, 5_060)


@pytest.mark.parametrize(("costs", "r2"), [([1.0, 2.0, 3.0], 1.0), ([5.0, 5.0, 5.0], 1.0), ([1.0, 0.0, 1.0], 0.0)])
def test_r2_is_the_share_that_the_line_explains(costs: list[float], r2: float) -> None:
    assert fit([1, 2, 3], costs).r2 == pytest.approx(r2)


def test_a_rows_ratios_are_those_of_its_stretches_in_time() -> None:
    ours = [float(at // 10 + 1) for at in range(10 * BLOCKS)]  # slower from stretch to stretch
    theirs = [2.0 * (at // 5 + 1) for at in range(5 * BLOCKS)]  # and so is the peer, sampled half as often
    assert block_ratios(ours, theirs) == pytest.approx([2.0] * BLOCKS)
    assert make_row("x", ours, theirs, "peer").ratios == pytest.approx([2.0] * BLOCKS)


def test_a_peer_with_fewer_samples_than_stretches_stands_whole() -> None:
    assert block_ratios([1.0, 2.0], [4.0]) == (4.0, 2.0)


def test_repetitions_become_one_row_with_every_ratio() -> None:
    runs = [replace(GOOD, ours=ours, ratio=ratio) for ours, ratio in ((900.0, 10.0), (1000.0, 9.0), (3000.0, 3.0))]
    merged = merge(runs)
    assert (merged.ours, merged.ratio, merged.ratios) == (1000.0, 9.0, (10.0, 9.0, 3.0))
    assert merge(runs[:1]) is runs[0]


def test_the_page_names_every_row_its_peer_its_slope_and_what_was_missed() -> None:
    page = bench_page(RESULT)
    for text in ("Of 2 ratios that the design asks for, 1 missed: slow one", "fast &lt;one&gt;", "peer &amp; co",
                 "8.00 – 9.50", "40 ns beside 60.0 µs a further launch (R² 1.00)", "what was done", "AMD" if
                 "AMD" in RESULT.machine.cpu else RESULT.machine.kernel):  # fmt: skip
        assert text in page
    assert '<td class="good">9.00×</td>' in page
    assert '<td class="bad">2.00×</td>' in page
    assert page.count("<svg") == 2  # the ratios, and both curves side by side


def test_the_page_is_self_contained_and_the_same_each_time() -> None:
    page = bench_page(RESULT)
    assert not re.search(r"<(script|link|img|iframe)\b|@import|url\((?!#)", page)
    assert not re.search(r'(?:src|href)="(?!#)', page)
    assert page == bench_page(RESULT)


def test_a_run_without_rows_or_without_curves_has_a_page() -> None:
    assert "<svg" not in bench_page(Result(RESULT.machine, (), ()))
    assert "Cost against growth" not in bench_page(Result(RESULT.machine, (FREE,), ()))


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> list[suite.Setting]:
    """Settings of the benchmark `fast`, of which each run is twice as slow as the one before; and a curve, `g`."""
    seen: list[suite.Setting] = []

    def fast(at: suite.Setting) -> list[Row]:
        seen.append(at)
        return [replace(GOOD, ratio=8.0 / 2 ** len(seen))]

    monkeypatch.setattr(suite, "ROWS", {"fast": fast, "slow": lambda _: [BAD]})
    monkeypatch.setattr(suite, "CURVES", {"g": lambda _: [line_curve()]})
    return seen


def test_one_benchmark_can_be_run_alone(counted: list[suite.Setting], tmp_path: Path) -> None:
    assert main(["bench", "--only", "slow", "-o", str(tmp_path / "out")]) == 0
    found = json.loads((tmp_path / "out" / "bench.json").read_text())
    assert [(row["name"], row["bench"]) for row in found["rows"]] == [("slow one", "slow")]
    assert (found["curves"], counted) == ([], [])


def test_all_are_run_and_written_as_json_and_as_a_page(
    counted: list[suite.Setting], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--json", "bench", "--repeat", "3", "--models", str(tmp_path), "-o", str(tmp_path / "out")]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found == json.loads((tmp_path / "out" / "bench.json").read_text())
    assert [row["ratios"] for row in found["rows"]] == [[4.0, 2.0, 1.0], [2.0, 2.0, 2.0]]
    assert [curve["bench"] for curve in found["curves"]] == ["g"]
    assert found["machine"]["cores"] > 0
    assert "fast &lt;one&gt;" in (tmp_path / "out" / "bench.html").read_text()
    assert {one.models for one in counted} == {tmp_path}
    assert len({one.folder for one in counted}) == 3


def test_the_table_shows_every_row_and_slope(
    counted: list[suite.Setting], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", "-o", str(tmp_path / "out")]) == 0
    shown = capsys.readouterr().out
    for text in ("fast <one>", "slow one", "2.00×, missed", "1.50 – 2.50", "≥ 5.00×", "40 ns beside 60.0 µs a further"):
        assert text in shown


def test_one_that_fails_takes_no_other_with_it_and_is_told(
    counted: list[suite.Setting], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(_: suite.Setting) -> list[Row]:
        raise TimeoutError("no result")

    monkeypatch.setattr(suite, "ROWS", {"broken": broken, **suite.ROWS})
    assert main(["bench", "-o", str(tmp_path / "out")]) == 1
    assert "broken failed: TimeoutError('no result')" in capsys.readouterr().out
    found = json.loads((tmp_path / "out" / "bench.json").read_text())
    assert found["failed"] == ["broken"]
    assert len(found["rows"]) == 2
    assert "Failed, and so missing here: broken." in (tmp_path / "out" / "bench.html").read_text()


@pytest.mark.parametrize(
    "error",
    [
        ValueError("not enough values"),
        CompileRefused(CompileRefusal.MODEL_UNREADABLE, "x.onnx", expected="a model", found="bytes", todo="export it"),
    ],
)
def test_whatever_one_ends_in_the_others_go_on(
    counted: list[suite.Setting], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def broken(_: suite.Setting) -> list[Row]:
        raise error

    monkeypatch.setattr(suite, "ROWS", {"broken": broken, **suite.ROWS})
    assert main(["bench", "-o", str(tmp_path / "out")]) == 1
    found = json.loads((tmp_path / "out" / "bench.json").read_text())
    assert (found["failed"], len(found["rows"]), len(found["curves"])) == (["broken"], 2, 1)


def test_a_benchmark_gets_an_absolute_folder_and_runs_once(
    counted: list[suite.Setting], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["bench", "fast", "--only", "fast", "-o", "out"]) == 0
    assert [one.folder for one in counted] == [tmp_path / "out" / "fast"]


@pytest.mark.parametrize("driver", ["opencl", "hcq"])
def test_a_device_that_is_not_there_is_told(
    driver: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def absent(driver: str) -> list[Row]:
        raise CompileRefused(CompileRefusal.TARGET, "target.driver", expected="it", found="no device", todo="look")

    monkeypatch.setattr("lab.bench.dispatch.run", absent)
    assert suite.ROWS[f"dispatch-{driver}"](suite.Setting(Path())) == []
    assert f"dispatch {driver}: left out: target.driver: no device" in capsys.readouterr().err


def test_a_public_model_that_is_not_in_the_folder_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "RFB320.onnx").touch()
    assert [one.name for one in subjects(tmp_path)] == ["lane", "RFB320"]
    assert f"FastestDet: left out: no {tmp_path / 'FastestDet.onnx'}" in capsys.readouterr().err


def test_the_page_of_measurements_names_every_benchmark() -> None:
    text = (Path(__file__).parents[2] / "docs" / "performance.md").read_text()
    rows, beside = re.findall(r"^\| ([a-z-]+) \|", text, re.MULTILINE), re.findall(r"`([a-z-]+)`", text)
    assert {*suite.ROWS, *suite.CURVES} <= {*rows, *beside}


@pytest.mark.parametrize("options", [["--only", "nothing"], ["nothing"], ["slow", "--models", "nowhere"]])
def test_what_is_not_there_is_named(
    options: list[str], counted: list[suite.Setting], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", *options, "-o", str(tmp_path / "out")]) == 2
    assert "nothing" in (said := capsys.readouterr().err) or "nowhere" in said
    assert not (tmp_path / "out").exists()


def test_a_browser_shows_the_page(tmp_path: Path) -> None:
    picture = shown(bench_page(RESULT), tmp_path, 1600)
    for colour in (0x0B63C5, 0x1C7A3C, 0xB00020, 0xD2691E):  # without a goal, reached, missed, the peer's curve
        channels = np.array([colour >> 16, colour >> 8 & 255, colour & 255]) / 255
        assert (np.abs(picture - channels).max(axis=2) < 0.02).sum() > 50
    dark = (picture < 0.4).all(axis=2).any(axis=1).nonzero()[0]  # text from the top to the last table
    assert dark.min() < 100
    assert dark.max() > 1000
