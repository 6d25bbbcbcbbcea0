"""Packing and signing: equal inputs give equal files, and no signature is made that could not count."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lab.refusal import LabRefused
from lab.sign import pack
from lab.sign import sign as lab_sign
from lab.sign.keygen import keygen
from lab.sign.pack import describe_blob, open_checked, write_bundle
from lab.sign.sign import (
    attach_signature,
    export_envelope,
    require_algorithms,
    sign_bundle,
    sign_bundle_with,
    sign_detached,
)
from signing.keys import Algorithm
from signing.refusal import RefusalCode, Refused
from signing.root import RootKey
from signing.statement import RequiredAlgorithms, Statement
from tests.simulators import HYBRID, BundleSimulator, RoleKeys, flip_byte, make_root, make_signer, refusal


@pytest.fixture
def sim(tmp_path: Path) -> BundleSimulator:
    return BundleSimulator(tmp_path)


def stated(sim: BundleSimulator) -> Statement:
    return replace(sim.statement, blobs=tuple(describe_blob(name, data) for name, data in sim.blobs.items()))


def pack_unsigned(sim: BundleSimulator) -> Path:
    write_bundle(sim.path, stated(sim), sim.blobs)
    return sim.path


def test_unsigned_bundle_is_the_container_with_no_signatures(sim: BundleSimulator) -> None:
    sim.signers = ()
    assert pack_unsigned(sim).read_bytes() == sim.file_bytes()
    assert sim.path.stat().st_mode & 0o7777 == 0o644


def test_equal_inputs_give_equal_files(sim: BundleSimulator, tmp_path: Path) -> None:
    first = pack_unsigned(sim).read_bytes()
    shuffled = dict(reversed(list(sim.blobs.items())))
    write_bundle(tmp_path / "again", stated(sim), {name: memoryview(data) for name, data in shuffled.items()})
    assert (tmp_path / "again").read_bytes() == first


def test_blob_is_described_by_its_bytes() -> None:
    blob = describe_blob("code", memoryview(bytes(8)).cast("d"))
    assert (blob.name, blob.size_bytes) == ("code", 8)
    assert blob.sha256 == "af5570f5a1810b7af78caf4bc70a660f0df51e42baf91d4de5b2328de0e83dfc"


def test_packing_refuses_blobs_that_are_not_as_stated(sim: BundleSimulator) -> None:
    good = stated(sim)
    with refusal(
        RefusalCode.UNKNOWN_BLOB,
        "blobs to pack",
        "graph, code, weights, goldens, sbom.json",
        "code, goldens, sbom.json, weights",
    ):
        write_bundle(sim.path, good, {name: data for name, data in sim.blobs.items() if name != "graph"})
    with pytest.raises(Refused, match="blob code") as refused:
        write_bundle(sim.path, good, {**sim.blobs, "code": b"other"})
    assert refused.value.code is RefusalCode.DIGEST_MISMATCH
    assert not sim.path.exists()


def test_file_appears_whole_or_not_at_all(tmp_path: Path) -> None:
    def fail(file: Any) -> None:
        file.write(b"half")
        raise OSError("disk full")

    (tmp_path / "x").write_bytes(b"old")
    with pytest.raises(OSError, match="disk full"):
        pack.write_whole(tmp_path / "x", fail)
    assert [(one.name, one.read_bytes()) for one in tmp_path.iterdir()] == [("x", b"old")]


def test_unsigned_bundle_can_be_opened_checked(sim: BundleSimulator) -> None:
    with open_checked(pack_unsigned(sim)) as (sealed, envelope, statement):
        assert (envelope.signatures, statement) == ((), stated(sim))
        assert bytes(sealed.view(sealed.layout.blobs[0])) == sim.blobs["graph"]
    sim.path.write_bytes(flip_byte(sim.path.read_bytes(), -4096))
    with pytest.raises(Refused, match=r"blob sbom\.json"), open_checked(sim.path):
        pass


def test_two_signatures_on_two_machines_make_a_bundle_the_vehicle_takes(sim: BundleSimulator, tmp_path: Path) -> None:
    keys = {name: keygen(tmp_path / name, Algorithm.ED25519, "secret") for name in ("build", "release")}
    roles = {name: replace(sim.root.roles[name], keyids=(key.keyid,)) for name, key in keys.items()}
    root_keys = {one.key.keyid: RootKey(one.key) for one in sim.keys.root}
    sim.root = replace(
        sim.root,
        keys={**root_keys, **{key.keyid: RootKey(key) for key in keys.values()}},
        roles={**sim.root.roles, **roles},
    )
    pack_unsigned(sim)
    with open_checked(sim.path) as (_, unsigned, _stated):
        payload = unsigned.payload
    assert sign_bundle(sim.path, tmp_path / "build", "build", passphrase="secret", root=sim.root) == keys["build"]
    export_envelope(sim.path, tmp_path / "carried.json")
    carried = tmp_path / "carried.sig"
    signed_by = sign_detached(tmp_path / "carried.json", tmp_path / "release", "release", carried, passphrase="secret")
    assert signed_by == keys["release"]
    assert attach_signature(sim.path, carried) == keys["release"]
    with open_checked(sim.path) as (_, signed, _stated):
        assert signed.payload == payload
        assert [one.keyid for one in signed.signatures] == [keys["build"].keyid, keys["release"].keyid]
    assert sim.read()


def test_envelope_that_grows_moves_the_blobs(sim: BundleSimulator) -> None:
    algorithms = RequiredAlgorithms(HYBRID, HYBRID)
    sim.statement = replace(sim.statement, required_algorithms=algorithms)
    sim.keys = type(sim.keys).make(HYBRID)
    sim.root = make_root(sim.keys)
    pack_unsigned(sim)
    before = sim.path.stat().st_size
    for role in ("build", "release"):
        for signer in getattr(sim.keys, role):
            sign_bundle_with(sim.path, signer, role)
    assert sim.path.stat().st_size > before
    assert {name: bytes(sim.read().blob(name)) for name in sim.blobs} == sim.blobs


def test_signing_again_replaces_the_signature(sim: BundleSimulator) -> None:
    pack_unsigned(sim)
    for _ in range(2):
        sign_bundle_with(sim.path, sim.keys.build[0], "build")
    with open_checked(sim.path) as (_, signed, _stated):
        assert len(signed.signatures) == 1


def test_damaged_bundle_is_not_signed(sim: BundleSimulator) -> None:
    pack_unsigned(sim)
    sim.path.write_bytes(damaged := flip_byte(sim.path.read_bytes(), -4096))
    with pytest.raises(Refused) as refused:
        sign_bundle_with(sim.path, sim.keys.build[0], "build")
    assert refused.value.code is RefusalCode.DIGEST_MISMATCH
    assert sim.path.read_bytes() == damaged


def test_signature_that_could_not_count_is_not_made(sim: BundleSimulator) -> None:
    unsigned = pack_unsigned(sim).read_bytes()
    with pytest.raises(ValueError, match="one of build, release, not as 'root'"):
        sign_bundle_with(sim.path, sim.keys.root[0], "root")
    with refusal(RefusalCode.ALGORITHM_MISSING, "key for the role build", "ed25519", "ml-dsa-65"):
        sign_bundle_with(sim.path, make_signer("x", Algorithm.ML_DSA_65), "build")
    expected = "a key of the role release in root version 1"
    keyid = sim.keys.build[0].key.keyid
    with refusal(RefusalCode.THRESHOLD_NOT_MET, "key for the role release", expected, keyid):
        sign_bundle_with(sim.path, sim.keys.build[0], "release", root=sim.root)
    assert sim.path.read_bytes() == unsigned


def test_algorithm_that_only_the_root_asks_for_may_sign_under_it(sim: BundleSimulator, tmp_path: Path) -> None:
    hybrid = RoleKeys.make(HYBRID)
    root = make_root(hybrid)
    pack_unsigned(sim)
    for signer in (*hybrid.build, *hybrid.release):
        sign_bundle_with(sim.path, signer, "build" if signer in hybrid.build else "release", root=root)
    sim.root, sim.keys = root, hybrid
    assert sim.read().statement.required_algorithms == RequiredAlgorithms()
    with refusal(RefusalCode.ALGORITHM_MISSING, "key for the role build", "ed25519", "ml-dsa-65"):
        sign_bundle_with(sim.path, hybrid.build[1], "build", root=make_root(RoleKeys.make()))


def test_requirement_is_stated_before_the_first_signature_and_holds_under_every_root(sim: BundleSimulator) -> None:
    pack_unsigned(sim)
    require_algorithms(sim.path, "release", HYBRID)
    sign_bundle_with(sim.path, sim.keys.build[0], "build")
    sign_bundle_with(sim.path, sim.keys.release[0], "release")
    with pytest.raises(Refused) as refused:  # the root asks for Ed25519 alone
        sim.read()
    assert refused.value.code is RefusalCode.ALGORITHM_MISSING
    with pytest.raises(LabRefused, match="before the first signature"):
        require_algorithms(sim.path, "release", (Algorithm.ED25519,))


@pytest.fixture
def detached(sim: BundleSimulator, tmp_path: Path) -> Path:
    keygen(tmp_path / "key", Algorithm.ED25519, None)
    sign_detached(pack_unsigned(sim), tmp_path / "key", "build", tmp_path / "sig.json")
    return tmp_path / "sig.json"


def test_detached_signature_of_another_bundle_is_refused(sim: BundleSimulator, detached: Path) -> None:
    sim.blobs["graph"] = b"another graph"
    pack_unsigned(sim)
    with pytest.raises(Refused, match="detached signature: expected one for") as refused:
        attach_signature(sim.path, detached)
    assert refused.value.code is RefusalCode.DIGEST_MISMATCH


@pytest.mark.parametrize(
    ("name", "value", "code"),
    [
        ("sig", "AAAA", RefusalCode.BAD_SIGNATURE),
        ("_type", "urn:other", RefusalCode.BAD_ENVELOPE),
        ("algorithm", "none", RefusalCode.UNKNOWN_ALGORITHM),
        ("spki", "AAAA", RefusalCode.BAD_KEY),
        ("payloadSha256", "0", RefusalCode.BAD_ENCODING),
        ("extra", 1, RefusalCode.BAD_ENVELOPE),
    ],
)
def test_damaged_detached_signature_is_refused(
    sim: BundleSimulator, detached: Path, name: str, value: object, code: RefusalCode
) -> None:
    unsigned = sim.path.read_bytes()
    detached.write_text(json.dumps({**json.loads(detached.read_text()), name: value}))
    with pytest.raises(Refused) as refused:
        attach_signature(sim.path, detached)
    assert refused.value.code is code
    assert sim.path.read_bytes() == unsigned


def test_signer_that_signs_wrongly_is_found_out(sim: BundleSimulator) -> None:
    class Broken:
        key = sim.keys.build[0].key

        def sign(self, message: bytes) -> bytes:
            return bytes(64)

    pack_unsigned(sim)
    with pytest.raises(Refused) as refused:
        sign_bundle_with(sim.path, Broken(), "build")
    assert refused.value.code is RefusalCode.BAD_SIGNATURE


def test_too_many_signatures_to_hold_are_refused(sim: BundleSimulator, monkeypatch: pytest.MonkeyPatch) -> None:
    unsigned = pack_unsigned(sim).read_bytes()
    monkeypatch.setattr(lab_sign.envelope, "ENVELOPE_LIMIT_BYTES", 1)
    monkeypatch.setattr(pack.container, "ENVELOPE_LIMIT_BYTES", len(sim.envelope().encode()) // 2)
    with pytest.raises(Refused):
        sign_bundle_with(sim.path, sim.keys.build[0], "build")
    assert sim.path.read_bytes() == unsigned
    assert len(os.listdir(sim.path.parent)) == 1
