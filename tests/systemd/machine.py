"""A vehicle computer as far as systemd goes: a real boot in a container, on a root of its own over this machine's /usr.

The root is a folder with an empty dpkg database; /usr is an overlay whose upper layer is thrown away, so the package is
installed there as on a vehicle. Nothing is registered, no bus is needed: commands enter the container's namespaces, and
clients in the test's own process reach its sockets through /proc/PID/root.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

BOOT_LIMIT_S = 120.0
LIMIT_S = 90.0
_MASKED = (
    "console-getty", "getty@", "systemd-firstboot", "systemd-hwdb-update", "systemd-logind", "systemd-networkd",
    "systemd-resolved", "systemd-timesyncd", "systemd-udevd", "dbus",
)  # fmt: skip


class CannotBoot(Exception):
    """Why no container boots here."""


def why_not() -> str | None:
    """What is missing for a boot, in words; None where it can be tried."""
    if os.geteuid() != 0:
        return "booting a container needs root"
    for tool, package in (("systemd-nspawn", "systemd-container"), ("nsenter", "util-linux"), ("dpkg", "dpkg")):
        if shutil.which(tool) is None:
            return f"{tool} is not installed (Debian package {package})"
    if not Path("/usr/lib/systemd/systemd").exists():
        return "systemd is not installed (Debian package systemd)"
    python = Path(f"/usr/bin/python{sys.version_info.major}.{sys.version_info.minor}")
    return None if python.exists() else f"{python}, the interpreter of the image, is not installed"


def until(what: Callable[[], object], limit_s: float = LIMIT_S) -> None:
    """Ask until it holds."""
    deadline = time.monotonic() + limit_s
    while not what():
        if time.monotonic() > deadline:
            raise AssertionError(f"it never came to be: {what}")
        time.sleep(0.02)


class Machine:
    """A booted container in `folder`. `leader` is its first process, as seen from here.

    systemd: a folder that holds another systemd as its packages unpack (`usr/…`); left out: this machine's own.
    """

    def __init__(self, folder: Path, systemd: Path | None = None) -> None:
        self._layers = "/usr" if systemd is None else f"/usr:{systemd / 'usr'}"
        self.folder = folder
        self.root = folder / "root"
        self.leader = 0
        self._log = folder / "boot.log"
        self._nspawn: subprocess.Popen[bytes] | None = None

    def boot(self) -> None:
        """Boot to multi-user.target. Raises CannotBoot with the end of its console."""
        _make_root(self.root)
        command = ["systemd-nspawn", "--register=no", "--keep-unit", "--quiet", f"--directory={self.root}",
                   f"--machine=fenced-test-{os.getpid()}", f"--overlay={self._layers}::/usr", "--boot",
                   "systemd.unit=multi-user.target", "systemd.firstboot=off"]  # fmt: skip
        with self._log.open("wb") as log:
            self._nspawn = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        try:
            until(self._is_up, BOOT_LIMIT_S)
        except AssertionError:
            self.stop()
            raise CannotBoot(self._log.read_text(errors="replace")[-600:]) from None

    def stop(self) -> None:
        """End it, as quickly as can be: nothing in it is kept."""
        if self._nspawn is None:
            return
        if self.leader:
            os.kill(self.leader, signal.SIGKILL)
        self._nspawn.terminate()
        try:
            self._nspawn.wait(LIMIT_S)
        except subprocess.TimeoutExpired:
            self._nspawn.kill()
            self._nspawn.wait()

    def path(self, name: str) -> Path:
        """A path inside, as it is reached from here."""
        return Path(f"/proc/{self.leader}/root{name}")

    def run(self, *command: str, check: bool = True) -> str:
        """The output of a command inside. AssertionError where it fails, unless `check` is False."""
        enter = ["nsenter", f"--target={self.leader}", "--mount", "--uts", "--ipc", "--net", "--pid", "--cgroup",
                 "--", "env", "--chdir=/"]  # fmt: skip
        done = subprocess.run([*enter, *command], capture_output=True, text=True, check=False, timeout=LIMIT_S,
                              env={"PATH": "/usr/sbin:/usr/bin", "LANG": "C.UTF-8"})  # fmt: skip
        assert not check or done.returncode == 0, f"{command}: {done.returncode}\n{done.stdout}{done.stderr}"
        return done.stdout

    def show(self, unit: str, field: str) -> str:
        """One property of a unit."""
        return self.run("systemctl", "show", "--value", f"--property={field}", unit).strip()

    @property
    def may_raise_limits(self) -> bool:
        """Whether its first process may give a unit higher limits than it has (CAP_SYS_RESOURCE, capability.h: 24)."""
        status = Path(f"/proc/{self.leader}/status").read_text()
        return bool(int(status.partition("CapBnd:")[2].split()[0], 16) >> 24 & 1)

    def cursor(self) -> str:
        """Where the journal ends now."""
        self.run("journalctl", "--sync")
        return (
            self.run("journalctl", "--no-pager", "--quiet", "--lines=0", "--show-cursor")
            .partition("-- cursor: ")[2]
            .strip()
        )

    def journal(self, cursor: str) -> list[dict[str, Any]]:
        """What the journal holds since, as the entries' fields. (With matches journalctl would skip one of them.)"""
        self.run("journalctl", "--sync")
        text = self.run("journalctl", "--no-pager", "--output=json", "--all", f"--after-cursor={cursor}")
        return [json.loads(line) for line in text.splitlines()]

    def _is_up(self) -> bool:
        assert self._nspawn is not None
        if self._nspawn.poll() is not None:
            raise AssertionError
        children = Path(f"/proc/{self._nspawn.pid}/task/{self._nspawn.pid}/children").read_text().split()
        if not children:
            return False
        self.leader = int(children[0])
        return self.run("systemctl", "is-active", "multi-user.target", check=False).strip() == "active"


def _make_root(root: Path) -> None:
    for folder in ("etc/systemd/system", "var/lib/dpkg/info", "var/lib/dpkg/updates", "var/log", "tmp", "usr", "opt",
                   "root", "proc", "sys", "dev", "run"):  # fmt: skip
        (root / folder).mkdir(parents=True)
    for name in ("bin", "sbin", "lib", "lib64"):
        (root / name).symlink_to(f"usr/{name}")
    (root / "etc/passwd").write_text("root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/:/usr/sbin/nologin\n")
    (root / "etc/group").write_text("root:x:0:\nnogroup:x:65534:\n")
    (root / "etc/machine-id").write_text(os.urandom(16).hex() + "\n")
    shutil.copy("/usr/lib/os-release", root / "etc/os-release")
    for name in ("status", "available"):
        (root / "var/lib/dpkg" / name).touch()
    for unit in _MASKED:
        (root / f"etc/systemd/system/{unit}.service").symlink_to("/dev/null")


def booted(folder: Path, systemd: Path | None = None) -> Machine:
    """A booted machine; skips the test where none boots here."""
    reason = why_not()
    if reason is not None:
        pytest.skip(reason)
    machine = Machine(folder, systemd)
    try:
        machine.boot()
    except CannotBoot as error:
        pytest.skip(f"no container boots here: {error}")
    return machine
