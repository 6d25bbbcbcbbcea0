"""Peers that die at every step of their session: nobody else notices, nothing is left behind, every frame is counted.

A dead process is its sockets closed by the kernel, so a step is tried by closing a bare socket; real SIGKILLs are in
test_serving, test_consumers, test_ring_readers and, of the daemon, in test_process and here.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from abi import messages as m
from abi.flat import SUBMIT, Submit
from abi.messages import Role
from abi.packet import Kind, encode_header
from client.errors import ConnectionLost
from tests.daemon.test_process import Process
from tests.support.bundles import PIXELS, BundleMaker, TinyModel, frame_format
from tests.support.daemons import LIMIT_S, DaemonThread, ended, picture, run_one, submit
from tests.support.raw_peer import RawPeer, close_all, good_descriptors

SLOW = TinyModel("slow")  # milliseconds as many as the first pixel says
ENDS = ("run", "superseded", "late", "torn", "refused", "lost")


def hello(peer: RawPeer) -> None:
    peer.ask(m.Hello(peer.session.role, "mortal"))


def opened(peer: RawPeer) -> None:
    hello(peer)
    assert isinstance(peer.ask(m.OpenStream("road", frame_format())), m.StreamOpened)


def registering(peer: RawPeer) -> None:
    """Dies with the answer under way."""
    opened(peer)
    descriptors = good_descriptors(2)
    peer.send(peer.session.send(m.RegisterBuffers(min(peer.session.streams), 2), 3), descriptors)
    close_all(descriptors)


def registered(peer: RawPeer) -> None:
    hello(peer)
    peer.open_stream(slots=2)


def give(peer: RawPeer, slot: int, fence: int | None = None) -> None:
    """Submits a frame of zeros (the slow kernel then takes no time)."""
    stream_id, now_ns = min(peer.session.streams), time.monotonic_ns()
    packet = SUBMIT.pack(Submit(stream_id, slot, 1, slot + 1, now_ns, now_ns, 0, 0, int(fence is not None)))
    descriptors = () if fence is None else (fence,)
    peer.send(encode_header(Kind.SUBMIT, len(descriptors)) + packet, descriptors)


def submitted(peer: RawPeer) -> None:
    registered(peer)
    give(peer, 0)
    give(peer, 1)


def behind_a_fence(peer: RawPeer) -> None:
    registered(peer)
    reader, _writer = os.pipe()  # which never says that the pixels are there
    give(peer, 0, fence=reader)
    os.close(reader)


def closing(peer: RawPeer) -> None:
    submitted(peer)
    peer.send(peer.session.send(m.CloseStream(min(peer.session.streams))))


CAMERA_STEPS: tuple[Callable[[RawPeer], None], ...] = (
    lambda peer: None, hello, opened, registering, registered, submitted, behind_a_fence, closing,
)  # fmt: skip


def test_a_camera_that_dies_at_any_step_leaves_nothing_and_frees_its_stream(tmp_path: Path, maker: BundleMaker) -> None:
    with DaemonThread(tmp_path, [maker.write(SLOW)], maker) as daemon, daemon.consumer() as consumer:
        for sequence, step in enumerate(CAMERA_STEPS):
            with RawPeer(daemon, greet=False) as peer:
                step(peer)
            daemon.wait_for(lambda status: status["peers"]["camera"] == 0)
            with daemon.camera() as camera:  # the stream is free again, at once
                submit(camera, sequence, picture(sequence))
                assert ended(camera)["run"] == 1
            status = daemon.wait_for(
                lambda status: status["peers"]["camera"] == 0 and not status["streams"]["road"]["held"]
            )
            road = status["streams"]["road"]
            assert road["submitted"] == sum(road[end] for end in ENDS) > sequence
        assert status["faults"]["internal_errors"] == 0
        while consumer.recv(timeout_s=LIMIT_S).receipt.frames[0].sequence != len(CAMERA_STEPS) - 1:
            pass  # the consumer saw the last one's result too


def subscribing(peer: RawPeer) -> None:
    """Dies with the answer, and the ring's descriptor, under way."""
    hello(peer)
    peer.send(peer.session.send(m.Subscribe("tiny")))


def subscribed(peer: RawPeer) -> None:
    hello(peer)
    assert isinstance(peer.ask(m.Subscribe("tiny")), m.Subscribed)


@pytest.mark.parametrize("step", [lambda peer: None, hello, subscribing, subscribed])
@pytest.mark.parametrize("results_before", [0, 5])
def test_a_consumer_that_dies_at_any_step_is_forgotten(
    tmp_path: Path, maker: BundleMaker, step: Callable[[RawPeer], None], results_before: int
) -> None:
    model = TinyModel("add")
    with (
        DaemonThread(tmp_path, [maker.write(model)], maker) as daemon,
        daemon.camera() as camera,
        daemon.consumer() as other,
    ):
        with RawPeer(daemon, Role.CONSUMER, greet=False) as peer:
            step(peer)
            for sequence in range(results_before):  # which it never reads
                run_one(camera, other, sequence, picture(sequence))
        daemon.wait_for(lambda status: status["peers"]["consumer"] == 1)
        outputs = run_one(camera, other, 100, picture(100)).outputs
        assert np.array_equal(outputs["values"], model.values(picture(100)))
        assert daemon.status()["faults"]["internal_errors"] == 0


@pytest.mark.parametrize("frames_held", [0, 1, 3])
def test_a_daemon_that_dies_shows_at_once_to_all_and_another_begins_anew(
    vehicle_site: Path, tmp_path: Path, maker: BundleMaker, frames_held: int
) -> None:
    process = Process(vehicle_site, tmp_path, [maker.write(SLOW)], maker)
    child = process.start()
    try:
        with process.camera() as camera, process.consumer() as consumer, process.control() as control:
            for sequence in range(frames_held):
                submit(camera, sequence, picture(sequence, first=255))
            child.kill()
            child.communicate()
            for attempt in (lambda: ended(camera) if frames_held else camera.wait(LIMIT_S),
                            lambda: consumer.recv(timeout_s=LIMIT_S), control.status):  # fmt: skip
                with pytest.raises(ConnectionLost):
                    attempt()
            counted = camera.ledger.as_dict()
            assert counted["submitted"] == frames_held == counted["held"] + sum(counted[end] for end in ENDS)
        process.start()
        with process.camera() as camera, process.consumer() as consumer:
            delivery = run_one(camera, consumer, 1, picture(1))
            assert (delivery.receipt.frames[0].generation, delivery.receipt.fence_value > 0) == (1, True)
            assert delivery.outputs["values"].size == PIXELS
    finally:
        process.stop()
