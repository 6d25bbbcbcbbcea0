"""Making roots: the first, rotations and revocations, signed in several places."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from lab.sign.root import RolePlan, read_root, role_plan, root_init, root_revoke, root_rotate, sign_root
from lab.sign.root_show import describe_root
from signing import envelope
from signing.keys import Algorithm
from signing.refusal import RefusalCode, Refused
from signing.root import RootKey
from signing.trust import TrustStore
from tests.simulators import HYBRID, NOW_UNIX_S, RoleKeys, make_signer

KEYS = RoleKeys.make()
FRESH = RoleKeys.make(generation=2)


def plans(keys: RoleKeys = KEYS) -> dict[str, RolePlan]:
    return {name: role_plan(one.key for one in getattr(keys, name)) for name in ("root", "build", "release")}


@pytest.fixture
def first(tmp_path: Path) -> Path:
    root_init(tmp_path / "1.json", plans(), KEYS.root, issued_unix_s=NOW_UNIX_S, minimum_releases={"lane": 2})
    return tmp_path / "1.json"


def test_first_root_is_trusted(first: Path) -> None:
    trusted = TrustStore.bootstrap(first.read_bytes())
    assert trusted.root == read_root(first)
    assert (trusted.root.version, trusted.root.issued_unix_s, trusted.root.expires_unix_s) == (1, NOW_UNIX_S, None)
    assert trusted.root.minimum_releases == {"lane": 2}
    assert first.stat().st_mode & 0o7777 == 0o644


def test_plan_requires_every_algorithm_of_its_keys() -> None:
    both = role_plan([make_signer("x", kind).key for kind in HYBRID], threshold=1)
    assert both.algorithms == HYBRID
    assert role_plan([make_signer("x", Algorithm.ML_DSA_65).key]).algorithms == (Algorithm.ML_DSA_65,)


def test_root_that_contradicts_itself_is_not_written(tmp_path: Path) -> None:
    bad = {**plans(), "build": replace(plans()["build"], threshold=2)}
    with pytest.raises(Refused) as refused:
        root_init(tmp_path / "1.json", bad, KEYS.root, issued_unix_s=NOW_UNIX_S)
    assert refused.value.code is RefusalCode.BAD_ROOT
    assert not list(tmp_path.iterdir())


def test_threshold_is_met_by_holders_on_their_own_machines(tmp_path: Path) -> None:
    holders = [make_signer(f"holder {i}") for i in range(3)]
    path = tmp_path / "1.json"
    two_of_three = {**plans(), "root": role_plan((one.key for one in holders), threshold=2)}
    root_init(path, two_of_three, holders[:1], issued_unix_s=NOW_UNIX_S)
    with pytest.raises(Refused):
        TrustStore.bootstrap(path.read_bytes())
    sign_root(path, holders[2])
    sign_root(path, holders[2])
    assert TrustStore.bootstrap(path.read_bytes())


def test_rotation_is_accepted_with_old_and_new_signatures(first: Path, tmp_path: Path) -> None:
    path = tmp_path / "2.json"
    new = root_rotate(first, path, plans(FRESH), KEYS.root, issued_unix_s=NOW_UNIX_S + 1, expires_unix_s=NOW_UNIX_S + 2)
    trusted = TrustStore.bootstrap(first.read_bytes())
    with pytest.raises(Refused):
        trusted.accept_root(path.read_bytes())
    sign_root(path, FRESH.root[0])
    assert trusted.accept_root(path.read_bytes()).root == new
    assert set(new.keys) == {one.key.keyid for name in ("root", "build", "release") for one in getattr(FRESH, name)}
    assert (new.issued_unix_s, new.expires_unix_s) == (NOW_UNIX_S + 1, NOW_UNIX_S + 2)
    assert new.minimum_releases == {"lane": 2}


def test_rotation_of_one_role_keeps_the_others(first: Path, tmp_path: Path) -> None:
    build = {"build": plans(FRESH)["build"]}
    new = root_rotate(first, tmp_path / "2.json", build, KEYS.root, issued_unix_s=NOW_UNIX_S)
    old = read_root(first)
    assert new.roles["release"] == old.roles["release"]
    assert new.roles["build"].keyids == (FRESH.build[0].key.keyid,)
    assert KEYS.build[0].key.keyid not in new.keys


def test_windows_of_keys_are_kept(tmp_path: Path) -> None:
    key = RootKey(KEYS.build[0].key, NOW_UNIX_S, NOW_UNIX_S + 9)
    root_init(tmp_path / "1.json", {**plans(), "build": RolePlan((key,))}, KEYS.root, issued_unix_s=NOW_UNIX_S)
    assert read_root(tmp_path / "1.json").keys[key.key.keyid] == key


def test_revoking_a_key_takes_it_out_of_its_role(tmp_path: Path) -> None:
    second = make_signer("second builder")
    both = {**plans(), "build": role_plan([KEYS.build[0].key, second.key])}
    root_init(tmp_path / "1.json", both, KEYS.root, issued_unix_s=NOW_UNIX_S)
    keyid = KEYS.build[0].key.keyid
    new = root_revoke(tmp_path / "1.json", tmp_path / "2.json", KEYS.root, issued_unix_s=NOW_UNIX_S, keyids=[keyid])
    assert new.roles["build"].keyids == (second.key.keyid,)
    assert new.revoked_keys == {keyid}
    assert keyid not in new.keys
    trusted = TrustStore.bootstrap((tmp_path / "1.json").read_bytes())
    assert trusted.accept_root((tmp_path / "2.json").read_bytes()).root == new


def test_revoking_the_last_key_of_a_role_needs_a_new_one(first: Path, tmp_path: Path) -> None:
    keyid = KEYS.build[0].key.keyid
    with pytest.raises(Refused) as refused:
        root_revoke(first, tmp_path / "2.json", KEYS.root, issued_unix_s=NOW_UNIX_S, keyids=[keyid])
    assert refused.value.code is RefusalCode.BAD_ROOT
    new = root_revoke(
        first,
        tmp_path / "2.json",
        KEYS.root,
        issued_unix_s=NOW_UNIX_S,
        keyids=[keyid],
        plans={"build": plans(FRESH)["build"]},
    )
    assert new.roles["build"].keyids == (FRESH.build[0].key.keyid,)


def test_revocations_add_up_and_resets_do_not(first: Path, tmp_path: Path) -> None:
    one = root_revoke(
        first,
        tmp_path / "2.json",
        KEYS.root,
        issued_unix_s=NOW_UNIX_S,
        expires_unix_s=NOW_UNIX_S + 5,
        bundle_digests=["a" * 64],
        minimum_releases={"sign": 7},
        reset_floors=["lane"],
    )
    assert (one.version, one.reset_floors, one.expires_unix_s) == (2, ("lane",), NOW_UNIX_S + 5)
    two = root_revoke(
        tmp_path / "2.json", tmp_path / "3.json", KEYS.root, issued_unix_s=NOW_UNIX_S, bundle_digests=["b" * 64]
    )
    assert two.revoked_bundles == {"a" * 64, "b" * 64}
    assert two.minimum_releases == {"lane": 2, "sign": 7}
    assert two.reset_floors == ()
    three = root_rotate(tmp_path / "2.json", tmp_path / "4.json", {}, KEYS.root, issued_unix_s=NOW_UNIX_S)
    assert (three.reset_floors, three.revoked_bundles) == ((), {"a" * 64})
    trusted = TrustStore.bootstrap(first.read_bytes())
    assert trusted.follow([(tmp_path / f"{n}.json").read_bytes() for n in (2, 3)]).root == two


def test_signature_that_could_not_count_is_not_made(first: Path, tmp_path: Path) -> None:
    path, old, new = tmp_path / "2.json", KEYS.root[0], FRESH.root[0]
    for stranger in (KEYS.build[0], new):
        with pytest.raises(Refused, match="a key of the role root in version 1") as refused:
            root_revoke(first, path, [stranger], issued_unix_s=NOW_UNIX_S)
        assert refused.value.code is RefusalCode.THRESHOLD_NOT_MET
    assert not path.exists()
    root_rotate(first, path, {"root": plans(FRESH)["root"]}, [new], issued_unix_s=NOW_UNIX_S)
    before = path.read_bytes()
    with pytest.raises(Refused, match="--after"):
        sign_root(path, old)
    assert path.read_bytes() == before
    sign_root(path, old, read_root(first))
    assert TrustStore.bootstrap(first.read_bytes()).accept_root(path.read_bytes())


def test_root_is_shown_with_what_it_changes_and_which_signature_is_missing(first: Path, tmp_path: Path) -> None:
    assert describe_root(first)["accepted"] == "yes, as a vehicle's first root"
    path, old, new = tmp_path / "2.json", KEYS.root[0].key.keyid, FRESH.root[0].key.keyid
    root_rotate(first, path, {"root": plans(FRESH)["root"]}, KEYS.root, issued_unix_s=NOW_UNIX_S)
    shown = describe_root(path, first)
    assert shown["signatures"] == [{"keyid": old, "judged": "valid, for the root before"}]
    assert shown["changes"] == {"version": "1 -> 2", f"{old} leaves": "root", f"{new} joins": "root"}
    assert str(shown["accepted"]).startswith("no: ")
    assert describe_root(path)["signatures"] == [{"keyid": old, "judged": "no key of the role root in this root"}]
    sign_root(path, FRESH.root[0])
    assert describe_root(path, first)["accepted"] == "yes, after the root before it"


def test_signature_over_another_root_is_shown_as_wrong(first: Path, tmp_path: Path) -> None:
    root_revoke(first, tmp_path / "2.json", [], issued_unix_s=NOW_UNIX_S, minimum_releases={"lane": 3})
    signed = envelope.parse(first.read_bytes(), payload_type=envelope.ROOT_PAYLOAD_TYPE)
    parsed = envelope.parse((tmp_path / "2.json").read_bytes(), payload_type=envelope.ROOT_PAYLOAD_TYPE)
    (tmp_path / "3.json").write_bytes(replace(parsed, signatures=signed.signatures).encode())
    (judged,) = describe_root(tmp_path / "3.json", first)["signatures"]  # type: ignore[misc]
    assert judged["judged"] == "refused: bad-signature"
