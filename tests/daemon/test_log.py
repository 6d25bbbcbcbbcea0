"""Log lines never stall a frame, never break a line, and say what to do."""

from __future__ import annotations

import ast
import os
import re
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from daemon.journal import Journal, MessageId, journal_of
from daemon.log import Level, Log


def test_a_line_has_its_level_and_no_control_characters() -> None:
    reader, writer = os.pipe()
    Log(writer).warning("peer 'x\ny\x1b[31m' left", todo="leave it")
    assert os.read(reader, 1000) == b"<4>fenced: peer 'x\\ny\\x1b[31m' left; leave it\n"


def test_a_reader_that_stops_reading_costs_lines_and_not_time() -> None:
    _reader, writer = os.pipe()
    log = Log(writer, prefix_levels=False)
    for _ in range(200):
        log.write(Level.INFO, "x" * 5000, None, {})
    assert log.dropped > 0


def test_a_reader_that_has_gone_is_survived() -> None:
    reader, writer = os.pipe()
    log = Log(writer)
    os.close(reader)
    log.error("nobody hears this", todo="read the log")
    assert log.dropped == 1


def test_what_to_do_is_not_said_twice() -> None:
    reader, writer = os.pipe()
    Log(writer, prefix_levels=False).error("no root. Name one.", todo="Name one.")
    assert os.read(reader, 1000) == b"fenced: no root. Name one.\n"


def _calls(source: str) -> Iterator[tuple[int, bool]]:
    """Line of each warning and error that is logged, and whether it says what to do: words, or a refusal's own."""
    tree = ast.parse(source)
    assigned = [pair for one in ast.walk(tree) if isinstance(one, ast.Assign) for pair in _pairs(one)]
    words = frozenset(
        target.id for target, value in assigned if isinstance(target, ast.Name) and _advises(value, frozenset())
    )
    for call in ast.walk(tree):
        if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Attribute):
            continue
        owner = call.func.value
        name = owner.attr if isinstance(owner, ast.Attribute) else owner.id if isinstance(owner, ast.Name) else ""
        if call.func.attr in ("warning", "error") and name.lstrip("_") == "log":
            given = [keyword.value for keyword in call.keywords if keyword.arg == "todo"]
            yield call.lineno, len(given) == 1 and _advises(given[0], words)


def _pairs(assign: ast.Assign) -> list[tuple[ast.expr, ast.expr]]:
    target, value = assign.targets[0], assign.value
    if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
        return list(zip(target.elts, value.elts, strict=True))
    return [(target, value)]


def _advises(value: ast.expr, words: frozenset[str]) -> bool:
    match value:
        case ast.Constant(value=str() as text):
            return len(text.split()) > 1
        case ast.Attribute(attr="todo" | "action"):
            return True
        case ast.Name(id=name):
            return name in words or name.startswith("_TODO")
        case ast.BoolOp(values=values):
            return all(_advises(one, words) for one in values)
        case ast.IfExp(body=one, orelse=other):
            return _advises(one, words) and _advises(other, words)
    return False


def test_every_warning_and_error_says_what_to_do() -> None:
    found = [
        (path.name, line, advises)
        for package in ("abi", "hal", "signing", "client", "daemon")
        for path in sorted((Path(__file__).parents[2] / package).rglob("*.py"))
        for line, advises in _calls(path.read_text())
    ]
    assert len(found) >= 18
    assert [one for one in found if not one[2]] == []


@pytest.mark.parametrize(
    "text", ['log.error("it broke")', 'log.error("it broke", todo="")', "x._log.warning(a, todo=b)"]
)
def test_a_line_that_leaves_its_reader_alone_would_be_seen(text: str) -> None:
    assert [advises for _, advises in _calls(text)] == [False]


def test_threads_may_write_at_the_same_time() -> None:
    """The loop logs while the thread that makes a confirmation durable does, and the guard on whatever thread it is."""
    log, lines, failures = Log(os.open(os.devnull, os.O_WRONLY)), 5_000, []

    def write() -> None:
        try:
            for _ in range(lines):
                log.info("confirmed")
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=write) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (failures, log.dropped) == ([], 0)


@pytest.fixture
def journald(tmp_path: Path) -> Iterator[socket.socket]:
    """A socket where journald's would be."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        listening.bind(str(tmp_path / "journal"))
        yield listening


def test_the_journal_gets_fields_and_stderr_nothing(journald: socket.socket) -> None:
    reader, writer = os.pipe()
    os.set_blocking(reader, False)
    lines = Log(writer, journal=Journal(journald.getsockname()))
    fields = {"STREAM": "road\nPRIORITY=0", "MODEL": ""}
    lines.warning("line 1\nMESSAGE=forged", MessageId.PACKET_REFUSED, todo="leave it", **fields)
    assert journald.recv(4096).decode().splitlines() == [
        "PRIORITY=4",
        "SYSLOG_IDENTIFIER=fenced",
        "MESSAGE=line 1\\nMESSAGE=forged; leave it",
        f"MESSAGE_ID={MessageId.PACKET_REFUSED.value}",
        "STREAM=road\\nPRIORITY=0",
    ]
    with pytest.raises(BlockingIOError):
        os.read(reader, 1)


def test_a_journal_that_stops_reading_costs_lines_and_not_time(journald: socket.socket) -> None:
    log = Log(journal=Journal(journald.getsockname()))
    for _ in range(2000):
        log.info("x" * 5000)
    assert log.dropped > 0
    assert len(journald.recv(1 << 16)) < 3000


def test_only_a_stderr_that_leads_to_the_journal_brings_one(tmp_path: Path) -> None:
    with (tmp_path / "stderr").open("wb") as file:
        status = os.fstat(file.fileno())
        assert journal_of({"JOURNAL_STREAM": f"{status.st_dev}:{status.st_ino + 1}"}, file.fileno()) is None
        assert journal_of({}, file.fileno()) is None
        assert journal_of({"JOURNAL_STREAM": ""}, -1) is None
    with pytest.raises(OSError, match="No such file"):
        Journal(str(tmp_path / "nobody"))


def test_every_kind_of_event_has_an_id_of_its_own() -> None:
    assert all(re.fullmatch("[0-9a-f]{32}", kind.value) for kind in MessageId)
    assert len({kind.value for kind in MessageId}) == len(MessageId)
