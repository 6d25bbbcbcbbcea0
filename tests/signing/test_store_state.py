"""Small files, the vehicle's state, and roots from disk: read whole or refused, and found again by a restart."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from signing import store
from signing.container import ENVELOPE_LIMIT_BYTES
from signing.refusal import RefusalCode, Refused
from signing.state import Floor, VehicleState, encode_state
from signing.trust import TrustStore
from tests.simulators import BundleSimulator, refusal, sign_root
from tests.support.descriptors import open_descriptors
from tests.support.odd_files import change_while_reading, shown_path

UNSAFE = RefusalCode.UNSAFE_FILE


# Small files, roots and state


def test_small_file_is_read_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "root.json"
    path.write_bytes(data := os.urandom(10_000))
    path.chmod(0o600)
    assert store.read_file(path, limit_bytes=10_000) == data
    change_while_reading(monkeypatch, lambda: None, 0)
    assert store.read_file(str(path), limit_bytes=10_000) == data
    with refusal(RefusalCode.FILE_TOO_LARGE, shown_path(path), "at most 9999 bytes", "10000 bytes"):
        store.read_file(path, limit_bytes=9999)


def test_small_file_touched_while_it_is_read_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "root.json"
    path.write_bytes(bytes(10_000))
    path.chmod(0o600)
    change_while_reading(monkeypatch, lambda: os.utime(path, ns=(1, 1)), 2)
    before = open_descriptors()
    expected = "the file that was opened, unchanged"
    with refusal(RefusalCode.FILE_CHANGED, shown_path(path), expected, "another size or time"):
        store.read_file(path, limit_bytes=10_000)
    assert open_descriptors() <= before


STATE = VehicleState(b"envelope", 2, {"lane": Floor(5, "a" * 64)})


def test_state_comes_back_from_disk(tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    assert store.read_state(path) is None
    store.write_state(path, STATE)
    assert store.read_state(path) == STATE
    store.write_state(path, replace(STATE, trust_epoch=3))
    assert store.read_state(path) == replace(STATE, trust_epoch=3)
    assert path.stat().st_mode & 0o7777 == 0o600
    assert [one.name for one in tmp_path.iterdir()] == ["state.json"]


def test_state_mode_does_not_depend_on_the_umask(tmp_path: Path) -> None:
    old = os.umask(0o777)
    try:
        store.write_state(tmp_path / "state.json", STATE)
    finally:
        os.umask(old)
    assert (tmp_path / "state.json").stat().st_mode & 0o7777 == 0o600


def test_dangling_state_link_is_no_missing_state(tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    path.symlink_to("/nowhere")
    with refusal(UNSAFE, shown_path(path), "a regular file", "a symbolic link"):
        store.read_state(path)


def test_oversize_state_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    path.write_bytes(b" " * (1024 * 1024 + 1))
    path.chmod(0o600)
    with pytest.raises(Refused) as refused:
        store.read_state(path)
    assert refused.value.code is RefusalCode.FILE_TOO_LARGE


@pytest.mark.parametrize(
    ("damage", "code"),
    [
        (lambda data: data[:-1], RefusalCode.BAD_JSON),
        (lambda _: b"", RefusalCode.BAD_JSON),
        (lambda data: data.replace(b'"trustEpoch"', b'"trustepoch"'), RefusalCode.BAD_STATE),
        (lambda data: data + b" " * (1 << 20), RefusalCode.FILE_TOO_LARGE),
        (lambda _: encode_state(VehicleState(b"{}", 1)), RefusalCode.BAD_ENVELOPE),
    ],
    ids=["cut short", "empty", "another field", "too long", "another root"],
)
def test_damaged_state_is_to_be_restored_not_written_anew(
    sim: BundleSimulator, tmp_path: Path, damage: Callable[[bytes], bytes], code: RefusalCode
) -> None:
    state = tmp_path / "trust.json"
    roots = [write_root(sim, "1.json", 1)]
    store.open_trust(roots, state)
    state.write_bytes(damage(state.read_bytes()))
    with pytest.raises(Refused) as refused:
        store.open_trust(roots, state)
    assert (refused.value.code, refused.value.todo) == (code, RefusalCode.BAD_STATE.todo)
    assert "from a backup" in refused.value.todo
    assert "without its rollback floors" in refused.value.todo
    assert shown_path(state) in refused.value.what


def write_root(sim: BundleSimulator, name: str, version: int, **changes: object) -> Path:
    path = sim.path.parent / name
    path.write_bytes(sign_root(replace(sim.root, version=version, **changes), sim.keys.root))  # type: ignore[arg-type]
    path.chmod(0o644)
    return path


def test_first_start_trusts_the_provisioned_root_and_remembers_it(sim: BundleSimulator, tmp_path: Path) -> None:
    state = tmp_path / "state.json"
    trusted = store.open_trust([write_root(sim, "1.json", 1)], state)
    assert (trusted.root.version, trusted.state.trust_epoch) == (1, 1)
    assert store.read_state(state) == trusted.state
    assert store.open_trust([write_root(sim, "1.json", 1)], state) == trusted


def test_newer_roots_are_accepted_and_remembered(sim: BundleSimulator, tmp_path: Path) -> None:
    state = tmp_path / "state.json"
    roots = [write_root(sim, f"{n}.json", n) for n in (1, 2, 3)]
    store.open_trust(roots[:1], state)
    trusted = store.open_trust(roots, state)
    assert (trusted.root.version, trusted.state.trust_epoch) == (3, 3)
    assert store.read_state(state) == trusted.state
    assert store.open_trust(roots[:1], state) == trusted


def test_unchanged_state_is_not_written_again(
    sim: BundleSimulator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = tmp_path / "state.json"
    roots = [write_root(sim, "1.json", 1)]
    trusted = store.open_trust(roots, state)
    store.write_state(state, trusted.confirm(sim.read()).state)
    monkeypatch.setattr(store, "write_state", lambda *_: pytest.fail("written again"))
    assert store.open_trust(roots, state).state.floors["lane"].release == 5


def test_swapped_root_file_is_refused(sim: BundleSimulator, tmp_path: Path) -> None:
    state = tmp_path / "state.json"
    store.open_trust([write_root(sim, "1.json", 1)], state)
    with pytest.raises(Refused) as refused:
        store.open_trust([write_root(sim, "1.json", 1, minimum_releases={"lane": 1})], state)
    assert refused.value.code is RefusalCode.ROOT_CHAIN_BROKEN


def test_trust_needs_a_root(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="open_trust needs at least one root file"):
        store.open_trust([], tmp_path / "state.json")
    assert not (tmp_path / "state.json").exists()


def test_oversize_root_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "root.json"
    path.write_bytes(b" " * (ENVELOPE_LIMIT_BYTES + 1))
    path.chmod(0o644)
    with pytest.raises(Refused) as refused:
        store.open_trust([path], tmp_path / "state.json")
    assert refused.value.code is RefusalCode.FILE_TOO_LARGE


def test_state_with_a_forged_root_is_refused(sim: BundleSimulator, tmp_path: Path) -> None:
    state = tmp_path / "state.json"
    roots = [write_root(sim, "1.json", 1)]
    forged = sign_root(sim.root, sim.keys.build)
    store.write_state(state, VehicleState(forged, 1))
    with pytest.raises(Refused):
        store.open_trust(roots, state)
    assert TrustStore.bootstrap(roots[0].read_bytes())
