"""The whole way: keys, a root, an unsigned bundle, two signatures, and a vehicle that takes it, or refuses by name."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from lab.sign import keyfile, keygen, pack
from lab.sign.root import role_plan, root_init
from lab.sign.sign import sign_bundle
from signing import store, trust
from signing.keys import Algorithm
from signing.refusal import RefusalCode, Refused
from tests.simulators import HYBRID, NOW_UNIX_S, BundleSimulator

LIMIT_BYTES = 1024 * 1024


def test_bundle_signed_by_the_lab_is_verified_on_the_vehicle(tmp_path: Path) -> None:
    simulator = BundleSimulator(tmp_path)
    roles = ("root", "build", "release")
    for name in roles:
        keygen.keygen(tmp_path / name, Algorithm.ED25519, None)
    plans = {name: role_plan([keyfile.load_public(tmp_path / f"{name}.pub")]) for name in roles}
    root = root_init(tmp_path / "root.json", plans, [keyfile.load_signer(tmp_path / "root")], issued_unix_s=NOW_UNIX_S)
    stated = replace(
        simulator.statement, blobs=tuple(pack.describe_blob(name, data) for name, data in simulator.blobs.items())
    )
    pack.write_bundle(simulator.path, stated, simulator.blobs)
    sign_bundle(simulator.path, tmp_path / "build", "build", root=root)
    sign_bundle(simulator.path, tmp_path / "release", "release", root=root)

    trusted = trust.TrustStore.bootstrap(store.read_file(tmp_path / "root.json", limit_bytes=LIMIT_BYTES))
    verified = simulator.verify_file(trusted)

    assert verified.statement == stated
    assert {name: bytes(verified.blob(name)) for name in simulator.blobs} == simulator.blobs


@pytest.mark.parametrize("algorithms", [(Algorithm.ED25519,), HYBRID])
def test_simulated_bundle_is_verified(tmp_path: Path, algorithms: tuple[Algorithm, ...]) -> None:
    assert BundleSimulator(tmp_path, algorithms).verify().statement.model.name == "lane"


def test_unsigned_bundle_is_refused(tmp_path: Path) -> None:
    simulator = BundleSimulator(tmp_path)
    simulator.signers = ()
    with pytest.raises(Refused) as refused:
        simulator.verify()
    assert refused.value.code is RefusalCode.NO_VALID_SIGNATURE


def test_flipped_byte_is_refused_naming_the_blob(tmp_path: Path) -> None:
    simulator = BundleSimulator(tmp_path)
    data = simulator.file_bytes()
    offset = data.index(b"\x7fELF") + 20
    simulator.write(data[:offset] + bytes([data[offset] ^ 1]) + data[offset + 1 :])
    with pytest.raises(Refused, match="blob code") as refused:
        simulator.read()
    assert refused.value.code is RefusalCode.DIGEST_MISMATCH
