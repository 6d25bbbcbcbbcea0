"""Consumers: named outputs out of a ring they cannot write, never torn, with their receipts."""

from __future__ import annotations

import dataclasses
import mmap
import os
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from abi import messages as m
from abi.flat import ResultFlag
from abi.graph_values import DType, NanPolicy, OutputView
from abi.messages import DeliveryPolicy, Role
from abi.packet import RefusalCode
from abi.receipt import FrameReceipt, Receipt
from client import consumer as consumer_module
from client.consumer import Consumer
from client.errors import ConnectionLost, Refused
from hal.memory import create_ring
from tests.support.scripted import TIMEOUT_S, Peer, ScriptedDaemon, no_descriptor_leaks

SLOTS, SLOT_BYTES = 4, 4096
OFFSET = OutputView("offset_m", DType.FLOAT32, (1, 2), "m", 64, 8, NanPolicy.FLAG)
MASK = OutputView("mask", DType.UINT8, (2, 3), "1", 128, 6, NanPolicy.REFUSE)
SUBSCRIBED = m.Subscribed(5, SLOTS, SLOT_BYTES, bytes(range(32)), (OFFSET, MASK))
RECEIPT = Receipt(
    bytes(range(32)), 0, 0, 3, 4, 1, ResultFlag.DEADLINE_MET, 0, 6, 7, 8, 9, 10, 11, 12, 13, (),
    (FrameReceipt(0, 1, 2, 3, 4, 5, 6, 7),),
)  # fmt: skip


class Ring:
    """The daemon's side of a result ring."""

    def __init__(self) -> None:
        self.mapping, self.descriptor = create_ring("test-ring", SLOTS * SLOT_BYTES)
        self.view = self.mapping.view

    def write(self, slot: int, word: int, offset_m: float) -> None:
        at = slot * SLOT_BYTES
        struct.pack_into("<2f", self.view, at + 64, offset_m, -offset_m)
        self.view[at + 128 : at + 134] = bytes(range(6))
        self.word(slot, word)

    def word(self, slot: int, word: int) -> None:
        struct.pack_into("<Q", self.view, slot * SLOT_BYTES, word)

    def close(self) -> None:
        os.close(self.descriptor)


def accept(peer: Peer, ring: Ring, subscribed: m.Subscribed = SUBSCRIBED) -> Any:
    peer.greet()
    asked = peer.receive()
    peer.say(subscribed, (ring.descriptor,))
    return asked


def publish(peer: Peer, slot: int, word: int, missed: int = 0) -> None:
    peer.push(peer.session.pack_result(RECEIPT.to_result(5, slot, word, missed)))


def run(
    tmp_path: Path,
    script: Callable[[Peer, Ring], object],
    body: Callable[[Consumer, Ring], object],
    policy: DeliveryPolicy = DeliveryPolicy.EVERY,
) -> None:
    """A consumer that subscribes once the script, which begins after `accept`, has published what it wants."""
    ring = Ring()

    def whole(peer: Peer) -> None:
        asked = accept(peer, ring)
        assert asked == m.Subscribe("lane", policy, 8)
        script(peer, ring)
        peer.until_end()

    with no_descriptor_leaks():
        with (
            ScriptedDaemon(tmp_path, Role.CONSUMER, whole) as daemon,
            Consumer.subscribe(daemon.path, "lane", policy, 8) as consumer,
        ):
            body(consumer, ring)
        os.close(os.dup(ring.descriptor))  # still the daemon's own
    ring.close()


def test_a_delivery_has_named_outputs_units_and_a_receipt(tmp_path: Path) -> None:
    def script(peer: Peer, ring: Ring) -> None:
        ring.write(1, 8, 0.5)
        publish(peer, 1, 8, missed=3)

    def body(consumer: Consumer, ring: Ring) -> None:
        delivery = consumer.recv(TIMEOUT_S)
        assert list(delivery.outputs) == ["offset_m", "mask"]
        assert delivery.outputs["offset_m"].dtype == np.float32
        assert delivery.outputs["offset_m"].tolist() == [[0.5, -0.5]]
        assert delivery.outputs["mask"].dtype == np.uint8
        assert delivery.outputs["mask"].tolist() == [[0, 1, 2], [3, 4, 5]]
        assert delivery.units == {"offset_m": "m", "mask": "1"}
        assert delivery.receipt == RECEIPT
        assert delivery.missed == 3
        assert delivery.result == RECEIPT.to_result(5, 1, 8, 3)
        assert (consumer.torn, consumer.skipped) == (0, 0)
        assert consumer.model_digest == bytes(range(32))
        assert consumer.subscribed == SUBSCRIBED
        assert consumer.fileno() >= 0
        ring.write(1, 10, 9.0)
        assert delivery.outputs["offset_m"].tolist() == [[0.5, -0.5]]  # the caller's own copy

    run(tmp_path, script, body)


