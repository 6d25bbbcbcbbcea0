"""A bundle's envelope is plain DSSE and its payload a plain in-toto Statement: another implementation agrees.

Skips where securesystemslib is not installed (it belongs to the lab's test extra).
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.serialization import load_der_public_key

from signing.container import HEADER_BYTES
from signing.keys import PublicKey
from tests.simulators import BundleSimulator

dsse: Any = pytest.importorskip("securesystemslib.dsse", reason="securesystemslib is not installed")
signer: Any = pytest.importorskip("securesystemslib.signer")
exceptions: Any = pytest.importorskip("securesystemslib.exceptions")


def foreign_key(key: PublicKey) -> Any:
    return signer.SSlibKey.from_crypto(load_der_public_key(key.spki), keyid=key.keyid)


def read_foreign(path: Path) -> Any:
    """Cut the envelope out of the file by its documented layout alone."""
    data = path.read_bytes()
    envelope_bytes = int.from_bytes(data[8:16], "little")
    return dsse.Envelope.from_dict(json.loads(data[HEADER_BYTES : HEADER_BYTES + envelope_bytes]))


@pytest.fixture
def sim(tmp_path: Path) -> BundleSimulator:
    simulator = BundleSimulator(tmp_path)
    simulator.write()
    return simulator


def test_foreign_tool_verifies_the_envelope(sim: BundleSimulator) -> None:
    keys = [foreign_key(one.key) for one in sim.signers]
    accepted = read_foreign(sim.path).verify(keys, threshold=2)
    assert set(accepted) == {one.key.keyid for one in sim.signers}


def test_foreign_tool_refuses_what_we_refuse(sim: BundleSimulator) -> None:
    envelope = read_foreign(sim.path)
    envelope.payload = envelope.payload.replace(b'"lane"', b'"lame"')
    with pytest.raises(exceptions.VerificationError):
        envelope.verify([foreign_key(one.key) for one in sim.signers], threshold=1)


def test_foreign_reader_finds_the_blobs_by_the_statement(sim: BundleSimulator) -> None:
    statement = json.loads(read_foreign(sim.path).payload)
    assert statement["_type"] == "https://in-toto.io/Statement/v1"
    digests = {one["name"]: one["digest"]["sha256"] for one in statement["subject"]}
    assert digests == {name: hashlib.sha256(data).hexdigest() for name, data in sim.blobs.items()}
