"""DSSE envelopes: one strict form, exact payload bytes, lengths in bytes."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest

from signing.envelope import BUNDLE_PAYLOAD_TYPE, SIGNATURE_LIMIT, Envelope, Signature, pae, parse, verified_keys
from signing.keys import Algorithm
from signing.refusal import RefusalCode, Refused
from tests.simulators import HYBRID, base64_text, flip_byte, make_signer, refusal, sign_payload

PAYLOAD = b'{"any": "bytes"}'
ED25519_ORDER = 2**252 + 27742317777372353535851937790883648493


def document(**changes: Any) -> dict[str, Any]:
    signer = make_signer("build-1")
    plain = json.loads(sign_payload(BUNDLE_PAYLOAD_TYPE, PAYLOAD, [signer]).encode())
    return {**plain, **changes}


def read(value: object) -> Envelope:
    return parse(json.dumps(value).encode(), payload_type=BUNDLE_PAYLOAD_TYPE)


def test_pae_is_the_specification_s_example() -> None:
    assert (
        pae("http://example.com/HelloWorld", b"hello world")
        == b"DSSEv1 29 http://example.com/HelloWorld 11 hello world"
    )


def test_pae_counts_bytes_not_characters() -> None:  # case 8
    assert pae("ü", "ü!".encode()) == b"DSSEv1 2 \xc3\xbc 3 \xc3\xbc!"


def test_envelope_comes_back_as_it_was_written() -> None:
    signed = sign_payload(BUNDLE_PAYLOAD_TYPE, PAYLOAD, [make_signer("a"), make_signer("b")])
    assert parse(signed.encode(), payload_type=BUNDLE_PAYLOAD_TYPE) == signed
    assert read(document(signatures=[])).signatures == ()


def test_wrong_payload_type_is_refused() -> None:  # case 7
    with refusal(RefusalCode.WRONG_PAYLOAD_TYPE, "envelope.payloadType", BUNDLE_PAYLOAD_TYPE, "'text/plain'"):
        read(document(payloadType="text/plain"))


@pytest.mark.parametrize("kind", ["", "application/vnd.in-totö+json", "a b", "a\n", "a" * 129], ids=itertools.count())
def test_odd_payload_type_is_refused(kind: str) -> None:  # case 8
    with refusal(
        RefusalCode.BAD_ENVELOPE, "envelope.payloadType", "printable ASCII", ascii(kind)[:93] + "..." * (len(kind) > 94)
    ):
        read(document(payloadType=kind))


@pytest.mark.parametrize("name", ["payload", "payloadType", "signatures"])
def test_missing_field_is_refused(name: str) -> None:
    plain = document()
    del plain[name]
    with pytest.raises(Refused, match=f"envelope.{name}.*found nothing") as refused:
        read(plain)
    assert refused.value.code is RefusalCode.BAD_ENVELOPE


def test_unknown_fields_are_refused() -> None:
    with refusal(RefusalCode.BAD_ENVELOPE, "envelope", "no field beyond those of envelope", "unknown field 'x'"):
        read(document(x=1))
    signature = {**document()["signatures"][0], "cert": ""}
    where = "envelope.signatures[0]"
    with refusal(RefusalCode.BAD_ENVELOPE, where, f"no field beyond those of {where}", "unknown field 'cert'"):
        read(document(signatures=[signature]))


def test_two_payloads_are_refused() -> None:  # case 9
    raw = json.dumps(document()).replace('"payload"', '"payload": "", "payload"', 1).encode()
    with refusal(RefusalCode.BAD_JSON, "envelope", "each key once in an object", "'payload' twice"):
        parse(raw, payload_type=BUNDLE_PAYLOAD_TYPE)


def test_empty_signature_is_no_signature() -> None:  # case 1
    signatures = [{"keyid": "0" * 64, "sig": ""}]
    with refusal(RefusalCode.NO_VALID_SIGNATURE, "envelope.signatures[0].sig", "a signature", "zero bytes"):
        read(document(signatures=signatures))


@pytest.mark.parametrize("keyid", ["", "0" * 63, "A" * 64, "0" * 65], ids=itertools.count())
def test_odd_key_id_is_refused(keyid: str) -> None:  # case 11
    with refusal(
        RefusalCode.BAD_ENCODING, "envelope.signatures[0].keyid", "64 lowercase hexadecimal digits", repr(keyid)
    ):
        read(document(signatures=[{"keyid": keyid, "sig": "Zg=="}]))


def test_signatures_are_bounded_in_number_and_size() -> None:
    one = {"keyid": "0" * 64, "sig": "Zg=="}
    assert len(read(document(signatures=[one] * SIGNATURE_LIMIT)).signatures) == 32
    with refusal(RefusalCode.BAD_ENVELOPE, "envelope.signatures", "an array of at most 32 items", "33 items"):
        read(document(signatures=[one] * 33))
    with pytest.raises(Refused, match="at most 10924 characters"):
        read(document(signatures=[{"keyid": "0" * 64, "sig": base64_text(bytes(8196))}]))


def test_size_of_envelope_and_payload_is_bounded() -> None:
    raw = json.dumps(document()).encode()
    assert parse(raw, payload_type=BUNDLE_PAYLOAD_TYPE, limit_bytes=len(raw))
    with refusal(RefusalCode.BAD_JSON, "envelope", f"at most {len(raw) - 1} bytes", f"{len(raw)} bytes"):
        parse(raw, payload_type=BUNDLE_PAYLOAD_TYPE, limit_bytes=len(raw) - 1)
    with refusal(RefusalCode.BAD_JSON, "envelope", "at most 262144 bytes", "262145 bytes"):
        parse(b" " * 262145, payload_type=BUNDLE_PAYLOAD_TYPE)


@pytest.mark.parametrize("kind", HYBRID)
def test_keys_that_signed_are_returned_once_and_strangers_are_not(kind: Algorithm) -> None:
    one, other, stranger = (make_signer(label, kind) for label in ("one", "other", "stranger"))
    signed = sign_payload(BUNDLE_PAYLOAD_TYPE, PAYLOAD, [one, one, stranger])
    known = {key.keyid: key for key in (one.key, other.key)}
    assert verified_keys(signed, known) == (one.key,)
    assert verified_keys(signed, {}) == ()


@pytest.mark.parametrize("kind", HYBRID)
@pytest.mark.parametrize("change", ["payload", "type", "signature"])
def test_changed_bytes_break_the_signature(kind: Algorithm, change: str) -> None:
    signer = make_signer("one", kind)
    signed = sign_payload(BUNDLE_PAYLOAD_TYPE, PAYLOAD, [signer])
    payload = flip_byte(PAYLOAD, 3) if change == "payload" else PAYLOAD
    payload_type = "text/plain" if change == "type" else BUNDLE_PAYLOAD_TYPE
    signature = signed.signatures[0].signature
    if change == "signature":
        signature = flip_byte(signature, 20)
    changed = Envelope(payload_type, payload, (Signature(signer.key.keyid, signature),))
    what = f"{kind.value} signature by key {signer.key.keyid[:16]}"
    with refusal(RefusalCode.BAD_SIGNATURE, what, "a signature over these bytes", "one that does not verify"):
        verified_keys(changed, {signer.key.keyid: signer.key})


def _plus_order(signature: bytes) -> bytes:
    """Return the same signature with S + L in place of S."""
    s = int.from_bytes(signature[32:], "little") + ED25519_ORDER
    return signature[:32] + s.to_bytes(32, "little")


@pytest.mark.parametrize(
    "forge",
    [_plus_order, lambda s: s + b"\0", lambda s: s[:-1], lambda s: s[:1], lambda s: s * 2, lambda s: bytes(len(s))],
)
def test_malleable_signature_is_refused(forge: object) -> None:  # case 6
    assert callable(forge)
    signer = make_signer("one")
    signed = sign_payload(BUNDLE_PAYLOAD_TYPE, PAYLOAD, [signer])
    forged = forge(signed.signatures[0].signature)
    with pytest.raises(Refused) as refused:
        signer.key.verify(forged, signed.pae)
    assert refused.value.code is RefusalCode.BAD_SIGNATURE
