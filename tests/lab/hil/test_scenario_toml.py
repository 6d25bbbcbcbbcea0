"""Scenarios are read strictly: what is unknown, missing or out of range is refused by its place and code."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from lab.hil.scenario import Bound, EventKind, Expectation, Pace, ScenarioRefusal, ScenarioRefused
from lab.hil.scenario_toml import EVENT_PARAMS, load_scenario

EXAMPLES = Path(__file__).parents[3] / "examples" / "hil"
GOOD = """
[scenario]
name = "good"
duration_s = 2.0
pace = "real-time"
[daemon]
probe = "tiny"
limits = { slots = 4 }
[[event]]
at_s = 1.5
event = "drop frames"
count = 2
[[event]]
at_s = 1
event = "kill camera"
[expect.ledger]
torn = 0
[expect.latency_ms]
p99 = "<= 20"
[expect.output.values]
max = "< 3"
"""


def load(folder: Path, text: str) -> object:
    (folder / "scenario.toml").write_text(text)
    return load_scenario(folder / "scenario.toml")


def test_a_scenario_is_read_with_its_defaults_and_in_order_of_time(tmp_path: Path) -> None:
    (tmp_path / "scenario.toml").write_text(GOOD)
    scenario = load_scenario(tmp_path / "scenario.toml")
    assert (scenario.frames, scenario.pace, scenario.model, scenario.car) == (40, Pace.REAL_TIME, None, None)
    assert (scenario.daemon.probe, scenario.daemon.limits, scenario.camera.source) == ("tiny", {"slots": 4}, "noise")
    assert [(one.at_s, one.kind, one.params) for one in scenario.events] == [
        (1.0, EventKind.KILL_CAMERA, {}), (1.5, EventKind.DROP_FRAMES, {"count": 2}),
    ]  # fmt: skip
    assert scenario.expectations == (
        Expectation("ledger.torn", Bound("==", 0.0)),
        Expectation("latency_ms.p99", Bound("<=", 20.0)),
        Expectation("output.values.max", Bound("<", 3.0)),
    )


@pytest.mark.parametrize(
    ("old", "new", "code", "where"),
    [
        ("duration_s = 2.0", "", ScenarioRefusal.KEY_MISSING, "scenario.duration_s"),
        ("duration_s = 2.0", "duration_s = inf", ScenarioRefusal.VALUE, "scenario.duration_s"),
        ("duration_s = 2.0", 'duration_s = "2"', ScenarioRefusal.VALUE, "scenario.duration_s"),
        ("duration_s = 2.0", "duration_s = 2.0\nrate = 3", ScenarioRefusal.KEY_UNKNOWN, "scenario.rate"),
        ('"real-time"', '"slowly"', ScenarioRefusal.VALUE, "scenario.pace"),
        ("[daemon]", "[demon]", ScenarioRefusal.KEY_UNKNOWN, "demon"),
        ('probe = "tiny"', 'probe = "huge"', ScenarioRefusal.VALUE, "daemon.probe"),
        ('probe = "tiny"', 'probe = "tiny"\nspec = "a"', ScenarioRefusal.VALUE, "daemon.spec, bundle, probe"),
        ('probe = "tiny"', 'bundle = "a"', ScenarioRefusal.VALUE, "daemon.spec, bundle, probe"),
        ("slots = 4", "slots = true", ScenarioRefusal.VALUE, "daemon.limits.slots"),
        ("drop frames", "drop the camera", ScenarioRefusal.EVENT_UNKNOWN, "event[0].event"),
        ("count = 2", "counts = 2", ScenarioRefusal.KEY_UNKNOWN, "event[0].counts"),
        ("count = 2", "count = 0", ScenarioRefusal.VALUE, "event[0].count"),
        ('"drop frames"\ncount = 2', '"stall camera"\nfor_s = -1', ScenarioRefusal.VALUE, "event[0].for_s"),
        ('"drop frames"\ncount = 2', '"fail fence"\noutcome = "maybe"', ScenarioRefusal.VALUE, "event[0].outcome"),
        ('"drop frames"\ncount = 2', '"set aux"\nname = "a"\nvalues = ["1"]', ScenarioRefusal.VALUE, "event[0].values"),
        ("at_s = 1.5", "at_s = -1", ScenarioRefusal.VALUE, "event[0].at_s"),
        ("at_s = 1.5", "", ScenarioRefusal.KEY_MISSING, "event[0].at_s"),
        ("torn = 0", "thorn = 0", ScenarioRefusal.MEASURE_UNKNOWN, "expect.ledger.thorn"),
        ("torn = 0", "torn = true", ScenarioRefusal.VALUE, "expect.ledger.torn"),
        ('"<= 20"', '"about 20"', ScenarioRefusal.VALUE, "expect.latency_ms.p99"),
        ("[expect.ledger]", "[expect.ledgers]", ScenarioRefusal.KEY_UNKNOWN, "expect.ledgers"),
        ("[daemon]", '[camera]\nsource = "file"\n[daemon]', ScenarioRefusal.VALUE, "camera.frames"),
        ("[scenario]", "[scenario", ScenarioRefusal.UNREADABLE, "scenario.toml"),
    ],
)
def test_what_is_wrong_is_refused_by_place_and_code(
    tmp_path: Path, old: str, new: str, code: ScenarioRefusal, where: str
) -> None:
    assert GOOD.count(old) == 1
    with pytest.raises(ScenarioRefused) as refused:
        load(tmp_path, GOOD.replace(old, new))
    assert refused.value.code is code
    assert refused.value.what.endswith(where)
    assert refused.value.todo


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ScenarioRefused, match="scenario-unreadable"):
        load_scenario(tmp_path / "none.toml")


@pytest.mark.parametrize(
    ("text", "inside", "outside"),
    [(3, 3.0, 3.1), ("<= 3", 3.0, 3.1), ("> 3", 3.1, 3.0), ("!= 0", 1.0, 0.0), (">= -1.5", -1.5, math.nan)],
)
def test_a_bound_is_met_or_not(text: str | int, inside: float, outside: float) -> None:
    bound = Bound.parse(text)
    assert (bound.holds(inside), bound.holds(outside)) == (True, False)
    assert Bound.parse(str(bound)) == bound


@pytest.mark.parametrize("text", ["3 <=", "<=", "=< 3", "<= three", ""])
def test_what_is_no_bound_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        Bound.parse(text)


def test_every_event_has_its_parameters_and_the_examples_are_scenarios() -> None:
    assert set(EVENT_PARAMS) == set(EventKind)
    used = {event.kind for path in EXAMPLES.glob("*.toml") for event in load_scenario(path).events}
    assert used == set(EventKind) - {EventKind.SET_AUX, EventKind.KILL_DAEMON, EventKind.RESET_STATE, EventKind.BURST}
