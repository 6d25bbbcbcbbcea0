"""The result ring and eight real consumer processes, most of which misbehave: nothing is held, no producer waits."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from abi.messages import DeliveryPolicy
from tests.support.bundles import BundleMaker, TinyModel
from tests.support.daemons import LIMIT_S, DaemonThread, ended, picture, run_one

# A consumer that checks every delivery against what the sequence says its picture was, and tells what it saw.
_READER = """
import json, sys, time
import numpy as np
sys.path.insert(0, sys.argv[1])
from abi.messages import DeliveryPolicy
from client.consumer import Consumer
from client.errors import ConnectionLost
from tests.support.daemons import picture
policy, pause_s, number = DeliveryPolicy[sys.argv[3]], float(sys.argv[4]), int(sys.argv[5])
consumer = Consumer.subscribe(sys.argv[2], "tiny", policy, 4 if policy is DeliveryPolicy.EVERY else 1)
print("subscribed", flush=True)
seen, wrong, missed, last = 0, 0, 0, -1
try:
    while last < number - 1:
        delivery = consumer.recv(timeout_s=60)
        sequence = delivery.receipt.frames[0].sequence
        wrong += sequence <= last
        wrong += not np.array_equal(delivery.outputs["values"], picture(sequence).astype(np.float32) + 3)
        seen, missed, last = seen + 1, delivery.missed, sequence
        time.sleep(pause_s)
except ConnectionLost:
    pass
print(json.dumps({"seen": seen, "wrong": wrong, "missed": missed, "last": last, "torn": consumer.torn,
                  "skipped": consumer.skipped}), flush=True)
"""
FRAMES = 240


class Reader:
    """One consumer process."""

    def __init__(self, daemon: DaemonThread, policy: DeliveryPolicy, pause_s: float) -> None:
        checkout, path = Path(__file__).parents[2], daemon.sockets / "consumer.sock"
        command = [sys.executable, "-c", _READER, checkout, path, policy.name, str(pause_s), str(FRAMES)]
        self.child = subprocess.Popen(list(map(str, command)), stdout=subprocess.PIPE, text=True)
        assert self.child.stdout is not None
        assert self.child.stdout.readline() == "subscribed\n"

    def signal(self, number: signal.Signals) -> None:
        self.child.send_signal(number)
        if number is signal.SIGSTOP:
            os.waitid(os.P_PID, self.child.pid, os.WSTOPPED)  # it has stopped, not only been told to

    def report(self) -> dict[str, Any]:
        out, _ = self.child.communicate(timeout=LIMIT_S)
        found: dict[str, Any] = json.loads(out)
        return found


@contextmanager
def readers(daemon: DaemonThread) -> Iterator[list[Reader]]:
    """Two quick, two slow, two to be stopped, two to be killed; one of each pair wants every result."""
    started: list[Reader] = []
    try:
        for pause_s in (0.0, 0.05, 0.0, 0.0):
            started += [Reader(daemon, DeliveryPolicy.LATEST, pause_s), Reader(daemon, DeliveryPolicy.EVERY, pause_s)]
        yield started
    finally:
        for one in started:
            one.child.kill()
            one.child.wait()


def test_eight_readers_slow_stopped_and_dead_hold_nothing_and_stop_nobody(tmp_path: Path, maker: BundleMaker) -> None:
    more = "[limits]\nring_slots = 8\n"
    with (
        DaemonThread(tmp_path, [maker.write(TinyModel())], maker, more=more) as daemon,
        daemon.camera() as camera,
        daemon.consumer() as here,
        readers(daemon) as eight,
    ):
        quick, slow, stopped, killed = (eight[at : at + 2] for at in (0, 2, 4, 6))
        for sequence in range(FRAMES):
            if sequence == 40:
                for one in stopped:
                    one.signal(signal.SIGSTOP)
                for one in killed:
                    one.signal(signal.SIGKILL)
            outputs = run_one(camera, here, sequence, picture(sequence)).outputs
            assert np.array_equal(outputs["values"], TinyModel().values(picture(sequence)))
        assert ended(camera)["run"] == FRAMES  # each ran though readers stood still: the ring went round 30 times
        assert camera.free == camera.slots
        peers = daemon.wait_for(lambda status: status["peers"]["consumer"] == 7)  # here, quick, slow, stopped
        assert peers["models"][0]["runs"]["published"] == FRAMES
        for one in (*quick, *slow):
            found = one.report()
            assert (found["wrong"], found["last"]) == (0, FRAMES - 1)  # nothing torn was read, the newest arrived
            assert found["seen"] + found["missed"] + found["torn"] + found["skipped"] == FRAMES
        for one in stopped:
            one.signal(signal.SIGCONT)
            found = one.report()
            assert (found["wrong"], found["last"]) == (0, FRAMES - 1)
            assert found["missed"] + found["skipped"] + found["torn"] > 0
        assert daemon.status()["faults"]["internal_errors"] == 0
