"""Frames through a signed model and back, over the real sockets."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from abi.flat import ReleaseStatus
from abi.format import ClockId
from abi.packet import RefusalCode
from abi.receipt import Receipt
from tests.support.bundles import BundleMaker, TinyModel, frame_format
from tests.support.daemons import LIMIT_S, DaemonThread, ended, picture, run_one, submit
from tests.support.gate import Gate, HeldModel

COPY = '[stream.road]\nisolation = "copy"\n'


def test_a_frame_becomes_a_result_with_its_receipt(tmp_path: Path, maker: BundleMaker) -> None:
    model = TinyModel("add", number=7, unit="m")
    with DaemonThread(tmp_path, [maker.write(model)], maker) as daemon:
        with daemon.camera() as camera, daemon.consumer() as consumer:
            assert camera.zero_copy
            sof_ns = submit(camera, 40, picture(1))
            delivery = consumer.recv(timeout_s=LIMIT_S)
            assert np.array_equal(delivery.outputs["values"], model.values(picture(1)))
            assert delivery.units == {"values": "m"}
            receipt = delivery.receipt
            assert receipt.model_digest == consumer.model_digest
            assert [(one.sequence, one.generation, one.sof_ns) for one in receipt.frames] == [(40, 1, sof_ns)]
            assert in_order(sof_ns, receipt)
            assert receipt.deadline_met
            assert ended(camera)["run"] == 1
        status = daemon.status()
        assert status["streams"]["road"]["run"] == 1
        assert status["models"][0]["digest"] == receipt.model_digest.hex()


def in_order(sof_ns: int, receipt: Receipt) -> bool:
    """Whether the receipt's times follow one another."""
    times = [sof_ns, receipt.submitted_ns, receipt.started_ns, receipt.completed_ns, receipt.published_ns]
    return times == sorted(times)


def test_every_frame_is_accounted_for_when_cameras_outrun_the_device(tmp_path: Path, maker: BundleMaker) -> None:
    with DaemonThread(tmp_path, [maker.write(TinyModel("slow"))], maker) as daemon, daemon.camera() as camera:
        for sequence in range(40):
            submit(camera, sequence, picture(sequence, first=3))
        counted = ended(camera)
        assert counted["submitted"] == 40 == counted["run"] + counted["superseded"]
        assert counted["superseded"]
        assert daemon.status()["streams"]["road"]["superseded"] == counted["superseded"]


def test_a_fifo_runs_every_frame_in_order(tmp_path: Path, maker: BundleMaker) -> None:
    more = '[stream.road]\nqueueing = "fifo"\nqueue_frames = 8\n'
    with (
        DaemonThread(tmp_path, [maker.write(TinyModel("slow"))], maker, more=more) as daemon,
        daemon.camera(slots=8) as camera,
    ):
        for sequence in range(8):
            submit(camera, sequence, picture(sequence, first=3))
        assert ended(camera)["run"] == 8
        assert [one.sequence for one in camera.releases()] == list(range(8))


def test_a_frame_whose_deadline_has_passed_is_late(tmp_path: Path, maker: BundleMaker) -> None:
    model = TinyModel("add", deadline_ns=50_000_000)
    with DaemonThread(tmp_path, [maker.write(model)], maker) as daemon, daemon.camera() as camera:
        submit(camera, 1, picture(1), sof_ns=time.monotonic_ns() - 60_000_000)
        counted = ended(camera)
        assert (counted["late"], counted["run"]) == (1, 0)


def test_releases_name_their_frames_and_gaps_are_counted(tmp_path: Path, maker: BundleMaker) -> None:
    with DaemonThread(tmp_path, [maker.write(TinyModel())], maker) as daemon, daemon.camera(slots=2) as camera:
        for sequence in (5, 9):
            submit(camera, sequence, picture(sequence))
            ended(camera)
        expected = [(5, ReleaseStatus.RUN, 1), (9, ReleaseStatus.RUN, 1)]
        assert [(one.sequence, one.status, one.generation) for one in camera.releases()] == expected
        assert daemon.status()["streams"]["road"]["camera_dropped"] == 3


def test_outputs_of_one_run_are_not_those_of_the_next(tmp_path: Path, maker: BundleMaker) -> None:
    model = TinyModel("add")
    with (
        DaemonThread(tmp_path, [maker.write(model)], maker) as daemon,
        daemon.camera() as camera,
        daemon.consumer() as consumer,
    ):
        first = run_one(camera, consumer, 1, picture(1))
        second = run_one(camera, consumer, 2, picture(2))
        assert np.array_equal(first.outputs["values"], model.values(picture(1)))
        assert np.array_equal(second.outputs["values"], model.values(picture(2)))
        assert second.receipt.fence_value == first.receipt.fence_value + 1


