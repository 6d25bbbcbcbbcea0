"""Each forbidden act of the wall, tried from inside a daemon that serves: refused, counted, audited; frames go on.

One daemon serves all of them. It is `fenced serve` from the vehicle's wheel, but that its `activate` command performs
the act it is given by name, as code that was taken over would: on the loop's thread, between two frames.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from client.camera import Camera
from client.consumer import Consumer
from client.control import Control
from daemon.audit import verify
from tests.daemon.test_guard import ALLOWED, FORBIDDEN
from tests.daemon.test_process import Process
from tests.support.bundles import BundleMaker, TinyModel
from tests.support.daemons import picture, run_one

MODEL = TinyModel("add", number=7)
NEEDED = {name: statement for name, statement in ALLOWED.items() if "/etc/" not in statement}  # it may read its models
_PRELUDE = """
import sys
from daemon import guard
guard.install()
import ctypes, fcntl, hashlib, importlib, importlib.machinery, json, mmap, os, pickle, socket, types
from daemon import switching
from daemon.serve import serve

network = socket.socket(fileno=int(sys.argv[1]))
code_before_seal = compile("1+1", "<text>", "eval")
folder = sys.argv[2]
ACTS = {}

def perform(self, name, done):
    try:
        ACTS[name]()
    except guard.ForbiddenAct as error:
        done({"refused": error.act.value, "detail": error.detail})
    else:
        done({"refused": None})

switching.Switching.activate = perform
"""


def script() -> str:
    """The daemon's program, with every act compiled before the seal."""
    text = _PRELUDE
    for number, (name, statement) in enumerate([*((name, act[0]) for name, act in FORBIDDEN.items()), *NEEDED.items()]):
        text += f"\ndef act_{number}():\n    {statement}\nACTS[{name!r}] = act_{number}\n"
    return text + "\nraise SystemExit(serve(sys.argv[3]))\n"


class Driven:
    """The daemon with a camera, a consumer and an operator."""

    def __init__(self, process: Process, camera: Camera, consumer: Consumer, control: Control) -> None:
        self.process, self.camera, self.consumer, self.control = process, camera, consumer, control
        self._sequence = 0

    def serves(self) -> None:
        """One frame goes through to its right result."""
        self._sequence += 1
        pixels = picture(self._sequence)
        outputs = run_one(self.camera, self.consumer, self._sequence, pixels).outputs
        assert np.array_equal(outputs["values"], MODEL.values(pixels))

    def refused(self) -> dict[str, int]:
        """The daemon's own count, by act."""
        counts: dict[str, int] = self.control.status()["guard"]["refused"]
        return counts

    def audited(self) -> list[dict[str, Any]]:
        """What the audit log, whose chain holds, says of forbidden acts."""
        path = self.process.folder / "state" / "audit.jsonl"
        verify(str(path))
        entries = [json.loads(line) for line in path.read_text().splitlines()]
        return [one for one in entries if one["event"] == "guard.refused"]


@pytest.fixture(scope="module")
def driven(vehicle_site: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Driven]:
    folder = tmp_path_factory.mktemp("service")
    (folder / "models").mkdir()
    maker = BundleMaker(folder / "models")
    process = Process(vehicle_site, folder, [maker.write(MODEL)], maker)
    text = process.config_path.read_text()  # the operator is silent while other tests run
    process.config_path.write_text(text.replace("idle_timeout_ms = 600000", "idle_timeout_ms = 3600000"))
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as inherited:
        process.program = ("-c", script(), str(inherited.fileno()), str(folder / "state"))
        process.pass_fds = (inherited.fileno(),)
        child = process.start()
    try:
        with process.camera() as camera, process.consumer() as consumer, process.control() as control:
            yield Driven(process, camera, consumer, control)
        assert process.stop() == 0
    finally:
        child.kill()
        child.communicate()


@pytest.mark.parametrize("name", FORBIDDEN)
def test_a_forbidden_act_in_a_serving_daemon_is_refused_counted_and_audited(driven: Driven, name: str) -> None:
    act = FORBIDDEN[name][1]
    counted, audited = driven.refused(), driven.audited()
    driven.serves()
    answer = driven.control.activate(name)
    assert answer["refused"] == act
    assert driven.refused() == {**counted, act: counted[act] + 1}
    new = driven.audited()[len(audited) :]
    assert [(one["act"], one["detail"]) for one in new] == [(act, answer["detail"])]
    driven.serves()


@pytest.mark.parametrize("name", NEEDED)
def test_what_service_needs_is_not_refused(driven: Driven, name: str) -> None:
    counted = driven.refused()
    assert driven.control.activate(name) == {"refused": None}
    assert driven.refused() == counted
