"""Whatever a person gives `fenced-lab` that is wrong ends in a typed refusal: a code, what was expected, what to do."""

from __future__ import annotations

import errno
import json
import socket
from pathlib import Path

import numpy as np
import pytest

from abi.packet import LocalProtocolError, RemoteProtocolError
from client.errors import ConnectionLost
from lab.cli import main
from lab.hil.daemon import DaemonFailed, VehicleMissing
from lab.refusal import LabRefusal, refusal_of
from lab.replay.log import LogReader
from lab.replay.picture import write_png

CASES: dict[str, tuple[int, str, str]] = {
    "a log that is not there": (3, "log-unreadable", "log info absent"),
    "a folder as a log": (3, "log-unreadable", "log verify folder"),
    "a cut onto a file": (3, "file-exists", "log cut log.mcap -o taken"),
    "a cut into a folder that is not there": (3, "no-such-file", "log cut log.mcap -o absent/new.mcap"),
    "a video of another kind": (3, "log-export", "log export log.mcap --video x.xyz"),
    "a video in a folder that is not there": (3, "log-export", "log export log.mcap --video absent/x.mp4"),
    "a video onto a folder": (3, "file-kind", "log export log.mcap --video folder"),
    "a table onto a folder": (3, "file-kind", "log export log.mcap --csv folder"),
    "a table in a folder that is not there": (3, "no-such-file", "log export log.mcap --csv absent/x.csv"),
    "pictures onto a file": (3, "file-exists", "log export log.mcap --png taken"),
    "a stream that the log has not": (3, "log-format", "log export log.mcap --png new --stream q"),
    "a video that is not there": (3, "import-source", "import video absent -o new --stream q"),
    "a folder as a video": (3, "import-source", "import video folder -o new --stream q"),
    "a file as pictures": (3, "import-source", "import images taken -o new --stream q"),
    "a bag that is not there": (3, "import-source", "import rosbag absent -o new --stream q"),
    "an empty folder as a segment": (3, "import-source", "import openpilot folder -o new --stream q"),
    "a file as a segment": (3, "import-source", "import openpilot taken -o new --stream q"),
    "an import onto a file": (3, "file-exists", "import images pictures -o taken STATED"),
    "an import into a folder that is not there": (3, "no-such-file", "import images pictures -o absent/x STATED"),
    "a name that no stream may have": (2, "options", "import images pictures -o new STATED --stream a/b"),
    "a specification that is not there": (3, "spec-unreadable", "import images pictures -o new --spec absent"),
    "a recording of no daemon": (3, "no-daemon", "record folder -o new"),
    "a drive of no daemon": (3, "no-daemon", "drive new --sockets absent"),
    "a replay into no daemon": (3, "no-daemon", "replay log.mcap --sockets folder"),
    "a recording of what nobody listens to": (3, "no-daemon", "record deaf -o new"),
    "a view of no daemon": (3, "no-daemon", "top --once --sockets folder"),
    "a bundle without its root": (2, "options", "drive new --bundle x.fenced"),
    "a replayed bundle without its root": (2, "options", "replay log.mcap --bundle x.fenced"),
    "two bundles by the log's clock": (2, "options", "replay log.mcap --bundle x --against x --root r --real-time"),
    "a cluster without a bundle": (2, "options", "replay log.mcap --ray"),
    "raw frames without a specification": (2, "options", "drive new --input taken"),
    "a log that nobody says the model of": (2, "options", "drive new --input log.mcap"),
    "tolerances that are not there": (3, "bad-tolerances", "replay log.mcap --tolerances absent"),
    "a report below a file": (3, "file-exists", "replay log.mcap --report taken/x.json"),
    "a root that is not there": (3, "no-such-file", "root show absent"),
    "a folder as a root": (3, "file-kind", "root show folder"),
    "a key onto a file": (3, "file-exists", "keygen taken"),
    "a key in a folder that is not there": (3, "no-such-file", "keygen absent/key"),
    "the public half onto a file": (3, "file-exists", "keygen pkcs11:token=a;object=b?module-path=/c --public taken"),
    "a token without a key": (2, "options", "keygen pkcs11:token=a --public new"),
    "a passphrase that is not there": (3, "no-such-file", "keygen key --passphrase-file absent"),
    "a passphrase of many lines, the first empty": (3, "passphrase-file", "keygen key --passphrase-file blank"),
    "a minimum release without its model": (2, "options", "root revoke old -o new --minimum-release 5"),
    "an envelope of what is not there": (3, "unreadable-file", "envelope absent -o new"),
    "a package of no tree": (3, "no-such-file", "image deb absent -o new"),
    "an image onto a file": (3, "file-exists", "image build taken"),
    "an unknown benchmark": (2, "options", "bench nonsense -o new"),
    "models that are not there": (2, "options", "bench start --models absent -o new"),
    "figures over somebody's folder": (3, "file-exists", "bench start -o ."),
    "probes over somebody's folder": (3, "file-exists", "hil probes -o ."),
    "a scenario that is not there": (3, "scenario-unreadable", "hil run absent"),
    "an unknown fault": (3, "scenario-value", "hil faults frames/999"),
    "faults of no daemon": (3, "no-daemon", "hil faults frames/12 --sockets folder"),
}
STATED = "--stream road --rate-hz 20 --range full --primaries bt709 --transfer srgb"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What the cases name: a log, pictures, a file that is taken, an empty folder, sockets that nobody listens to."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pictures").mkdir()
    write_png(tmp_path / "pictures" / "1.png", np.zeros((8, 8, 3), np.uint8))
    assert main(["import", "images", "pictures", "-o", "log.mcap", *STATED.split()]) == 0
    (tmp_path / "taken").write_text("somebody's\n")
    (tmp_path / "blank").write_text("\n")
    (tmp_path / "folder").mkdir()
    (tmp_path / "deaf").mkdir()
    for role in ("camera", "consumer", "control"):
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as bound:
            bound.bind(str(Path("deaf") / f"{role}.sock"))
    return tmp_path


