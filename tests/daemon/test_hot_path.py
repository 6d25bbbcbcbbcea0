"""What a frame costs the daemon beyond its work: nothing that the audit hook sees, and no memory that stays."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

_SCRIPT = """
import collections, gc, json, sys, threading, tracemalloc
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from client.tap import Tap
from tests.support.bundles import BundleMaker, TinyModel
from tests.support.daemons import DaemonThread, picture, run_one

folder = Path(sys.argv[2])
(folder / "models").mkdir()
maker = BundleMaker(folder / "models")
events, counting = collections.Counter(), False

def hook(event, arguments):
    if counting and threading.current_thread().name == "daemon under test":
        events[event] += 1

sys.addaudithook(hook)
pictures = [picture(seed) for seed in range(8)]
with (
    DaemonThread(folder, [maker.write(TinyModel())], maker) as daemon,
    daemon.camera() as camera,
    daemon.consumer() as consumer,
):
    tap = Tap.open(daemon.sockets / "consumer.sock") if sys.argv[3] == "tapped" else None  # which nobody reads

    def drive(first, count):
        for sequence in range(first, first + count):
            run_one(camera, consumer, sequence, pictures[sequence % 8])
        camera.releases()  # which the client would keep

    def held():
        # bytes that are allocated and still held, by anybody but the clients and this script
        gc.collect()
        names = (f"{sys.argv[1]}/client/*", "<string>", tracemalloc.__file__)
        others = [tracemalloc.Filter(False, name) for name in names]
        return sum(one.size for one in tracemalloc.take_snapshot().filter_traces(others).statistics("filename"))

    tracemalloc.start()
    drive(0, 300)
    counting = True
    drive(2000, 100)
    counting = False
    held()  # fills the caches of what it calls itself
    before = held()
    drive(4000, 1000)
    print(json.dumps({"events": events, "grown_bytes": held() - before}))
"""
FRAMES, NOISE_BYTES_A_FRAME = 1000, 4


@pytest.mark.parametrize("recorder", ["none", "tapped"])
def test_a_frame_raises_no_audit_event_and_keeps_no_memory(tmp_path: Path, recorder: str) -> None:
    command = [sys.executable, "-c", _SCRIPT, Path(__file__).parents[2], tmp_path, recorder]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout)
    assert seen["events"] == {}  # so the guard's hook is not even called
    assert seen["grown_bytes"] < FRAMES * NOISE_BYTES_A_FRAME
