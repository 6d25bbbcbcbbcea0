"""Run by the system's interpreter inside the unit's sandbox: tries what a daemon never does; prints who stopped it.

First with nothing of ours loaded, so that only the kernel can say no; then under the daemon's own guard. One JSON
object: for each act the kernel's error by name (or "allowed"), and which acts the guard forbade.
"""

import ctypes
import errno
import json
import mmap
import os
import socket
import sys
from collections.abc import Callable

STATE = "/var/lib/fenced"
_PTRACE_TRACEME, _CLONE_NEWUSER, _SYS_BPF = 0, 0x10000000, {"x86_64": 321, "aarch64": 280}
_libc = ctypes.CDLL(None, use_errno=True)


def _checked(result: int) -> None:
    if result < 0:
        raise OSError(ctypes.get_errno(), "refused")


def _write(path: str) -> None:
    with open(path, "w", encoding="ascii") as file:
        file.write("#!/bin/true\n")


def _map_own_file(folder: str) -> None:
    _write(f"{folder}/code")
    with open(f"{folder}/code", "rb") as file:
        mmap.mmap(file.fileno(), 4, prot=mmap.PROT_READ | mmap.PROT_EXEC, flags=mmap.MAP_PRIVATE)


def _open(path: str) -> None:
    os.close(os.open(path, os.O_RDONLY))


KERNEL: dict[str, Callable[[], object]] = {
    "run a shell": lambda: os.posix_spawn("/bin/sh", ["/bin/sh", "-c", ":"], {}),
    "map state as code": lambda: _map_own_file(STATE),
    "map /tmp as code": lambda: _map_own_file("/tmp"),
    "map /var/tmp as code": lambda: _map_own_file("/var/tmp"),
    "map shared memory as code": lambda: _map_own_file("/dev/shm"),
    "map /run as code": lambda: _map_own_file("/run/fenced"),
    "make memory code": lambda: mmap.mmap(-1, 4096, prot=mmap.PROT_WRITE | mmap.PROT_EXEC | mmap.PROT_READ),
    "write into its configuration": lambda: _write("/etc/fenced/fenced.toml"),
    "write into its image": lambda: _write("/opt/fenced/lib/more.py"),
    "open a network socket": lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM),
    "open a netlink socket": lambda: socket.socket(socket.AF_NETLINK, socket.SOCK_RAW),
    "be traced": lambda: _checked(_libc.ptrace(_PTRACE_TRACEME, 0, None, None)),
    "make a namespace": lambda: _checked(_libc.unshare(_CLONE_NEWUSER)),
    "load a kernel program": lambda: _checked(_libc.syscall(_SYS_BPF[os.uname().machine], 0, None, 0)),
    "become root": lambda: os.setuid(0),
    "make a device": lambda: os.mknod(f"{STATE}/device", 0o020600, os.makedev(1, 1)),
    "read memory": lambda: _open("/dev/mem"),
    "look into a home": lambda: os.listdir("/root"),
    "see the first process": lambda: os.stat("/proc/1"),
}  # fmt: skip
GUARD = ("run a shell", "open a network socket", "write into its configuration", "write into its image")


def main() -> None:
    """See the module."""
    said: dict[str, str] = {}
    for name, act in KERNEL.items():
        try:
            act()
            said[name] = "allowed"
        except OSError as error:
            said[name] = errno.errorcode.get(error.errno or 0, str(error.errno))
    sys.path.append("/opt/fenced/lib")
    from daemon import guard  # noqa: PLC0415 (the kernel is asked before it is there)

    guard.install()
    guard.seal(readable=(), writable=(STATE,))
    forbidden = []
    for name in GUARD:
        try:
            KERNEL[name]()
        except guard.ForbiddenAct:
            forbidden.append(name)
        except OSError:
            continue
    sys.stdout.write(json.dumps({"kernel": said, "guard": forbidden}))


main()
