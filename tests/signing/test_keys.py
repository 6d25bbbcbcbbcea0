"""Public keys: one encoding, no weak points, and signatures as the standards' own vectors have them."""

from __future__ import annotations

import hashlib
import itertools
import json
from pathlib import Path
from typing import Any

import pytest
from cryptography.exceptions import UnsupportedAlgorithm

from signing import ed25519_point, keys
from signing.keys import RAW_KEY_BYTES, SPKI_PREFIX, Algorithm, PublicKey, algorithm, load_public_key
from signing.refusal import RefusalCode, Refused
from tests.simulators import HYBRID, make_signer, refusal

P = 2**255 - 19

# The torsion points' y coordinates (orders 1, 2, 4, 8, 8) of RFC 8032's curve, by decoding 8P = 0.
_ORDER_8_Y = 2707385501144840649318225287225658788936804267575313519463743609750303402022
_LOW_ORDER_Y = (1, P - 1, 0, _ORDER_8_Y, P - _ORDER_8_Y)


def encoded(y: int, sign: int) -> bytes:
    return (y | sign << 255).to_bytes(32, "little")


def load_ed25519(raw: bytes) -> PublicKey:
    return load_public_key(Algorithm.ED25519, SPKI_PREFIX[Algorithm.ED25519] + raw)


@pytest.mark.parametrize("kind", HYBRID)
def test_key_is_its_spki_and_its_id_the_digest_of_it(kind: Algorithm) -> None:
    spki = make_signer("one", kind).key.spki
    key = load_public_key(kind, spki)
    assert key.keyid == hashlib.sha256(spki).hexdigest()
    assert key.algorithm is kind
    assert key == make_signer("one", kind).key
    assert SPKI_PREFIX[kind] + key.raw == spki
    assert len(key.raw) == RAW_KEY_BYTES[kind]


@pytest.mark.parametrize("kind", HYBRID)
def test_verification_returns_nothing_or_raises(kind: Algorithm) -> None:
    signer = make_signer("one", kind)
    signature = signer.sign(b"message")
    signer.key.verify(signature, b"message")
    what = f"{kind.value} signature by key {signer.key.keyid[:16]}"
    with refusal(RefusalCode.BAD_SIGNATURE, what, "a signature over these bytes", "one that does not verify"):
        signer.key.verify(signature, b"massage")
    with refusal(RefusalCode.BAD_SIGNATURE, what, f"{len(signature)} bytes", f"{len(signature) + 1} bytes"):
        signer.key.verify(signature + b"\0", b"message")


@pytest.mark.parametrize("kind", HYBRID)
def test_key_of_wrong_form_is_refused(kind: Algorithm) -> None:
    spki = make_signer("one", kind).key.spki
    expected = f"a SubjectPublicKeyInfo of {len(spki)} bytes"
    other = make_signer("one", HYBRID[1 - HYBRID.index(kind)]).key.spki
    for bad in (spki[:-1], spki + b"\0", b"\x31" + spki[1:], b"", other):
        with refusal(
            RefusalCode.BAD_KEY,
            f"{kind.value} public key",
            expected,
            f"{len(bad)} bytes beginning {bad[:12].hex()}",
        ):
            load_public_key(kind, bad)


@pytest.mark.parametrize("sign", [0, 1])
@pytest.mark.parametrize("y", _LOW_ORDER_Y)
def test_low_order_point_is_refused(y: int, sign: int) -> None:
    with pytest.raises(Refused, match="expected a canonical point of prime order, found") as refused:
        load_ed25519(encoded(y, sign))
    assert refused.value.code is RefusalCode.BAD_KEY
    minus_zero = y in (1, P - 1) and sign
    assert refused.value.found == ("no point of the curve" if minus_zero else "a point of low order")


def test_low_order_list_is_complete() -> None:
    """Eight points: two signs for each y but those with x = 0."""
    points = [encoded(y, sign) for y in _LOW_ORDER_Y for sign in (0, 1)]
    assert sum(ed25519_point.fault(point) == "a point of low order" for point in points) == 8


