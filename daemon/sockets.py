"""The three listening sockets: taken from systemd when it passes them, otherwise bound in the socket folder.

One daemon owns a socket folder: it holds a lock on `fenced.lock` in it for as long as it lives, so the kernel drops the
lock with the process, and a socket file found under the lock is stale unless somebody answers on it. A second daemon
gets SocketsTaken and leaves the first alone.
"""

import errno
import fcntl
import os
import socket
import stat
from collections.abc import Mapping
from dataclasses import dataclass

from daemon.config import SocketModes

ROLES = ("camera", "consumer", "control")
_BACKLOG = 64
_FIRST_PASSED_DESCRIPTOR = 3  # sd_listen_fds(3): SD_LISTEN_FDS_START


class SocketsTaken(RuntimeError):
    """Another process serves these sockets."""


@dataclass(frozen=True)
class Listeners:
    """Non-blocking listening sockets by role. `close()` removes only what was bound here."""

    by_role: Mapping[str, socket.socket]
    lock: int
    # Descriptor of the lock file, -1 when systemd owns the sockets.
    bound_paths: tuple[str, ...]

    def close(self) -> None:
        """Closes the sockets, removes their files, drops the lock."""
        for listener in self.by_role.values():
            listener.close()
        for path in self.bound_paths:
            try:
                os.unlink(path)
            except FileNotFoundError:
                continue
        if self.lock >= 0:
            os.close(self.lock)


def open_listeners(folder: str, modes: Mapping[str, SocketModes], environment: Mapping[str, str]) -> Listeners:
    """Takes systemd's sockets (LISTEN_FDS) or binds `folder`/ROLE.sock.

    Raises SocketsTaken when another daemon serves them, ValueError for a wrong set of passed sockets, OSError when the
    folder cannot be used.
    """
    passed = _passed(environment)
    return Listeners(passed, -1, ()) if passed else _bind(folder, modes)


def lock_folder(folder: str, name: str) -> int:
    """Locks `folder`/`name` for this process's life; returns the descriptor. Raises SocketsTaken when it is held."""
    path = os.path.join(folder, name)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(descriptor)
        raise SocketsTaken(
            f"{path} is locked: another daemon serves {folder}; stop it first or use another folder"
        ) from error
    return descriptor


def _passed(environment: Mapping[str, str]) -> dict[str, socket.socket]:
    """The sockets of sd_listen_fds_with_names(3), by role."""
    if environment.get("LISTEN_PID") != str(os.getpid()):
        return {}
    names = environment.get("LISTEN_FDNAMES", "").split(":")
    count = environment.get("LISTEN_FDS", "0")
    if sorted(names) != sorted(ROLES) or count != str(len(ROLES)):
        raise ValueError(
            f"systemd passed {count} sockets named {names}, expected one each of {ROLES}; mend FileDescriptorName="
        )
    sockets = {name: socket.socket(fileno=_FIRST_PASSED_DESCRIPTOR + index) for index, name in enumerate(names)}
    for name, listener in sockets.items():
        if listener.family != socket.AF_UNIX or listener.type != socket.SOCK_SEQPACKET:
            raise ValueError(
                f"passed socket {name} is {listener.family.name} {listener.type.name}, expected AF_UNIX SOCK_SEQPACKET"
            )
        listener.setblocking(False)
        os.set_inheritable(listener.fileno(), False)
    return sockets


def _bind(folder: str, modes: Mapping[str, SocketModes]) -> Listeners:
    os.makedirs(folder, mode=0o755, exist_ok=True)
    lock = lock_folder(folder, "fenced.lock")
    bound: dict[str, socket.socket] = {}
    paths: list[str] = []
    try:
        for role in ROLES:
            path = os.path.join(folder, f"{role}.sock")
            _remove_stale(path)
            listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
            bound[role] = listener
            old_mask = os.umask(0o177)  # nobody connects between bind and chmod
            try:
                listener.bind(path)
            finally:
                os.umask(old_mask)
            paths.append(path)
            os.chown(path, -1, modes[role].gid)
            os.chmod(path, modes[role].mode)
            listener.listen(_BACKLOG)
    except BaseException:
        Listeners(bound, lock, tuple(paths)).close()
        raise
    return Listeners(bound, lock, tuple(paths))


def _remove_stale(path: str) -> None:
    """Removes a socket file that nobody serves. Raises SocketsTaken if somebody does, OSError if it is no socket."""
    try:
        kind = os.lstat(path).st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(kind):
        raise FileExistsError(f"{path} is in the way and is not a socket; move it away")
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC) as probe:
        error = probe.connect_ex(path)
    if error in (0, errno.EAGAIN):  # EAGAIN: its backlog is full, so somebody listens
        raise SocketsTaken(f"{path} is served by another process; stop it first or use another folder")
    os.unlink(path)
