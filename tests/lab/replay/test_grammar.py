"""A log is a file from elsewhere: a message that is none of a log's own is refused before anything is made of it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from abi import messages
from abi.flat import RESULT, SUBMIT, Result, Submit
from abi.messages import OpenStream, SetAux, Subscribed
from abi.packet import HEADER_BYTES
from abi.tap import TAP_END, TapEnd
from lab import cli
from lab.replay import log as logs
from lab.replay.log import LogReader, LogWriter
from lab.replay.refusal import LogRefusal, LogRefused
from lab.replay.source import RoadSource

FORMAT = RoadSource(1, 64, 32).format


def body(message: OpenStream | Subscribed | SetAux) -> bytes:
    return messages.encode(message)[HEADER_BYTES:]


OPENED = ("/camera/road/format", body(OpenStream("road", FORMAT)))
LAYOUT = ("/model/tiny/layout", body(Subscribed(1, 4, 64, bytes(32), ())))
SUBMITTED = ("/camera/road/submit", SUBMIT.pack(Submit(1, 0, 1, 1, 1, 2, 0, 0, 0)))
PIXELS = ("/camera/road/pixels", bytes(FORMAT.buffer_bytes))
AUX = ("/aux/speed", body(SetAux("speed", 1, bytes(4))))
EMPTY_RESULT = RESULT.pack(Result._make([0] * len(Result._fields)))


def write(path: Path, entries: Sequence[tuple[str, bytes]]) -> LogReader:
    with LogWriter(path) as log:
        for at, (topic, data) in enumerate(entries):
            log.write(topic, data, at)
    return LogReader(path)


def test_what_a_recorder_writes_is_a_log(tmp_path: Path) -> None:
    end = ("/camera/road/end", TAP_END.pack(TapEnd(1, 0, 1, 1, 0, 0, 3, 0)))
    entries = [OPENED, LAYOUT, SUBMITTED, PIXELS, AUX, end, ("/audit", b"{}"), ("/note/a/b", b"{}")]
    reader = write(tmp_path / "a.mcap", entries)
    reader.info().verify()
    assert [(one.topic, one.data) for one in reader.messages()] == entries


@pytest.mark.parametrize(
    ("entries", "words"),
    [
        ([("/camera/road/format", b"")], "message 1, '/camera/road/format'"),
        ([("/camera/road/format", LAYOUT[1])], "message 1, '/camera/road/format'"),
        ([("/model/tiny/layout", OPENED[1])], "message 1, '/model/tiny/layout'"),
        ([("/aux/speed", b"x" * 64)], "message 1, '/aux/speed'"),
        ([SUBMITTED], "expected /camera/road/format before it, found none"),
        ([PIXELS], "expected /camera/road/format before it, found none"),
        ([OPENED, ("/camera/road/submit", b"12345678")], "message 2, '/camera/road/submit'"),
        ([OPENED, ("/camera/road/pixels", PIXELS[1][1:])], f"found {FORMAT.buffer_bytes - 1} bytes"),
        ([OPENED, ("/camera/road/end", TAP_END.pack(TapEnd(1, 0, 1, 1, 250, 0, 3, 0)))], "found 250"),
        ([OPENED, ("/camera/left/end", b"")], "expected /camera/left/format before it"),
        ([("/model/tiny/result", EMPTY_RESULT)], "expected /model/tiny/layout before it"),
        ([("/model/tiny/outputs", b"")], "expected /model/tiny/layout before it"),
        ([LAYOUT, ("/model/tiny/result", EMPTY_RESULT)], "expected 1..8, found 0"),
        ([LAYOUT, ("/model/tiny/result", EMPTY_RESULT[:-1])], "message 2, '/model/tiny/result'"),
    ],
)
def test_a_message_that_is_none_of_a_logs_is_refused(
    tmp_path: Path, entries: list[tuple[str, bytes]], words: str
) -> None:
    reader = write(tmp_path / "a.mcap", entries)
    with pytest.raises(LogRefused) as refused:
        reader.info()
    assert refused.value.code is LogRefusal.FORMAT
    assert words in str(refused.value)


@pytest.mark.parametrize(
    "topic", ["", "submit", "/", "//", "/submit", "/camera", "/camera//pixels", "/camera/a/b/pixels", "/x/road/submit"]
)
def test_a_topic_of_anyone_elses_is_refused(tmp_path: Path, topic: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as other:  # a writer of one's own
        other.setattr(logs, "kind_of", lambda _: "note")
        reader = write(tmp_path / "a.mcap", [(topic, b"")])
    with pytest.raises(LogRefused, match="the topic") as refused:
        list(reader.messages())
    assert refused.value.code is LogRefusal.FORMAT


def test_a_log_of_another_abi_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with LogWriter(tmp_path / "a.mcap", about={"abiVersion": "2"}) as log:
        log.write(*OPENED, 0)
    assert cli.main(["log", "info", str(tmp_path / "a.mcap")]) == 3
    assert "expected  version 1\n  found     version 2" in capsys.readouterr().err