@pytest.mark.parametrize("y", [P, P + 1, 2**255 - 1])
def test_non_canonical_point_is_refused(y: int) -> None:
    what, expected = "ed25519 public key", "a canonical point of prime order"
    with refusal(RefusalCode.BAD_KEY, what, expected, "a non-canonical point (y not below 2^255 - 19)"):
        load_ed25519(encoded(y, 0))


def test_bytes_off_the_curve_are_refused() -> None:
    faults = {y: ed25519_point.fault(encoded(y, 0)) for y in range(2, 40)}
    assert faults[2] == "no point of the curve"
    assert set(faults.values()) == {"no point of the curve", "a point outside the prime-order group", None}


def test_point_with_a_torsion_part_is_refused() -> None:
    """B + T for the base point B and the point T of order 2: on the curve, but not of prime order."""
    base_y = 4 * pow(5, -1, P) % P
    assert ed25519_point.fault(encoded(base_y, 0)) is None
    assert ed25519_point.fault(encoded(base_y, 1)) is None
    assert ed25519_point.fault(encoded(P - base_y, 0)) == "a point outside the prime-order group"


def test_honest_keys_pass() -> None:
    assert all(ed25519_point.fault(make_signer(f"honest {i}").key.raw) is None for i in range(16))


@pytest.mark.parametrize(
    "name", ["", "none", "ED25519", "rsa", "ml-dsa-44", None, 1, ["ed25519"]], ids=itertools.count()
)
def test_unknown_algorithm_is_refused(name: object) -> None:  # case 5
    with refusal(RefusalCode.UNKNOWN_ALGORITHM, "here", "one of ed25519, ml-dsa-65", repr(name)):
        algorithm(name, "here")


def test_known_algorithms_are_found() -> None:
    assert algorithm("ed25519", "here") is Algorithm.ED25519
    assert algorithm("ml-dsa-65", "here") is Algorithm.ML_DSA_65


def test_library_without_the_algorithm_is_a_refusal(monkeypatch: pytest.MonkeyPatch) -> None:
    class Without:
        @staticmethod
        def from_public_bytes(raw: bytes) -> None:
            raise UnsupportedAlgorithm("no ML-DSA here")

    spki = make_signer("one", Algorithm.ML_DSA_65).key.spki
    monkeypatch.setattr(keys, "MLDSA65PublicKey", Without)
    expected = "a cryptography library that has it"
    with refusal(RefusalCode.UNKNOWN_ALGORITHM, "ml-dsa-65 public key", expected, "one that has not"):
        load_public_key(Algorithm.ML_DSA_65, spki)


def vectors(path: Path) -> list[dict[str, Any]]:
    if not path.is_file():
        pytest.skip(f"public test vectors are not here: {path.name} from C2SP/wycheproof belongs in {path.parent}")
    groups: list[dict[str, Any]] = json.loads(path.read_text())["testGroups"]
    return groups


def verdict(kind: Algorithm, raw: bytes, test: dict[str, Any]) -> bool:
    """Say whether we accept a vector; only Refused counts as no."""
    try:
        load_public_key(kind, SPKI_PREFIX[kind] + raw).verify(bytes.fromhex(test["sig"]), bytes.fromhex(test["msg"]))
    except Refused as refused:
        return refused.code not in (RefusalCode.BAD_KEY, RefusalCode.BAD_SIGNATURE)
    return True


def test_wycheproof_ed25519(shared_dir: Path) -> None:
    seen = 0
    for group in vectors(shared_dir / "vectors/ed25519_test.json"):
        raw = bytes.fromhex(group["publicKey"]["pk"])
        for test in group["tests"]:
            assert verdict(Algorithm.ED25519, raw, test) is (test["result"] == "valid"), test["tcId"]
            seen += 1
    assert seen > 100


def test_wycheproof_ml_dsa_65(shared_dir: Path) -> None:
    """Vectors with a context are never valid here: bundles are signed with the empty one."""
    seen = 0
    for group in vectors(shared_dir / "vectors/mldsa_65_verify_test.json"):
        raw = bytes.fromhex(group["publicKey"])
        for test in group["tests"]:
            valid = test["result"] == "valid" and not test.get("ctx")
            assert verdict(Algorithm.ML_DSA_65, raw, test) is valid, test["tcId"]
            seen += 1
    assert seen > 100
