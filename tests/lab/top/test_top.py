"""`fenced-lab top`: what it shows of a daemon, in a pseudo-terminal and without one."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from lab.top.board import Board
from lab.top.terminal import show_once
from lab.top.view import BARS, render, sparkline
from tests.support.bundles import BundleMaker, TinyModel
from tests.support.daemons import LIMIT_S, DaemonThread, picture, run_one, submit
from tests.support.gate import Gate, HeldModel

REPOSITORY = Path(__file__).parents[3]


@pytest.fixture
def maker(tmp_path: Path) -> BundleMaker:
    (tmp_path / "models").mkdir()
    return BundleMaker(tmp_path / "models")


@pytest.fixture
def daemon(tmp_path: Path, maker: BundleMaker) -> Iterator[DaemonThread]:
    with DaemonThread(tmp_path, [HeldModel().write(maker)], maker) as running:
        yield running


@dataclass
class Terminal:
    """`fenced-lab top` in a pseudo-terminal of 140 by 40; `seen` is all that it wrote, its escapes taken out."""

    sockets: Path
    master: int = 0
    raw: bytes = b""
    before: list[Any] = field(default_factory=list)
    process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Terminal:
        self.master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 140, 0, 0))
        self.before = termios.tcgetattr(slave)
        self.process = subprocess.Popen(
            [sys.executable, "-m", "lab", "top", "--sockets", str(self.sockets), "--rate-hz", "20"],
            stdin=slave, stdout=slave, stderr=slave, cwd=REPOSITORY, env={**os.environ, "TERM": "xterm-256color"},
        )  # fmt: skip
        self.slave = slave
        return self

    def __exit__(self, *_: object) -> None:
        assert self.process is not None
        self.process.kill()
        self.process.wait()
        os.close(self.slave)
        os.close(self.master)

    @property
    def seen(self) -> str:
        return re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", self.raw.decode("utf-8", "replace"))

    def until(self, holds: Callable[[str], object]) -> str:
        """Reads until `holds` of what was written since the last call."""
        self.raw = b""
        deadline = time.monotonic() + LIMIT_S
        while not holds(self.seen):
            assert time.monotonic() < deadline, self.seen[-4000:]
            self.read(100)
        return self.seen

    def read(self, wait_ms: int) -> bool:
        """Takes what was written, or comes to be within so long; whether there was anything."""
        poll = select.poll()  # select(2) takes no descriptor beyond 1023
        poll.register(self.master, select.POLLIN)
        ready = bool(poll.poll(wait_ms))
        if ready:
            self.raw += os.read(self.master, 1 << 16)
        return ready

    def press(self, key: bytes) -> None:
        os.write(self.master, key)

    def end(self) -> int:
        """The exit status, with all that is still written read."""
        assert self.process is not None
        deadline = time.monotonic() + LIMIT_S
        while self.process.poll() is None and time.monotonic() < deadline:
            self.read(50)
        while self.read(0):
            pass
        return self.process.wait(LIMIT_S)


def test_a_terminal_shows_frames_as_they_run_and_is_left_as_it_was(daemon: DaemonThread) -> None:
    with daemon.camera() as camera, daemon.consumer() as consumer, Terminal(daemon.sockets) as top, Gate() as gate:
        run_one(camera, consumer, 1, picture(1))
        top.until(lambda seen: "tiny" in seen and "road" in seen and "serving" in seen)
        submit(camera, 2, gate.picture(2))
        top.until(lambda seen: "● running" in seen and "fences in flight 1" in seen)
        gate.open()
        consumer.recv(timeout_s=LIMIT_S)
        top.until(lambda seen: re.search(r"road +\d+\.\d +2 +2 ", seen) and BARS[-1] in seen)
        assert not re.search(r"[^\r]\n", top.seen)  # it is drawn, not scrolled
        top.press(b"p")
        top.until(lambda seen: "PAUSED" in seen)
        top.press(b"q")
        assert top.end() == 0
        assert b"\x1b[?1049l" in top.raw  # back from the alternate screen
        assert termios.tcgetattr(top.slave) == top.before


def test_a_daemon_that_goes_is_asked_for_again(tmp_path: Path, maker: BundleMaker) -> None:
    bundle = maker.write(TinyModel())
    (tmp_path / "sockets").mkdir()
    with Terminal(tmp_path / "sockets") as top:
        top.until(lambda seen: "no daemon answers" in seen)
        with DaemonThread(tmp_path, [bundle], maker):
            top.until(lambda seen: "confirmed" in seen or "on trial" in seen)
        top.until(lambda seen: "no daemon answers" in seen)
        assert top.process is not None
        top.process.send_signal(signal.SIGINT)  # Ctrl-C ends it as q does
        assert top.end() == 0
        assert b"\x1b[?1049l" in top.raw
        assert termios.tcgetattr(top.slave) == top.before


def test_without_a_terminal_it_is_printed_once(daemon: DaemonThread, tmp_path: Path) -> None:
    console = Console(record=True, width=140, file=open(os.devnull, "w"))  # noqa: SIM115
    assert show_once(daemon.sockets, console) == 0
    assert "tiny" in console.export_text()
    with pytest.raises(FileNotFoundError, match=r"control\.sock"):
        show_once(tmp_path / "nowhere", console)
    assert "no daemon answers" in console.export_text()
    command = [sys.executable, "-m", "lab", "top", "--sockets", str(daemon.sockets)]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False, timeout=LIMIT_S)
    assert (done.returncode, "tiny" in done.stdout, "\x1b[" in done.stdout) == (0, True, False)


def shown(board: Board) -> str:
    console = Console(record=True, width=140, file=open(os.devnull, "w"))  # noqa: SIM115
    console.print(render(board))
    return console.export_text()


def test_what_went_wrong_stands_out(daemon: DaemonThread) -> None:
    status, board = daemon.status(), Board()
    board.take(status, 0.0)
    assert "faults: none" in shown(board)
    assert "no camera yet" in shown(board)
    status["faults"]["device_resets"] = 2
    status["guard"]["refused"]["open"] = 3
    status["models"][0] |= {"mode": "degraded", "probation_frames_left": 0}
    board.take(status, 1.0)
    assert "faults: device resets 2, forbidden acts 3" in shown(board)
    assert "degraded" in shown(board)


def test_rates_and_latencies_follow_from_the_states(daemon: DaemonThread) -> None:
    board = Board()
    model = {**daemon.status()["models"][0], "busy": True}

    def state(runs: int, published: int, latency_ms: float, epoch: int = 1) -> dict[str, Any]:
        runs_of_model = {**model["runs"], "published": published, "last_latency_ns": round(latency_ms * 1e6)}
        return {"epoch": epoch, "streams": {"road": {"run": runs}}, "models": [{**model, "runs": runs_of_model}]}

    board.take(state(100, 5, 2.0), 10.0)
    assert board.rate_hz("road") is None
    board.take(state(110, 5, 2.0), 10.5)  # nothing new was published: no latency of its own
    board.take(state(120, 6, 4.0), 11.0)
    assert board.rate_hz("road") == pytest.approx(20.0)
    assert board.latency_ms("tiny") == (2.0, 4.0)
    assert board.in_flight == 1
    board.take(state(3, 1, 1.0, epoch=2), 11.5)  # another daemon
    assert board.rate_hz("road") is None
    board.lose("gone")
    assert (board.in_flight, board.rate_hz("nothing")) == (0, None)


@pytest.mark.parametrize(
    ("values", "line"), [([], ""), ([0.0, 0.0], "▁▁"), ([1.0, 8.0, 4.0], "▂█▅"), ([1.0] * 30, "█" * 24)]
)
def test_a_sparkline_goes_from_zero_to_the_largest(values: list[float], line: str) -> None:
    assert sparkline(values) == line