@pytest.mark.parametrize("case", CASES)
def test_wrong_input_is_refused_with_a_code(folder: Path, case: str, capsys: pytest.CaptureFixture[str]) -> None:
    status, code, text = CASES[case]
    stated = STATED.replace("--stream road ", "") if "--stream" in text else STATED
    arguments = text.replace("STATED", stated).split()
    before = contents(folder)
    capsys.readouterr()
    assert main(arguments) == status
    words = capsys.readouterr().err.strip().splitlines()
    assert words[0].startswith(f"refused: {code}: ")
    assert [line.split()[0] for line in words[1:]] == ["expected", "found", "action"]
    assert main(["--json", *arguments]) == status
    told = json.loads(capsys.readouterr().err)
    assert told["refused"] == code
    assert all(told[key] for key in ("what", "expected", "found", "action"))
    assert contents(folder) == before  # nothing half done lies about, and nothing of anybody's is gone


def contents(folder: Path) -> dict[str, bytes]:
    return {str(one): one.read_bytes() for one in sorted(folder.rglob("*")) if one.is_file()}


def test_a_daemon_that_refused_what_it_was_given_is_told_apart_from_one_that_failed() -> None:
    log = "the daemon ended with status {} before READY\nfenced: bundle refused: bad-container: bundle size"
    refused = refusal_of(DaemonFailed(log.format(3), 3))
    assert refused is not None
    assert (refused.code, refused.code.status) == (LabRefusal.DAEMON_REFUSED, 3)
    assert refused.found == "bundle refused: bad-container: bundle size"
    failed = refusal_of(DaemonFailed(log.format(1), 1))
    assert failed is not None
    assert (failed.code, failed.code.status) == (LabRefusal.DAEMON_FAILED, 1)
    assert "status 1" in failed.what


ERRORS: list[tuple[Exception, LabRefusal]] = [
    (PermissionError(errno.EACCES, "Permission denied", "a"), LabRefusal.FILE_DENIED),
    (OSError(errno.ENOSPC, "No space left on device"), LabRefusal.NO_ROOM),
    (OSError(errno.ENAMETOOLONG, "File name too long", "a"), LabRefusal.FILE_UNUSABLE),
    (ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused"), LabRefusal.NO_DAEMON),
    (ConnectionLost("the daemon said Bye"), LabRefusal.CONNECTION_LOST),
    (RemoteProtocolError("kind", "one of ours", "99"), LabRefusal.CONNECTION_LOST),
    (LocalProtocolError("stream", "a name", "a/b"), LabRefusal.OPTIONS),
    (VehicleMissing("bin/fenced is missing"), LabRefusal.TOOL_MISSING),
    (TimeoutError("frame 3 was not released within 1 s"), LabRefusal.TIMED_OUT),
]


@pytest.mark.parametrize(("error", "code"), ERRORS, ids=lambda one: getattr(one, "value", type(one).__name__))
def test_what_the_system_and_sessions_say_has_a_code(error: Exception, code: LabRefusal) -> None:
    refused = refusal_of(error)
    assert refused is not None
    assert refused.code is code


def test_a_fault_of_ours_is_not_taken_for_a_persons() -> None:
    assert refusal_of(ValueError("a table that lacks its row")) is None
    assert refusal_of(OSError("without a number")) is None


def test_a_daemon_that_fails_says_so_and_exits_as_a_fault(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def gone(*_: object) -> None:
        raise ConnectionLost("the daemon said Bye")

    monkeypatch.setattr(LogReader, "info", gone)
    assert main(["log", "info", "log.mcap"]) == 1
    assert capsys.readouterr().err.startswith("failed: connection-lost: ")
    assert main(["--json", "log", "info", "log.mcap"]) == 1
    assert json.loads(capsys.readouterr().err)["failed"] == "connection-lost"