@pytest.mark.parametrize("more", ["", COPY])
def test_isolation_changes_nothing_for_an_honest_camera(tmp_path: Path, maker: BundleMaker, more: str) -> None:
    model = TinyModel("add")
    with (
        DaemonThread(tmp_path, [maker.write(model)], maker, more=more) as daemon,
        daemon.camera() as camera,
        daemon.consumer() as consumer,
    ):
        for sequence in range(5):
            outputs = run_one(camera, consumer, sequence, picture(sequence)).outputs
            assert np.array_equal(outputs["values"], model.values(picture(sequence)))


def test_a_frame_overwritten_with_its_control_word_raised_is_torn(tmp_path: Path, maker: BundleMaker) -> None:
    with (
        DaemonThread(tmp_path, [HeldModel().write(maker)], maker) as daemon,
        daemon.camera() as camera,
        daemon.consumer() as consumer,
        Gate() as gate,
    ):
        frame = camera.acquire()
        slot, pixels = frame.slot, frame.pixels
        pixels[:] = gate.picture(1)
        camera.submit(frame, 1, time.monotonic_ns())
        gate.wait()
        camera._control[slot] += 1  # what `acquire` would do, had the slot come back
        gate.open()
        assert ended(camera)["torn"] == 1
        with pytest.raises(TimeoutError):
            consumer.recv()
        assert daemon.status()["models"][0]["runs"]["torn"] == 1


def test_a_frame_overwritten_behind_the_control_word_is_torn(tmp_path: Path, maker: BundleMaker) -> None:
    with (
        DaemonThread(tmp_path, [HeldModel().write(maker)], maker) as daemon,
        daemon.camera() as camera,
        Gate() as gate,
    ):
        frame = camera.acquire()
        pixels = frame.pixels
        pixels[:] = gate.picture(1)
        camera.submit(frame, 1, time.monotonic_ns())
        gate.wait()
        pixels[1:] ^= 0xFF
        gate.open()
        assert ended(camera)["torn"] == 1


def test_a_private_copy_does_not_care_what_the_camera_does_later(tmp_path: Path, maker: BundleMaker) -> None:
    model = HeldModel()
    with (
        DaemonThread(tmp_path, [model.write(maker)], maker, more=COPY) as daemon,
        daemon.camera() as camera,
        daemon.consumer() as consumer,
        Gate() as gate,
    ):
        frame = camera.acquire()
        pixels = frame.pixels
        pixels[:] = gate.picture(1)
        camera.submit(frame, 1, time.monotonic_ns())
        gate.wait()
        pixels[1:] = 0
        gate.open()
        outputs = consumer.recv(timeout_s=LIMIT_S).outputs
        assert np.array_equal(outputs["values"], model.values(gate.picture(1)))


def test_times_are_judged_in_the_streams_own_clock(tmp_path: Path, maker: BundleMaker) -> None:
    with (
        DaemonThread(tmp_path, [maker.write(TinyModel())], maker) as daemon,
        daemon.camera(format=frame_format(clock=ClockId.REALTIME)) as camera,
        daemon.consumer() as consumer,
    ):
        sof_ns = submit(camera, 1, picture(1), sof_ns=time.time_ns())
        receipt = consumer.recv(timeout_s=LIMIT_S).receipt
        assert receipt.frames[0].sof_ns == sof_ns
        now_ns = time.monotonic_ns()
        assert now_ns - LIMIT_S * 1e9 < receipt.frames[0].sof_monotonic_ns < now_ns
        assert receipt.clock_error_ns > 0
        submit(camera, 2, picture(1), sof_ns=time.time_ns() + 3_600_000_000_000)
        submit(camera, 3, picture(1), sof_ns=time.time_ns() + 1)
        counted = ended(camera)
        assert counted["refusals"] == {"time_in_future": 1}


