"""Times in signed documents: RFC 3339 in UTC, whole seconds, one spelling; seconds since 1970 in the program."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Final

from signing.strict_json import Fields

LIMIT_UNIX_S: Final = 253402300799  # 9999-12-31T23:59:59Z
_FORM: Final = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}Z")
_FORM_WORDS: Final = "a time like 2027-01-31T00:00:00Z, not before 1970"


def to_rfc3339(unix_s: int) -> str:
    """Return `unix_s` (0 to LIMIT_UNIX_S) as RFC 3339 in UTC; ValueError outside that range."""
    if not 0 <= unix_s <= LIMIT_UNIX_S:
        raise ValueError(f"a time must lie between 0 and {LIMIT_UNIX_S} s since 1970, not {unix_s}")
    return datetime.fromtimestamp(unix_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def from_rfc3339(fields: Fields, name: str) -> int | None:
    """Take the field `name`: null gives None, a time gives seconds since 1970; anything else is refused."""
    if fields.absent(name):
        return None
    text = fields.text(name, _FORM, _FORM_WORDS)
    try:
        unix_s = int(datetime.fromisoformat(text).timestamp())
    except ValueError:
        unix_s = -1
    if unix_s < 0:
        fields.refuse(name, _FORM_WORDS, text)
    return unix_s
