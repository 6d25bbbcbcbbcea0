"""Whatever goes wrong, the user of a command line reads words and gets an exit status, never a traceback."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest

from client.terminal import guarded

ROOT = Path(__file__).resolve().parents[2]
LIMIT_S = 60
FENCED = "from client.cli import main; raise SystemExit(main())"
FENCED_LAB = "from lab.entry import main; raise SystemExit(main())"
PROGRAMS = pytest.mark.parametrize("program", [FENCED, FENCED_LAB], ids=["fenced", "fenced-lab"])


def start(program: str, *arguments: str | bytes, **more: object) -> subprocess.Popen[bytes]:
    options: dict[str, object] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "cwd": ROOT, **more}
    return subprocess.Popen([sys.executable, "-c", program, *arguments], **options)  # type: ignore[call-overload, no-any-return]


def ended(child: subprocess.Popen[bytes]) -> tuple[int, str]:
    """The exit status, and what stands on stderr."""
    _, words = child.communicate(timeout=LIMIT_S)
    text = words.decode()
    assert "Traceback" not in text
    assert "Exception ignored" not in text
    return child.returncode, text


@pytest.mark.parametrize("number", [signal.SIGINT])
def test_ctrl_c_is_no_fault_of_ours_to_explain(tmp_path: Path, number: signal.Signals) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as silent:
        silent.bind(str(tmp_path / "control.sock"))
        silent.listen()
        silent.settimeout(LIMIT_S)
        child = start(FENCED, "status", "--sockets", str(tmp_path))
        connection, _ = silent.accept()  # it waits for our answer now
        child.send_signal(number)
        assert ended(child) == (1, "fenced: interrupted\n")
        connection.close()


@pytest.mark.parametrize("module", ["client.terminal", "lab.cli", "rich.console", "lab.replay.cli"])
def test_ctrl_c_while_the_lab_is_imported_is_no_fault_of_ours_to_explain(module: str) -> None:
    asking = (
        "import os, signal, sys\n"
        "class Interrupting:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        f"        if name == {module!r}:\n"
        "            os.kill(os.getpid(), signal.SIGINT)\n"
        "sys.meta_path.insert(0, Interrupting())\n"
    )
    assert ended(start(asking + FENCED_LAB, "--help")) == (1, "fenced-lab: interrupted\n")


def test_the_command_that_is_installed_begins_where_nothing_is_imported_yet() -> None:
    with (ROOT / "lab" / "pyproject.toml").open("rb") as file:
        scripts = tomllib.load(file)["project"]["scripts"]
    assert scripts == {"fenced-lab": "lab.entry:main", "fenced-exporter": "lab.exporter.main:main"}
    listing = "import lab.entry, sys; print(*[one for one in sys.modules if one.split('.')[0] in ('client', 'rich')])"
    assert subprocess.run([sys.executable, "-c", listing], cwd=ROOT, capture_output=True, check=True).stdout == b"\n"


@PROGRAMS
def test_a_full_disk_under_the_output_is_named(program: str, tmp_path: Path) -> None:
    with open("/dev/full", "wb") as full:
        status, words = ended(start(program, *answering(program, tmp_path), stdout=full))
    assert status == (3 if program == FENCED_LAB else 1)  # the lab's has a code: no-room
    assert "No space left on device" in words


@PROGRAMS
def test_a_reader_that_has_gone_is_no_fault(program: str, tmp_path: Path) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    assert ended(start(program, *answering(program, tmp_path), stdout=writer)) == (0, "")
    os.close(writer)


def test_an_output_that_is_closed_is_no_fault() -> None:
    closing = f"import os; os.close(1); import sys; sys.stdout = None; {FENCED}"
    assert ended(start(closing, "devices")) == (0, "")


def answering(program: str, folder: Path) -> tuple[str, ...]:
    """A command that has something to say and needs nothing."""
    return ("devices",) if program == FENCED else ("keygen", str(folder / "key"))


def test_a_path_that_is_no_text_is_shown_as_bytes(tmp_path: Path) -> None:
    config = os.fsencode(tmp_path) + b"/\xff.toml"
    with open(config, "w") as file:
        file.write('state_directory = "s"\nroot_paths = ["r"]\nbundle_paths = ["b"]\n')
    child = start(FENCED, "check-config", config)
    output, words = child.communicate(timeout=LIMIT_S)
    assert (child.returncode, words) == (1, b"")  # and neither root nor bundle is there
    assert b"\\udcff.toml" in output


def test_a_fault_of_ours_is_named_with_its_place(capsys: pytest.CaptureFixture[str]) -> None:
    def fault() -> int:
        raise ZeroDivisionError("planted")

    assert guarded("fenced", fault) == 1
    words = capsys.readouterr().err
    assert words.startswith(f"fenced: fault: ZeroDivisionError: planted at {__file__}:")
    assert "report it" in words


def test_an_exit_of_the_argument_parser_passes() -> None:
    def usage() -> int:
        raise SystemExit(2)

    with pytest.raises(SystemExit, match="2"):
        guarded("fenced", usage)


SILLY: dict[str, tuple[tuple[str, ...], int, str]] = {
    "no frames": (("demo", "--frames", "0"), 2, "expected an integer from 1"),
    "frames that are none": (("record", "x.mcap", "--frames", "-4"), 2, "expected an integer from 1"),
    "no rate": (("demo", "--rate-hz", "0"), 2, "above 0 Hz"),
    "a rate that is no number": (("demo", "--rate-hz", "nan"), 2, "expected a number"),
    "a rate without end": (("demo", "--rate-hz", "inf"), 2, "expected a number"),
    "a negative tolerance": (("replay", "x.mcap", "--absolute", "-1"), 2, "expected 0 or more"),
    "a folder of somebody else": (("demo", "-o", "."), 3, "was not made by fenced-lab"),
    "a folder of somebody else for figures": (("bench", "start", "-o", "."), 3, "was not made by fenced-lab"),
    "an empty passphrase file": (("keygen", "key", "--passphrase-file", "empty"), 3, "its first line is empty"),
    "a passphrase that is no text": (("keygen", "key", "--passphrase-file", "bytes"), 3, "not UTF-8"),
    "a specification without end": (("compile", "deep"), 3, "spec-unreadable"),
}


@pytest.mark.parametrize("case", SILLY)
def test_a_silly_argument_of_the_lab_is_refused_in_words(
    tmp_path: Path, case: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments, status, words = SILLY[case]
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").touch()
    (tmp_path / "bytes").write_bytes(b"\xff\n")
    (tmp_path / "deep").write_text("a = " + "[" * 5000)
    assert run_lab(lambda: lab_main(arguments)) == status
    assert words in capsys.readouterr().err
    assert {one.name for one in tmp_path.iterdir()} == {"empty", "bytes", "deep"}


def lab_main(arguments: tuple[str, ...]) -> int:
    from lab.cli import main  # noqa: PLC0415 (heavy)

    return main(arguments)


def run_lab(command: Callable[[], int]) -> int:
    try:
        return command()
    except SystemExit as end:
        return int(end.code or 0)