@pytest.mark.parametrize(
    ("sequences", "steps_ns", "code"),
    [
        ((5, 5), (0, 1), RefusalCode.SEQUENCE_REPEATED),
        ((5, 6), (0, 0), RefusalCode.TIME_NOT_RISING),
        ((5, 6), (0, -1), RefusalCode.TIME_NOT_RISING),
        ((5, 6), (0, -10_000_000_000), RefusalCode.TIME_NOT_RISING),
    ],
)
def test_a_frame_out_of_order_is_refused_and_the_stream_goes_on(
    tmp_path: Path, maker: BundleMaker, sequences: tuple[int, int], steps_ns: tuple[int, int], code: RefusalCode
) -> None:
    with DaemonThread(tmp_path, [maker.write(TinyModel())], maker) as daemon, daemon.camera() as camera:
        base_ns = time.monotonic_ns()
        for sequence, step_ns in zip(sequences, steps_ns, strict=True):
            camera._stream.last_sequence = None  # an honest client would not send it
            submit(camera, sequence, picture(1), sof_ns=base_ns + step_ns)
        camera._stream.last_sequence = None
        submit(camera, 7, picture(1), sof_ns=base_ns + 2)
        counted = ended(camera)
        assert (counted["run"] + counted["superseded"], counted["refused"]) == (2, 1)
        assert counted["refusals"] == {code.name.lower(): 1}


def test_a_stale_frame_is_refused_by_its_age(tmp_path: Path, maker: BundleMaker) -> None:
    with (
        DaemonThread(tmp_path, [maker.write(TinyModel())], maker, more="[limits]\nmax_age_ms = 20\n") as daemon,
        daemon.camera() as camera,
    ):
        submit(camera, 1, picture(1), sof_ns=time.monotonic_ns() - 30_000_000)
        assert ended(camera)["refusals"] == {"time_stale": 1}


def test_a_signalled_in_fence_lets_its_frame_run(tmp_path: Path, maker: BundleMaker) -> None:
    more = "[limits]\nin_fence_timeout_ms = 30000\n"
    with DaemonThread(tmp_path, [maker.write(TinyModel())], maker, more=more) as daemon, daemon.camera() as camera:
        fence = os.eventfd(0)
        submit(camera, 1, picture(1), in_fence=fence)
        held = daemon.wait_for(lambda status: status["streams"]["road"]["held"] == 1)
        assert held["models"][0]["runs"]["published"] == 0
        os.eventfd_write(fence, 1)
        assert ended(camera)["run"] == 1
        os.close(fence)


@pytest.mark.parametrize(
    ("case", "reason"), [("error", "fence-error"), ("never", "fence-timeout"), ("file", "not-a-fence")]
)
def test_a_frame_without_a_good_in_fence_never_runs(tmp_path: Path, maker: BundleMaker, case: str, reason: str) -> None:
    more = "[limits]\nin_fence_timeout_ms = 30000\n" if case == "error" else ""  # it ends before its time is over
    with DaemonThread(tmp_path, [maker.write(TinyModel())], maker, more=more) as daemon, daemon.camera() as camera:
        reader, writer = os.pipe()
        fence = os.open("/dev/null", os.O_RDONLY) if case == "file" else reader
        submit(camera, 1, picture(1), in_fence=fence)
        if case == "error":
            os.close(writer)
        assert ended(camera)["lost"] == 1
        status = daemon.status()
        assert status["streams"]["road"]["reasons"] == {reason: 1}
        assert status["models"][0]["runs"]["published"] == 0


def test_a_frame_behind_a_slow_fence_does_not_hold_the_ones_after_it(tmp_path: Path, maker: BundleMaker) -> None:
    with (
        DaemonThread(tmp_path, [maker.write(TinyModel())], maker) as daemon,
        daemon.camera() as camera,
        daemon.consumer() as consumer,
    ):
        reader, _writer = os.pipe()
        submit(camera, 1, picture(1), in_fence=reader)
        submit(camera, 2, picture(2))
        assert consumer.recv(timeout_s=LIMIT_S).receipt.frames[0].sequence == 2
        counted = ended(camera)
        assert (counted["run"], counted["lost"]) == (1, 1)


_CAMERA = """
import sys, time
import numpy as np
sys.path.insert(0, sys.argv[1])
from tests.support.bundles import frame_format
from tests.support.daemons import submit
from client.camera import Camera
camera = Camera.open(sys.argv[2], "road", frame_format())
submit(camera, 1, np.frombuffer(bytes.fromhex(sys.argv[3]), np.uint8))
print("submitted", flush=True)
time.sleep(100)
"""


