"""No line of the audit log changes or vanishes unseen."""

import os
from pathlib import Path

import pytest

from daemon.audit import ZERO_HASH, AuditBroken, AuditLog, verify
from signing.refusal import RefusalCode, Refused


def written(folder: Path, entries: int) -> Path:
    path = folder / "audit.jsonl"
    log = AuditLog(str(path))
    for number in range(entries):
        log.append("bundle.refused", {"path": f"model-{number}.fenced", "code": "no-valid-signature"})
    log.close()
    return path


def test_a_log_as_written_verifies_to_its_head(tmp_path: Path) -> None:
    path = written(tmp_path, 3)
    log = AuditLog(str(path))
    assert verify(str(path)) == log.head
    assert log.head.entries == 3


def test_an_empty_log_has_the_zero_head(tmp_path: Path) -> None:
    assert verify(str(written(tmp_path, 0))).sha256 == ZERO_HASH


def test_a_reopened_log_goes_on_with_its_chain(tmp_path: Path) -> None:
    path = written(tmp_path, 2)
    log = AuditLog(str(path))
    log.append("daemon.started")
    assert verify(str(path)) == log.head
    assert log.head.entries == 3


@pytest.mark.parametrize(
    ("spoil", "line", "complaint"),
    [
        (lambda lines: [lines[0], lines[1].replace(b"model-1", b"model-9"), lines[2]], 3, "prev is"),
        (lambda lines: [lines[0], lines[2]], 2, "entry 3 stands where entry 2"),
        (lambda lines: [lines[1], lines[2]], 1, "entry 2 stands where entry 1"),
        (lambda lines: [lines[0], lines[2], lines[1]], 2, "entry 3"),
        (lambda lines: [lines[0], b"{}\n", lines[2]], 2, "not an audit entry"),
        (lambda lines: [lines[0], b"[1]\n", lines[2]], 2, "not an audit entry"),
        (lambda lines: [lines[0], lines[1][:-1]], 2, "cut short"),
    ],
)
def test_tampering_is_found_at_its_line(tmp_path: Path, spoil: object, line: int, complaint: str) -> None:
    path = written(tmp_path, 3)
    path.write_bytes(b"".join(spoil(path.read_bytes().splitlines(keepends=True))))  # type: ignore[operator]
    with pytest.raises(AuditBroken, match=complaint) as broken:
        verify(str(path))
    assert broken.value.line == line


@pytest.mark.parametrize("cut_bytes", [1, 10, 100])
def test_a_line_torn_by_a_power_cut_is_cut_off_and_noted(tmp_path: Path, cut_bytes: int) -> None:
    path = written(tmp_path, 3)
    os.truncate(path, path.stat().st_size - cut_bytes)
    log = AuditLog(str(path))
    assert verify(str(path)) == log.head
    assert log.head.entries == 3
    assert b'"event":"audit.repaired"' in path.read_bytes().splitlines()[-1]


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(b"hello\n", id="a line of text"),
        pytest.param(b"hello", id="text without an end"),
        pytest.param(b"hello\n{", id="text and the start of an entry"),
        pytest.param(bytes(40_000), id="more zeros than a line has bytes"),
        pytest.param(b"[" * 16_000 + b"\n", id="brackets without end"),
        pytest.param(b'{"seq":Infinity}\n', id="a number that counts nothing"),
    ],
)
def test_a_file_that_is_no_audit_log_is_left_alone(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "audit.jsonl"
    path.write_bytes(content)
    with pytest.raises(AuditBroken, match="move the file away"):
        AuditLog(str(path))
    assert path.read_bytes() == content
    with pytest.raises(AuditBroken, match="line 1: "):
        verify(str(path))


def test_an_entry_beyond_the_limit_is_refused_and_writes_nothing(tmp_path: Path) -> None:
    path = written(tmp_path, 1)
    log = AuditLog(str(path))
    with pytest.raises(ValueError, match="at most"):
        log.append("bundle.refused", {"path": "x" * 20_000})
    assert verify(str(path)).entries == 1


@pytest.mark.parametrize("kind", ["nothing", "a folder", "a pipe"])
def test_what_is_no_log_is_refused_by_its_path_when_it_is_walked(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "audit.jsonl"
    if kind == "a folder":
        path.mkdir()
    elif kind == "a pipe":
        os.mkfifo(path)
    with pytest.raises(Refused, match=r"audit\.jsonl': expected the daemon's audit log") as refused:
        verify(str(path))
    assert refused.value.code is RefusalCode.UNREADABLE_FILE


def test_a_link_in_place_of_the_log_is_refused(tmp_path: Path) -> None:
    (tmp_path / "audit.jsonl").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError, match="symbolic"):
        AuditLog(str(tmp_path / "audit.jsonl"))


def test_what_is_no_regular_file_is_refused_by_its_path(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "audit.jsonl")
    with pytest.raises(AuditBroken, match=r"audit\.jsonl is not a regular file"):
        AuditLog(str(tmp_path / "audit.jsonl"))


def test_a_disk_that_refuses_is_named_with_the_file(tmp_path: Path) -> None:
    log = AuditLog(str(tmp_path / "audit.jsonl"))
    with open("/dev/full", "wb") as full:
        os.dup2(full.fileno(), log._fd)
    with pytest.raises(OSError, match=r"No space left on device: .*audit\.jsonl"):
        log.append("daemon.started")
    log.close()
