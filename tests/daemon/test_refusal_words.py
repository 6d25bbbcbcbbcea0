"""A refusal reads the same wherever it is read: command line, its JSON, audit log, journal and control socket."""

from __future__ import annotations

import ast
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from abi.packet import RefusalCode
from client import cli
from client.errors import Refused
from tests.simulators import NOW_UNIX_S, BundleSimulator, flip_byte
from tests.support.bundles import BundleMaker, TinyModel
from tests.support.daemons import DaemonThread

OLD = TinyModel("add", number=3)
NEW = TinyModel("add", version="2.0.0", release=2, number=50)
Edit = Callable[[BundleSimulator], None]


def stated(**changes: Any) -> Edit:
    """The statement with other fields."""
    return lambda sim: setattr(sim, "statement", replace(sim.statement, **changes))


def unsigned(sim: BundleSimulator) -> None:
    sim.signers = ()


def one_role(sim: BundleSimulator) -> None:
    sim.signers = sim.keys.build


def wrong_type(sim: BundleSimulator) -> None:
    sim.edit_statement = lambda document: document.update(_type="https://in-toto.io/Statement/v0.1")


def as_it_is(sim: BundleSimulator) -> None:
    pass


def tampered(path: Path) -> None:
    data = path.read_bytes()
    path.write_bytes(flip_byte(data, data.index(b"\x7fELF") + 100))


def cut_short(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def missing(path: Path) -> None:
    path.unlink()


def link(path: Path) -> None:
    kept = path.with_suffix(".kept")
    path.rename(kept)
    path.symlink_to(kept)


def untouched(path: Path) -> None:
    pass


CASES: dict[str, tuple[Edit, Callable[[Path], None]]] = {
    "no-valid-signature": (unsigned, untouched),
    "threshold-not-met": (one_role, untouched),
    "target-mismatch": (stated(hal_version=7), untouched),
    "expired": (stated(expires_unix_s=NOW_UNIX_S - 100_000), untouched),
    "bad-statement": (wrong_type, untouched),
    "digest-mismatch": (as_it_is, tampered),
    "bad-container": (as_it_is, cut_short),
    "unreadable-file": (as_it_is, missing),
    "unsafe-file": (as_it_is, link),
}


@pytest.mark.parametrize("code", CASES)
def test_a_refusal_has_the_same_words_everywhere(
    tmp_path: Path, maker: BundleMaker, capsys: pytest.CaptureFixture[str], code: str
) -> None:
    edit, spoil = CASES[code]
    bad = maker.write(NEW, "bad.fenced", edit=edit)
    spoil(bad)
    with DaemonThread(tmp_path, [maker.write(OLD)], maker) as daemon, daemon.control() as control:
        with pytest.raises(Refused) as refused:
            control.activate(bad)
        assert cli.main(["activate", str(bad), "--sockets", str(daemon.sockets), "--json"]) == 3
        activated = capsys.readouterr()
        assert cli.main(["verify", str(bad), "--root", str(maker.root_path), "--json"]) == 3
    printed = capsys.readouterr()
    told = json.loads(printed.out)["refused"]
    assert told["code"] == code
    words = {key: told[key] for key in ("code", "what", "expected", "found", "todo")}

    answer = refused.value
    assert answer.code is RefusalCode.MODEL_REFUSED
    assert answer.what == f"{code}: {words['what']}"
    assert (answer.expected, answer.found, answer.action) == (words["expected"], words["found"], words["todo"])

    entry = json.loads((tmp_path / "state" / "audit.jsonl").read_text().splitlines()[-2])  # then: the daemon stopped
    assert entry["event"] == "bundle.refused"
    assert {key: entry[key] for key in words} == words

    sentence = f"{code}: {words['what']}: expected {words['expected']}, found {words['found']}. {words['todo']}"
    assert printed.err == activated.err == f"fenced: refused: {sentence}\n"
    assert json.loads(activated.out)["refused"] == words
    assert f"bundle refused: {sentence}" in daemon.log.lines


def test_what_is_no_model_is_refused_by_its_own_code(
    tmp_path: Path, maker: BundleMaker, capsys: pytest.CaptureFixture[str]
) -> None:
    with DaemonThread(tmp_path, [maker.write(OLD)], maker) as daemon:
        assert cli.main(["rollback", "--sockets", str(daemon.sockets), "--json"]) == 3
    printed = capsys.readouterr()
    assert printed.err.startswith("fenced: refused: not-ready: model: expected ")
    assert json.loads(printed.out)["refused"].keys() == {"code", "what", "expected", "found", "todo"}


def test_a_broken_audit_log_has_a_code_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "audit.jsonl").write_text("no entry\n")
    assert cli.main(["audit", "verify", str(tmp_path / "audit.jsonl"), "--json"]) == 3
    printed = capsys.readouterr()
    assert printed.err.startswith("fenced: refused: audit-broken: line 1: ")
    assert json.loads(printed.out)["refused"]["code"] == "audit-broken"


def test_every_code_of_the_daemon_stands_in_an_enum() -> None:
    root = Path(__file__).parents[2]
    places, told = {"ModelRefused": 1, "_fail": 0}, {}
    for path in sorted((root / "daemon").glob("*.py")):
        for call in ast.walk(ast.parse(path.read_text())):
            if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id in places:
                told[f"{path.name}:{call.lineno}"] = ast.unparse(call.args[places[call.func.id]])
    assert len(told) > 12
    assert {place: code for place, code in told.items() if code.startswith(("'", '"'))} == {}
