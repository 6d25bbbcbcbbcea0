"""What a bundle states and holds, for people and for scripts, and how two bundles differ, field by field.

Every digest is compared while reading; signatures are judged only where a root is given, and then one by one, for it is
the person's business here to see which signature is missing. Whether a vehicle would take the bundle is answered by
`fenced verify`.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from lab.sign.pack import open_checked
from signing.bundle import SealedBundle
from signing.container import Span
from signing.envelope import Envelope
from signing.refusal import RefusalCode, Refused, shown
from signing.root import Root
from signing.statement import Statement
from signing.utc import to_rfc3339

Tree = dict[str, object]
_MISSING: Final = object()
_JSON_LIMIT_BYTES: Final = 1 << 20


@dataclass(frozen=True)
class Difference:
    """One field in which two bundles differ; None where a bundle has no such field."""

    field: str
    first: object
    second: object


def describe(path: str | os.PathLike[str], root: Root | None = None) -> Tree:
    """Return the bundle as a tree of plain values. Raises Refused as reading does."""
    with open_checked(path) as (sealed, parsed, stated):
        media = {one.name: one.media_type for one in stated.attachments}
        blobs = [
            {"name": blob.name, "size_bytes": blob.size_bytes, "sha256": blob.sha256,
             **({"attachment": media[blob.name]} if blob.name in media else {})}
            for blob in stated.blobs
        ]  # fmt: skip
        expires = stated.expires_unix_s
        return {
            "size_bytes": sealed.size_bytes,
            "digest": hashlib.sha256(parsed.payload).hexdigest(),
            "model": dataclasses.asdict(stated.model),
            "abi_version": stated.abi_version,
            "hal_version": stated.hal_version,
            "target": {**dataclasses.asdict(stated.target), "cpu_features": list(stated.target.cpu_features)},
            "compiler": {"tinygrad": stated.compiler.tinygrad, **dict(stated.compiler.options)},
            "expires": None if expires is None else to_rfc3339(expires),
            "required_algorithms": {
                "build": [one.value for one in stated.required_algorithms.build],
                "release": [one.value for one in stated.required_algorithms.release],
            },
            "blobs": blobs,
            "signatures": [_signature(index, parsed, root) for index in range(len(parsed.signatures))],
        }


def attachment(path: str | os.PathLike[str], name: str) -> bytes:
    """Return one attachment's bytes. Raises Refused(UNKNOWN_BLOB) if the bundle has none of that name."""
    with open_checked(path) as (sealed, _, stated):
        return bytes(sealed.view(_span(sealed, stated, name)))


def difference(first: str | os.PathLike[str], second: str | os.PathLike[str]) -> list[Difference]:
    """Return every field in which two bundles differ; none for equal files, signatures included.

    Blobs are compared by name and digest, JSON attachments also field by field.
    """
    fields, others = _comparable(first), _comparable(second)
    names = [*fields, *(name for name in others if name not in fields)]
    return [
        Difference(name, fields.get(name), others.get(name))
        for name in names
        if fields.get(name, _MISSING) != others.get(name, _MISSING)
    ]


def to_text(tree: Tree) -> str:
    """Return a description as an indented outline."""
    return "".join(f"{line}\n" for line in _outline(tree, 0))


def difference_text(found: list[Difference]) -> str:
    """Return the differences as two lines a field, as diff does."""
    lines = []
    for one in found:
        lines.append(one.field)
        lines += [f"  {sign} {_short(value)}" for sign, value in (("-", one.first), ("+", one.second))]
    return "".join(f"{line}\n" for line in lines) or "the bundles are the same\n"


def _signature(index: int, parsed: Envelope, root: Root | None) -> Tree:
    one = parsed.signatures[index]
    if root is None:
        return {"keyid": one.keyid, "judged": "no: no root was given"}
    known = root.keys.get(one.keyid)
    if known is None:
        revoked = one.keyid in root.revoked_keys
        return {"keyid": one.keyid, "judged": "revoked key" if revoked else "no key of the root"}
    roles = [name for name, role in root.roles.items() if one.keyid in role.keyids and name != "root"]
    try:
        known.key.verify(one.signature, parsed.pae)
    except Refused as refused:
        return {"keyid": one.keyid, "roles": roles, "judged": f"refused: {refused.code.value}"}
    return {"keyid": one.keyid, "roles": roles, "judged": f"valid, {known.key.algorithm.value}"}


def _span(sealed: SealedBundle, stated: Statement, name: str) -> Span:
    listed = [one.name for one in stated.attachments]
    for blob, span in zip(stated.blobs, sealed.layout.blobs, strict=True):
        if blob.name == name and name in listed:
            return span
    expected = f"one of {', '.join(listed)}" if listed else "a bundle with attachments"
    raise Refused(RefusalCode.UNKNOWN_BLOB, "attachment", expected, shown(name))


def _comparable(path: str | os.PathLike[str]) -> dict[str, object]:
    """Return the description as one flat mapping of dotted names, lists of named things by their names."""
    tree = describe(path)
    flat = dict(_flat("", tree))
    for name in [blob["name"] for blob in tree["blobs"] if "attachment" in blob]:  # type: ignore[attr-defined]
        data = attachment(path, name)
        if name.endswith(".json") and len(data) <= _JSON_LIMIT_BYTES:
            try:
                flat.update(_flat(f"{name}:", json.loads(data)))
            except (ValueError, RecursionError):  # not JSON after all: the digest says whether it differs
                continue
    return flat


def _flat(prefix: str, value: object) -> Iterator[tuple[str, object]]:
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _flat(f"{prefix}{'' if prefix[-1:] in ('', ':') else '.'}{key}", inner)
    elif isinstance(value, list) and any(isinstance(one, Mapping) for one in value):
        for index, one in enumerate(value):
            title = next((one[key] for key in ("name", "keyid", "ref", "uri") if key in one), index)
            yield from _flat(f"{prefix}[{title}]", one)
    else:
        yield prefix, value


def _outline(tree: Mapping[str, object], depth: int) -> Iterator[str]:
    margin = "  " * depth
    for key, value in tree.items():
        if isinstance(value, Mapping):
            yield f"{margin}{key}"
            yield from _outline(value, depth + 1)
        elif isinstance(value, list) and value and isinstance(value[0], Mapping):
            yield f"{margin}{key}"
            for one in value:
                yield f"{margin}  " + "  ".join(_short(part) for part in one.values())
        else:
            yield f"{margin}{key}  {_short(value)}"


def _short(value: object) -> str:
    if value is None or value == []:
        return "-"
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)
