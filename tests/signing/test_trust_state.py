"""What a vehicle remembers and follows: rollback floors, and roots that follow one another, with what they revoke."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from signing.bundle import VerifiedBundle
from signing.envelope import ROOT_PAYLOAD_TYPE
from signing.refusal import RefusalCode, Refused
from signing.root import Root
from signing.state import Floor
from signing.trust import TrustStore
from tests.simulators import (
    BundleSimulator,
    RoleKeys,
    make_root,
    refusal,
    sign_payload,
    sign_root,
)

ONE = "1 by distinct keys"
BUILD_ED25519 = "ed25519 signatures of the role build"


@pytest.fixture
def sim(tmp_path: Path) -> BundleSimulator:
    return BundleSimulator(tmp_path)


# Rollback


def at_release(sim: BundleSimulator, release: int, version: str = "1.0.0") -> VerifiedBundle:
    sim.statement = replace(sim.statement, model=replace(sim.statement.model, release=release, version=version))
    return sim.verify()


def test_older_release_is_refused_after_a_newer_was_confirmed(sim: BundleSimulator) -> None:  # case 12
    trusted = sim.fresh_trust().confirm(at_release(sim, 5))
    assert sim.verify(trusted).digest == trusted.state.floors["lane"].digest
    at_release(sim, 4)
    with refusal(RefusalCode.ROLLBACK, "release of lane", "at least the confirmed 5", "4"):
        sim.verify_file(trusted)
    at_release(sim, 6)
    assert sim.verify_file(trusted)


def test_same_release_with_other_content_is_refused(sim: BundleSimulator) -> None:  # case 12
    confirmed = at_release(sim, 5)
    trusted = sim.fresh_trust().confirm(confirmed)
    other = at_release(sim, 5, version="1.0.1")
    expected = f"the confirmed content {confirmed.digest} of release 5"
    with refusal(RefusalCode.ROLLBACK, "release of lane", expected, f"other content {other.digest}"):
        sim.verify_file(trusted)


def test_floors_of_other_models_do_not_matter(sim: BundleSimulator) -> None:
    trusted = sim.fresh_trust().confirm(at_release(sim, 5))
    sim.statement = replace(sim.statement, model=replace(sim.statement.model, name="sign", release=0))
    assert sim.verify(trusted)
    both = trusted.confirm(sim.verify(trusted))
    assert {name: floor.release for name, floor in both.state.floors.items()} == {"lane": 5, "sign": 0}


def test_minimum_of_the_root_is_held(sim: BundleSimulator) -> None:
    sim.root = replace(sim.root, minimum_releases={"lane": 6, "sign": 99})
    with refusal(RefusalCode.ROLLBACK, "release of lane", "at least the root's minimum 6", "5"):
        sim.verify()
    assert at_release(sim, 6)


def test_floor_is_never_lowered_by_confirming(sim: BundleSimulator) -> None:
    older, newer = at_release(sim, 5), at_release(sim, 6)
    other = at_release(sim, 6, version="9.9.9")
    trusted = sim.fresh_trust().confirm(newer)
    assert trusted.confirm(newer) == trusted
    for late in (older, other):
        with pytest.raises(
            RuntimeError, match=f"lane: release {late.statement.model.release} cannot be confirmed over 6"
        ):
            trusted.confirm(late)
    assert trusted.confirm(at_release(sim, 7)).state.floors["lane"].release == 7


def test_confirming_returns_a_new_store_and_keeps_the_rest(sim: BundleSimulator) -> None:
    before = sim.fresh_trust()
    after = before.confirm(sim.verify())
    assert before.state.floors == {}
    assert (after.root, after.state.trust_epoch) == (before.root, 1)
    assert after.state.root_envelope == before.state.root_envelope


# Roots


def next_root(sim: BundleSimulator, **changes: Any) -> Root:
    return replace(sim.root, version=sim.root.version + 1, **changes)


def test_next_root_is_accepted_and_raises_the_epoch(sim: BundleSimulator) -> None:
    trusted = sim.fresh_trust().confirm(sim.verify())
    envelope = sign_root(next_root(sim), sim.keys.root)
    after = trusted.accept_root(envelope)
    assert (after.root.version, after.state.trust_epoch) == (2, 2)
    assert after.state.root_envelope == envelope
    assert after.state.floors == trusted.state.floors
    assert TrustStore.resume(after.state) == after
    assert sim.verify(after).trust_epoch == 2


def test_bundle_verified_before_the_last_root_is_stale(sim: BundleSimulator) -> None:
    bundle = sim.verify()
    trusted = sim.fresh_trust()
    trusted.require_fresh(bundle)
    after = trusted.accept_root(sign_root(next_root(sim), sim.keys.root))
    with refusal(RefusalCode.STALE_TRUST, "bundle", "verification under trust epoch 2", "epoch 1"):
        after.require_fresh(bundle)
    after.require_fresh(sim.verify(after))


def test_bundle_verified_before_a_newer_release_was_confirmed_is_a_rollback(sim: BundleSimulator) -> None:
    older = sim.verify()
    sim.statement = replace(sim.statement, model=replace(sim.statement.model, release=6))
    newer = sim.verify()
    confirmed = sim.fresh_trust().confirm(newer)
    confirmed.require_fresh(newer)
    with refusal(RefusalCode.ROLLBACK, "release of lane", "at least the confirmed 6", "5"):
        confirmed.require_fresh(older)


@pytest.mark.parametrize("version", [1, 3, 5])
def test_root_must_be_the_next_version(sim: BundleSimulator, version: int) -> None:  # case 16
    envelope = sign_root(replace(sim.root, version=version), sim.keys.root)
    with refusal(RefusalCode.ROOT_CHAIN_BROKEN, "root after version 1", "version 2", str(version)):
        sim.fresh_trust().accept_root(envelope)


def rotated(sim: BundleSimulator) -> tuple[Root, RoleKeys]:
    fresh = RoleKeys.make(generation=2)
    return make_root(fresh, version=sim.root.version + 1), fresh


def test_rotation_needs_old_and_new_thresholds(sim: BundleSimulator) -> None:  # case 16
    root, fresh = rotated(sim)
    trusted = sim.fresh_trust()
    after = trusted.accept_root(sign_root(root, (*sim.keys.root, *fresh.root)))
    assert after.root == root
    expected = "signatures by the threshold of version 1"
    found = "1 signatures, none by a key of root version 1"
    with refusal(RefusalCode.ROOT_CHAIN_BROKEN, "root after version 1", expected, found):
        trusted.accept_root(sign_root(root, fresh.root))
    what = "ed25519 signatures of the role root"
    with refusal(RefusalCode.NO_VALID_SIGNATURE, what, ONE, "1 signatures, none by a key of root version 2"):
        trusted.accept_root(sign_root(root, sim.keys.root))
    sim.verify()
    with pytest.raises(Refused):
        sim.verify_file(after)
    sim.signers = (*fresh.build, *fresh.release)
    assert sim.verify(after)


def test_wrong_signature_on_a_root_is_called_that(sim: BundleSimulator) -> None:
    signed = sign_payload(ROOT_PAYLOAD_TYPE, b"{}", sim.keys.root)
    bad = replace(signed.signatures[0], signature=bytes(64))
    with pytest.raises(Refused) as refused:
        sim.fresh_trust().accept_root(replace(signed, signatures=(bad,)).encode())
    assert refused.value.code is RefusalCode.BAD_SIGNATURE


def test_build_key_cannot_sign_a_root(sim: BundleSimulator) -> None:  # case 15
    with refusal(
        RefusalCode.ROOT_CHAIN_BROKEN, "root after version 1", "signatures by the threshold of version 1", "0"
    ):
        sim.fresh_trust().accept_root(sign_root(next_root(sim), sim.keys.build))


def test_first_root_must_meet_its_own_threshold(sim: BundleSimulator) -> None:
    found = "0 signatures, none by a key of root version 1"
    with refusal(RefusalCode.NO_VALID_SIGNATURE, "ed25519 signatures of the role root", ONE, found):
        TrustStore.bootstrap(sign_root(sim.root, ()))


def test_factory_may_provision_a_later_root(sim: BundleSimulator) -> None:
    sim.root = replace(sim.root, version=7)
    assert sim.fresh_trust().state.trust_epoch == 1
    assert sim.fresh_trust().root.version == 7


def test_refused_root_changes_nothing(sim: BundleSimulator) -> None:
    trusted = sim.fresh_trust()
    with pytest.raises(Refused):
        trusted.accept_root(b"{}")
    assert sim.verify(trusted)


def test_following_takes_what_is_newer_in_order(sim: BundleSimulator) -> None:
    one, two, three = (sign_root(replace(sim.root, version=n), sim.keys.root) for n in (1, 2, 3))
    trusted = TrustStore.bootstrap(one)
    assert trusted.follow([]) == trusted
    assert trusted.follow([one]) == trusted
    after = trusted.follow([one, two, three])
    assert (after.root.version, after.state.trust_epoch) == (3, 3)
    assert after.follow([one, two, three]) == after
    with refusal(RefusalCode.ROOT_CHAIN_BROKEN, "root after version 1", "version 2", "3"):
        trusted.follow([one, three])


def test_following_refuses_another_document_of_the_same_version(sim: BundleSimulator) -> None:
    other = sign_root(replace(sim.root, minimum_releases={"lane": 1}), sim.keys.root)
    with refusal(RefusalCode.ROOT_CHAIN_BROKEN, "root version 1", "the document that is trusted", "another one"):
        sim.fresh_trust().follow([other])
    with pytest.raises(Refused) as refused:
        sim.fresh_trust().follow([other])
    assert "that was trusted first" in refused.value.todo


# Revocation


def test_revoked_key_is_refused_by_name(sim: BundleSimulator) -> None:  # case 29
    root, fresh = rotated(sim)
    keyid = sim.keys.build[0].key.keyid
    root = replace(root, revoked_keys=frozenset({keyid}))
    after = sim.fresh_trust().accept_root(sign_root(root, (*sim.keys.root, *fresh.root)))
    sim.verify()
    with refusal(RefusalCode.REVOKED, BUILD_ED25519, ONE, f"one by the revoked key {keyid}"):
        sim.verify_file(after)


def test_revoked_key_beside_a_valid_one_does_no_harm(sim: BundleSimulator) -> None:
    root, fresh = rotated(sim)
    root = replace(root, revoked_keys=frozenset({sim.keys.build[0].key.keyid}))
    after = sim.fresh_trust().accept_root(sign_root(root, (*sim.keys.root, *fresh.root)))
    sim.signers = (*sim.keys.build, *fresh.build, *fresh.release)
    assert sim.verify(after)


def test_revoked_bundle_is_refused(sim: BundleSimulator) -> None:  # case 29
    digest = sim.verify().digest
    root = next_root(sim, revoked_bundles=frozenset({digest}))
    after = sim.fresh_trust().accept_root(sign_root(root, sim.keys.root))
    with refusal(RefusalCode.REVOKED, "bundle", "a bundle that is not revoked", digest):
        sim.verify_file(after)
    at_release(sim, 6)
    assert sim.verify_file(after)


def test_release_raised_too_far_is_recovered_by_a_root(sim: BundleSimulator) -> None:  # case 13
    trusted = sim.fresh_trust().confirm(at_release(sim, 2**63 - 1))
    at_release(sim, 6)
    with pytest.raises(Refused, match="at least the confirmed 9223372036854775807"):
        sim.verify_file(trusted)
    sim.root = next_root(sim, minimum_releases={"lane": 6}, reset_floors=("lane",))
    trusted = trusted.accept_root(sign_root(sim.root, sim.keys.root))
    assert trusted.state.floors == {}
    trusted = trusted.confirm(sim.verify_file(trusted))
    assert trusted.state.floors["lane"].release == 6
    with refusal(RefusalCode.ROLLBACK, "release of lane", "at least the root's minimum 6", "5"):
        at_release(sim, 5)


def test_reset_touches_only_the_named_model(sim: BundleSimulator) -> None:
    trusted = sim.fresh_trust()
    floors = {"lane": Floor(9, "0" * 64), "sign": Floor(8, "1" * 64)}
    trusted = replace(trusted, state=replace(trusted.state, floors=floors))
    root = next_root(sim, minimum_releases={"lane": 1}, reset_floors=("lane",))
    assert trusted.accept_root(sign_root(root, sim.keys.root)).state.floors == {"sign": floors["sign"]}
