"""The service manager's end of NOTIFY_SOCKET."""

from __future__ import annotations

import os
import select
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

LIMIT_S = 120.0


@contextmanager
def manager_socket(path: Path) -> Iterator[socket.socket]:
    """A bound datagram socket at `path`, as systemd holds it."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        path.unlink(missing_ok=True)
        manager.bind(str(path))
        yield manager


def wait_for_line(manager: socket.socket, start: str, child: subprocess.Popen[str]) -> str:
    """The next notification line that begins so. Fails when the child ends or nothing comes."""
    ended = os.pidfd_open(child.pid)
    waiting = select.poll()  # select(2) takes no descriptor beyond 1023, and a run of many tests has that many
    for descriptor in (manager.fileno(), ended):
        waiting.register(descriptor, select.POLLIN)
    try:
        deadline = time.monotonic() + LIMIT_S
        while (left_s := deadline - time.monotonic()) > 0:
            readable = {descriptor for descriptor, _ in waiting.poll(left_s * 1000)}
            if manager.fileno() in readable:
                for line in manager.recv(4096).decode().splitlines():
                    if line.startswith(start):
                        return line
            elif readable:
                _, log = child.communicate()
                raise AssertionError(f"the daemon ended with {child.returncode} before {start}: {log}")
    finally:
        os.close(ended)
    raise AssertionError(f"no {start} within {LIMIT_S} s")
