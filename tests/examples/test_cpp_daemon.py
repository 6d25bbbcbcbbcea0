"""The C++ camera and consumer, as a user builds them, against the real daemon and a signed model."""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from abi.flat import ReleaseStatus
from tests.examples.cpp_programs import TIMEOUT_S, Outcome, Program
from tests.support.bundles import HEIGHT, PIXELS, WIDTH, BundleMaker, TinyModel
from tests.support.daemons import DaemonThread, picture

MODEL = TinyModel("add", number=7, unit="m")
SHOWN = 16  # values that the consumer prints of a long output
R8 = {
    "--stream": "road", "--format": "R8", "--size": f"{WIDTH}x{HEIGHT}", "--range": "full", "--matrix": "identity",
    "--primaries": "sensorNative", "--transfer": "linear", "--chroma-site": "notSubsampled", "--cfa": "none",
}  # fmt: skip


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[DaemonThread]:
    (tmp_path / "models").mkdir()
    maker = BundleMaker(tmp_path / "models")
    with DaemonThread(tmp_path, [maker.write(MODEL)], maker) as running:
        yield running


def camera(programs: Path, daemon: DaemonThread, **options: str) -> Program:
    """A C++ camera; keywords are options, with _ for -."""
    given = R8 | {"--rate-hz": "200"} | {f"--{name.replace('_', '-')}": value for name, value in options.items()}
    words = [word for option in given.items() for word in option]
    return Program([str(programs / "camera"), "--socket", str(daemon.sockets / "camera.sock"), *words])


def consumer(programs: Path, daemon: DaemonThread, *options: str, model: str = MODEL.name) -> Program:
    socket = str(daemon.sockets / "consumer.sock")
    return Program([str(programs / "consumer"), "--socket", socket, "--model", model, *options])


def ledger(daemon: DaemonThread) -> dict[str, int]:
    """The daemon's columns for the stream, refusals and reasons left out."""
    with daemon.control() as control:
        columns = control.status()["streams"]["road"]
    return {name: count for name, count in columns.items() if isinstance(count, int)}


def values_shown(text: str) -> list[float]:
    """The numbers of `[1,2,... 1024 values] m`."""
    inside, _, unit = text.removeprefix("[").rpartition("] ")
    assert unit == MODEL.unit
    assert inside.endswith(f",... {PIXELS} values")
    return [float(value) for value in inside.split(",")[:SHOWN]]


def test_raw_frames_become_results_with_their_fences(programs: Path, daemon: DaemonThread, tmp_path: Path) -> None:
    frames = [picture(seed) for seed in range(4)]
    raw = tmp_path / "frames.raw"
    raw.write_bytes(b"".join(frame.tobytes() for frame in frames))
    with consumer(programs, daemon, "--policy", "every", "--count", "4") as panel:
        subscribed = panel.line("subscribed")
        with camera(programs, daemon, input=str(raw), slots="1") as sensor:
            sent = sensor.outcome()
        got = panel.outcome()
    assert (sent.code, sent.stderr, got.code, got.stderr) == (0, "", 0, "")
    releases = sent.lines("release")
    assert [(one["sequence"], one["generation"], one["status"]) for one in releases] == [
        (str(sequence), str(sequence + 1), "run") for sequence in range(4)
    ]
    results = got.lines("result")
    assert [one["sequence"] for one in results] == ["0", "1", "2", "3"]
    assert [values_shown(one["values"]) for one in results] == [list(MODEL.values(frame)[:SHOWN]) for frame in frames]
    fences = [int(one["fence"]) for one in results]
    assert fences == sorted(set(fences))
    assert {one["status"] for one in results} == {"signaled"}
    assert {one["model"] for one in results} == {subscribed["model_digest"]}
    assert ledger(daemon) | {"submitted": 4, "run": 4, "held": 0} == ledger(daemon)


