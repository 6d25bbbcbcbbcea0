"""Log lines never stall a frame and never break a line."""

from __future__ import annotations

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
    Log(writer).warning("peer 'x\ny\x1b[31m' left")
    assert os.read(reader, 1000) == b"<4>fenced: peer 'x\\ny\\x1b[31m' left\n"


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
    log.error("nobody hears this")
    assert log.dropped == 1


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
    lines.warning("line 1\nMESSAGE=forged", MessageId.PACKET_REFUSED, STREAM="road\nPRIORITY=0", MODEL="")
    assert journald.recv(4096).decode().splitlines() == [
        "PRIORITY=4",
        "SYSLOG_IDENTIFIER=fenced",
        "MESSAGE=line 1\\nMESSAGE=forged",
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