def start(script: str, *arguments: object) -> subprocess.Popen[str]:
    """Another process with a client in it."""
    checkout = str(Path(__file__).parents[2])
    command = [sys.executable, "-c", script, checkout, *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def test_a_camera_killed_in_flight_is_seen_and_its_frame_still_counted(tmp_path: Path, maker: BundleMaker) -> None:
    model = HeldModel()
    with (
        DaemonThread(tmp_path, [model.write(maker)], maker) as daemon,
        daemon.consumer() as consumer,
        Gate() as gate,
    ):
        pixels = gate.picture(1)
        process = start(_CAMERA, daemon.sockets / "camera.sock", pixels.tobytes().hex())
        assert process.stdout is not None
        assert process.stdout.readline() == "submitted\n"
        gate.wait()
        process.send_signal(signal.SIGKILL)
        process.wait()
        daemon.wait_for(lambda status: status["peers"]["camera"] == 0)
        gate.open()
        delivery = consumer.recv(timeout_s=LIMIT_S)  # the device read the dead camera's memory to the end
        assert np.array_equal(delivery.outputs["values"], model.values(pixels))
        status = daemon.wait_for(lambda status: status["streams"]["road"]["held"] == 0)
        assert status["streams"]["road"]["run"] == 1
        with daemon.camera() as camera:  # the stream is free again
            submit(camera, 1, picture(1))
            assert ended(camera)["run"] == 1


def test_a_stream_closed_with_a_frame_waiting_loses_it_by_name(tmp_path: Path, maker: BundleMaker) -> None:
    with DaemonThread(tmp_path, [HeldModel().write(maker)], maker) as daemon, Gate() as gate:
        with daemon.camera() as camera:
            submit(camera, 1, gate.picture(1))
            gate.wait()
            submit(camera, 2, picture(2))
        daemon.wait_for(lambda status: status["peers"]["camera"] == 0)
        gate.open()
        status = daemon.wait_for(lambda status: status["streams"]["road"]["held"] == 0)
        road = status["streams"]["road"]
        assert (road["submitted"], road["run"], road["lost"]) == (2, 1, 1)
        assert road["reasons"] == {"closed": 1}


def test_generations_of_an_earlier_session_mean_nothing(tmp_path: Path, maker: BundleMaker) -> None:
    with DaemonThread(tmp_path, [maker.write(TinyModel())], maker) as daemon:
        with daemon.camera() as camera:
            for sequence in range(3):
                submit(camera, sequence, picture(1))
                ended(camera)
        with daemon.camera() as camera:
            camera._stream.leases[0].generation = 3  # as a camera would that missed the restart
            submit(camera, 1, picture(1))
            assert ended(camera)["refusals"] == {"bad_generation": 1}
            submit(camera, 2, picture(1))  # the next slot begins a new lease
            assert ended(camera)["run"] == 1


def test_a_camera_that_waits_for_nothing_needs_no_consumer(tmp_path: Path, maker: BundleMaker) -> None:
    with DaemonThread(tmp_path, [maker.write(TinyModel())], maker) as daemon, daemon.camera() as camera:
        for sequence in range(20):
            submit(camera, sequence, picture(sequence))
            ended(camera)
        assert daemon.status()["models"][0]["runs"]["published"] == 20


def test_two_models_serve_their_own_streams(tmp_path: Path, maker: BundleMaker) -> None:
    one, two = TinyModel("add", name="one", number=1), TinyModel("add", name="two", streams=("wide",), number=2)
    with DaemonThread(tmp_path, [maker.write(one), maker.write(two)], maker) as daemon:
        for model, stream in ((one, "road"), (two, "wide")):
            with daemon.camera(stream) as camera, daemon.consumer(model.name) as consumer:
                delivery = run_one(camera, consumer, 1, picture(1))
                assert np.array_equal(delivery.outputs["values"], model.values(picture(1)))


def test_a_receipt_tells_what_of_its_stream_never_ran_and_never_came(tmp_path: Path, maker: BundleMaker) -> None:
    with (
        DaemonThread(tmp_path, [maker.write(TinyModel("add"))], maker) as daemon,
        daemon.camera() as camera,
        daemon.consumer() as consumer,
    ):
        first = run_one(camera, consumer, 10, picture(1)).receipt.frames[0]
        with daemon.control() as control:
            control.drain()
            submit(camera, 11, picture(2))  # refused: the daemon drains
            ended(camera)
            control.resume()
        after_gap = run_one(camera, consumer, 15, picture(3)).receipt.frames[0]
        counted = daemon.status()["streams"]["road"]
    assert (first.not_run, first.camera_dropped) == (0, 0)
    assert (after_gap.not_run, after_gap.camera_dropped) == (1, 3)
    assert (counted["refused"], counted["camera_dropped"]) == (1, 3)
