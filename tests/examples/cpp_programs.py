"""The C++ camera and consumer as the tests use them: built by their own Makefile, run against a scripted peer.

`Peer` is the daemon's end of one session, spelled out packet by packet, so that a test can also say what no daemon
would. Packets are made and read by `abi` alone.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import threading
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

import pytest

from abi.messages import Message, Welcome, decode, encode
from abi.packet import HEADER_BYTES, MAX_DESCRIPTORS, MAX_PACKET_BYTES, Kind, decode_header

SOURCE = Path(__file__).parents[2] / "examples" / "cpp"
TIMEOUT_S = 30  # for anything that must happen; nothing is ever slept away


def build(folder: Path, *, sanitize: bool) -> Path:
    """Builds both programs into `folder` and returns it. Skips where the tools are missing, fails on any warning."""
    missing = [tool for tool in ("make", "g++", "capnp", "capnpc-c++") if shutil.which(tool) is None]
    if missing:
        pytest.skip(f"{', '.join(missing)} not found: apt install make g++ capnproto libcapnp-dev")
    headers = subprocess.run(
        ["g++", "-x", "c++", "-E", "-"],
        input="#include <capnp/serialize.h>\n",
        capture_output=True,
        text=True,
        check=False,
    )
    if headers.returncode != 0:
        pytest.skip("the headers of Cap'n Proto's C++ library are not installed: apt install libcapnp-dev")
    command = ["make", "-C", str(SOURCE), f"BUILD={folder}", *(["SANITIZE=1"] if sanitize else [])]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return folder


@dataclass(frozen=True)
class Outcome:
    """How a program ended and all that it said."""

    code: int
    stdout: str
    stderr: str

    def lines(self, first_word: str) -> list[dict[str, str]]:
        """The `key=value` pairs of each line that starts with this word. Values keep a unit behind a space."""
        rows = [line.split(" ", 1)[1] for line in self.stdout.splitlines() if line.split(" ", 1)[0] == first_word]
        return [pairs(row) for row in rows]


def pairs(text: str) -> dict[str, str]:
    """`a=1 b=2 m` as {"a": "1", "b": "2 m"}."""
    found: dict[str, str] = {}
    last = ""
    for word in text.split(" "):
        if "=" in word:
            last, value = word.split("=", 1)
            found[last] = value
        else:
            found[last] += f" {word}"
    return found


class Program:
    """A running camera or consumer. It is killed when the block ends, whatever happened, or when it hangs."""

    def __init__(self, command: list[str], stdin: int | None = subprocess.DEVNULL) -> None:
        self.process = subprocess.Popen(
            command, stdin=stdin, stdout=subprocess.PIPE, stderr=subprocess.PIPE, encoding="utf-8"
        )
        self._limit = threading.Timer(2 * TIMEOUT_S, self.process.kill)  # ends a read of stdout that nothing comes to
        self._limit.start()

    def __enter__(self) -> Program:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._limit.cancel()
        self.process.kill()
        self.process.communicate()

    def outcome(self) -> Outcome:
        """Waits for the end."""
        stdout, stderr = self.process.communicate(timeout=TIMEOUT_S)
        return Outcome(self.process.returncode, stdout, stderr)

    def line(self, first_word: str) -> dict[str, str]:
        """Reads stdout up to the next line that starts with this word."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            head, _, rest = line.rstrip("\n").partition(" ")
            if head == first_word:
                return pairs(rest)
        raise AssertionError(f"ended before it said {first_word}: {self.outcome().stderr}")


class Peer:
    """Listens at `path` and plays the daemon for one program."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.listener.bind(str(path))
        self.listener.listen(1)
        self.listener.settimeout(TIMEOUT_S)
        self.connection: socket.socket | None = None
        self.descriptors: list[int] = []

    def __enter__(self) -> Peer:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.hang_up()
        self.listener.close()
        for descriptor in self.descriptors:
            os.close(descriptor)

    @property
    def _socket(self) -> socket.socket:
        if self.connection is None:
            self.connection, _ = self.listener.accept()
            self.connection.settimeout(TIMEOUT_S)
        return self.connection

    def hang_up(self) -> None:
        if self.connection is not None:
            self.connection.close()

    def packet(self) -> tuple[Kind, bytes, list[int]]:
        """The next packet: kind, all of its bytes, its descriptors (closed with the peer)."""
        packet, descriptors, _, _ = socket.recv_fds(self._socket, MAX_PACKET_BYTES, MAX_DESCRIPTORS)
        self.descriptors += descriptors
        assert packet, "the program closed the session"
        return decode_header(packet, len(descriptors)), packet, descriptors

    def await_packet(self) -> None:
        """Waits until the program has sent a packet, and leaves it unread."""
        assert self._socket.recv(1, socket.MSG_PEEK)

    def expect(self, kind: Kind) -> Message:
        """The next packet's message, which must be of this kind and the very bytes that pycapnp makes of it."""
        found, packet, descriptors = self.packet()
        assert found is kind
        message = decode(kind, packet[HEADER_BYTES:])
        assert packet == encode(message, len(descriptors))
        return message

    def send(self, packet: bytes, *descriptors: int) -> None:
        socket.send_fds(self._socket, [packet], descriptors)

    def answer(self, message: Message, *descriptors: int) -> None:
        self.send(encode(message, len(descriptors)), *descriptors)

    def greet(self) -> Message:
        """Takes the Hello and sends the Welcome."""
        hello = self.expect(Kind.HELLO)
        self.answer(Welcome("0.1.0", 7, MAX_PACKET_BYTES, MAX_DESCRIPTORS))
        return hello

    def ended(self) -> bool:
        """Waits for the program to close the session; True when it did, without another packet."""
        return self._socket.recv(MAX_PACKET_BYTES) == b""
