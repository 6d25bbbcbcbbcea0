"""One model takes another's place between two frames: state, streams and consumers go over, and there is a way back."""

from __future__ import annotations

import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from abi.messages import DeliveryPolicy, OpenStream, Role, StreamOpened
from client.connection import Connection
from client.errors import ConnectionLost, Refused
from tests.daemon.test_trust_store import serve
from tests.support.bundles import BundleMaker, TinyModel, frame_format
from tests.support.daemons import LIMIT_S, DaemonThread, ended, picture, run_one, submit
from tests.support.gate import Gate, HeldModel

OLD = TinyModel("add", number=3)
NEW = TinyModel("add", version="2.0.0", release=2, number=50)


def test_a_switch_falls_between_two_frames_and_loses_none(tmp_path: Path, maker: BundleMaker) -> None:
    new = maker.write(NEW)
    more = '[stream.road]\nqueueing = "fifo"\nqueue_frames = 8\n'
    with (
        DaemonThread(tmp_path, [maker.write(OLD)], maker, more=more) as daemon,
        daemon.camera(slots=8) as camera,
        daemon.consumer() as consumer,
        daemon.control() as control,
    ):
        old_digest = consumer.model_digest
        answers: list[dict[str, Any]] = []
        activation = threading.Thread(target=lambda: answers.append(control.activate(new)))
        seen = []
        sequence = 0
        activation.start()
        while activation.is_alive() or sequence < 20:
            delivery = run_one(camera, consumer, sequence, picture(sequence))
            model = OLD if delivery.receipt.model_digest == old_digest else NEW
            assert np.array_equal(delivery.outputs["values"], model.values(picture(sequence)))
            seen.append(model.number)
            sequence += 1
        delivery = run_one(camera, consumer, sequence, picture(sequence))
        assert delivery.receipt.model_digest.hex() == answers[0]["digest"]
        assert seen == sorted(seen)  # once the new one serves, the old one never does again
        counted = ended(camera)
        assert counted["run"] == counted["submitted"] == sequence + 1
        assert answers[0]["version"] == "2.0.0"


def test_a_run_in_flight_is_finished_by_the_model_that_began_it(tmp_path: Path, maker: BundleMaker) -> None:
    old = HeldModel()
    with (
        DaemonThread(tmp_path, [old.write(maker)], maker) as daemon,
        daemon.camera() as camera,
        daemon.consumer(policy=DeliveryPolicy.EVERY, queue=4) as consumer,
        daemon.control() as control,
        Gate() as gate,
    ):
        submit(camera, 1, gate.picture(1))
        gate.wait()
        submit(camera, 2, picture(2))  # waits, and is run by whichever model serves then
        new, answers = maker.write(NEW), list[dict[str, Any]]()
        activation = threading.Thread(target=lambda: answers.append(control.activate(new)))
        activation.start()
        daemon.wait_for(lambda status: daemon.service.roster.switching)
        gate.open()
        activation.join()
        new_digest = answers[0]["digest"]
        submit(camera, 3, picture(3))
        by_sequence = {one.receipt.frames[0].sequence: one for one in (consumer.recv(LIMIT_S) for _ in range(3))}
        assert by_sequence[1].receipt.model_digest == consumer.model_digest
        assert np.array_equal(by_sequence[1].outputs["values"], old.values(gate.picture(1)))
        assert by_sequence[3].receipt.model_digest.hex() == new_digest
        assert np.array_equal(by_sequence[3].outputs["values"], NEW.values(picture(3)))
        assert ended(camera)["run"] == 3


