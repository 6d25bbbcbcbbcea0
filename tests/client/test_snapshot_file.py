"""Files of snapshots: what is none is refused by name before it is read, what cannot be written leaves no file."""

from __future__ import annotations

import os
import resource
from pathlib import Path

import pytest

from abi.graph_values import DType
from abi.snapshot import MAX_SNAPSHOT_BYTES, SavedState, StateSnapshot, encode
from client.errors import Refused
from client.snapshot_file import read_snapshot, write_snapshot

DATA = bytes(
    encode(
        StateSnapshot("tiny", bytes(32), 1, 1, 1, 1, (SavedState("sum", DType.UINT8, (4096,), 4096),)),
        [memoryview(bytes(4096))],
    )
)


def test_a_snapshot_is_read_as_it_was_written(tmp_path: Path) -> None:
    write_snapshot(tmp_path / "state", DATA)
    assert read_snapshot(tmp_path / "state") == DATA


def test_what_is_no_snapshot_is_refused_by_what_is_wrong(tmp_path: Path) -> None:
    (tmp_path / "cut").write_bytes(DATA[:100])
    (tmp_path / "other").write_bytes(b"x" * 4096)
    with open(tmp_path / "huge", "wb") as huge:
        huge.truncate(MAX_SNAPSHOT_BYTES + 1)
    os.mkfifo(tmp_path / "pipe")
    cases = {
        tmp_path / "cut": "header: expected at most", tmp_path / "other": "magic: expected",
        tmp_path / "huge": f"expected at most {MAX_SNAPSHOT_BYTES} bytes", tmp_path / "pipe": "expected a regular file",
        tmp_path: "expected a regular file", tmp_path / "none": "expected a readable file",
        Path("/dev/zero"): "expected a regular file",
    }  # fmt: skip
    for path, words in cases.items():
        with pytest.raises(Refused, match=words) as refused:
            read_snapshot(path)
        assert str(path) in refused.value.what
        assert "snapshot-state" in refused.value.action


def test_a_file_that_is_there_is_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "state").write_bytes(b"before")
    with pytest.raises(Refused, match="name another file"):
        write_snapshot(tmp_path / "state", DATA)
    assert (tmp_path / "state").read_bytes() == b"before"


def test_a_disk_without_room_leaves_no_part_of_a_snapshot(tmp_path: Path) -> None:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1024, before[1]))  # Python ignores the signal: the write fails
    try:
        with pytest.raises(Refused, match="room for"):
            write_snapshot(tmp_path / "state", DATA)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert not (tmp_path / "state").exists()
