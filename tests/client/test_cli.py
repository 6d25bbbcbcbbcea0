"""The command line where no daemon answers: what is said, and the exit status."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from client import cli

NOBODY = 65534


@pytest.fixture
def nobody(tmp_path: Path) -> Iterator[None]:
    """This process as a user who may open nothing of root's; as it is where it is not root's."""
    cli.main(["status", "--sockets", str(tmp_path)])  # imports what it needs, which that user may not read
    before = os.geteuid()
    if before == 0:
        os.seteuid(NOBODY)
    yield
    if before == 0:
        os.seteuid(before)


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


@pytest.mark.usefixtures("nobody")
def test_a_user_who_may_not_open_the_socket_is_told_of_group_and_list(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        if os.geteuid() != NOBODY:
            listener.bind(str(tmp_path / "control.sock"))
            listener.listen()
            (tmp_path / "control.sock").chmod(0)
        said = ask(tmp_path, capsys)
    assert f"{tmp_path}/control.sock is not open to this user; join the socket's group" in said
