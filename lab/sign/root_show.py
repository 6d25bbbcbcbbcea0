"""What a root says and who has signed it, for the person who is to sign it next: read it before, not after.

With the root before it: what changes, and whether a vehicle that trusts that one would follow. The signatures are
judged one by one, for it is the person's business here to see which one is missing.
"""

from __future__ import annotations

import os
from pathlib import Path

from lab.sign.inspect import Tree
from signing import envelope
from signing.envelope import ROOT_PAYLOAD_TYPE, Envelope
from signing.refusal import Refused
from signing.root import ROLE_NAMES, Root, decode_root
from signing.trust import TrustStore
from signing.utc import to_rfc3339


def describe_root(path: str | os.PathLike[str], before: str | os.PathLike[str] | None = None) -> Tree:
    """Return the root as a tree of plain values; `before`: the root that it shall follow.

    `accepted` says whether a vehicle would take it: as its first root, or after `before`. Refused as reading does.
    """
    raw = Path(path).read_bytes()
    parsed = envelope.parse(raw, payload_type=ROOT_PAYLOAD_TYPE)
    root = decode_root(parsed.payload)
    old_raw = None if before is None else Path(before).read_bytes()
    old = None if old_raw is None else decode_root(envelope.parse(old_raw, payload_type=ROOT_PAYLOAD_TYPE).payload)
    tree: Tree = _stated(root)
    tree["signatures"] = [_judged(index, parsed, root, old) for index in range(len(parsed.signatures))]
    if old is not None:
        tree["changes"] = _changes(old, root)
    tree["accepted"] = _accepted(raw, old_raw)
    return tree


def _stated(root: Root) -> Tree:
    return {
        "version": root.version,
        "issued": to_rfc3339(root.issued_unix_s),
        "expires": _time(root.expires_unix_s),
        "roles": {name: _role(root, name) for name in ROLE_NAMES},
        "revoked_keys": sorted(root.revoked_keys),
        "revoked_bundles": sorted(root.revoked_bundles),
        "minimum_releases": dict(root.minimum_releases),
        "reset_floors": list(root.reset_floors),
    }


def _role(root: Root, name: str) -> Tree:
    role = root.roles[name]
    return {
        "threshold": role.threshold,
        "algorithms": [kind.value for kind in role.algorithms],
        "keys": [
            {"keyid": keyid, "algorithm": one.key.algorithm.value, "from": _time(one.valid_from_unix_s),
             "until": _time(one.valid_until_unix_s)}
            for keyid, one in ((keyid, root.keys[keyid]) for keyid in role.keyids)
        ],
    }  # fmt: skip


def _judged(index: int, parsed: Envelope, root: Root, old: Root | None) -> Tree:
    one = parsed.signatures[index]
    held = [(which, some) for which, some in (("this root", root), ("the root before", old)) if some is not None]
    holders = [(which, some) for which, some in held if one.keyid in some.roles["root"].keyids]
    if not holders:
        return {"keyid": one.keyid, "judged": f"no key of the role root in {' or '.join(which for which, _ in held)}"}
    try:
        holders[0][1].keys[one.keyid].key.verify(one.signature, parsed.pae)
    except Refused as refused:
        return {"keyid": one.keyid, "judged": f"refused: {refused.code.value}"}
    return {"keyid": one.keyid, "judged": f"valid, for {' and '.join(which for which, _ in holders)}"}


def _changes(old: Root, new: Root) -> Tree:
    """What differs, each as what it was and what it becomes; `roles` by the key ids that come and go."""
    first, second = _stated(old), _stated(new)
    changed: Tree = {
        name: f"{first[name]} -> {second[name]}" for name in first if name != "roles" and first[name] != second[name]
    }
    for name in ROLE_NAMES:
        was, becomes = old.roles[name], new.roles[name]
        for word, keyids in (("leaves", set(was.keyids) - set(becomes.keyids)),
                             ("joins", set(becomes.keyids) - set(was.keyids))):  # fmt: skip
            changed.update({f"{keyid} {word}": name for keyid in sorted(keyids)})
        if was.threshold != becomes.threshold:
            changed[f"threshold of {name}"] = f"{was.threshold} -> {becomes.threshold}"
    return changed


def _accepted(raw: bytes, before: bytes | None) -> str:
    try:
        if before is None:
            TrustStore.bootstrap(raw)
            return "yes, as a vehicle's first root"
        TrustStore.bootstrap(before).accept_root(raw)
    except Refused as refused:
        return f"no: {refused}"
    return "yes, after the root before it"


def _time(unix_s: int | None) -> str | None:
    return None if unix_s is None else to_rfc3339(unix_s)
