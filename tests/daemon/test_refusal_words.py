"""A refusal reads the same wherever it is read: command line, its JSON, audit log, journal and control socket."""

from __future__ import annotations

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
    assert printed.err == f"fenced: refused: {sentence}\n"
    assert f"bundle refused: {sentence}" in daemon.log.lines
