"""A vehicle computer of another architecture without the board: a Debian root whose programs qemu runs.

The root is made once by debootstrap; each command runs in it by chroot, in a mount and PID namespace of its own. Its
/proc shows processes alone, as the unit's ProcSubset=pid does: the host's /proc/cpuinfo would name the host's CPU.
Needs root, and Debian's debootstrap and qemu-user-static.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

from lab.image.target import DEB_ARCHITECTURES

BINFMT = Path("/proc/sys/fs/binfmt_misc")
SUITE = "bookworm"
CPUS = {"aarch64": "cortex-a76"}
"""What qemu is asked for: the nearest to a Cortex-A78 that 7.2 knows, so that a later instruction would trap."""
_ENTER = """
cd /
mount -t proc -o subset=pid proc "$1/proc" && mount --bind /dev "$1/dev" || exit 99
root=$1; shift
exec chroot "$root" "$@"
"""


class EmulationMissing(Exception):
    """This machine cannot run programs of the architecture; says what to install or do."""


class EmulatedMachine:
    """The root at `root`, which is made where it is not there yet. Raises EmulationMissing, CalledProcessError."""

    def __init__(self, root: Path, arch: str) -> None:
        self.root, self.arch = root.resolve(), arch
        if os.geteuid() != 0:
            raise EmulationMissing("chroot and mounts need root: run it as root")
        _register(arch)
        if not (self.root / "usr/bin/python3").exists():
            self._make()

    def command(self, *words: str | Path) -> list[str]:
        """The host's command for a command in the root, paths as they are there."""
        enter = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "sh", "-c", _ENTER, "enter", str(self.root)]
        return [*enter, *map(str, words)]

    def run(self, *words: str | Path) -> subprocess.CompletedProcess[str]:
        """Runs a command in the root to its end."""
        return subprocess.run(self.command(*words), env=self.environment, capture_output=True, text=True, check=False)

    @property
    def environment(self) -> dict[str, str]:
        """For commands in the root."""
        return {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C.UTF-8", "QEMU_CPU": CPUS[self.arch]}

    def inside(self, path: Path) -> str:
        """How a path below the root is called in it."""
        return f"/{path.resolve().relative_to(self.root)}"

    def _make(self) -> None:
        tool = shutil.which("debootstrap", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
        if tool is None:
            raise EmulationMissing("debootstrap is not installed: apt-get install debootstrap")
        self.root.mkdir(parents=True, exist_ok=True)
        arch = f"--arch={DEB_ARCHITECTURES[self.arch]}"
        command = [
            tool,
            arch,
            "--variant=minbase",
            "--include=python3",
            SUITE,
            str(self.root),
        ]  # from debootstrap's own mirror
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def _register(arch: str) -> None:
    """Tells the kernel to run programs of the architecture with qemu, where it does not yet."""
    if not (BINFMT / "register").exists():
        subprocess.run(["mount", "-t", "binfmt_misc", "binfmt_misc", str(BINFMT)], check=True)
    if (BINFMT / f"qemu-{arch}").exists():
        return
    rule = Path(f"/usr/lib/binfmt.d/qemu-{arch}.conf")
    if not rule.exists():
        raise EmulationMissing("qemu is not installed: apt-get install qemu-user-static")
    (BINFMT / "register").write_text(rule.read_text().strip())
