"""Consumers can hold nothing, write nothing and stop nobody."""

from __future__ import annotations

import array
import fcntl
import mmap
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from abi import messages as m
from abi.messages import DeliveryPolicy, Role
from abi.packet import RefusalCode
from abi.session import ClientSession
from client.errors import ConnectionLost, Refused
from tests.support.bundles import BundleMaker, TinyModel
from tests.support.daemons import LIMIT_S, DaemonThread, ended, picture, run_one, submit


def subscribe_raw(daemon: DaemonThread) -> tuple[socket.socket, m.Subscribed, int]:
    """A subscription of which we keep the ring's descriptor."""
    session = ClientSession(Role.CONSUMER)
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    connection.connect(str(daemon.sockets / "consumer.sock"))
    connection.send(session.send(m.Hello(Role.CONSUMER, "raw")))
    session.receive(connection.recv(1 << 16))
    connection.send(session.send(m.Subscribe("tiny")))
    packet, ancillary, _, _ = connection.recvmsg(1 << 16, 64)
    (descriptor,) = array.array("i", ancillary[0][2])
    (subscribed,) = session.receive(packet, 1)
    assert isinstance(subscribed, m.Subscribed)
    return connection, subscribed, descriptor


def test_the_ring_cannot_be_written_however_it_is_opened(tmp_path: Path, maker: BundleMaker) -> None:
    with DaemonThread(tmp_path, [maker.write(TinyModel())], maker) as daemon:
        connection, subscribed, descriptor = subscribe_raw(daemon)
        with connection:
            size = subscribed.slots * subscribed.slot_bytes
            with pytest.raises(PermissionError):
                mmap.mmap(descriptor, size, flags=mmap.MAP_SHARED, prot=mmap.PROT_READ | mmap.PROT_WRITE)
            again = os.open(f"/proc/self/fd/{descriptor}", os.O_RDWR)  # root may open it so
            with pytest.raises(PermissionError):
                mmap.mmap(again, size, flags=mmap.MAP_SHARED, prot=mmap.PROT_READ | mmap.PROT_WRITE)
            with pytest.raises(PermissionError):
                os.pwrite(again, b"x", 0)
            with pytest.raises(PermissionError):
                os.ftruncate(again, 0)
            assert fcntl.fcntl(again, 1034) & 0x10  # F_GET_SEALS, F_SEAL_FUTURE_WRITE
            os.close(again)
            os.close(descriptor)


def test_a_slow_consumer_gets_the_newest_and_is_told_what_it_missed(tmp_path: Path, maker: BundleMaker) -> None:
    with (
        DaemonThread(tmp_path, [maker.write(TinyModel())], maker) as daemon,
        daemon.camera() as camera,
        daemon.consumer() as slow,
        daemon.consumer() as quick,
    ):
        for sequence in range(50):
            run_one(camera, quick, sequence, picture(sequence))
        assert slow.recv(timeout_s=LIMIT_S).receipt.frames[0].sequence == 49
        delivery = run_one(camera, slow, 50, picture(50))
        assert delivery.missed + slow.skipped >= 40


def test_every_result_reaches_a_consumer_that_asked_for_a_queue(tmp_path: Path, maker: BundleMaker) -> None:
    model = TinyModel("add")
    with (
        DaemonThread(tmp_path, [maker.write(model)], maker) as daemon,
        daemon.camera() as camera,
        daemon.consumer(policy=DeliveryPolicy.EVERY, queue=6) as consumer,
    ):
        for sequence in range(6):
            submit(camera, sequence, picture(sequence))
            ended(camera)
        for sequence in range(6):
            delivery = consumer.recv(timeout_s=LIMIT_S)
            assert delivery.receipt.frames[0].sequence == sequence
            assert np.array_equal(delivery.outputs["values"], model.values(picture(sequence)))
            assert delivery.missed == 0


def test_a_queue_that_overflows_counts_what_it_dropped(tmp_path: Path, maker: BundleMaker) -> None:
    with (
        DaemonThread(tmp_path, [maker.write(TinyModel())], maker) as daemon,
        daemon.camera() as camera,
        daemon.consumer(policy=DeliveryPolicy.EVERY, queue=2) as consumer,
    ):
        for sequence in range(40):
            submit(camera, sequence, picture(sequence))
            ended(camera)
        received, missed = 0, 0
        while missed + received + consumer.torn < 40:
            missed = consumer.recv(timeout_s=LIMIT_S).missed
            received += 1
        assert missed > 20


def test_a_queue_longer_than_the_ring_is_refused(tmp_path: Path, maker: BundleMaker) -> None:
    with DaemonThread(tmp_path, [maker.write(TinyModel())], maker, more="[limits]\nring_slots = 4\n") as daemon:
        with pytest.raises(Refused) as refused:
            daemon.consumer(policy=DeliveryPolicy.EVERY, queue=4)
        assert refused.value.code is RefusalCode.LIMIT
        daemon.consumer(policy=DeliveryPolicy.EVERY, queue=3).close()


def test_an_unknown_model_is_refused(tmp_path: Path, maker: BundleMaker) -> None:
    with DaemonThread(tmp_path, [maker.write(TinyModel())], maker) as daemon:
        with pytest.raises(Refused) as refused:
            daemon.consumer("other")
        assert refused.value.code is RefusalCode.NOT_READY


_CONSUMER = """
import sys, time
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from client.consumer import Consumer
consumer = Consumer.subscribe(sys.argv[2], "tiny")
print("subscribed", flush=True)
time.sleep(100)
"""


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
def test_a_dead_or_stopped_consumer_holds_nothing_up(tmp_path: Path, maker: BundleMaker, how: signal.Signals) -> None:
    model = TinyModel("add")
    with (
        DaemonThread(tmp_path, [maker.write(model)], maker) as daemon,
        daemon.camera() as camera,
        daemon.consumer() as consumer,
    ):
        arguments = [
            sys.executable,
            "-c",
            _CONSUMER,
            str(Path(__file__).parents[2]),
            str(daemon.sockets / "consumer.sock"),
        ]
        process = subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        assert process.stdout.readline() == "subscribed\n"
        process.send_signal(how)
        for sequence in range(200):
            outputs = run_one(camera, consumer, sequence, picture(sequence)).outputs
            assert np.array_equal(outputs["values"], model.values(picture(sequence)))
        assert ended(camera)["run"] == 200
        process.kill()
        process.wait()
        daemon.wait_for(lambda status: status["peers"]["consumer"] == 1)


def test_eight_consumers_see_the_same_results(tmp_path: Path, maker: BundleMaker) -> None:
    model = TinyModel("add")
    with DaemonThread(tmp_path, [maker.write(model)], maker) as daemon, daemon.camera() as camera:
        consumers = [daemon.consumer() for _ in range(8)]
        submit(camera, 1, picture(1))
        for consumer in consumers:
            outputs = consumer.recv(timeout_s=LIMIT_S).outputs
            assert np.array_equal(outputs["values"], model.values(picture(1)))
            consumer.close()


def test_a_stopping_daemon_says_goodbye(tmp_path: Path, maker: BundleMaker) -> None:
    with DaemonThread(tmp_path, [maker.write(TinyModel())], maker) as daemon, daemon.consumer() as consumer:
        daemon.stop()
        assert daemon.exit_status == 0
        with pytest.raises(ConnectionLost, match="the daemon stops"):
            consumer.recv(timeout_s=LIMIT_S)