def test_results_come_in_order_under_every(tmp_path: Path) -> None:
    def script(peer: Peer, ring: Ring) -> None:
        for slot in range(3):
            ring.write(slot, 2 + 2 * slot, float(slot))
            publish(peer, slot, 2 + 2 * slot)

    def body(consumer: Consumer, ring: Ring) -> None:
        assert [consumer.recv(TIMEOUT_S).outputs["offset_m"][0, 0] for _ in range(3)] == [0.0, 1.0, 2.0]
        with pytest.raises(TimeoutError, match="no result came in time"):
            consumer.recv(0.01)
        with pytest.raises(TimeoutError):
            consumer.recv()

    run(tmp_path, script, body)


def test_latest_passes_over_older_results_and_counts_them(tmp_path: Path) -> None:
    ring = Ring()

    def whole(peer: Peer) -> None:
        peer.greet()
        asked = peer.receive()
        assert asked == m.Subscribe("lane", DeliveryPolicy.LATEST, 1)
        for slot in range(3):
            ring.write(slot, 2 + 2 * slot, float(slot))
        peer.say(SUBSCRIBED, (ring.descriptor,))
        for slot in range(3):
            publish(peer, slot, 2 + 2 * slot)
        peer.say(m.Bye("that was all"))
        peer.until_end()

    with (
        ScriptedDaemon(tmp_path, Role.CONSUMER, whole) as daemon,
        Consumer.subscribe(daemon.path, "lane") as consumer,
    ):
        while not consumer._connection.session.closed:  # until all has arrived
            consumer._connection._receive()
        assert consumer._connection._events.pop() == m.Bye("that was all")
        assert consumer.recv(TIMEOUT_S).outputs["offset_m"][0, 0] == 2.0
        assert (consumer.skipped, consumer.torn) == (2, 0)
    ring.close()


@pytest.mark.parametrize("word", [0, 7, 9, 10])
def test_a_slot_that_was_overwritten_is_torn_and_never_delivered(tmp_path: Path, word: int) -> None:
    def script(peer: Peer, ring: Ring) -> None:
        ring.write(0, word, 1.0)
        publish(peer, 0, 8)
        ring.write(1, 12, 2.0)
        publish(peer, 1, 12)

    def body(consumer: Consumer, ring: Ring) -> None:
        assert consumer.recv(TIMEOUT_S).outputs["offset_m"][0, 0] == 2.0
        assert consumer.torn == 1

    run(tmp_path, script, body)


def test_an_output_without_axes_is_an_array_without_axes(tmp_path: Path) -> None:
    scalar = dataclasses.replace(OFFSET, shape=(), size_bytes=4)

    def script(peer: Peer) -> None:
        accept(peer, ring, dataclasses.replace(SUBSCRIBED, outputs=(scalar,)))
        ring.write(3, 8, 2.5)
        publish(peer, 3, 8)
        peer.until_end()

    ring = Ring()
    with (
        ScriptedDaemon(tmp_path, Role.CONSUMER, script) as daemon,
        Consumer.subscribe(daemon.path, "lane", DeliveryPolicy.EVERY, 8) as consumer,
    ):
        found = consumer.recv(TIMEOUT_S).outputs["offset_m"]
    assert (found.shape, found.dtype, found.item()) == ((), np.float32, 2.5)
    ring.close()


def test_a_slot_that_is_overwritten_while_it_is_copied_is_torn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def script(peer: Peer, ring: Ring) -> None:
        for slot in (0, 1):
            ring.write(slot, 8 + slot * 2, float(slot))
            publish(peer, slot, 8 + slot * 2)

    def body(consumer: Consumer, ring: Ring) -> None:
        real, calls = consumer._barrier, iter(range(100))

        def barrier() -> None:
            real()
            if next(calls) == 1:  # the outputs of slot 0 are copied
                ring.word(0, 99)  # the daemon begins to write the slot anew

        monkeypatch.setattr(consumer, "_barrier", barrier)
        assert consumer.recv(TIMEOUT_S).outputs["offset_m"][0, 0] == 1.0
        assert consumer.torn == 1

    run(tmp_path, script, body)


