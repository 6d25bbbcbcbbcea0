"""Strict JSON: what lax readers accept is refused by name, within bounded memory."""

from __future__ import annotations

import base64
import itertools
import re
import tracemalloc

import pytest

from signing.refusal import RefusalCode, Refused
from signing.strict_json import DEPTH_LIMIT, Fields, base64_bytes, encode, parse
from tests.simulators import refusal

CODE = RefusalCode.BAD_STATEMENT
ONE_DOCUMENT = "one JSON document"
INTEGERS = "integers of at most 19 digits in canonical form"
NO_FLOATS = "integers only, no floats, NaN or Infinity"


def read(data: bytes, limit_bytes: int = 1 << 20) -> object:
    return parse(data, limit_bytes=limit_bytes, what="thing")


def test_values_are_read() -> None:
    assert read(b' {"a": [1, -2, true, null, "x\\u00fc"], "b": {}} ') == {"a": [1, -2, True, None, "xü"], "b": {}}
    assert read(b"[0,9223372036854775807,9999999999999999999]") == [0, 2**63 - 1, 10**19 - 1]


@pytest.mark.parametrize(
    ("data", "expected", "found"),
    [
        (b'{"a":1,"a":2}', "each key once in an object", "'a' twice"),
        (b'{"a":{"b":1,"c":1,"b":1}}', "each key once in an object", "'b' twice"),
        (b"NaN", NO_FLOATS, "'NaN'"),
        (b"[Infinity]", NO_FLOATS, "'Infinity'"),
        (b"[-Infinity]", NO_FLOATS, "'-Infinity'"),
        (b"1e400", NO_FLOATS, "'1e400'"),
        (b"1.0", NO_FLOATS, "'1.0'"),
        (b"-0", INTEGERS, "'-0'"),
        (b"10000000000000000000", INTEGERS, "'10000000000000000000'"),
        (b"9" * 5000, INTEGERS, "'" + "9" * 92 + "..."),
        (b"[" * 17 + b"]" * 17, "at most 16 levels of nesting", "more"),
        (b"[" * 200_000, "at most 16 levels of nesting", "more"),
        (b'{"a":' * 200_000, "at most 16 levels of nesting", "more"),
        (b"", ONE_DOCUMENT, "Expecting value at character 0"),
        (b"[1]x", ONE_DOCUMENT, "Extra data at character 3"),
        (b"[01]", ONE_DOCUMENT, "Expecting ',' delimiter at character 2"),
        (b'["\n"]', ONE_DOCUMENT, "Invalid control character at at character 2"),
        (b"['a']", ONE_DOCUMENT, "Expecting value at character 1"),
        (b"\xef\xbb\xbf[]", ONE_DOCUMENT, "Unexpected UTF-8 BOM (decode using utf-8-sig) at character 0"),
        (b'["\xff"]', "UTF-8", "byte 0xff at offset 2"),
        ('["é"]'.encode("utf-16"), "UTF-8", "byte 0xff at offset 0"),
        (b'"' + b'\\"' * 100_000, ONE_DOCUMENT, "Unterminated string starting at at character 0"),
    ],
    ids=itertools.count(),
)
def test_lax_json_is_refused(data: bytes, expected: str, found: str) -> None:  # cases 9, 10
    with refusal(RefusalCode.BAD_JSON, "thing", expected, found):
        read(data)


def test_refusing_takes_bounded_memory() -> None:
    tracemalloc.start()
    try:
        for data in (b"[" * 200_000, b"9" * 200_000, b'"\\u0000"' * 20_000):
            with pytest.raises(Refused):
                read(data)
        assert tracemalloc.get_traced_memory()[1] < 16 * 1024 * 1024
    finally:
        tracemalloc.stop()


