"""The command line where no daemon answers: what is said, and the exit status."""

from __future__ import annotations

import errno
import os
import socket
from pathlib import Path

import pytest

from client import cli


class ClosedToUs(socket.socket):
    """A socket whose address is not this user's to connect to: root, who may run the tests, is never told so."""

    def connect(self, address: object) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))


def ask(folder: object, capsys: pytest.CaptureFixture[str]) -> str:
    assert cli.main(["status", "--sockets", str(folder), "--json"]) == 1
    printed = capsys.readouterr()
    assert printed.out == ""
    return printed.err


def test_a_place_without_a_daemon_is_named_with_what_to_do(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").touch()
    for folder in (tmp_path, tmp_path / "none", tmp_path / "file"):
        said = ask(folder, capsys)
        assert f"no daemon listens at {folder}/control.sock; start it, or name its socket_directory" in said


def test_a_path_that_no_socket_can_have_is_said_to_be_too_long(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "File name too long: '" in ask(tmp_path / ("long" * 30), capsys)


def test_a_user_who_may_not_open_the_socket_is_told_of_group_and_list(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(socket, "socket", ClosedToUs)
    assert f"{tmp_path}/control.sock is not open to this user; join the socket's group" in ask(tmp_path, capsys)
