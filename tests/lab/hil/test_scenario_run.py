"""Scenarios are played against a real daemon, and what was expected is held against what was seen."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from abi import messages
from abi.colour import Range
from abi.packet import HEADER_BYTES
from lab.hil.bench import Bench
from lab.hil.run import Attached, Report, play
from lab.hil.scenario import ScenarioRefusal, ScenarioRefused
from lab.hil.scenario_toml import load_scenario
from lab.hil.view import LogView
from lab.replay.log import LogWriter
from tests.lab.hil.conftest import SLOW

EXAMPLES = Path(__file__).parents[3] / "examples" / "hil"
HEAD = '[scenario]\nname = "short"\nduration_s = 1.0\n'


def run(text: str, folder: Path, vehicle: Path, attached: Attached | None = None) -> Report:
    """Plays a scenario given as text."""
    path = folder / "scenario.toml"
    path.write_text(text)
    return play(load_scenario(path), folder / "run", vehicle=vehicle, attached=attached)


def write_frames(folder: Path, bench: Bench) -> Path:
    """A file of three raw frames of the bench's first stream."""
    frames = np.random.default_rng(1).integers(0, 200, (3, bench.format.buffer_bytes), dtype=np.uint8)
    path = folder / "frames.raw"
    path.write_bytes(frames.tobytes())
    return path


def failed(report: Report) -> list[str]:
    """What was not met, with the acts that the guard refused, by kind: one tells nothing without the other."""
    acts = [f"{name} {count:g}" for name, count in report.measures.items() if name.startswith("guard.")]
    return [f"{one.measure} {one.bound}: {one.found} {one.why}" for one in report.checks if not one.passed] + acts


def test_a_camera_that_does_everything_wrong_gets_what_is_right(tmp_path: Path, vehicle_program: Path) -> None:
    report = play(load_scenario(EXAMPLES / "troubled-camera.toml"), tmp_path, vehicle=vehicle_program)
    assert failed(report) == []
    assert report.passed
    switched = [one.digest for one in report.trace.results()]
    assert len(set(switched)) == 2  # release 2 served for a while
    (refused,) = [one for one in report.trace.requests if one.answer]
    assert (refused.event, "digest-mismatch" in refused.answer) == ("activate", True)


@pytest.mark.skipif(not SLOW, reason="a minute of driving: FENCED_SLOW=1")
def test_the_lane_is_kept_for_a_minute_whatever_befalls(tmp_path: Path, vehicle_program: Path) -> None:
    report = play(load_scenario(EXAMPLES / "lane-kept.toml"), tmp_path, vehicle=vehicle_program)
    assert failed(report) == []


def test_the_daemon_may_be_killed_and_aux_inputs_set(tmp_path: Path, vehicle_program: Path) -> None:
    text = f"""{HEAD}[daemon]
probe = "scale"
[[event]]
at_s = 0.2
event = "set aux"
name = "gain"
values = [2.0]
[[event]]
at_s = 0.5
event = "kill daemon"
[[event]]
at_s = 0.7
event = "set aux"
name = "gain"
values = [3.0]
[[event]]
at_s = 0.8
event = "set aux"
name = "gain"
values = [1.0, 2.0]
[[event]]
at_s = 0.9
event = "reset state"
[expect.frames]
results = 12
[expect.refusals]
bad_aux = 4
[expect.requests]
refused = 1
[expect.ledger]
submitted = 10
"""
    report = run(text, tmp_path, vehicle_program)
    assert failed(report) == []  # the ledger and the refusals are those of the daemon that was started again
    assert [one.status for one in report.trace.frames[:4]] == ["bad_aux"] * 4


def test_what_is_not_met_is_told_with_what_was_found(tmp_path: Path, bench: Bench) -> None:
    text = (
        f"{HEAD}model = 'tiny'\n[expect.frames]\nresults = 21\nmissing = 0\n[expect.output.nothing]\nmax = 0\n"
        "[expect.audit]\nchain_holds = 1\n[expect.refusals]\ntime_stale = 0\n"
    )
    report = run(text, tmp_path, bench.vehicle, Attached(bench.sockets))
    by_measure = {one.measure: one for one in report.checks}
    assert not report.passed
    assert (by_measure["frames.results"].found, by_measure["frames.results"].passed) == (20.0, False)
    assert by_measure["frames.missing"].passed
    assert by_measure["refusals.time_stale"].passed
    assert math.isnan(by_measure["output.nothing.max"].found)
    assert by_measure["output.nothing.max"].why
    assert "--audit" in by_measure["audit.chain_holds"].why
    audit = bench.daemon.audit_path if bench.daemon else None
    again = run(text, tmp_path, bench.vehicle, Attached(bench.sockets, audit))
    assert {one.measure: one for one in again.checks}["audit.chain_holds"].passed
    assert again.measures["ledger.submitted"] == 20  # what the daemon had counted before is not the drive's