def test_nesting_at_the_limit_is_read_and_brackets_in_strings_do_not_count() -> None:
    assert read(b"[" * DEPTH_LIMIT + b"]" * DEPTH_LIMIT)
    assert read(b"[" + b"[],{}," * 50 + b"1]")
    assert read(b'"' + b"[{" * 50 + b'"') == "[{" * 50
    assert read(b'"\\"' + b"[{" * 50 + b'"') == '"' + "[{" * 50


def test_size_is_bounded() -> None:
    assert read(b"[1]", limit_bytes=3) == [1]
    with refusal(RefusalCode.BAD_JSON, "thing", "at most 2 bytes", "3 bytes"):
        read(b"[1]", limit_bytes=2)


def test_encoding_is_deterministic_ascii() -> None:
    assert encode({"b": [1, None], "a": "ü"}) == b'{"a":"\\u00fc","b":[1,null]}'
    with pytest.raises(ValueError, match="Out of range"):
        encode(float("nan"))


@pytest.mark.parametrize("data", [b"", b"f", b"fo", b"foo", b"foob", bytes(range(256))], ids=itertools.count())
def test_canonical_base64_is_read(data: bytes) -> None:
    assert base64_bytes(base64.b64encode(data).decode(), "x") == data


@pytest.mark.parametrize(
    "text",
    ["Zg=", "Zg", "Zh==", "Zg==\n", " Zg==", "Z g==", "Zm9v====", "_-8=", "Zg==Zg==", "ü", "\ud800", "A", "=", "Zm9vé"],
    ids=itertools.count(),
)
def test_lax_base64_is_refused(text: str) -> None:  # case 11
    with refusal(RefusalCode.BAD_ENCODING, "x.y", "canonical standard base64 with padding", ascii(text)):
        base64_bytes(text, "x.y")


def fields(document: object) -> Fields:
    return Fields(document, "doc", CODE)


@pytest.mark.parametrize("document", [None, [], "x", 1])
def test_only_objects_have_fields(document: object) -> None:
    with refusal(CODE, "doc", "an object", repr(document)):
        fields(document)


def test_fields_are_taken_one_by_one() -> None:
    one = fields(
        {"s": "ab", "i": 3, "l": [1], "o": {"x": 1}, "m": {"k": "v"}, "n": None, "c": "k", "b": "Zg==", "t": ["a"]}
    )
    assert one.has("s")
    assert one.text("s", re.compile("[ab]+"), "ab") == "ab"
    assert not one.has("s")
    assert one.integer("i", 3, 3) == 3
    assert one.items("l", 1) == [1]
    inner = one.fields("o")
    assert inner.where == "doc.o"
    assert inner.integer("x", 0, 1) == 1
    inner.close()
    assert one.mapping("m", 1) == {"k": "v"}
    assert not one.absent("c")
    assert not one.absent("missing")
    assert one.absent("n")
    one.constant("c", "k")
    assert one.base64("b", 1) == b"f"
    assert one.texts("t", 1, re.compile("a"), "a", RefusalCode.BAD_NAME) == ("a",)
    one.close()


def test_taking_apart_leaves_the_document_whole() -> None:
    document = {"i": 3}
    fields(document).integer("i", 0, 9)
    assert document == {"i": 3}


def test_unknown_field_is_refused_and_its_name_forges_nothing() -> None:
    with refusal(CODE, "doc", "no field beyond those of doc", "unknown field 'a\\nb'"):
        fields({"z": 1, "a\nb": 2}).close()


DIGEST = "0123456789abcdef" * 4
UPPER, SPACED, LONG = DIGEST.upper(), " " + DIGEST[1:], DIGEST + "0"
NAME, ENCODING = RefusalCode.BAD_NAME, RefusalCode.BAD_ENCODING
HEX, BASE64 = "64 lowercase hexadecimal digits", "canonical standard base64 with padding"


