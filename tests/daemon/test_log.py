"""Log lines never stall a frame and never break a line."""

import os

from daemon.log import Level, Log


def test_a_line_has_its_level_and_no_control_characters() -> None:
    reader, writer = os.pipe()
    Log(writer).warning("peer 'x\ny\x1b[31m' left")
    assert os.read(reader, 1000) == b"<4>fenced: peer 'x\\ny\\x1b[31m' left\n"


def test_a_reader_that_stops_reading_costs_lines_and_not_time() -> None:
    _reader, writer = os.pipe()
    log = Log(writer, prefix_levels=False)
    for _ in range(200):
        log.write(Level.INFO, "x" * 5000)
    assert log.dropped > 0


def test_a_reader_that_has_gone_is_survived() -> None:
    reader, writer = os.pipe()
    log = Log(writer)
    os.close(reader)
    log.error("nobody hears this")
    assert log.dropped == 1
