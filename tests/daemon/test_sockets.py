"""Who owns the sockets: one daemon, and nobody takes them from it."""

import os
import socket
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from daemon.config import SocketModes
from daemon.sockets import ROLES, SocketsTaken, open_listeners

MODES = {role: SocketModes(0o600 if role == "control" else 0o660, -1) for role in ROLES}


def connect(path: Path) -> socket.socket:
    peer = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    peer.connect(str(path))
    return peer


def test_three_sockets_are_bound_with_their_modes(tmp_path: Path) -> None:
    listeners = open_listeners(str(tmp_path), MODES, {})
    assert sorted(listeners.by_role) == sorted(ROLES)
    for role in ROLES:
        assert stat.S_IMODE((tmp_path / f"{role}.sock").stat().st_mode) == MODES[role].mode
    with connect(tmp_path / "camera.sock"):
        listeners.by_role["camera"].accept()[0].close()
    listeners.close()
    assert not list(tmp_path.glob("*.sock"))


def test_a_second_daemon_is_refused_and_the_first_unaffected(tmp_path: Path) -> None:
    first = open_listeners(str(tmp_path), MODES, {})
    with pytest.raises(SocketsTaken, match="another daemon serves"):
        open_listeners(str(tmp_path), MODES, {})
    with connect(tmp_path / "consumer.sock"):
        first.by_role["consumer"].accept()[0].close()
    first.close()


def test_sockets_left_by_a_killed_daemon_are_replaced(tmp_path: Path) -> None:
    first = open_listeners(str(tmp_path), MODES, {})
    os.close(first.lock)  # as the kernel does when the process dies
    for listener in first.by_role.values():
        listener.close()
    assert (tmp_path / "camera.sock").exists()
    second = open_listeners(str(tmp_path), MODES, {})
    connect(tmp_path / "camera.sock").close()
    second.close()


def test_a_foreign_server_on_the_path_is_left_alone(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as foreign:
        foreign.bind(str(tmp_path / "consumer.sock"))
        foreign.listen(1)
        with pytest.raises(SocketsTaken, match=r"consumer\.sock is served"):
            open_listeners(str(tmp_path), MODES, {})
        connect(tmp_path / "consumer.sock").close()
    assert not (tmp_path / "camera.sock").exists()


def test_a_file_in_the_way_is_not_removed(tmp_path: Path) -> None:
    (tmp_path / "camera.sock").write_text("precious")
    with pytest.raises(FileExistsError, match="not a socket"):
        open_listeners(str(tmp_path), MODES, {})
    assert (tmp_path / "camera.sock").read_text() == "precious"


_ACTIVATED = """
import os, socket, sys
from daemon.sockets import open_listeners
os.environ["LISTEN_PID"] = str(os.getpid())
listeners = open_listeners("/nowhere", {}, os.environ)
print(sorted((role, end.getsockname()) for role, end in listeners.by_role.items()))
print(os.get_inheritable(3), listeners.bound_paths)
"""


def activated(folder: Path, names: str, kind: int = socket.SOCK_SEQPACKET) -> subprocess.CompletedProcess[str]:
    """Starts a process as systemd does: the sockets are descriptors 3, 4 and 5."""
    ends = []
    for name in names.split(":"):
        end = socket.socket(socket.AF_UNIX, kind)
        end.bind(str(folder / f"{name}.{len(ends)}"))
        ends.append(end)
    moves = "".join(f"os.dup2({end.fileno()}, {100 + at}); " for at, end in enumerate(ends))
    moves += "".join(f"os.dup2({100 + at}, {3 + at}); " for at in range(len(ends)))
    try:
        return subprocess.run(
            [sys.executable, "-c", f"import os; {moves}\n{_ACTIVATED}"],
            env={**os.environ, "LISTEN_FDS": str(len(ends)), "LISTEN_FDNAMES": names},
            pass_fds=[end.fileno() for end in ends],
            capture_output=True,
            text=True,
            check=False,
        )
    finally:
        for end in ends:
            end.close()


def test_sockets_that_systemd_passes_are_used_by_name(tmp_path: Path) -> None:
    done = activated(tmp_path, "control:camera:consumer")
    assert done.returncode == 0, done.stderr
    expected = [("camera", "camera.1"), ("consumer", "consumer.2"), ("control", "control.0")]
    assert done.stdout.splitlines()[0] == str([(role, str(tmp_path / name)) for role, name in expected])
    assert done.stdout.splitlines()[1] == "False ()"


@pytest.mark.parametrize("names", ["camera:consumer", "camera:consumer:camera", "a:b:c"])
def test_a_wrong_set_of_passed_sockets_is_refused(tmp_path: Path, names: str) -> None:
    assert "expected one each of" in activated(tmp_path, names).stderr


def test_a_passed_socket_of_another_type_is_refused(tmp_path: Path) -> None:
    assert (
        "expected AF_UNIX SOCK_SEQPACKET" in activated(tmp_path, "control:camera:consumer", socket.SOCK_STREAM).stderr
    )