@pytest.mark.parametrize(
    ("value", "take", "code", "expected", "found"),
    [
        (1, lambda f: f.text("x", re.compile("a"), "an a"), CODE, "an a", "1"),
        ("b", lambda f: f.text("x", re.compile("a"), "an a"), CODE, "an a", "'b'"),
        ("ab", lambda f: f.text("x", re.compile("a"), "an a"), CODE, "an a", "'ab'"),
        ("a\n", lambda f: f.text("x", re.compile("a"), "an a", NAME), NAME, "an a", "'a\\n'"),
        (1, lambda f: f.text("x", re.compile("a"), "an a", NAME), CODE, "an a", "1"),
        ("a", lambda f: f.constant("x", "b"), CODE, "b", "'a'"),
        (1, lambda f: f.integer("x", 2, 4), CODE, "an integer from 2 to 4", "1"),
        (5, lambda f: f.integer("x", 2, 4), CODE, "an integer from 2 to 4", "5"),
        (True, lambda f: f.integer("x", 0, 4), CODE, "an integer from 0 to 4", "True"),
        ("3", lambda f: f.integer("x", 0, 4), CODE, "an integer from 0 to 4", "'3'"),
        (1, lambda f: f.string("x", 3), CODE, "a string of at most 3 characters", "1"),
        ("abcd", lambda f: f.string("x", 3), CODE, "a string of at most 3 characters", "'abcd'"),
        ("Zm9vZg==", lambda f: f.base64("x", 3), CODE, "a string of at most 4 characters", "'Zm9vZg=='"),
        ("Zm9vZg==", lambda f: f.base64("x", 1), CODE, "a string of at most 4 characters", "'Zm9vZg=='"),
        ("Zh==", lambda f: f.base64("x", 3), ENCODING, BASE64, "'Zh=='"),
        (UPPER, lambda f: f.sha256("x"), ENCODING, HEX, repr(UPPER)),
        (SPACED, lambda f: f.sha256("x"), ENCODING, HEX, repr(SPACED)),
        (LONG, lambda f: f.sha256("x"), ENCODING, HEX, repr(LONG)),
        (7, lambda f: f.items("x", 3), CODE, "an array of at most 3 items", "7"),
        ([1, 2, 3, 4], lambda f: f.items("x", 3), CODE, "an array of at most 3 items", "4 items"),
        (7, lambda f: f.mapping("x", 1), CODE, "an object of at most 1 members", "7"),
        ({"a": 1, "b": 2}, lambda f: f.mapping("x", 1), CODE, "an object of at most 1 members", "2 members"),
        (7, lambda f: f.fields("x"), CODE, "an object", "7"),
    ], ids=itertools.count(),
)  # fmt: skip
def test_wrong_field_is_refused(value: object, take: object, code: RefusalCode, expected: str, found: str) -> None:
    assert callable(take)
    with refusal(code, "doc.x", expected, found):
        take(fields({"x": value}))


@pytest.mark.parametrize("item", [1, "b", "aa"])
def test_wrong_item_is_refused_by_its_place(item: object) -> None:
    with refusal(RefusalCode.BAD_NAME, "doc.x[1]", "an a", repr(item)):
        fields({"x": ["a", item]}).texts("x", 2, re.compile("a"), "an a", RefusalCode.BAD_NAME)


@pytest.mark.parametrize(
    ("take", "expected"),
    [
        (lambda f: f.text("x", re.compile("a"), "an a"), "an a"),
        (lambda f: f.constant("x", "b"), "b"),
        (lambda f: f.integer("x", 0, 1), "an integer from 0 to 1"),
        (lambda f: f.string("x", 2), "a string of at most 2 characters"),
        (lambda f: f.items("x", 2), "an array of at most 2 items"),
        (lambda f: f.mapping("x", 2), "an object of at most 2 members"),
        (lambda f: f.fields("x"), "an object"),
    ],
)
def test_missing_field_is_refused(take: object, expected: str) -> None:
    assert callable(take)
    with refusal(CODE, "doc.x", expected, "nothing"):
        take(fields({"y": 1}))
