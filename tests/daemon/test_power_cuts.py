"""Killed before any of the writes of an activation and its confirmation, the next start serves, and knows what it may.

A child process activates a release, lets it pass its probation, and dies before its n-th call that changes the disk;
for every n. What it left is then started again by the configuration that named the older release.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from signing import store
from tests.daemon.test_trust_store import confirmed, events, serve
from tests.support.bundles import BundleMaker, TinyModel
from tests.support.daemons import DaemonThread

PROBATION = 2
MORE = f"[limits]\nprobation_frames = {PROBATION}\n[activation]\ncrash_limit = 1\n"
OLD = TinyModel("add", version="1.0.0", release=1, number=1)
NEW = TinyModel("add", version="2.0.0", release=2, number=2)
WRITES = ("replace", "fsync", "fdatasync", "write")


def activate_until(folder: Path, old: Path, new: Path, maker: BundleMaker, last: int) -> bool:
    """Whether a child process came to the end of an activation before its write number `last`."""
    child = os.fork()
    if not child:
        try:
            with DaemonThread(folder, [old], maker, more=MORE) as daemon, daemon.control() as control:
                die_at(last)
                control.activate(new)
                serve(daemon, NEW, PROBATION)
                confirmed(daemon, NEW.release)
                daemon.service.switching.settle()
                os._exit(0)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
    _, status = os.waitpid(child, 0)
    assert status in (0, signal.SIGKILL), status
    return status == 0


def die_at(last: int) -> None:
    """From here the process is killed instead of its write number `last`."""
    left = last

    def counted(write: Callable[..., Any]) -> Callable[..., Any]:
        def call(*given: Any, **named: Any) -> Any:
            nonlocal left
            left -= 1
            if left <= 0:
                os.kill(os.getpid(), signal.SIGKILL)
            return write(*given, **named)

        return call

    for name in WRITES:
        setattr(os, name, counted(getattr(os, name)))


@pytest.mark.skipif(not os.environ.get("FENCED_SLOW"), reason="some thirty daemons; set FENCED_SLOW=1")
def test_killed_at_any_write_of_an_activation_the_next_start_serves_what_it_may(
    tmp_path: Path, maker: BundleMaker
) -> None:
    old, new = maker.write(OLD), maker.write(NEW)
    with DaemonThread(tmp_path, [old], maker, more=MORE) as daemon:
        serve(daemon, OLD, PROBATION)
        confirmed(daemon, OLD.release)
    came_to_the_end, last = False, 0
    while not came_to_the_end:
        last += 1
        folder = tmp_path / str(last)
        shutil.copytree(tmp_path / "state", folder / "state")
        came_to_the_end = activate_until(folder, old, new, maker, last)
        before = [(one["event"], one.get("release")) for one in recovered(folder)]
        state = store.read_state(folder / "state" / "trust.json")
        assert state is not None
        is_confirmed = state.floors["tiny"].release == NEW.release
        was_seen = json.loads((folder / "state" / "trials.json").read_text()) != []
        assert is_confirmed or ("model.confirmed", NEW.release) not in before
        assert is_confirmed or was_seen or ("bundle.accepted", NEW.release) not in before
        with DaemonThread(folder, [new], maker, more=MORE) as daemon:  # one death is too many by this configuration
            serve(daemon, OLD if was_seen and not is_confirmed else NEW, 1)
        with DaemonThread(folder, [old], maker, more=MORE) as daemon:
            serve(daemon, NEW if is_confirmed else OLD, 1)
    assert is_confirmed
    assert last > 10


def recovered(folder: Path) -> list[dict[str, Any]]:
    """The audit log as a killed process left it: a last line that is cut short is none."""
    path = folder / "state" / "audit.jsonl"
    data = path.read_bytes()
    path.write_bytes(data[: data.rfind(b"\n") + 1])
    return events(folder)
