"""An image's statement and list of files: read strictly, signed by the role release, never taken for a bundle."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from signing import image, statement, strict_json
from signing.envelope import BUNDLE_PAYLOAD_TYPE
from signing.image import ImageStatement, decode, decode_list, encode, encode_list, verify_image
from signing.refusal import RefusalCode, Refused
from tests.simulators import NOW_UNIX_S, RoleKeys, make_root, refusal, sign_payload

KEYS = RoleKeys.make()
ROOT = make_root(KEYS)
LISTED = encode_list({"lib/a.py": "0" * 64, "bin/fenced": "1" * 64})
STATED = ImageStatement("0.1.0", "x86_64", "3.11", hashlib.sha256(LISTED).hexdigest())
ADVICE = "Install the image again; its content is not what was signed."


def signed(payload: bytes, keys: tuple[Any, ...] = KEYS.release) -> bytes:
    return sign_payload(BUNDLE_PAYLOAD_TYPE, payload, keys).encode()


def edited(edit: Callable[[dict[str, Any]], object]) -> bytes:
    document = json.loads(encode(STATED))
    edit(document)
    return strict_json.encode(document)


def test_a_signed_image_is_what_it_states() -> None:
    assert verify_image(signed(encode(STATED)), LISTED, ROOT, NOW_UNIX_S) == STATED
    assert decode(encode(STATED)) == STATED


def test_a_clock_behind_the_root_is_read_as_its_issue() -> None:
    keys = {keyid: replace(one, valid_from_unix_s=ROOT.issued_unix_s) for keyid, one in ROOT.keys.items()}
    root = replace(ROOT, keys=keys)
    assert verify_image(signed(encode(STATED)), LISTED, root, 0) == STATED
    late = {keyid: replace(one, valid_from_unix_s=NOW_UNIX_S + 1) for keyid, one in ROOT.keys.items()}
    with pytest.raises(Refused) as refused:
        verify_image(signed(encode(STATED)), LISTED, replace(ROOT, keys=late), NOW_UNIX_S)
    assert refused.value.code is RefusalCode.NOT_YET_VALID
    assert verify_image(signed(encode(STATED)), LISTED, replace(ROOT, keys=late), None) == STATED


@pytest.mark.parametrize("keys", [(), KEYS.build, KEYS.root])
def test_only_the_role_release_can_sign_an_image(keys: tuple[Any, ...]) -> None:
    with pytest.raises(Refused) as refused:
        verify_image(signed(encode(STATED), keys), LISTED, ROOT, NOW_UNIX_S)
    assert refused.value.code in (RefusalCode.NO_VALID_SIGNATURE, RefusalCode.THRESHOLD_NOT_MET)


def test_another_list_is_refused() -> None:
    other = encode_list({"lib/a.py": "2" * 64})
    found = hashlib.sha256(other).hexdigest()
    with refusal(RefusalCode.DIGEST_MISMATCH, "image file files.sha256", f"sha256 {STATED.list_sha256}", found):
        verify_image(signed(encode(STATED)), other, ROOT, NOW_UNIX_S)
    with pytest.raises(Refused) as refused:
        image.require_list(other, STATED)
    assert refused.value.todo == ADVICE


def test_a_bundle_is_not_an_image_and_an_image_not_a_bundle() -> None:
    with pytest.raises(Refused) as refused:
        statement.decode(encode(STATED))
    assert refused.value.what == "statement.predicateType"
    with refusal(RefusalCode.BAD_STATEMENT, "image.predicateType", "urn:fenced:image:v1", "'urn:fenced:bundle:v1'"):
        decode(edited(lambda document: document.update(predicateType="urn:fenced:bundle:v1")))


SPOILT: list[tuple[Callable[[dict[str, Any]], object], RefusalCode, str]] = [
    (lambda d: d.update(_type="x"), RefusalCode.BAD_STATEMENT, "image._type"),
    (lambda d: d.update(more=1), RefusalCode.BAD_STATEMENT, "image"),
    (lambda d: d.update(subject=[]), RefusalCode.BAD_STATEMENT, "image.subject"),
    (lambda d: d.update(subject=d["subject"] * 2), RefusalCode.BAD_STATEMENT, "image.subject"),
    (lambda d: d["subject"][0].update(name="other"), RefusalCode.BAD_STATEMENT, "image.subject[0].name"),
    (lambda d: d["subject"][0].update(more=1), RefusalCode.BAD_STATEMENT, "image.subject[0]"),
    (lambda d: d["subject"][0]["digest"].update(sha256="A" * 64), RefusalCode.BAD_ENCODING,
     "image.subject[0].digest.sha256"),
    (lambda d: d["subject"][0]["digest"].update(md5="0"), RefusalCode.BAD_STATEMENT, "image.subject[0].digest"),
    (lambda d: d["predicate"].update(version=""), RefusalCode.BAD_NAME, "image.predicate.version"),
    (lambda d: d["predicate"].update(arch="../x"), RefusalCode.BAD_NAME, "image.predicate.arch"),
    (lambda d: d["predicate"].update(python=" 3"), RefusalCode.BAD_NAME, "image.predicate.python"),
    (lambda d: d["predicate"].update(more=1), RefusalCode.BAD_STATEMENT, "image.predicate"),
    (lambda d: d.pop("predicate"), RefusalCode.BAD_STATEMENT, "image.predicate"),
]  # fmt: skip


@pytest.mark.parametrize(("edit", "code", "where"), SPOILT)
def test_a_statement_of_another_form_is_refused(
    edit: Callable[[dict[str, Any]], object], code: RefusalCode, where: str
) -> None:
    with pytest.raises(Refused) as refused:
        decode(edited(edit))
    assert (refused.value.code, refused.value.what) == (code, where)


def test_a_statement_that_cannot_be_read_back_is_not_written() -> None:
    with pytest.raises(Refused):
        encode(replace(STATED, arch="a/b"))


def test_the_list_is_that_of_sha256sum_in_the_order_of_the_paths() -> None:
    assert LISTED == b"1" * 64 + b"  bin/fenced\n" + b"0" * 64 + b"  lib/a.py\n"
    assert decode_list(LISTED) == {"bin/fenced": "1" * 64, "lib/a.py": "0" * 64}


@pytest.mark.parametrize(
    "path", ["/etc/passwd", "../x", "a/../b", "a//b", "./a", "a/", ".hidden", "a b", "a\\b", "ä", "", "a/."]
)
def test_a_path_that_is_not_plain_is_refused(path: str) -> None:
    line = f"{'0' * 64}  {path}"
    form = "64 hexadecimal digits, two spaces and a plain relative path"
    with pytest.raises(Refused) as refused:
        decode_list(f"{line}\n".encode())
    assert (refused.value.code, refused.value.what) == (RefusalCode.BAD_STATEMENT, "files.sha256 line 1")
    assert (refused.value.expected, refused.value.todo) == (form, ADVICE)
    with pytest.raises(Refused):
        encode_list({path: "0" * 64})


@pytest.mark.parametrize("second", ["a", "b"])
def test_paths_stand_in_order_and_none_twice(second: str) -> None:
    data = f"{'0' * 64}  b\n{'0' * 64}  {second}\n".encode()
    with refusal(RefusalCode.BAD_STATEMENT, "files.sha256 line 2", "a path after 'b'", repr(second)):
        decode_list(data)


@pytest.mark.parametrize("data", [b"", b"0" * 64 + b"  a", b"\n" * (image.LIST_LIMIT_BYTES + 1)])
def test_a_list_is_lines_and_bounded(data: bytes) -> None:
    expected = "lines, at most 4194304 bytes"
    with refusal(RefusalCode.BAD_STATEMENT, "image file files.sha256", expected, f"{len(data)} bytes"):
        decode_list(data)


def test_a_list_at_the_limit_is_read() -> None:
    line = b"0" * 64 + b"  a\n"
    with pytest.raises(Refused) as refused:
        decode_list(b"\n" * image.LIST_LIMIT_BYTES)
    assert refused.value.what == "files.sha256 line 1"
    assert decode_list(line) == {"a": "0" * 64}


def test_digests_are_lowercase_and_of_their_length() -> None:
    for digest in ("A" * 64, "0" * 63, "0" * 65, "g" * 64):
        with pytest.raises(Refused):
            decode_list(f"{digest}  a\n".encode())
    with pytest.raises(Refused):
        decode_list(b"0" * 64 + b" a\n")
