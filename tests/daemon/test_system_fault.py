"""An error of the system at the start names the place and what to do about it."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path

import pytest

from daemon.system_fault import described
from tests.daemon.test_process import Process
from tests.support.bundles import BundleMaker, TinyModel
from tests.support.daemons import DaemonThread


@pytest.mark.parametrize("case", ["state", "below a file", "sockets", "lock", "audit log"])
def test_a_start_that_the_system_stops_says_what_to_do(
    vehicle_site: Path, tmp_path: Path, maker: BundleMaker, case: str
) -> None:
    daemon = Process(vehicle_site, tmp_path, [maker.write(TinyModel())], maker)
    state = tmp_path / "state"
    (tmp_path / "file").touch()
    (tmp_path / "folder").mkdir()
    place, advice = {
        "state": (state, "move it away, or name another folder"),
        "below a file": (tmp_path / "file" / "state", "move it away, or name another folder"),
        "sockets": (tmp_path / "sockets", "move it away, or name another folder"),
        "lock": (state / "lock", "a symbolic link stands there"),
        "audit log": (state / "audit.jsonl", "a folder stands where a file is due: move it away"),
    }[case]
    if case in ("state", "sockets"):
        place.touch()
    elif case == "below a file":
        daemon.config_path.write_text(daemon.config_path.read_text().replace(str(state), str(place)))
    else:
        state.mkdir(mode=0o700)
        place.mkdir() if case == "audit log" else place.symlink_to(tmp_path / "file")
    done = daemon.fenced("serve", "--config", str(daemon.config_path))
    assert done.returncode == 1
    assert done.stderr.startswith("fenced: system-error: ")
    assert f"'{place}'" in done.stderr
    assert advice in done.stderr


@pytest.mark.parametrize("number", [errno.ENOENT, errno.EACCES, errno.EROFS, errno.ENOSPC, errno.EMFILE, errno.ENODEV])
def test_every_error_of_the_system_ends_with_what_to_do(number: int) -> None:
    error = OSError(number, os.strerror(number), "/a/place")
    words, _, advice = described(error).partition("; ")
    assert words == str(error)
    assert advice.split()[0] in ("make", "give", "mount", "free", "raise", "see")


def test_an_error_in_our_own_words_is_left_alone() -> None:
    assert described(OSError("/a/place is in the way; move it away")) == "/a/place is in the way; move it away"


def test_a_fault_of_the_loop_is_on_record_as_no_stop_in_order(tmp_path: Path, maker: BundleMaker) -> None:
    daemon = DaemonThread(tmp_path, [maker.write(TinyModel())], maker)
    daemon.service.loop.call_soon(lambda: 1 // 0)
    with pytest.raises(ZeroDivisionError):
        daemon.service.run()
    last = json.loads((tmp_path / "state" / "audit.jsonl").read_text().splitlines()[-1])
    assert (last["event"], last["exit_status"]) == ("daemon.stopped", 1)
