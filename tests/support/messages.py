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

LIMIT_S = 30.0


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
    try:
        deadline = time.monotonic() + LIMIT_S
        while (left_s := deadline - time.monotonic()) > 0:
            readable, _, _ = select.select([manager, ended], [], [], left_s)
            if manager in readable:
                for line in manager.recv(4096).decode().splitlines():
                    if line.startswith(start):
                        return line
            elif readable:
                _, log = child.communicate()
                raise AssertionError(f"the daemon ended with {child.returncode} before {start}: {log}")
    finally:
        os.close(ended)
    raise AssertionError(f"no {start} within {LIMIT_S} s")
