"""The signing commands, from keys to a bundle that the vehicle takes, as a person types them."""

from __future__ import annotations

import argparse
import time
from dataclasses import replace
from pathlib import Path

import pytest

from lab.refusal import LabRefused
from lab.sign import cli
from lab.sign.keyfile import load_public
from lab.sign.pack import describe_blob, write_bundle
from lab.sign.sign import bundle_digest
from signing.refusal import RefusalCode, Refused
from signing.trust import TrustStore
from tests.simulators import BundleSimulator

ROLES = ("root", "build", "release")


def run(*words: object) -> int:
    """Run one command; returns its exit code, or raises as it does."""
    parser = argparse.ArgumentParser()
    cli.add_commands(parser.add_subparsers(required=True))
    arguments = parser.parse_args([str(word) for word in words])
    arguments.json = False
    code: int = arguments.command(arguments)
    return code


@pytest.fixture
def keys(tmp_path: Path) -> dict[str, Path]:
    """Ed25519 keys for the three roles, locked with a passphrase that stands in a file."""
    (tmp_path / "secret").write_text("correct horse\n")
    paths = {role: tmp_path / role for role in ROLES}
    for path in paths.values():
        assert run("keygen", path, "--passphrase-file", tmp_path / "secret") == 0
    return paths


@pytest.fixture
def root(tmp_path: Path, keys: dict[str, Path]) -> Path:
    path = tmp_path / "1.json"
    holders = [word for role in ROLES for word in (f"--{role}", f"{keys[role]}.pub")]
    secret = ("--passphrase-file", tmp_path / "secret")
    assert run("root", "init", "-o", path, "--sign-with", keys["root"], *holders, *secret) == 0
    return path


@pytest.fixture
def sim(tmp_path: Path) -> BundleSimulator:
    """A simulator with an unsigned bundle in place."""
    simulator = BundleSimulator(tmp_path)
    blobs = tuple(describe_blob(name, data) for name, data in simulator.blobs.items())
    write_bundle(simulator.path, replace(simulator.statement, blobs=blobs), simulator.blobs)
    return simulator


def test_bundle_signed_in_two_places_is_taken_by_the_vehicle(
    tmp_path: Path, keys: dict[str, Path], root: Path, sim: BundleSimulator
) -> None:
    secret = ("--passphrase-file", tmp_path / "secret")
    assert run("sign", sim.path, "--key", keys["build"], "--role", "build", "--root", root, *secret) == 0
    envelope, signature = tmp_path / "lane.envelope", tmp_path / "lane.sig"
    assert run("envelope", sim.path, "-o", envelope) == 0
    words = ("sign", envelope, "--key", keys["release"], "--role", "release", "--root", root)
    assert run(*words, "--detached", signature, *secret) == 0
    assert run("attach", sim.path, signature) == 0
    assert sim.verify_file(TrustStore.bootstrap(root.read_bytes()), now_unix_s=0)


def test_bundle_with_an_end_is_taken_until_then_and_the_end_is_stated_before_the_first_signature(
    tmp_path: Path, keys: dict[str, Path], root: Path, sim: BundleSimulator, capsys: pytest.CaptureFixture[str]
) -> None:
    secret = ("--passphrase-file", tmp_path / "secret")
    assert run("expire", sim.path, "--days", 30) == 0
    assert capsys.readouterr().out.startswith(f"{sim.path}: not to be activated from 20")
    for role in ("build", "release"):
        assert run("sign", sim.path, "--key", keys[role], "--role", role, *secret) == 0
    trusted, now_unix_s = TrustStore.bootstrap(root.read_bytes()), int(time.time())
    assert sim.verify_file(trusted, now_unix_s=now_unix_s + 30 * 86_400 - 60)
    with pytest.raises(Refused) as refused:
        sim.verify_file(trusted, now_unix_s=now_unix_s + 30 * 86_400 + 60)
    assert refused.value.code is RefusalCode.EXPIRED
    with pytest.raises(LabRefused, match="say when it expires before the first signature"):
        run("expire", sim.path, "--days", 1)


def test_key_whose_time_is_over_signs_nothing_new(tmp_path: Path, keys: dict[str, Path], sim: BundleSimulator) -> None:
    secret, root = ("--passphrase-file", tmp_path / "secret"), tmp_path / "1.json"
    holders = [word for role in ROLES for word in (f"--{role}", f"{keys[role]}.pub")]
    made = ("--sign-with", keys["root"], *holders, "--release-valid-days", 7, *secret)
    assert run("root", "init", "-o", root, *made) == 0
    for role in ("build", "release"):
        assert run("sign", sim.path, "--key", keys[role], "--role", role, *secret) == 0
    trusted, now_unix_s = TrustStore.bootstrap(root.read_bytes()), int(time.time())
    assert sim.verify_file(trusted, now_unix_s=now_unix_s + 7 * 86_400 - 60)
    with pytest.raises(Refused, match=r"role release: .* valid until") as refused:
        sim.verify_file(trusted, now_unix_s=now_unix_s + 7 * 86_400 + 60)
    assert refused.value.code is RefusalCode.EXPIRED
    with pytest.raises(LabRefused, match="--build-valid-days: expected the keys of --build"):
        run("root", "rotate", root, "-o", tmp_path / "2.json", "--build-valid-days", 7)


def test_key_that_the_root_does_not_know_in_the_role_is_refused(
    tmp_path: Path, keys: dict[str, Path], root: Path, sim: BundleSimulator
) -> None:
    words = ("--role", "release", "--root", root, "--passphrase-file", tmp_path / "secret")
    with pytest.raises(Refused) as refused:
        run("sign", sim.path, "--key", keys["build"], *words)
    assert refused.value.code is RefusalCode.THRESHOLD_NOT_MET


