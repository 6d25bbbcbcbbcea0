"""Runs of more than one input: frames of several cameras, paired by time, and aux inputs with their age."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import pytest

from abi.packet import RefusalCode
from client.errors import Refused
from tests.support.bundles import BundleMaker, TinyModel
from tests.support.daemons import LIMIT_S, DaemonThread, ended, picture, run_one, submit


def test_pairs_of_frames_run_within_the_skew_and_recover(tmp_path: Path, maker: BundleMaker) -> None:
    model = TinyModel("pair", streams=("left", "right"), max_skew_ns=5_000_000)
    with (
        DaemonThread(tmp_path, [maker.write(model)], maker) as daemon,
        daemon.consumer() as consumer,
        daemon.camera("left") as left,
        daemon.camera("right") as right,
    ):
        begin_ns = time.monotonic_ns() - 200_000_000
        for sequence, skew_ns in enumerate((0, 4_000_000, 20_000_000, 0)):
            sof_ns = submit(left, sequence, picture(sequence), sof_ns=begin_ns + sequence * 50_000_000)
            submit(right, sequence + 10, picture(sequence + 50), sof_ns=sof_ns - skew_ns)
            if skew_ns < 5_000_000:
                delivery = consumer.recv(timeout_s=LIMIT_S)
                expected = model.values(picture(sequence), picture(sequence + 50))
                assert np.array_equal(delivery.outputs["values"], expected)
                assert [one.sequence for one in delivery.receipt.frames] == [sequence, sequence + 10]
            else:
                daemon.wait_for(lambda status: status["models"][0]["runs"]["skew"] == 1)
        counted = ended(left)
        assert (counted["run"], counted["refused"] + counted["superseded"]) == (3, 1)
        assert ended(right)["refusals"] == {"out_of_skew": 1}  # its frame was the older of the two
        assert daemon.status()["streams"]["right"]["refusals"] == {"out_of_skew": 1}


def test_an_aux_input_is_taken_with_its_age(tmp_path: Path, maker: BundleMaker) -> None:
    model = TinyModel("scale")
    with (
        DaemonThread(tmp_path, [maker.write(model)], maker) as daemon,
        daemon.camera() as camera,
        daemon.consumer() as consumer,
        daemon.control() as control,
    ):
        submit(camera, 1, picture(1))
        assert ended(camera)["refusals"] == {"bad_aux": 1}  # it was never set
        set_ns = time.monotonic_ns()
        control.set_aux("gain", set_ns, np.float32(2.5).tobytes())
        delivery = run_one(camera, consumer, 2, picture(2))
        assert np.array_equal(delivery.outputs["values"], model.values(picture(2), gain=2.5))
        assert delivery.receipt.aux_ages_ns[0] >= 0


@pytest.mark.parametrize(("default", "refused"), [(b"", True), (np.float32(3).tobytes(), False)])
def test_a_stale_aux_input_refuses_the_run_or_takes_the_signed_default(
    tmp_path: Path, maker: BundleMaker, default: bytes, refused: bool
) -> None:
    model = TinyModel("scale", aux_max_age_ns=1_000_000_000, aux_default=default)
    with (
        DaemonThread(tmp_path, [maker.write(model)], maker) as daemon,
        daemon.camera() as camera,
        daemon.consumer() as consumer,
        daemon.control() as control,
    ):
        control.set_aux("gain", time.monotonic_ns() - 2_000_000_000, np.float32(9).tobytes())
        submit(camera, 1, picture(1))
        if refused:
            assert ended(camera)["refused"] == 1
        else:
            delivery = consumer.recv(timeout_s=LIMIT_S)
            assert np.array_equal(delivery.outputs["values"], model.values(picture(1), gain=3))


@pytest.mark.parametrize(
    ("wrong", "code", "words"),
    [
        (("gain", b"\0" * 8, 0), RefusalCode.BAD_AUX, r"value: expected 4 bytes: float32 \[1\], found 8 bytes"),
        (("desire", b"\0" * 4, 0), RefusalCode.UNKNOWN_AUX, "name: expected one of"),
        (("gain", b"\0" * 4, 1 << 40), RefusalCode.BAD_AUX, "in the future; send when the value was true"),
        (("gain", b"\0" * 4, -2), RefusalCode.BAD_AUX, "ns older; send values in the order of their times"),
    ],
)
def test_a_wrong_aux_input_is_refused_by_name(
    tmp_path: Path, maker: BundleMaker, wrong: tuple[str, bytes, int], code: RefusalCode, words: str
) -> None:
    name, value, ahead_ns = wrong
    with DaemonThread(tmp_path, [maker.write(TinyModel("scale"))], maker) as daemon, daemon.camera() as camera:
        now_ns = time.monotonic_ns()
        camera.set_aux("gain", now_ns, bytes(4))
        with pytest.raises(Refused, match=words) as refused:
            camera.set_aux(name, now_ns + ahead_ns, value)
        assert refused.value.code is code
