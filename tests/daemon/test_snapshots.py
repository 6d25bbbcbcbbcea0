"""Recurrent state as a snapshot: taken between two runs, restored whole or not at all, refused by name."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from abi import snapshot
from abi.graph import DType
from abi.messages import Command, CommandKind, Reply, Role
from abi.packet import RefusalCode
from abi.snapshot import StateSnapshot
from client import cli
from client.connection import Connection
from client.errors import Refused
from hal.memory import create_sealed
from tests.support.bundles import OUT_BYTES, BundleMaker, Pixels, TinyModel
from tests.support.daemons import LIMIT_S, DaemonThread, picture, run_one
from tests.support.scripted import no_descriptor_leaks

MODEL = TinyModel("total")
PICTURES = [picture(seed) for seed in range(4)]


def total(*pictures: Pixels) -> NDArray[np.float32]:
    """What the model gives after these, from its initial state."""
    found: NDArray[np.float32] = np.sum([MODEL.values(one) for one in pictures], axis=0, dtype=np.float32)
    return found


def test_a_snapshot_gives_its_state_back_and_the_epoch_rises(tmp_path: Path, maker: BundleMaker) -> None:
    with (
        DaemonThread(tmp_path, [maker.write(MODEL)], maker) as daemon,
        daemon.camera() as camera,
        daemon.consumer() as consumer,
        daemon.control() as control,
        no_descriptor_leaks(),
    ):
        first = run_one(camera, consumer, 1, PICTURES[0]).receipt
        data = control.snapshot_state()
        saved, (value,) = snapshot.decode(data)
        assert (saved.model, saved.model_digest) == ("tiny", consumer.model_digest)
        assert (saved.timeline, saved.fence_value) == (first.timeline, first.fence_value)
        assert np.array_equal(np.frombuffer(value, np.float32), total(PICTURES[0]))
        run_one(camera, consumer, 2, PICTURES[1])
        answer = control.restore_state(data)
        assert answer["state_epoch"] == first.state_epoch + 1
        delivery = run_one(camera, consumer, 3, PICTURES[2])
        assert np.array_equal(delivery.outputs["values"], total(PICTURES[0], PICTURES[2]))
        assert delivery.receipt.state_epoch == answer["state_epoch"]
        assert "STATE_RESET" in (delivery.receipt.flags.name or "")
        entry = json.loads((tmp_path / "state" / "audit.jsonl").read_text().splitlines()[-1])
        assert (entry["event"], entry["of"]) == ("state.restored", saved.model_digest.hex())


def renamed(saved: StateSnapshot) -> StateSnapshot:
    return replace(saved, states=(replace(saved.states[0], name="mean"),))


def reshaped(saved: StateSnapshot) -> StateSnapshot:
    return replace(saved, states=(replace(saved.states[0], shape=(2, OUT_BYTES // 8)),))


def retyped(saved: StateSnapshot) -> StateSnapshot:
    return replace(saved, states=(replace(saved.states[0], dtype=DType.INT32),))


def of_another_model(saved: StateSnapshot) -> StateSnapshot:
    return replace(saved, model="other")


def of_another_release(saved: StateSnapshot) -> StateSnapshot:
    return replace(saved, model_digest=bytes(32))


MISFITS: dict[Callable[[StateSnapshot], StateSnapshot], str] = {
    renamed: "names of the states: expected sum, found mean",
    reshaped: r"state sum: expected float32 \[1024\] in 4096 bytes, found float32 \[2, 512\]",
    retyped: r"state sum: expected float32 .*, found int32",
    of_another_model: "model of the snapshot: expected tiny, found other",
    of_another_release: "digest of the snapshot: expected [0-9a-f]{64}: state sum is not handed over, found 0{64}",
}


def test_a_snapshot_that_does_not_fit_is_refused_by_name_and_changes_nothing(
    tmp_path: Path, maker: BundleMaker
) -> None:
    with (
        DaemonThread(tmp_path, [maker.write(MODEL)], maker) as daemon,
        daemon.camera() as camera,
        daemon.consumer() as consumer,
        daemon.control() as control,
    ):
        run_one(camera, consumer, 1, PICTURES[0])
        saved, values = snapshot.decode(control.snapshot_state())
        for edit, words in MISFITS.items():
            with pytest.raises(Refused, match=words) as refused:
                control.restore_state(snapshot.encode(edit(saved), values))
            assert refused.value.code is RefusalCode.MODEL_REFUSED
        with pytest.raises(Refused, match="BAD_BUFFER: magic"):
            control.restore_state(b"\0" * 64)
        with pytest.raises(Refused, match="one of tiny, found other"):
            control.snapshot_state("other")
        delivery = run_one(camera, consumer, 2, PICTURES[1])
        assert np.array_equal(delivery.outputs["values"], total(*PICTURES[:2]))
        assert delivery.receipt.state_epoch == saved.state_epoch


def test_another_release_takes_a_snapshot_whose_states_its_contract_hands_over(
    tmp_path: Path, maker: BundleMaker
) -> None:
    old = replace(MODEL, hand_over=True)
    new = maker.write(replace(old, version="2.0.0", release=2))
    with (
        DaemonThread(tmp_path, [maker.write(old)], maker) as daemon,
        daemon.camera() as camera,
        daemon.consumer() as consumer,
        daemon.control() as control,
    ):
        run_one(camera, consumer, 1, PICTURES[0])
        data = control.snapshot_state()
        control.activate(new)
        control.reset_state()
        control.restore_state(data)
        outputs = run_one(camera, consumer, 2, PICTURES[1]).outputs
        assert np.array_equal(outputs["values"], total(*PICTURES[:2]))


def test_memory_that_can_still_change_is_refused(tmp_path: Path, maker: BundleMaker) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(64))
    with DaemonThread(tmp_path, [maker.write(MODEL)], maker) as daemon:
        with daemon.control() as control:
            data = control.snapshot_state()
        connection = Connection(str(daemon.sockets / "control.sock"), Role.CONTROL, "hostile", LIMIT_S)
        made = [create_sealed("writable", len(data)), os.open(path, os.O_RDONLY), os.eventfd(0)]
        os.pwrite(made[0], data, 0)  # a good one, as long as nobody writes
        with connection, no_descriptor_leaks():
            for descriptor in made:
                with pytest.raises(Refused) as refused:
                    connection.request(Command(CommandKind.RESTORE_STATE), Reply, LIMIT_S, (descriptor,))
                assert refused.value.code is RefusalCode.BAD_BUFFER
        for descriptor in made:
            os.close(descriptor)


def test_a_model_without_state_has_an_empty_snapshot_that_nothing_takes(tmp_path: Path, maker: BundleMaker) -> None:
    with DaemonThread(tmp_path, [maker.write(TinyModel("add"))], maker) as daemon, daemon.control() as control:
        data = control.snapshot_state()
        assert snapshot.decode(data)[0].states == ()
        with pytest.raises(Refused, match="a model with recurrent state"):
            control.restore_state(data)


def test_the_commands_write_a_snapshot_and_read_it(
    tmp_path: Path, maker: BundleMaker, capsys: pytest.CaptureFixture[str]
) -> None:
    with (
        DaemonThread(tmp_path, [maker.write(MODEL)], maker) as daemon,
        daemon.camera() as camera,
        daemon.consumer() as consumer,
    ):
        run_one(camera, consumer, 1, PICTURES[0])
        file, sockets = str(tmp_path / "state.snapshot"), ("--sockets", str(daemon.sockets), "--model", "tiny")
        assert cli.main(["snapshot-state", "-o", file, *sockets, "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["states"] == [{"name": "sum", "dtype": "float32", "shape": [1024]}]
        assert cli.main(["snapshot-state", "-o", file, *sockets]) == 3  # nothing is overwritten
        assert cli.main(["reset-state", *sockets]) == 0
        assert cli.main(["restore-state", file, *sockets]) == 0
        outputs = run_one(camera, consumer, 2, PICTURES[1]).outputs
        assert np.array_equal(outputs["values"], total(*PICTURES[:2]))