def test_roots_follow_one_another(tmp_path: Path, keys: dict[str, Path], root: Path) -> None:
    secret = ("--passphrase-file", tmp_path / "secret")
    fresh = tmp_path / "build 2"
    run("keygen", fresh, "--algorithm", "ml-dsa-65")
    sign = ("--sign-with", keys["root"], *secret)
    assert run("root", "rotate", root, "-o", tmp_path / "2.json", "--build", f"{fresh}.pub", *sign) == 0
    changes = ("--bundle", "a" * 64, "--minimum-release", "lane=5", "--reset-floor", "lane", "--key-id", "b" * 64)
    days = ("--expires-days", "30")
    assert run("root", "revoke", tmp_path / "2.json", "-o", tmp_path / "3.json", *changes, *days) == 0
    trusted = TrustStore.bootstrap(root.read_bytes()).accept_root((tmp_path / "2.json").read_bytes())
    with pytest.raises(Refused):
        trusted.accept_root((tmp_path / "3.json").read_bytes())
    assert run("root", "sign", tmp_path / "3.json", "--key", keys["root"], *secret) == 0
    last = trusted.accept_root((tmp_path / "3.json").read_bytes()).root
    assert (last.version, last.minimum_releases, last.reset_floors) == (3, {"lane": 5}, ("lane",))
    assert (last.revoked_bundles, last.revoked_keys) == ({"a" * 64}, {"b" * 64})
    assert last.expires_unix_s == last.issued_unix_s + 30 * 86_400
    assert [one.value for one in last.roles["build"].algorithms] == ["ml-dsa-65"]


def test_first_root_is_not_signed_by_somebody_else(tmp_path: Path, keys: dict[str, Path]) -> None:
    holders = [word for role in ROLES for word in (f"--{role}", f"{keys[role]}.pub")]
    secret = ("--passphrase-file", tmp_path / "secret")
    with pytest.raises(Refused, match="a key that --root names") as refused:
        run("root", "init", "-o", tmp_path / "1.json", "--sign-with", keys["build"], *holders, *secret)
    assert refused.value.code is RefusalCode.THRESHOLD_NOT_MET
    assert not (tmp_path / "1.json").exists()


def test_root_that_has_expired_when_it_is_made_is_refused(tmp_path: Path, root: Path) -> None:
    with pytest.raises(SystemExit, match="2"):
        run("root", "revoke", root, "-o", tmp_path / "2.json", "--expires-days", "-5")


@pytest.mark.parametrize("pair", ["lane", "lane=", "lane=x", "lane=-1"])
def test_minimum_release_must_be_a_number(tmp_path: Path, root: Path, pair: str) -> None:
    with pytest.raises(LabRefused, match="--minimum-release: expected MODEL=N"):
        run("root", "revoke", root, "-o", tmp_path / "2.json", "--minimum-release", pair)


def test_two_algorithms_in_one_role_are_required_and_signed_from_the_command_line(
    tmp_path: Path, keys: dict[str, Path], root: Path, sim: BundleSimulator
) -> None:
    secret = ("--passphrase-file", tmp_path / "secret")
    assert run("keygen", tmp_path / "quantum", "--algorithm", "ml-dsa-65", *secret) == 0
    holders = ("--release", f"{keys['release']}.pub", "--release", tmp_path / "quantum.pub")
    assert run("root", "rotate", root, "-o", tmp_path / "2.json", *holders, "--sign-with", keys["root"], *secret) == 0
    under = ("--root", tmp_path / "2.json")
    assert run("require", sim.path, "--role", "release", "--algorithm", "ed25519", "--algorithm", "ml-dsa-65") == 0
    assert run("sign", sim.path, "--key", keys["build"], "--role", "build", *under, *secret) == 0
    assert run("envelope", sim.path, "-o", tmp_path / "envelope") == 0
    for key in (keys["release"], tmp_path / "quantum"):
        detached = ("--detached", tmp_path / "sig", *under, *secret)
        assert run("sign", tmp_path / "envelope", "--key", key, "--role", "release", *detached) == 0
        assert run("attach", sim.path, tmp_path / "sig", *under) == 0
    trusted = TrustStore.bootstrap((tmp_path / "2.json").read_bytes())
    assert [one.value for one in sim.verify_file(trusted).statement.required_algorithms.release] == [
        "ed25519", "ml-dsa-65",
    ]  # fmt: skip


def test_what_is_revoked_can_be_named_by_its_file_and_is_told(
    tmp_path: Path, keys: dict[str, Path], root: Path, sim: BundleSimulator, capsys: pytest.CaptureFixture[str]
) -> None:
    secret = ("--passphrase-file", tmp_path / "secret")
    run("keygen", tmp_path / "build 2", *secret)
    changes = ("--key-id", f"{keys['build']}.pub", "--key-id", "0" * 64, "--bundle", sim.path)
    new = ("--build", f"{tmp_path / 'build 2'}.pub", "--sign-with", keys["root"], *secret)
    capsys.readouterr()
    assert run("root", "revoke", root, "-o", tmp_path / "2.json", *changes, *new) == 0
    said, revoked = capsys.readouterr().out, load_public(f"{keys['build']}.pub").keyid
    assert f"revoked key {revoked}, of the role build" in said
    assert f"revoked key {'0' * 64}, in no role of version 1" in said
    assert f"revoked bundle {bundle_digest(sim.path)}" in said
    assert run("root", "show", tmp_path / "2.json", "--after", root) == 0
    shown = capsys.readouterr().out
    assert f"{revoked} leaves  build" in shown
    assert "accepted  yes, after the root before it" in shown
    after = TrustStore.bootstrap(root.read_bytes()).accept_root((tmp_path / "2.json").read_bytes()).root
    assert after.revoked_bundles == {bundle_digest(sim.path)}