def test_rollback_brings_the_model_before_back(tmp_path: Path, maker: BundleMaker) -> None:
    with (
        DaemonThread(tmp_path, [maker.write(OLD)], maker) as daemon,
        daemon.camera() as camera,
        daemon.consumer() as consumer,
        daemon.control() as control,
    ):
        with pytest.raises(Refused, match="expected a model that replaced another since the start, found none"):
            control.rollback()
        control.activate(maker.write(NEW))
        assert control.status()["models"][0]["previous"] == "tiny 1.0.0 (release 1)"
        assert control.rollback()["version"] == "1.0.0"
        outputs = run_one(camera, consumer, 1, picture(1)).outputs
        assert np.array_equal(outputs["values"], OLD.values(picture(1)))
        assert control.rollback()["version"] == "2.0.0"
        outputs = run_one(camera, consumer, 2, picture(2)).outputs
        assert np.array_equal(outputs["values"], NEW.values(picture(2)))


def test_a_bundle_that_is_activated_twice_leaves_the_way_back_open(tmp_path: Path, maker: BundleMaker) -> None:
    new = maker.write(NEW)
    with DaemonThread(tmp_path, [maker.write(OLD)], maker) as daemon, daemon.control() as control:
        for _ in range(2):
            control.activate(new)
            serve(daemon, NEW, 1)
        assert control.status()["models"][0]["previous"] == "tiny 1.0.0 (release 1)"
        assert control.status()["device"]["memory"]["executables"] == 2
        assert control.rollback()["version"] == "1.0.0"
        serve(daemon, OLD, 1)


def test_many_activations_hold_two_models_and_no_more(tmp_path: Path, maker: BundleMaker) -> None:
    bundles = [maker.write(replace(NEW, version=f"3.0.{at}", release=at, number=at)) for at in range(5)]
    with DaemonThread(tmp_path, [maker.write(OLD)], maker) as daemon, daemon.control() as control:
        for bundle in bundles:
            control.activate(bundle)
        assert control.status()["device"]["memory"]["executables"] == 2


@pytest.mark.parametrize("hand_over", [True, False])
def test_state_is_handed_over_or_reset_as_the_contract_says(
    tmp_path: Path, maker: BundleMaker, hand_over: bool
) -> None:
    old = TinyModel("total", hand_over=hand_over)
    new = replace(old, version="2.0.0", release=2)
    with (
        DaemonThread(tmp_path, [maker.write(old)], maker) as daemon,
        daemon.camera() as camera,
        daemon.consumer() as consumer,
        daemon.control() as control,
    ):
        total = np.zeros_like(old.values(picture(0)))
        for sequence in range(3):
            delivery = run_one(camera, consumer, sequence, picture(sequence))
            total += old.values(picture(sequence))
            assert np.array_equal(delivery.outputs["values"], total)
        epoch = delivery.receipt.state_epoch
        control.activate(maker.write(new))
        delivery = run_one(camera, consumer, 3, picture(3))
        expected = new.values(picture(3)) + (total if hand_over else 0)
        assert np.array_equal(delivery.outputs["values"], expected)
        assert delivery.receipt.state_epoch == epoch + (0 if hand_over else 1)


def test_reset_state_starts_anew_and_says_so_in_the_receipt(tmp_path: Path, maker: BundleMaker) -> None:
    model = TinyModel("total")
    with (
        DaemonThread(tmp_path, [maker.write(model)], maker) as daemon,
        daemon.camera() as camera,
        daemon.consumer() as consumer,
        daemon.control() as control,
    ):
        before = run_one(camera, consumer, 1, picture(1)).receipt
        assert control.reset_state()["state_epoch"] == before.state_epoch + 1
        delivery = run_one(camera, consumer, 2, picture(2))
        assert np.array_equal(delivery.outputs["values"], model.values(picture(2)))
        assert delivery.receipt.flags.name is not None
        assert "STATE_RESET" in delivery.receipt.flags.name
        after = run_one(camera, consumer, 3, picture(3)).receipt
        assert "STATE_RESET" not in (after.flags.name or "")


def test_a_model_with_other_outputs_ends_the_subscriptions_to_the_old_one(tmp_path: Path, maker: BundleMaker) -> None:
    with (
        DaemonThread(tmp_path, [maker.write(OLD)], maker) as daemon,
        daemon.camera() as camera,
        daemon.consumer() as consumer,
        daemon.control() as control,
    ):
        control.activate(maker.write(replace(NEW, unit="m")))
        with pytest.raises(ConnectionLost, match="subscribe again"):
            consumer.recv(timeout_s=LIMIT_S)
        with daemon.consumer() as again:
            assert run_one(camera, again, 1, picture(1)).units == {"values": "m"}


