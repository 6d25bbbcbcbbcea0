"""The state write against death and darkness: killed before every system call, and cut off after every one.

A kill keeps what the kernel was told; a power cut keeps only what was synced, so the second is played on a model of a
disk that forgets as much as POSIX lets it.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from signing import store
from signing.state import Floor, VehicleState, encode_state
from tests.support.descriptors import open_descriptors

OLD = VehicleState(b"old envelope", 1, {"lane": Floor(5, "a" * 64)})
NEW = VehicleState(b"new envelope" * 1000, 2, {"lane": Floor(6, "b" * 64)})
CALLS = ("open", "unlink", "write", "fchmod", "fsync", "close", "rename")


class TracedOs:
    """The os module, with `before(name, args)` called ahead of each call that the write of a state makes."""

    def __init__(self, before: Callable[[str, tuple[Any, ...]], None]) -> None:
        self._before = before

    def __getattr__(self, name: str) -> Any:
        real = getattr(os, name)
        if name not in CALLS:
            return real

        def call(*args: Any, **kwargs: Any) -> Any:
            self._before(name, args)
            if name == "write":  # in two halves, so that there is a torn file to be found
                return real(args[0], args[1][: max(1, len(args[1]) // 2)])
            return real(*args, **kwargs)

        return call


@contextlib.contextmanager
def traced(before: Callable[[str, tuple[Any, ...]], None]) -> Iterator[None]:
    patch = pytest.MonkeyPatch()
    patch.setattr(store, "os", TracedOs(before))
    try:
        yield
    finally:
        patch.undo()


def record(path: Path) -> list[tuple[str, tuple[Any, ...]]]:
    calls: list[tuple[str, tuple[Any, ...]]] = []
    with traced(lambda name, args: calls.append((name, args))):
        store.write_state(path, NEW)
    return calls


def killed_before_call(path: Path, number: int) -> bool:
    """Write NEW in a child that is killed before its call `number`; say whether it got that far."""
    pid = os.fork()
    if pid == 0:
        left = number

        def before(name: str, args: tuple[Any, ...]) -> None:
            nonlocal left
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            left -= 1

        with contextlib.suppress(BaseException), traced(before):
            store.write_state(path, NEW)
            os._exit(0)
        os._exit(1)
    _, status = os.waitpid(pid, 0)
    assert status in (0, signal.SIGKILL)
    return status == signal.SIGKILL


@pytest.mark.parametrize("first", [True, False], ids=["first write", "overwrite"])
def test_state_is_old_or_new_after_a_kill_before_any_call(tmp_path: Path, first: bool) -> None:  # case 30
    path = tmp_path / "state.json"
    old = None if first else OLD
    number, seen = 0, []
    while True:
        path.unlink(missing_ok=True)
        if old is not None:
            store.write_state(path, old)
        if not killed_before_call(path, number):
            break
        found = store.read_state(path)
        assert found in (old, NEW)
        seen.append(found)
        store.write_state(path, NEW)  # what the dead one left behind is in nobody's way
        assert store.read_state(path) == NEW
        number += 1
    assert number >= 9
    assert (seen[0], seen[-1]) == (old, NEW)
    assert store.read_state(path) == NEW


def after_power_cut(calls: list[tuple[str, tuple[Any, ...]]], old: bytes, new: bytes) -> set[bytes]:
    """Return every content that the file may have after a cut behind `calls`, on a disk that forgets all it may."""
    data_synced = renamed = name_synced = False
    for name, _ in calls:
        if name == "fsync" and not renamed:
            data_synced = True
        elif name == "fsync":
            name_synced = True
        elif name == "rename":
            renamed = True
    fresh = {new} if data_synced else {b"", new[: len(new) // 2], new}
    if not renamed:
        return {old}
    return fresh if name_synced else {old, *fresh}


def test_state_is_old_or_new_after_a_power_cut(tmp_path: Path) -> None:  # case 30
    path = tmp_path / "state.json"
    store.write_state(path, OLD)
    calls = record(path)
    old, new = encode_state(OLD), encode_state(NEW)
    for count in range(len(calls) + 1):
        assert after_power_cut(calls[:count], old, new) <= {old, new}
    assert after_power_cut(calls, old, new) == {new}


def test_sync_is_of_the_file_and_then_of_its_folder(tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    synced: list[str] = []

    def before(name: str, args: tuple[Any, ...]) -> None:
        if name == "fsync":
            synced.append(Path(os.readlink(f"/proc/self/fd/{args[0]}")).name)

    with traced(before):
        store.write_state(path, NEW)
    assert synced == [".state.json.tmp", tmp_path.name]


def test_everything_is_written_before_it_is_synced(tmp_path: Path) -> None:
    names = [name for name, _ in record(tmp_path / "state.json")]
    assert names.index("fsync") > max(i for i, name in enumerate(names) if name == "write")
    assert names.index("fsync") > names.index("fchmod")
    assert [name for name in names if name in ("fsync", "rename")] == ["fsync", "rename", "fsync"]
    assert names.count("open") == names.count("close") == 2


@pytest.mark.parametrize("failing", ["write", "fsync", "rename"])
def test_disk_error_leaves_the_old_state_and_no_descriptor(tmp_path: Path, failing: str) -> None:
    path = tmp_path / "state.json"
    store.write_state(path, OLD)

    def before(name: str, args: tuple[Any, ...]) -> None:
        if name == failing:
            raise OSError(28, "No space left on device")

    descriptors = open_descriptors()
    with traced(before), pytest.raises(OSError, match="No space left"):
        store.write_state(path, NEW)
    assert open_descriptors() <= descriptors
    assert store.read_state(path) == OLD
    store.write_state(path, NEW)
    assert store.read_state(path) == NEW


def test_link_left_in_place_of_the_temporary_file_is_not_followed(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_bytes(b"precious")
    (tmp_path / ".state.json.tmp").symlink_to(victim)
    store.write_state(tmp_path / "state.json", NEW)
    assert victim.read_bytes() == b"precious"
    assert store.read_state(tmp_path / "state.json") == NEW