def test_the_test_picture_reaches_a_python_consumer(programs: Path, daemon: DaemonThread) -> None:
    rows, columns = np.mgrid[0:HEIGHT, 0:WIDTH]
    expected = (16 + (columns // 4 + rows) % 220).ravel() + MODEL.number
    with daemon.consumer() as panel, camera(programs, daemon, count="1") as sensor:
        delivery = panel.recv(timeout_s=TIMEOUT_S)
        assert sensor.outcome().code == 0
    assert np.array_equal(delivery.outputs["values"], expected)


@pytest.mark.parametrize("clock", ["monotonic", "boottime", "realtime", "tai"])
def test_frames_run_in_every_clock(programs: Path, daemon: DaemonThread, clock: str) -> None:
    with camera(programs, daemon, count="2", clock=clock, slots="1", input="/dev/zero") as sensor:  # one by one
        outcome = sensor.outcome()
    assert [one["status"] for one in outcome.lines("release")] == ["run", "run"]


def test_every_frame_is_accounted_for_on_both_sides(programs: Path, daemon: DaemonThread) -> None:
    with camera(programs, daemon, count="50", rate_hz="2000", slots="3") as sensor:
        outcome = sensor.outcome()
    assert outcome.code == 0
    ends = Counter(one["status"] for one in outcome.lines("release"))
    counted = ledger(daemon)
    assert counted["submitted"] == sum(ends.values()) == 50 - len(outcome.lines("dropped"))
    assert {status.name.lower(): counted[status.name.lower()] for status in ReleaseStatus} == {
        status.name.lower(): ends[status.name.lower()] for status in ReleaseStatus
    }


def test_wrong_format_is_refused_in_the_daemons_own_words(programs: Path, daemon: DaemonThread) -> None:
    with camera(programs, daemon, range="limited") as sensor:
        outcome = sensor.outcome()
    assert outcome == Outcome(
        3,
        "",
        "camera: the daemon refused openStream: formatMismatch\n"
        "  what:     format.range\n"
        "  expected: FULL\n"
        "  found:    LIMITED\n"
        "  action:   send what the model was compiled for, or compile it for this camera\n",
    )


REFUSALS = {
    "left out": ({"range": "unspecified"}, "badFormat", "format.range"),
    "contradiction": ({"matrix": "bt709"}, "badFormat", "format.matrix"),
    "another size": ({"size": "64x15"}, "formatMismatch", "format.height"),
    "another stride": ({"stride": "128"}, "formatMismatch", "format.bufferBytes"),
    "unknown stream": ({"stream": "rear"}, "unknownStream", "stream"),
}


@pytest.mark.parametrize("case", REFUSALS)
def test_refusals_name_the_field(programs: Path, daemon: DaemonThread, case: str) -> None:
    options, code, what = REFUSALS[case]
    with camera(programs, daemon, **options) as sensor:
        outcome = sensor.outcome()
    assert outcome.code == 3
    assert outcome.stderr.splitlines()[0].endswith(f"refused openStream: {code}")
    assert outcome.stderr.splitlines()[1] == f"  what:     {what}"


def test_unknown_model_is_refused(programs: Path, daemon: DaemonThread) -> None:
    with consumer(programs, daemon, model="nobody") as panel:
        outcome = panel.outcome()
    assert outcome.code == 3
    assert outcome.stderr.startswith("consumer: the daemon refused subscribe: notReady\n")


def test_killed_camera_loses_nothing_and_another_takes_its_stream(programs: Path, daemon: DaemonThread) -> None:
    with camera(programs, daemon, rate_hz="1000") as sensor:
        sensor.line("release")
        sensor.process.send_signal(signal.SIGKILL)
        sensor.process.wait(TIMEOUT_S)
        with camera(programs, daemon, count="3", slots="1", input="/dev/zero") as next_sensor:
            outcome = next_sensor.outcome()
    assert [one["status"] for one in outcome.lines("release")] == ["run"] * 3
    counted = ledger(daemon)
    assert counted["held"] == 0
    assert counted["submitted"] == sum(counted[status.name.lower()] for status in ReleaseStatus)


def test_killed_consumer_holds_nothing(programs: Path, daemon: DaemonThread) -> None:
    with consumer(programs, daemon) as panel:
        panel.line("subscribed")
        panel.process.send_signal(signal.SIGKILL)
        panel.process.wait(TIMEOUT_S)
        with camera(programs, daemon, count="20", slots="1", input="/dev/zero") as sensor:
            assert [one["status"] for one in sensor.outcome().lines("release")] == ["run"] * 20


def test_a_second_camera_is_refused_the_stream(programs: Path, daemon: DaemonThread) -> None:
    with camera(programs, daemon) as first:
        first.line("streaming")
        with camera(programs, daemon) as second:
            outcome = second.outcome()
        assert outcome.code == 3
        assert "refused openStream: streamTaken" in outcome.stderr
        first.line("release")


def test_the_daemons_end_is_told_to_both(programs: Path, daemon: DaemonThread) -> None:
    with camera(programs, daemon, rate_hz="1") as sensor, consumer(programs, daemon) as panel:
        sensor.line("release")
        panel.line("subscribed")
        daemon.stop()
        ends = [sensor.outcome(), panel.outcome()]
    assert [end.code for end in ends] == [1, 1]
    assert all("the daemon ended the session: " in end.stderr for end in ends)