def test_a_model_that_takes_another_models_stream_is_refused(tmp_path: Path, maker: BundleMaker) -> None:
    with DaemonThread(tmp_path, [maker.write(OLD)], maker) as daemon, daemon.control() as control:
        with pytest.raises(Refused, match="stream-taken"):
            control.activate(maker.write(replace(NEW, name="other")))
        assert control.status()["device"]["memory"]["executables"] == 1


def test_no_rollback_takes_back_a_stream_that_another_model_has_taken_since(tmp_path: Path, maker: BundleMaker) -> None:
    old = maker.write(TinyModel("pair", streams=("left", "right")))
    new = maker.write(TinyModel("add", version="2.0.0", release=2, streams=("left",)))
    other = maker.write(TinyModel("add", name="other", streams=("right",)))
    with DaemonThread(tmp_path, [old], maker) as daemon, daemon.control() as control:
        control.activate(new)
        control.activate(other)
        with pytest.raises(Refused, match="stream-taken"):
            control.rollback()
        with daemon.camera("right") as camera, daemon.consumer("other") as consumer:
            run_one(camera, consumer, 1, picture(1))


def test_a_model_that_drops_a_stream_sends_its_camera_away(tmp_path: Path, maker: BundleMaker) -> None:
    with (
        DaemonThread(tmp_path, [maker.write(OLD)], maker) as daemon,
        daemon.camera() as camera,
        daemon.control() as control,
    ):
        control.activate(maker.write(replace(NEW, streams=("wide",))))
        with pytest.raises(ConnectionLost, match="does not take this stream"):
            camera.wait(LIMIT_S)
        daemon.camera("wide").close()


@pytest.mark.parametrize("kept", ["left", "right"])
def test_a_camera_that_is_sent_away_for_one_stream_leaves_its_other_one_free(
    tmp_path: Path, maker: BundleMaker, kept: str
) -> None:
    new = maker.write(TinyModel("add", version="2.0.0", release=2, streams=(kept,)))
    old = maker.write(TinyModel("pair", streams=("left", "right")))
    with DaemonThread(tmp_path, [old], maker) as daemon, daemon.control() as control:
        both = Connection(str(daemon.sockets / "camera.sock"), Role.CAMERA, "both", LIMIT_S)
        for stream in ("left", "right"):
            both.request(OpenStream(stream, frame_format()), StreamOpened, LIMIT_S)
        control.activate(new)
        with pytest.raises(ConnectionLost, match="open it anew"):
            both.next_event(time.monotonic() + LIMIT_S)
        with daemon.camera(kept) as camera, daemon.consumer() as consumer:
            assert run_one(camera, consumer, 1, picture(1))


def test_a_change_is_refused_while_another_waits_for_the_end_of_a_run(tmp_path: Path, maker: BundleMaker) -> None:
    older, newer = HeldModel(), HeldModel(version="2.0.0", release=2)
    with (
        DaemonThread(tmp_path, [older.write(maker)], maker) as daemon,
        daemon.camera() as camera,
        daemon.control() as one,
        daemon.control() as two,
        Gate() as gate,
    ):
        one.activate(newer.write(maker))
        submit(camera, 1, gate.picture(1))
        gate.wait()
        back = threading.Thread(target=one.rollback)
        back.start()
        daemon.wait_for(lambda status: daemon.service.roster.switching)
        for change in (two.rollback, lambda: two.activate(maker.folder / "tiny-2.0.0.fenced")):
            with pytest.raises(Refused, match="another is under way"):
                change()
        gate.open()
        back.join()
        assert ended(camera)["run"] == 1
        status = daemon.status()
        assert status["models"][0]["version"] == older.version
        assert status["faults"]["internal_errors"] == 0
