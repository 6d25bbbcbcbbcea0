"""A daemon for the bench: the vehicle's own `fenced serve`, in a folder of its own, started and stopped by the lab.

It runs from the vehicle environment (`make vehicle`: the `fenced` wheel and its dependencies, nothing of the lab), so
what the bench sees is what a vehicle runs. READY is what the daemon itself says over NOTIFY_SOCKET, as to systemd.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType, TracebackType

VEHICLE = Path(sys.prefix) / "vehicle"
"""The vehicle environment that the Makefile makes inside the lab's."""
PATIENT = MappingProxyType({"max_age_ms": 60_000, "idle_timeout_ms": 600_000})
"""Limits for a daemon whose frames may be old and peers silent: a machine that stands still is no fault of theirs."""
START_LIMIT_S = 60.0
STOP_LIMIT_S = 30.0


class DaemonFailed(Exception):
    """The daemon could not be started, or ended by itself; the text holds the end of its log.

    `status`: with which it ended before READY; None where it did not.
    """

    def __init__(self, text: str, status: int | None = None) -> None:
        super().__init__(text)
        self.status = status


class VehicleMissing(DaemonFailed):
    """There is no vehicle environment to start a daemon from."""


class DaemonProcess:
    """One daemon in `folder`, which must be new or empty. Use as a context manager.

    `bundles` are activated in order at start, `streams` may be opened by this user; a mapping gives each its table in
    the configuration. Its log is `folder/daemon.log`. `limits`, `device` and `realtime` are the tables of those
    names (docs/operations.md); `directories`: folders of which bundles may be activated, by default those of `bundles`.
    """

    def __init__(self, folder: Path, bundles: Sequence[Path], root: Path,
                 streams: Sequence[str] | Mapping[str, Mapping[str, object]], *,
                 limits: Mapping[str, int] | None = None, device: dict[str, str | int | list[int]] | None = None,
                 realtime: Mapping[str, object] | None = None, directories: Sequence[Path] = (),
                 vehicle: Path = VEHICLE) -> None:  # fmt: skip
        self.folder = folder.resolve()
        self.sockets = self.folder / "sockets"
        self.log_path = self.folder / "daemon.log"
        self.config_path = self.folder / "fenced.toml"
        self.ready_s = 0.0
        """Seconds from exec to READY."""
        self.notices: list[str] = []
        """What it told the service manager up to READY, line by line."""
        self._program = vehicle.absolute() / "bin" / "fenced"
        self._process: subprocess.Popen[bytes] | None = None
        self.folder.mkdir(parents=True, exist_ok=True)
        named = streams if isinstance(streams, Mapping) else {name: {} for name in streams}
        given: dict[str, Mapping[str, object] | None] = {"limits": limits, "device": device, "realtime": realtime}
        tables = {name: table or {} for name, table in given.items()}
        tables |= {f"stream.{_toml(name)}": table for name, table in named.items()}
        paths = {"root_paths": [root], "bundle_paths": bundles, "bundle_directories": directories}
        self.config_path.write_text(_config_text(self, paths, tables))

    @property
    def audit_path(self) -> Path:
        """Its audit log."""
        return self.folder / "state" / "audit.jsonl"

    @property
    def pid(self) -> int:
        """The daemon's process id. Raises DaemonFailed when it does not run."""
        if self._process is None or self._process.poll() is not None:
            raise DaemonFailed("the daemon is not running")
        return self._process.pid

    def __enter__(self) -> DaemonProcess:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.stop()

    def start(self) -> None:
        """Start it and wait until it says READY. Raises DaemonFailed."""
        if not self._program.exists():
            raise VehicleMissing(f"{self._program} is missing; run `make vehicle` first")
        with contextlib.closing(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)) as notify:
            address = self.folder / "notify.sock"
            address.unlink(missing_ok=True)
            notify.bind(str(address))
            environment = {"PATH": os.defpath, "NOTIFY_SOCKET": str(address)}
            began = time.monotonic()
            with self.log_path.open("ab") as log:
                self._process = subprocess.Popen(
                    [self._program, "serve", "--config", self.config_path],
                    stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment, cwd=self.folder,
                )  # fmt: skip
            self._wait_ready(notify, began + START_LIMIT_S)
            self.ready_s = time.monotonic() - began
            address.unlink()

    def stop(self) -> int:
        """Ask it to drain and end, as systemd does; returns its exit status. Kills it after STOP_LIMIT_S."""
        if self._process is None:
            return 0
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
        try:
            return self._process.wait(STOP_LIMIT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
            raise DaemonFailed(f"the daemon did not end within {STOP_LIMIT_S} s of SIGTERM\n{self.tail()}") from None

    def wait(self, timeout_s: float) -> int:
        """For a daemon that ends by itself: its exit status. Raises DaemonFailed when it does not end."""
        assert self._process is not None
        try:
            return self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise DaemonFailed(f"the daemon did not end within {timeout_s:g} s\n{self.tail()}") from None

    def kill(self) -> None:
        """SIGKILL, as a crash would."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def command(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run the vehicle's own `fenced` command line."""
        return subprocess.run([self._program, *arguments], capture_output=True, text=True, check=False, timeout=60)

    def tail(self, lines: int = 20) -> str:
        """The end of the daemon's log."""
        text = self.log_path.read_text(errors="replace") if self.log_path.exists() else ""
        return "\n".join(text.splitlines()[-lines:])

    def _wait_ready(self, notify: socket.socket, deadline_s: float) -> None:
        assert self._process is not None
        pidfd = os.pidfd_open(self._process.pid)
        waiting = select.poll()  # select(2) takes no descriptor beyond 1023
        for descriptor in (notify.fileno(), pidfd):
            waiting.register(descriptor, select.POLLIN)
        try:
            while (left_s := deadline_s - time.monotonic()) > 0:
                readable = {descriptor for descriptor, _ in waiting.poll(left_s * 1000)}
                if notify.fileno() in readable:
                    lines = notify.recv(4096).decode().splitlines()
                    self.notices += lines
                    if "READY=1" in lines:
                        return
                elif pidfd in readable:
                    status = self._process.wait()
                    raise DaemonFailed(f"the daemon ended with status {status} before READY\n{self.tail()}", status)
        finally:
            os.close(pidfd)
        self.kill()
        raise DaemonFailed(f"the daemon was not READY within {START_LIMIT_S} s\n{self.tail()}")


def _config_text(
    daemon: DaemonProcess, paths: Mapping[str, Sequence[Path]], tables: Mapping[str, Mapping[str, object]]
) -> str:
    """The TOML that `fenced serve` reads."""
    lines = [
        f"state_directory = {_toml(str(daemon.folder / 'state'))}",
        f"socket_directory = {_toml(str(daemon.sockets))}",
        *(f"{key} = {_toml([str(path.resolve()) for path in given])}" for key, given in paths.items() if given),
        *(
            line
            for name, table in tables.items()
            if table or name.startswith("stream.")
            for line in (f"[{name}]", *(f"{key} = {_toml(value)}" for key, value in table.items()))
        ),
    ]
    return "\n".join(lines) + "\n"


def _toml(value: object) -> str:
    """JSON's strings, numbers, truths and lists of them are TOML's."""
    return json.dumps(value, allow_nan=False)