def test_a_file_of_frames_is_played_round_and_round(tmp_path: Path, bench: Bench) -> None:
    path = write_frames(tmp_path, bench)
    text = f"{HEAD}model = 'tiny'\n[camera]\nsource = 'file'\nframes = 'frames.raw'\n[expect.frames]\nresults = 20\n"
    assert failed(run(text, tmp_path, bench.vehicle, Attached(bench.sockets))) == []
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(ScenarioRefused, match=r"camera\.frames"):
        run(text, tmp_path, bench.vehicle, Attached(bench.sockets))


def test_a_burst_supersedes_and_every_frame_is_accounted_for(tmp_path: Path, bench: Bench) -> None:
    burst = "[[event]]\nat_s = 0\nevent = 'burst'\ncount = 2\n"
    expected = "[expect.ledger]\nsubmitted = 3\nsuperseded = '>= 1'\nbalanced = 1\n"
    frames = np.full((1, bench.format.buffer_bytes), 60, np.uint8)  # some 0.1 s each for the slow probe
    (tmp_path / "slow.raw").write_bytes(frames.tobytes())
    camera = "[camera]\nsource = 'file'\nframes = 'slow.raw'\n"
    text = f"{HEAD.replace('1.0', '0.05')}model = 'slow'\n{camera}{burst}{expected}"
    assert failed(run(text, tmp_path, bench.vehicle, Attached(bench.sockets))) == []


def test_a_log_is_played_round_and_round(tmp_path: Path, bench: Bench) -> None:
    log = tmp_path / "drive.mcap"
    pixels = write_frames(tmp_path, bench).read_bytes()
    with LogWriter(log) as writer:
        writer.write(
            "/camera/road/format", messages.encode(messages.OpenStream("road", bench.format))[HEADER_BYTES:], 1
        )
        for index in range(3):
            size = bench.format.buffer_bytes
            writer.write("/camera/road/pixels", pixels[index * size : (index + 1) * size], 2 + index)
    text = f"{HEAD}model = 'tiny'\n[camera]\nsource = 'log'\nframes = 'drive.mcap'\n[expect.frames]\nresults = 20\n"
    assert failed(run(text, tmp_path, bench.vehicle, Attached(bench.sockets))) == []
    view = LogView(log, bench.format)
    seen = np.empty(bench.format.buffer_bytes, np.uint8)
    for index in range(5):
        view.fill(seen, index)
        assert seen.tobytes() == pixels[index % 3 * seen.size :][: seen.size]
    with pytest.raises(ScenarioRefused, match=r"camera\.frames, range"):
        LogView(log, replace(bench.format, range=Range.LIMITED))


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("model = 'pair'\n", ScenarioRefusal.MODEL),
        ("model = 'nobody'\n", ScenarioRefusal.MODEL),
        ("", ScenarioRefusal.MODEL),
        ("model = 'tiny'\n[camera]\nsource = 'road'\n", ScenarioRefusal.VALUE),
        ("model = 'tiny'\n[car]\n", ScenarioRefusal.VALUE),
        ("model = 'tiny'\n[[event]]\nat_s = 0\nevent = 'kill daemon'\n", ScenarioRefusal.NEEDS_OWN_DAEMON),
        ("model = 'tiny'\n[[event]]\nat_s = 0\nevent = 'activate'\nrelease = 2\n", ScenarioRefusal.VALUE),
        ("model = 'tiny'\n[[event]]\nat_s = 0\nevent = 'fail fence'\noutcome = 'x'\n", ScenarioRefusal.VALUE),
    ],
)
def test_what_a_bench_cannot_play_is_refused(tmp_path: Path, bench: Bench, text: str, code: ScenarioRefusal) -> None:
    with pytest.raises(ScenarioRefused) as refused:
        run(HEAD + text, tmp_path, bench.vehicle, Attached(bench.sockets))
    assert refused.value.code is code


def test_a_scenario_without_a_daemon_is_refused(tmp_path: Path, vehicle_program: Path) -> None:
    with pytest.raises(ScenarioRefused, match="--sockets"):
        run(HEAD, tmp_path, vehicle_program)
