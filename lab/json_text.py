"""JSON as the lab writes it: reports, `--json`, notes in logs, attachments.

RFC 8259 knows no Infinity and no NaN, and strict readers refuse a file that holds one; so a number that is none, or is
infinite, is written as null. What it means there stands beside the report (docs/bench.md, docs/hil.md,
docs/performance.md). Everything else is written as `json.dumps` does it, byte for byte.
"""

from __future__ import annotations

import json
import math
from dataclasses import fields, is_dataclass
from typing import Any

__all__ = ["json_text"]


def json_text(tree: object, *, indent: int | None = None, sort_keys: bool = False,
              separators: tuple[str, str] | None = None) -> str:  # fmt: skip
    """`tree` as ASCII JSON; dataclasses become objects of their fields. Raises TypeError for what JSON cannot hold."""
    return json.dumps(_finite(tree), indent=indent, sort_keys=sort_keys, separators=separators, allow_nan=False)


def _finite(value: object) -> Any:
    """The same with null for every number that is not finite; names of an object's members are text already."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _finite(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(one) for one in value]
    if is_dataclass(value) and not isinstance(value, type):
        return {one.name: _finite(getattr(value, one.name)) for one in fields(value)}
    return value