def test_a_consumer_cannot_write_the_ring(tmp_path: Path) -> None:  # case 27
    def body(consumer: Consumer, ring: Ring) -> None:
        with pytest.raises((TypeError, ValueError)):
            consumer._ring[0] = 1
        with pytest.raises(PermissionError):
            mmap.mmap(ring.descriptor, SLOT_BYTES, prot=mmap.PROT_READ | mmap.PROT_WRITE)

    run(tmp_path, lambda peer, ring: None, body)


BAD_OUTPUTS = [
    (dataclasses.replace(OFFSET, size_bytes=12), "has 12 bytes"),
    (dataclasses.replace(OFFSET, shape=(1, 3)), "has 8 bytes"),
    (dataclasses.replace(OFFSET, shape=(0,), size_bytes=0), "has 0 bytes"),
    (dataclasses.replace(OFFSET, dtype=DType.UNSPECIFIED), "has 8 bytes"),
    (dataclasses.replace(OFFSET, shape=(2**32 - 1,) * 4), "has 8 bytes"),
    (dataclasses.replace(OFFSET, offset=66), "has 8 bytes"),
    (dataclasses.replace(OFFSET, offset=0), "leaves its ring slot"),
    (dataclasses.replace(OFFSET, offset=4), "leaves its ring slot"),
    (dataclasses.replace(OFFSET, offset=4092), "leaves its ring slot"),
    (dataclasses.replace(OFFSET, offset=2**63), "leaves its ring slot"),
]


@pytest.mark.parametrize(
    ("subscribed", "reason"),
    [(dataclasses.replace(SUBSCRIBED, outputs=(output,)), reason) for output, reason in BAD_OUTPUTS]
    + [
        (dataclasses.replace(SUBSCRIBED, slots=5), "5 slots of 4096 bytes in a ring of 16384 bytes"),
        (dataclasses.replace(SUBSCRIBED, slot_bytes=0, outputs=()), "slots of 0 bytes"),
        (dataclasses.replace(SUBSCRIBED, slot_bytes=12, outputs=()), "slots of 12 bytes"),
        (dataclasses.replace(SUBSCRIBED, slot_bytes=2**63), "ring is too small"),
    ],
)
def test_a_ring_that_cannot_hold_its_outputs_is_not_read(tmp_path: Path, subscribed: m.Subscribed, reason: str) -> None:
    ring = Ring()

    def whole(peer: Peer) -> None:
        accept(peer, ring, subscribed)
        peer.until_end()

    with (
        no_descriptor_leaks(),
        ScriptedDaemon(tmp_path, Role.CONSUMER, whole) as daemon,
        pytest.raises(ConnectionLost, match=reason),
    ):
        Consumer.subscribe(daemon.path, "lane")
    ring.close()


def test_outputs_may_fill_their_slot(tmp_path: Path) -> None:
    ring = Ring()
    full = dataclasses.replace(MASK, shape=(SLOT_BYTES - 8,), size_bytes=SLOT_BYTES - 8, offset=8)

    def whole(peer: Peer) -> None:
        accept(peer, ring, dataclasses.replace(SUBSCRIBED, outputs=(full,)))
        ring.view[SLOT_BYTES * SLOTS - 1] = 7
        ring.word(3, 2)
        publish(peer, 3, 2)
        peer.until_end()

    with (
        ScriptedDaemon(tmp_path, Role.CONSUMER, whole) as daemon,
        Consumer.subscribe(daemon.path, "lane") as consumer,
    ):
        assert consumer.recv(None).outputs["mask"][-1] == 7
    ring.close()


@pytest.mark.parametrize("dtype", [dtype for dtype in DType if dtype])
def test_every_dtype_has_its_array(dtype: DType) -> None:
    assert consumer_module._DTYPES[dtype].itemsize == dtype.item_bytes
    name = {"BOOL8": "bool", "BFLOAT16": "uint16"}.get(dtype.name, dtype.name.lower())
    assert consumer_module._DTYPES[dtype] == np.dtype(name)


def test_a_refused_subscription_is_raised(tmp_path: Path) -> None:
    def whole(peer: Peer) -> None:
        peer.greet()
        peer.receive()
        peer.say(m.Refusal(RefusalCode.NOT_READY, 13, "model", "lane", "none", "activate one"))
        peer.until_end()

    with (
        no_descriptor_leaks(),
        ScriptedDaemon(tmp_path, Role.CONSUMER, whole) as daemon,
        pytest.raises(Refused, match="NOT_READY"),
    ):
        Consumer.subscribe(daemon.path, "lane")
