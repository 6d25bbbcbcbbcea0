"""`fenced-lab inspect`: what a bundle states and holds, who signed it, and how two bundles differ."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lab import cli
from lab.sign.inspect import Difference, describe, difference
from tests.simulators import BundleSimulator, RoleKeys, flip_byte, make_root, sign_root


@pytest.fixture
def root(sim: BundleSimulator, tmp_path: Path) -> Path:
    path = tmp_path / "root.json"
    path.write_bytes(sign_root(sim.root, sim.keys.root))
    path.chmod(0o644)
    return path


def other(sim: BundleSimulator) -> Path:
    """A second bundle from the simulator as it now stands."""
    first, sim.path = sim.path, sim.path.with_name("other.fenced")
    written = sim.write()
    sim.path = first
    return written


def printed(capsys: pytest.CaptureFixture[str], *words: object) -> str:
    assert cli.main([str(word) for word in words]) == 0
    return capsys.readouterr().out


def test_the_description_is_the_statement_with_blobs_and_attachments(
    sim: BundleSimulator, capsys: pytest.CaptureFixture[str]
) -> None:
    tree: Any = json.loads(printed(capsys, "--json", "inspect", sim.path))
    assert tree == json.loads(json.dumps(describe(sim.path)))
    assert tree["digest"] == hashlib.sha256(sim.payload()).hexdigest()
    assert tree["size_bytes"] == sim.path.stat().st_size
    assert (tree["model"]["name"], tree["model"]["release"], tree["expires"]) == ("lane", 5, None)
    assert tree["target"]["cpu_features"] == ["avx2", "fma"]
    for blob in tree["blobs"]:
        data = sim.blobs[blob["name"]]
        assert (blob["size_bytes"], blob["sha256"]) == (len(data), hashlib.sha256(data).hexdigest())
    assert [blob["name"] for blob in tree["blobs"] if "attachment" in blob] == ["sbom.json"]


def test_a_person_reads_every_part(sim: BundleSimulator, capsys: pytest.CaptureFixture[str]) -> None:
    text = printed(capsys, "inspect", sim.path)
    for part in ("lane", "avx2, fma", "sbom.json", "application/vnd.cyclonedx+json", sim.keys.build[0].key.keyid):
        assert part in text


def test_each_signature_is_judged_by_the_root(
    sim: BundleSimulator, root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stranger = RoleKeys.make(generation=7).build[0]
    sim.signers = (*sim.keys.build, *sim.keys.release, stranger)
    sim.write()
    tree = json.loads(printed(capsys, "--json", "inspect", sim.path, "--root", root))
    assert [(one.get("roles"), one["judged"]) for one in tree["signatures"]] == [
        (["build"], "valid, ed25519"), (["release"], "valid, ed25519"), (None, "no key of the root"),
    ]  # fmt: skip


def test_a_revoked_and_a_wrong_signature_are_named(sim: BundleSimulator, tmp_path: Path) -> None:
    build = sim.keys.build[0].key.keyid
    fresh = make_root(RoleKeys.make(generation=2), revoked_keys=frozenset({build}))
    known = [one["judged"] for one in describe(sim.path, fresh)["signatures"]]  # type: ignore[attr-defined]
    assert known == ["revoked key", "no key of the root"]
    signed = sim.envelope()
    wrong = replace(signed.signatures[0], signature=flip_byte(signed.signatures[0].signature, 3))
    sim.write(sim.file_bytes(replace(signed, signatures=(wrong, signed.signatures[1])).encode()))
    found = [one["judged"] for one in describe(sim.path, sim.root)["signatures"]]  # type: ignore[attr-defined]
    assert found == ["refused: bad-signature", "valid, ed25519"]


def test_equal_bundles_have_no_difference(sim: BundleSimulator, capsys: pytest.CaptureFixture[str]) -> None:
    same = other(sim)
    assert difference(sim.path, same) == []
    assert "the same" in printed(capsys, "inspect", sim.path, "--diff", same)
    assert json.loads(printed(capsys, "--json", "inspect", sim.path, "--diff", same)) == {
        "equal": True, "differences": [],
    }  # fmt: skip


def test_a_difference_is_named_by_field_and_blob(sim: BundleSimulator, capsys: pytest.CaptureFixture[str]) -> None:
    before = hashlib.sha256(sim.blobs["weights"]).hexdigest()
    sim.statement = replace(sim.statement, model=replace(sim.statement.model, release=6))
    sim.blobs["weights"] = flip_byte(sim.blobs["weights"], 0)
    sim.blobs["sbom.json"] = b'{"components": [{"name": "zig", "version": "1"}]}'
    sim.signers = sim.keys.build
    newer = other(sim)
    found = {one.field: (one.first, one.second) for one in difference(sim.path, newer)}
    assert found["model.release"] == (5, 6)
    assert found["blobs[weights].sha256"] == (before, hashlib.sha256(sim.blobs["weights"]).hexdigest())
    assert found["sbom.json:components[zig].version"] == (None, "1")
    release = sim.keys.release[0].key.keyid
    assert found[f"signatures[{release}].keyid"] == (release, None)
    assert not any(field.startswith(("target", "compiler", "blobs[code]")) for field in found)
    text = printed(capsys, "inspect", sim.path, "--diff", newer)
    assert "model.release\n  - 5\n  + 6\n" in text
    answer = json.loads(printed(capsys, "--json", "inspect", sim.path, "--diff", newer))
    assert answer["equal"] is False
    assert {"field": "model.release", "first": 5, "second": 6} in answer["differences"]


def test_a_json_attachment_that_is_not_json_differs_by_its_digest(sim: BundleSimulator) -> None:
    sim.blobs["sbom.json"] = b"[" * 100_000
    assert Difference("blobs[sbom.json].size_bytes", 2, 100_000) in difference(sim.path, other(sim))


def test_an_attachment_is_printed_as_it_is(sim: BundleSimulator, capsysbinary: pytest.CaptureFixture[bytes]) -> None:
    assert cli.main(["inspect", str(sim.path), "--attachment", "sbom.json"]) == 0
    assert capsysbinary.readouterr().out == sim.blobs["sbom.json"]


@pytest.mark.parametrize("name", ["weights", "none"])
def test_what_is_no_attachment_is_refused(sim: BundleSimulator, capsys: pytest.CaptureFixture[str], name: str) -> None:
    assert cli.main(["inspect", str(sim.path), "--attachment", name]) == 3
    assert "unknown-blob" in capsys.readouterr().err


def test_a_tampered_bundle_is_refused(sim: BundleSimulator, capsys: pytest.CaptureFixture[str]) -> None:
    data = sim.path.read_bytes()
    sim.write(flip_byte(data, data.index(b"\x7fELF") + 9))
    assert cli.main(["inspect", str(sim.path)]) == 3
    assert "digest-mismatch" in capsys.readouterr().err
