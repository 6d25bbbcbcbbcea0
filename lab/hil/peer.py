"""A camera or a consumer in a process of its own, to be killed: `python -m lab.hil.peer ROLE SOCKETS NAME`.

It does one honest thing (a camera submits one long frame to the slow probe's stream, a consumer subscribes), says
`ready` on its output and then waits for its end.
"""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from lab.hil.clients import Sockets, picture, submit
from lab.hil.daemon import DaemonFailed

__all__ = ["LONG", "peer_process"]

LONG = 250  # first pixel of the camera's frame: some 0.5 s of the slow probe


@contextlib.contextmanager
def peer_process(role: str, sockets: Path, name: str) -> Iterator[subprocess.Popen[str]]:
    """The process, once it is `ready`; killed at the end if it is still there. `role`: camera or consumer."""
    command = [sys.executable, "-m", "lab.hil.peer", role, str(sockets), name]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        if process.stdout.readline() != "ready\n":
            raise DaemonFailed(f"the {role} process ended with status {process.wait()} before it was ready")
        yield process
    finally:
        process.kill()
        process.communicate()


def main(role: str, sockets: str, name: str) -> None:
    """The process itself; never returns."""
    clients = Sockets(Path(sockets))
    if role == "camera":
        camera = clients.camera(name)
        submit(camera, 1, picture(1, first=LONG))
    else:
        consumer = clients.consumer(name)
        assert consumer.fileno() >= 0
    print("ready", flush=True)
    while True:
        signal.pause()


if __name__ == "__main__":
    main(*sys.argv[1:])
