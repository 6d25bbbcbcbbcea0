"""Strict JSON: one reading for one document, within bounds, before anything is believed.

UTF-8 without a mark, no duplicate keys, no floats at all (so no NaN, Infinity or 1e400), integers in canonical form
and within 64 bits, bounded size and depth. `Fields` takes an object apart field by field and refuses what is left over,
so a document has no room for anything that its reader does not know.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from typing import Final, NoReturn

from signing.refusal import RefusalCode, Refused, shown

DEPTH_LIMIT: Final = 16
_INTEGER: Final = re.compile(r"0|-?[1-9][0-9]{0,18}")
_STRING: Final = re.compile(r'"[^"\\]*+(?:\\.[^"\\]*+)*+"?', re.DOTALL)  # an open string runs to the end: linear time
_BRACKET: Final = re.compile(r"[\[\]{}]")
SHA256_HEX: Final = re.compile(r"[0-9a-f]{64}")
SHA256_FORM: Final = "64 lowercase hexadecimal digits"


def parse(data: bytes, *, limit_bytes: int, what: str) -> object:
    """Return the document in `data` (str, int, bool, None, list, dict), or raise Refused(BAD_JSON).

    `what` names the document in the refusal.
    """

    def refuse(expected: str, found: object) -> NoReturn:
        raise Refused(RefusalCode.BAD_JSON, what, expected, found if isinstance(found, str) else shown(found))

    def integer(text: str) -> int:
        if not _INTEGER.fullmatch(text):
            refuse("integers of at most 19 digits in canonical form", shown(text))
        return int(text)

    def unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
        members = dict(pairs)
        if len(members) != len(pairs):
            names = [name for name, _ in pairs]
            refuse("each key once in an object", f"{shown(next(n for n in names if names.count(n) > 1))} twice")
        return members

    def no_float(text: str) -> NoReturn:
        refuse("integers only, no floats, NaN or Infinity", shown(text))

    if len(data) > limit_bytes:
        refuse(f"at most {limit_bytes} bytes", f"{len(data)} bytes")
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        refuse("UTF-8", f"byte {data[error.start]:#04x} at offset {error.start}")
    if _depth(text) > DEPTH_LIMIT:
        refuse(f"at most {DEPTH_LIMIT} levels of nesting", "more")
    try:
        document: object = json.loads(
            text, object_pairs_hook=unique, parse_int=integer, parse_float=no_float, parse_constant=no_float
        )
    except json.JSONDecodeError as error:
        refuse("one JSON document", f"{error.msg} at character {error.pos}")
    return document


def _depth(text: str) -> int:
    """Return the deepest nesting of brackets outside strings, without recursion.

    Up to the first syntax error this lexes as the JSON parser does, so the parser never recurses deeper than this.
    """
    depth = deepest = 0
    for bracket in _BRACKET.findall(_STRING.sub("", text)):
        depth += 1 if bracket in "[{" else -1
        deepest = max(deepest, depth)
    return deepest


def encode(document: object) -> bytes:
    """Return `document` as deterministic ASCII JSON: sorted keys, no spaces."""
    return json.dumps(document, sort_keys=True, separators=(",", ":"), allow_nan=False).encode("ascii")


def base64_bytes(text: str, what: str) -> bytes:
    """Return the bytes of canonical standard base64 (RFC 4648 §4, §3.5), or raise Refused(BAD_ENCODING)."""
    try:
        data = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):  # ValueError: a character outside ASCII
        data = b""
    if base64.b64encode(data) != text.encode("utf-8", "surrogatepass"):
        raise Refused(RefusalCode.BAD_ENCODING, what, "canonical standard base64 with padding", shown(text))
    return data


class Fields:
    """One JSON object being taken apart. Each reader removes its field; `close` refuses whatever is left.

    `where` is the object's place in the document, for messages; `code` is the refusal for a field that is missing, of
    the wrong type, out of range or unknown.
    """

    def __init__(self, value: object, where: str, code: RefusalCode) -> None:
        """Begin with `value`, which must be a JSON object."""
        self.where = where
        self._code = code
        if not isinstance(value, dict):
            raise Refused(code, where, "an object", shown(value))
        self._left: dict[str, object] = dict(value)

    def refuse(self, name: str, expected: str, found: str, code: RefusalCode | None = None) -> NoReturn:
        """Raise the refusal of the field `name` of this object."""
        raise Refused(code or self._code, f"{self.where}.{name}", expected, found)

    def has(self, name: str) -> bool:
        """Say whether the field is there and still unread."""
        return name in self._left

    def _take(self, name: str, expected: str) -> object:
        if name not in self._left:
            self.refuse(name, expected, "nothing")
        return self._left.pop(name)

    def text(self, name: str, pattern: re.Pattern[str], expected: str, code: RefusalCode | None = None) -> str:
        """Take a string that matches `pattern` wholly; `expected` describes it; `code` refuses a mismatch."""
        value = self._take(name, expected)
        if not isinstance(value, str):
            self.refuse(name, expected, shown(value))
        if not pattern.fullmatch(value):
            self.refuse(name, expected, shown(value), code)
        return value

    def constant(self, name: str, value: str) -> None:
        """Take a string that must be `value`."""
        found = self._take(name, value)
        if found != value:
            self.refuse(name, value, shown(found))

    def integer(self, name: str, low: int, high: int) -> int:
        """Take an integer within [low, high]; booleans are not integers."""
        expected = f"an integer from {low} to {high}"
        value = self._take(name, expected)
        if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
            self.refuse(name, expected, shown(value))
        return value

    def string(self, name: str, limit: int) -> str:
        """Take a string of at most `limit` characters, whatever they are; the caller decodes it."""
        expected = f"a string of at most {limit} characters"
        value = self._take(name, expected)
        if not isinstance(value, str) or len(value) > limit:
            self.refuse(name, expected, shown(value))
        return value

    def base64(self, name: str, limit_bytes: int) -> bytes:
        """Take canonical base64 of at most `limit_bytes` decoded bytes."""
        text = self.string(name, (limit_bytes + 2) // 3 * 4)
        return base64_bytes(text, f"{self.where}.{name}")

    def sha256(self, name: str) -> str:
        """Take a lowercase hexadecimal SHA-256."""
        return self.text(name, SHA256_HEX, SHA256_FORM, RefusalCode.BAD_ENCODING)

    def items(self, name: str, limit: int) -> list[object]:
        """Take an array of at most `limit` items."""
        expected = f"an array of at most {limit} items"
        value = self._take(name, expected)
        if not isinstance(value, list) or len(value) > limit:
            self.refuse(name, expected, f"{len(value)} items" if isinstance(value, list) else shown(value))
        return value

    def texts(
        self, name: str, limit: int, pattern: re.Pattern[str], expected: str, code: RefusalCode
    ) -> tuple[str, ...]:
        """Take an array of strings that each match `pattern` wholly; `code` refuses one that does not."""
        found: list[str] = []
        for i, item in enumerate(self.items(name, limit)):
            if not isinstance(item, str) or not pattern.fullmatch(item):
                self.refuse(f"{name}[{i}]", expected, shown(item), code)
            found.append(item)
        return tuple(found)

    def mapping(self, name: str, limit: int) -> dict[str, object]:
        """Take an object of at most `limit` members whose keys are data, not field names."""
        expected = f"an object of at most {limit} members"
        value = self._take(name, expected)
        if not isinstance(value, dict) or len(value) > limit:
            self.refuse(name, expected, f"{len(value)} members" if isinstance(value, dict) else shown(value))
        return value

    def fields(self, name: str) -> Fields:
        """Take an object to be taken apart in turn."""
        return Fields(self._take(name, "an object"), f"{self.where}.{name}", self._code)

    def absent(self, name: str) -> bool:
        """Take the field if it is null and say so; leave any other value for the next reader."""
        if self._left.get(name, 0) is not None:
            return False
        del self._left[name]
        return True

    def close(self) -> None:
        """Refuse the fields that nobody has taken."""
        if self._left:
            known = f"no field beyond those of {self.where}"
            raise Refused(self._code, self.where, known, f"unknown field {shown(min(self._left))}")
