"""Times and sequence numbers as cameras got them wrong in the field, over the real socket.

Row numbers are those of cases/frames.md; tests/test_frame_cases.py has the whole index.
"""

from __future__ import annotations

import functools
import time
from pathlib import Path

import pytest

from abi.format import ClockId
from client.camera import Camera
from daemon.clocks import ClockMap
from tests.support.bundles import BundleMaker, TinyModel, frame_format
from tests.support.daemons import LIMIT_S, DaemonThread, ended, picture, submit

SUSPEND_NS = 3_600 * 10**9


@pytest.fixture
def _suspended(monkeypatch: pytest.MonkeyPatch) -> None:
    """The machine has slept for an hour: its clock of boot time is that far ahead of CLOCK_MONOTONIC."""

    def read_ns(clock: int) -> int:
        return time.monotonic_ns() + (SUSPEND_NS if clock == time.CLOCK_BOOTTIME else 0)

    monkeypatch.setattr("daemon.camera_stream.ClockMap", functools.partial(ClockMap, read_ns=read_ns))


@pytest.mark.usefixtures("_suspended")
@pytest.mark.parametrize(("clock", "ahead_ns"), [(ClockId.BOOTTIME, SUSPEND_NS), (ClockId.MONOTONIC, 0)])
def test_ages_are_right_in_either_clock_after_a_suspend(
    tmp_path: Path, maker: BundleMaker, clock: ClockId, ahead_ns: int
) -> None:  # row 11
    with (
        DaemonThread(tmp_path, [maker.write(TinyModel())], maker) as daemon,
        daemon.camera(format=frame_format(clock=clock)) as camera,
        daemon.consumer() as consumer,
    ):
        sof_ns = time.monotonic_ns()
        submit(camera, 1, picture(1), sof_ns=sof_ns + ahead_ns)
        receipt = consumer.recv(timeout_s=LIMIT_S).receipt
        assert receipt.frames[0].sof_ns == sof_ns + ahead_ns
        assert abs(receipt.frames[0].sof_monotonic_ns - sof_ns) <= receipt.clock_error_ns


@pytest.mark.usefixtures("_suspended")
@pytest.mark.parametrize(
    ("declared", "ahead_ns", "code"),
    [
        (ClockId.BOOTTIME, 0, "time_stale"),  # monotonic times taken for boot time
        (ClockId.MONOTONIC, SUSPEND_NS, "time_in_future"),  # and the other way round
    ],
)
def test_a_wrongly_declared_clock_shows_by_its_name_and_amount(
    tmp_path: Path, maker: BundleMaker, declared: ClockId, ahead_ns: int, code: str
) -> None:  # row 11
    with DaemonThread(tmp_path, [maker.write(TinyModel())], maker) as daemon:
        with daemon.camera(format=frame_format(clock=declared)) as camera:
            submit(camera, 1, picture(1), sof_ns=time.monotonic_ns() + ahead_ns)
            assert ended(camera)["refusals"] == {code: 1}
            age_ns = SUSPEND_NS if code == "time_stale" else -SUSPEND_NS
            found = daemon.status()["streams"]["road"]["refused_age_ns"]
            assert abs(found - age_ns) < LIMIT_S * 1e9
        gone = daemon.wait_for(lambda status: status["peers"]["camera"] == 0)
        assert gone["streams"]["road"]["refused_age_ns"] == found  # it is still told when the camera has gone


def send_all(camera: Camera, frames: list[tuple[int, int]]) -> dict[str, int]:
    """Submits (sequence, SOF) whatever our own machine thinks of them; returns the ledger."""
    for sequence, sof_ns in frames:
        camera._stream.last_sequence = None
        submit(camera, sequence, picture(1), sof_ns=sof_ns)
    counted = ended(camera)
    return {**counted, "taken": counted["run"] + counted["superseded"]}


@pytest.mark.parametrize(
    ("frames", "refusals", "taken"),
    [
        ([(1, 0), (2, -1), (3, 0), (4, 1)], {"time_not_rising": 2}, 2),  # row 12
        ([(1, 0), (2, 0), (3, 1)], {"time_not_rising": 1}, 2),  # row 13
        ([(5, 0), (5, 1), (6, 2)], {"sequence_repeated": 1}, 2),  # row 16
    ],
)
def test_frames_that_do_not_rise_are_refused_by_name_and_the_stream_goes_on(
    tmp_path: Path, maker: BundleMaker, frames: list[tuple[int, int]], refusals: dict[str, int], taken: int
) -> None:
    base_ns = time.monotonic_ns()
    with DaemonThread(tmp_path, [maker.write(TinyModel())], maker) as daemon, daemon.camera() as camera:
        counted = send_all(camera, [(sequence, base_ns + step_ns) for sequence, step_ns in frames])
        assert (counted["refusals"], counted["taken"]) == (refusals, taken)
        road = daemon.status()["streams"]["road"]
        assert road["camera_dropped"] == 0  # a repeat is no lag
        assert "refused_age_ns" not in road


def test_a_skew_that_grows_and_shrinks_is_refused_only_beyond_its_limit(
    tmp_path: Path, maker: BundleMaker
) -> None:  # row 29
    limit_ns, period_ns = 15_000_000, 100_000_000
    model = TinyModel("pair", streams=("left", "right"), max_skew_ns=limit_ns)
    with (
        DaemonThread(tmp_path, [maker.write(model)], maker) as daemon,
        daemon.consumer() as consumer,
        daemon.camera("left") as left,
        daemon.camera("right") as right,
    ):
        begin_ns, refused = time.monotonic_ns() - 900_000_000, 0
        for sequence, skew_ns in enumerate(range(0, 45_000_000, 10_000_000)):
            sof_ns = submit(left, sequence, picture(sequence), sof_ns=begin_ns + sequence * period_ns)
            submit(right, sequence, picture(sequence + 50), sof_ns=sof_ns + skew_ns)
            if skew_ns <= limit_ns:
                assert consumer.recv(timeout_s=LIMIT_S).receipt.frames[1].sequence == sequence
            else:
                refused += 1
                assert ended(left)["refusals"] == {"out_of_skew": refused}  # the older of the two
        sof_ns = submit(left, 5, picture(5), sof_ns=begin_ns + 5 * period_ns)
        submit(right, 5, picture(55), sof_ns=sof_ns)
        assert [one.sequence for one in consumer.recv(timeout_s=LIMIT_S).receipt.frames] == [5, 5]
        later = ended(right)  # the younger waited for a nearer frame that never came
        assert later["refused"] + later["superseded"] == refused == 3
        skew = daemon.status()["models"][0]["runs"]["skew"]
        assert skew == refused + later["refusals"].get("out_of_skew", 0)
        assert daemon.status()["streams"]["left"]["refusals"] == {"out_of_skew": refused}
