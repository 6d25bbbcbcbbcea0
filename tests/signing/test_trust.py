"""The decision: thresholds, algorithms, what is signed, validity in time, target."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from signing import trust
from signing.envelope import BUNDLE_PAYLOAD_TYPE, ROOT_PAYLOAD_TYPE
from signing.keys import Algorithm
from signing.refusal import RefusalCode, Refused
from signing.root import Role, RootKey
from signing.statement import RequiredAlgorithms
from signing.trust import TrustStore
from tests.simulators import (
    HYBRID,
    NOW_UNIX_S,
    BundleSimulator,
    ManualClock,
    flip_byte,
    make_signer,
    refusal,
    sign_payload,
)

ED25519, ML_DSA = Algorithm.ED25519, Algorithm.ML_DSA_65
BUILD_ED25519 = "ed25519 signatures of the role build"
ONE = "1 by distinct keys"


@pytest.fixture
def sim(tmp_path: Path) -> BundleSimulator:
    return BundleSimulator(tmp_path)


@pytest.fixture
def hybrid(tmp_path: Path) -> BundleSimulator:
    return BundleSimulator(tmp_path, HYBRID)


def signers_of(simulator: BundleSimulator, **parts: tuple[Any, ...]) -> tuple[Any, ...]:
    return (*parts.get("build", simulator.keys.build), *parts.get("release", simulator.keys.release))


# What comes out


def test_verified_bundle_says_what_it_is(sim: BundleSimulator) -> None:
    verified = sim.verify()
    assert verified.digest == hashlib.sha256(sim.payload()).hexdigest()
    assert verified.trust_epoch == 1
    assert verified.statement.model == sim.statement.model
    assert {name: bytes(verified.blob(name)) for name in sim.blobs} == sim.blobs


def test_digest_does_not_depend_on_the_signatures(sim: BundleSimulator) -> None:
    first = sim.verify().digest
    sim.signers = (*sim.signers, make_signer("a further key that this vehicle does not know"))
    assert sim.verify().digest == first


# Signatures and thresholds


def test_unsigned_bundle_is_refused(sim: BundleSimulator) -> None:  # case 1
    sim.signers = ()
    found = "0 signatures, none by a key of root version 1"
    with refusal(RefusalCode.NO_VALID_SIGNATURE, BUILD_ED25519, ONE, found):
        sim.verify()


def test_strangers_signatures_are_none(sim: BundleSimulator) -> None:
    sim.signers = (make_signer("mallory"), make_signer("oscar"))
    found = "2 signatures, none by a key of root version 1"
    with refusal(RefusalCode.NO_VALID_SIGNATURE, BUILD_ED25519, ONE, found):
        sim.verify()


def test_wrong_signature_by_a_known_key_is_refused(sim: BundleSimulator) -> None:  # case 6
    signed = sim.envelope()
    bad = replace(signed.signatures[0], signature=flip_byte(signed.signatures[0].signature, 40))
    sim.write(sim.file_bytes(replace(signed, signatures=(bad, *signed.signatures[1:])).encode()))
    with pytest.raises(Refused) as refused:
        sim.read()
    assert refused.value.code is RefusalCode.BAD_SIGNATURE


@pytest.mark.parametrize(("missing", "kept"), [("build", "release"), ("release", "build")])
def test_one_role_does_not_stand_for_another(sim: BundleSimulator, missing: str, kept: str) -> None:  # case 15
    sim.signers = signers_of(sim, **{missing: ()})
    with refusal(RefusalCode.THRESHOLD_NOT_MET, f"ed25519 signatures of the role {missing}", ONE, "0"):
        sim.verify()
    sim.signers = sim.keys.root
    with refusal(RefusalCode.THRESHOLD_NOT_MET, BUILD_ED25519, ONE, "0"):
        sim.verify()


def two_builders(sim: BundleSimulator, threshold: int) -> tuple[Any, Any]:
    first, second = sim.keys.build[0], make_signer("second builder")
    sim.root = replace(
        sim.root,
        keys={**sim.root.keys, second.key.keyid: RootKey(second.key)},
        roles={**sim.root.roles, "build": Role((first.key.keyid, second.key.keyid), threshold, (ED25519,))},
    )
    return first, second


def test_threshold_counts_distinct_keys(sim: BundleSimulator) -> None:  # case 3
    first, second = two_builders(sim, threshold=2)
    sim.signers = signers_of(sim, build=(first, first))
    with refusal(RefusalCode.THRESHOLD_NOT_MET, BUILD_ED25519, "2 by distinct keys", "1"):
        sim.verify()
    sim.signers = signers_of(sim, build=(first, second))
    assert sim.verify()


def test_either_key_meets_a_threshold_of_one(sim: BundleSimulator) -> None:
    for one in two_builders(sim, threshold=1):
        sim.signers = signers_of(sim, build=(one,))
        assert sim.verify()


def test_hybrid_bundle_needs_every_algorithm(hybrid: BundleSimulator) -> None:  # case 4
    assert hybrid.verify()
    for role in ("build", "release"):
        for kept, stripped in ((0, ML_DSA), (1, ED25519)):
            keys = getattr(hybrid.keys, role)
            hybrid.signers = signers_of(hybrid, **{role: (keys[kept],)})
            what = f"{stripped.value} signatures of the role {role}"
            with refusal(RefusalCode.ALGORITHM_MISSING, what, ONE, f"only {HYBRID[kept].value}"):
                hybrid.verify()


@pytest.mark.parametrize("role", ["build", "release"])
def test_statement_alone_can_require_an_algorithm(hybrid: BundleSimulator, role: str) -> None:  # case 4
    """The root asks for Ed25519 only; the signed statement asks for both."""
    roles = {name: replace(one, algorithms=(ED25519,)) for name, one in hybrid.root.roles.items()}
    hybrid.root = replace(hybrid.root, roles=roles)
    hybrid.signers = tuple(one for one in hybrid.signers if one.key.algorithm is ED25519)
    required = RequiredAlgorithms(**{"build": (ED25519,), "release": (ED25519,), role: HYBRID})
    hybrid.statement = replace(hybrid.statement, required_algorithms=required)
    what = f"ml-dsa-65 signatures of the role {role}"
    with refusal(RefusalCode.ALGORITHM_MISSING, what, ONE, "only ed25519"):
        hybrid.verify()
    hybrid.statement = replace(hybrid.statement, required_algorithms=RequiredAlgorithms((ED25519,), (ED25519,)))
    assert hybrid.verify()


def test_root_alone_can_require_an_algorithm(hybrid: BundleSimulator) -> None:
    hybrid.statement = replace(hybrid.statement, required_algorithms=RequiredAlgorithms((ED25519,), (ED25519,)))
    hybrid.signers = tuple(one for one in hybrid.signers if one.key.algorithm is ED25519)
    with refusal(RefusalCode.ALGORITHM_MISSING, "ml-dsa-65 signatures of the role build", ONE, "only ed25519"):
        hybrid.verify()


def test_threshold_of_one_algorithm_is_not_met_by_another(hybrid: BundleSimulator) -> None:
    """Two builders with both algorithms each, threshold two: two Ed25519 and one ML-DSA are too few."""
    extra = tuple(make_signer("builder 2", kind) for kind in HYBRID)
    everyone = (*hybrid.keys.build, *extra)
    hybrid.root = replace(
        hybrid.root,
        keys={**hybrid.root.keys, **{one.key.keyid: RootKey(one.key) for one in extra}},
        roles={**hybrid.root.roles, "build": Role(tuple(one.key.keyid for one in everyone), 2, HYBRID)},
    )
    hybrid.signers = signers_of(hybrid, build=everyone)
    assert hybrid.verify()
    hybrid.signers = signers_of(hybrid, build=everyone[:3])
    what = "ml-dsa-65 signatures of the role build"
    with refusal(RefusalCode.THRESHOLD_NOT_MET, what, "2 by distinct keys", "1"):
        hybrid.verify()


def test_statement_is_not_believed_before_it_is_signed(sim: BundleSimulator) -> None:
    """An unsigned bundle for another machine is unsigned first."""
    sim.signers = ()
    sim.machine = replace(sim.machine, driver="opencl")
    with pytest.raises(Refused) as refused:
        sim.verify()
    assert refused.value.code is RefusalCode.NO_VALID_SIGNATURE


def test_root_passed_as_a_bundle_is_refused(sim: BundleSimulator) -> None:  # case 7
    raw = sign_payload(ROOT_PAYLOAD_TYPE, sim.payload(), sim.signers).encode()
    sim.write(sim.file_bytes(raw))
    with refusal(RefusalCode.WRONG_PAYLOAD_TYPE, "envelope.payloadType", BUNDLE_PAYLOAD_TYPE, f"'{ROOT_PAYLOAD_TYPE}'"):
        sim.read()


def test_bundle_passed_as_a_root_is_refused(sim: BundleSimulator) -> None:  # case 7
    with refusal(RefusalCode.WRONG_PAYLOAD_TYPE, "envelope.payloadType", ROOT_PAYLOAD_TYPE, f"'{BUNDLE_PAYLOAD_TYPE}'"):
        TrustStore.bootstrap(sim.envelope().encode())


def test_bundle_signatures_do_not_carry_over_to_another_type(sim: BundleSimulator) -> None:  # case 7
    """The same bytes and signatures relabelled: the type is inside what is signed."""
    signed = sign_payload(ROOT_PAYLOAD_TYPE, sim.payload(), sim.signers)
    sim.write(sim.file_bytes(replace(signed, payload_type=BUNDLE_PAYLOAD_TYPE).encode()))
    with pytest.raises(Refused) as refused:
        sim.read()
    assert refused.value.code is RefusalCode.BAD_SIGNATURE


# Contents


@pytest.mark.parametrize("name", ["graph", "code", "weights", "sbom.json"])
def test_blob_of_another_bundle_is_refused_by_name(sim: BundleSimulator, name: str) -> None:  # case 17
    raw = sim.envelope().encode()
    signed_digest = hashlib.sha256(sim.blobs[name]).hexdigest()
    sim.blobs[name] = flip_byte(sim.blobs[name], -1)
    found = hashlib.sha256(sim.blobs[name]).hexdigest()
    sim.write(sim.file_bytes(raw))
    with refusal(RefusalCode.DIGEST_MISMATCH, f"blob {name}", f"sha256 {signed_digest}", found):
        sim.read()


def test_layout_must_be_the_signed_one(sim: BundleSimulator) -> None:
    """A sealed bundle whose spans came from another statement is refused, though its total size agrees."""
    verified = sim.verify()
    sealed = verified.sealed
    blobs = list(verified.statement.blobs)
    blobs[0] = replace(blobs[0], size_bytes=blobs[0].size_bytes + 1)
    with refusal(RefusalCode.BAD_CONTAINER, "blobs", "sizes as signed", "other sizes"):
        trust.require_contents(sealed, replace(verified.statement, blobs=tuple(blobs)))
    blobs[0] = replace(blobs[0], size_bytes=blobs[0].size_bytes + 4096)
    expected = f"{sealed.size_bytes + 4096} bytes by its blobs"
    with refusal(RefusalCode.BAD_CONTAINER, "bundle size", expected, f"{sealed.size_bytes} bytes"):
        trust.require_contents(sealed, replace(verified.statement, blobs=tuple(blobs)))


# Time


def expiring(sim: BundleSimulator, at_unix_s: int) -> None:
    sim.statement = replace(sim.statement, expires_unix_s=at_unix_s)


def test_expired_statement_is_refused_from_its_second_on(sim: BundleSimulator) -> None:  # case 14
    expiring(sim, NOW_UNIX_S + 10)
    clock = ManualClock()
    clock.advance_ns(9_999_999_999)
    assert sim.verify(now_unix_s=clock.now_unix_s)
    clock.advance_ns(1)
    with refusal(RefusalCode.EXPIRED, "statement", "a time before 2027-01-15T08:00:10Z", "2027-01-15T08:00:10Z"):
        sim.verify(now_unix_s=clock.now_unix_s)


def test_expired_root_blocks_activation(sim: BundleSimulator) -> None:
    sim.root = replace(sim.root, expires_unix_s=NOW_UNIX_S)
    with refusal(RefusalCode.EXPIRED, "root", "a time before 2027-01-15T08:00:00Z", "2027-01-15T08:00:00Z"):
        sim.verify()
    assert sim.verify(now_unix_s=NOW_UNIX_S - 1)


def test_running_model_is_not_touched_by_time(sim: BundleSimulator) -> None:  # case 14
    expiring(sim, NOW_UNIX_S + 1)
    running = sim.verify()
    with pytest.raises(Refused):
        sim.verify(now_unix_s=NOW_UNIX_S + 1)
    assert bytes(running.blob("graph")) == sim.blobs["graph"]
    sim.fresh_trust().require_fresh(running)


LATER_UNIX_S = NOW_UNIX_S + 86_400


@pytest.mark.parametrize("what", ["statement", "root", "key"])
def test_time_says_nothing_of_what_this_vehicle_has_confirmed(sim: BundleSimulator, what: str) -> None:  # case 14
    """A restart is no new activation; what is new is still bound by time, and what is confirmed by all the rest."""
    if what == "statement":
        expiring(sim, NOW_UNIX_S + 1)
    elif what == "root":
        sim.root = replace(sim.root, expires_unix_s=NOW_UNIX_S + 1)
    else:
        windowed(sim, None, NOW_UNIX_S + 1)
    trusted = sim.fresh_trust()
    confirmed = trusted.confirm(sim.verify(trusted))
    with pytest.raises(Refused) as refused:
        sim.verify(trusted, LATER_UNIX_S)
    assert refused.value.code is RefusalCode.EXPIRED
    assert sim.verify(confirmed, LATER_UNIX_S).digest == confirmed.state.floors["lane"].digest
    revoking = replace(confirmed, root=replace(confirmed.root, revoked_bundles=frozenset({sim.verify().digest})))
    with pytest.raises(Refused) as refused:
        sim.verify(revoking, LATER_UNIX_S)
    assert refused.value.code is RefusalCode.REVOKED
    sim.statement = replace(sim.statement, model=replace(sim.statement.model, release=sim.statement.model.release + 1))
    with pytest.raises(Refused) as refused:
        sim.verify(confirmed, LATER_UNIX_S)
    assert refused.value.code is RefusalCode.EXPIRED


def test_clock_behind_the_root_is_read_as_the_root_s_time(sim: BundleSimulator) -> None:
    expiring(sim, NOW_UNIX_S)
    sim.root = replace(sim.root, issued_unix_s=NOW_UNIX_S)
    with refusal(RefusalCode.EXPIRED, "statement", "a time before 2027-01-15T08:00:00Z", "2027-01-15T08:00:00Z"):
        sim.verify(now_unix_s=0)


def windowed(sim: BundleSimulator, begin: int | None, end: int | None) -> str:
    key = sim.keys.build[0].key
    sim.root = replace(sim.root, keys={**sim.root.keys, key.keyid: RootKey(key, begin, end)})
    return key.keyid


def test_key_counts_only_within_its_window(sim: BundleSimulator) -> None:  # case 14
    keyid = windowed(sim, NOW_UNIX_S, NOW_UNIX_S + 60)
    assert sim.verify(now_unix_s=NOW_UNIX_S)
    assert sim.verify(now_unix_s=NOW_UNIX_S + 59)
    found = f"key {keyid} valid from 2027-01-15T08:00:00Z"
    with refusal(RefusalCode.NOT_YET_VALID, BUILD_ED25519, ONE, found):
        sim.verify(now_unix_s=NOW_UNIX_S - 1)
    found = f"key {keyid} valid until 2027-01-15T08:01:00Z"
    with refusal(RefusalCode.EXPIRED, BUILD_ED25519, ONE, found):
        sim.verify(now_unix_s=NOW_UNIX_S + 60)


def test_open_ends_of_a_window_are_open(sim: BundleSimulator) -> None:
    windowed(sim, None, NOW_UNIX_S + 1)
    assert sim.verify(now_unix_s=0)
    windowed(sim, NOW_UNIX_S, None)
    assert sim.verify(now_unix_s=2**40)


def test_expired_key_beside_a_valid_one_does_no_harm(sim: BundleSimulator) -> None:
    first, second = two_builders(sim, threshold=1)
    windowed(sim, None, NOW_UNIX_S)
    sim.signers = signers_of(sim, build=(first, second))
    assert sim.verify()
    sim.signers = signers_of(sim, build=(first,))
    with pytest.raises(Refused) as refused:
        sim.verify()
    assert refused.value.code is RefusalCode.EXPIRED


def test_expired_key_of_one_algorithm_does_not_hide_that_another_is_missing(hybrid: BundleSimulator) -> None:
    windowed(hybrid, None, NOW_UNIX_S)  # the Ed25519 key
    with pytest.raises(Refused) as refused:
        hybrid.verify()
    assert refused.value.code is RefusalCode.EXPIRED
    roles = {**hybrid.root.roles, "build": replace(hybrid.root.roles["build"], algorithms=(ML_DSA,))}
    hybrid.root = replace(hybrid.root, roles=roles)
    hybrid.statement = replace(hybrid.statement, required_algorithms=RequiredAlgorithms((ML_DSA,), (ED25519,)))
    hybrid.signers = signers_of(hybrid, build=(hybrid.keys.build[0],))
    with refusal(RefusalCode.ALGORITHM_MISSING, "ml-dsa-65 signatures of the role build", ONE, "only ed25519"):
        hybrid.verify()


# Target


@pytest.mark.parametrize(
    ("change", "what", "expected", "found"),
    [
        ({"abi_version": 2}, "ABI version", "1", "2"),
        ({"hal_version": 2}, "HAL version", "1", "2"),
        ({"driver": "opencl"}, "driver", "cpu", "opencl"),
        ({"arch": "aarch64"}, "architecture", "x86_64", "aarch64"),
        ({"cpu_features": frozenset({"sse2"})}, "CPU features", "avx2, fma", "a CPU without them"),
        ({"cpu_features": frozenset({"avx2"})}, "CPU features", "fma", "a CPU without them"),
        ({"memory_bytes": 1024 * 1024 - 1}, "memory", "1048576 bytes", "1048575 bytes"),
    ],
)
def test_other_machine_is_refused(
    sim: BundleSimulator, change: dict[str, Any], what: str, expected: str, found: str
) -> None:  # case 18, runtime case 10
    sim.machine = replace(sim.machine, **change)
    with refusal(RefusalCode.TARGET_MISMATCH, what, f"{expected} (by the bundle)", f"{found} (this machine)"):
        sim.verify()


def test_device_id_is_compared_where_the_bundle_names_one(sim: BundleSimulator) -> None:  # case 18
    sim.machine = replace(sim.machine, device_id="unit 7", memory_bytes=1024 * 1024)
    assert sim.verify()
    sim.statement = replace(sim.statement, target=replace(sim.statement.target, device_id="unit 7"))
    assert sim.verify()
    for other in ("unit 8", None):
        sim.machine = replace(sim.machine, device_id=other)
        found = f"{other} (this machine)"
        with refusal(RefusalCode.TARGET_MISMATCH, "device id", "unit 7 (by the bundle)", found):
            sim.verify()


# Anything at all


@pytest.mark.parametrize("edit", [lambda d: d.pop("subject"), lambda d: d["predicate"].update(extra=1)])
def test_signed_but_malformed_statement_is_refused(
    sim: BundleSimulator, edit: Callable[[dict[str, Any]], None]
) -> None:
    sim.edit_statement = edit
    with pytest.raises(Refused) as refused:
        sim.verify()
    assert refused.value.code is RefusalCode.BAD_STATEMENT
