"""Making roots: the first, the next with other keys, the next with revocations; each then signed by its holders.

Every function writes a whole envelope to a new file and signs with the keys at hand; holders of further keys add theirs
with `sign_root`, on their own machines. Version N+1 needs the thresholds of both N and N+1.
"""

from __future__ import annotations

import base64
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from lab.sign.keyfile import Signer
from lab.sign.pack import write_whole
from lab.sign.sign import add_signature
from signing import envelope, strict_json
from signing.envelope import ROOT_PAYLOAD_TYPE, Envelope
from signing.keys import Algorithm, PublicKey
from signing.refusal import RefusalCode, Refused
from signing.root import ROLE_NAMES, ROOT_TYPE, Role, Root, RootKey, decode_root
from signing.utc import to_rfc3339


@dataclass(frozen=True)
class RolePlan:
    """Who shall hold a role: its keys (with their windows), the threshold for each algorithm, the algorithms."""

    keys: tuple[RootKey, ...]
    threshold: int = 1
    algorithms: tuple[Algorithm, ...] = (Algorithm.ED25519,)


def role_plan(keys: Iterable[PublicKey], threshold: int = 1, valid_until_unix_s: int | None = None) -> RolePlan:
    """Return the plan of a role held by `keys`, requiring every algorithm that they have.

    `valid_until_unix_s`: from when on their signatures count for no new activation; None: they always do.
    """
    listed = tuple(RootKey(key, valid_until_unix_s=valid_until_unix_s) for key in keys)
    kinds = tuple(kind for kind in Algorithm if any(one.key.algorithm is kind for one in listed))
    return RolePlan(listed, threshold, kinds)


def root_init(
    path: str | os.PathLike[str],
    plans: Mapping[str, RolePlan],
    signers: Sequence[Signer],
    *,
    issued_unix_s: int,
    expires_unix_s: int | None = None,
    minimum_releases: Mapping[str, int] | None = None,
) -> Root:
    """Write root version 1 for the roles root, build and release, signed by `signers`; return it."""
    root = Root(
        version=1,
        issued_unix_s=issued_unix_s,
        expires_unix_s=expires_unix_s,
        keys=_keys_of(plans),
        roles=_roles_of(plans),
        minimum_releases=dict(minimum_releases or {}),
    )
    return _write_root(path, root, signers)


def root_rotate(
    old_path: str | os.PathLike[str],
    new_path: str | os.PathLike[str],
    plans: Mapping[str, RolePlan],
    signers: Sequence[Signer],
    *,
    issued_unix_s: int,
    expires_unix_s: int | None = None,
) -> Root:
    """Write the next root, with new holders for the roles in `plans`; the other roles stay. Return it."""
    old = read_root(old_path)
    roles = {**old.roles, **_roles_of(plans)}
    known = {**old.keys, **_keys_of(plans)}
    used = {keyid for role in roles.values() for keyid in role.keyids}
    root = replace(
        old,
        version=old.version + 1,
        issued_unix_s=issued_unix_s,
        expires_unix_s=expires_unix_s,
        keys={keyid: key for keyid, key in known.items() if keyid in used},
        roles=roles,
        reset_floors=(),
    )
    return _write_root(new_path, root, signers, old)


def root_revoke(
    old_path: str | os.PathLike[str],
    new_path: str | os.PathLike[str],
    signers: Sequence[Signer],
    *,
    issued_unix_s: int,
    expires_unix_s: int | None = None,
    keyids: Iterable[str] = (),
    bundle_digests: Iterable[str] = (),
    minimum_releases: Mapping[str, int] | None = None,
    reset_floors: Iterable[str] = (),
    plans: Mapping[str, RolePlan] | None = None,
) -> Root:
    """Write the next root with keys or bundles revoked, minimum releases raised, or floors reset. Return it.

    A revoked key leaves its role; where the threshold then cannot be met, `plans` must name new holders
    (else BAD_ROOT).
    """
    old = read_root(old_path)
    revoked = old.revoked_keys | set(keyids)
    plans = plans or {}
    roles = {**old.roles, **_roles_of(plans)}
    kept = {
        name: replace(role, keyids=tuple(k for k in role.keyids if k not in revoked)) for name, role in roles.items()
    }
    known = {**old.keys, **_keys_of(plans)}
    used = {keyid for role in kept.values() for keyid in role.keyids}
    root = replace(
        old,
        version=old.version + 1,
        issued_unix_s=issued_unix_s,
        expires_unix_s=expires_unix_s,
        keys={keyid: key for keyid, key in known.items() if keyid in used},
        roles=kept,
        revoked_keys=revoked,
        revoked_bundles=old.revoked_bundles | set(bundle_digests),
        minimum_releases={**old.minimum_releases, **(minimum_releases or {})},
        reset_floors=tuple(reset_floors),
    )
    return _write_root(new_path, root, signers, old)


def sign_root(path: str | os.PathLike[str], signer: Signer, before: Root | None = None) -> None:
    """Add `signer`'s signature to the root at `path`, in place.

    Raises Refused(THRESHOLD_NOT_MET) for a key that is not in the role root, of this root or of `before`, the one that
    it follows: its signature would count for nothing.
    """
    parsed = _read_envelope(path)
    _require_holders([signer], decode_root(parsed.payload), before)
    _write_envelope(path, add_signature(parsed, signer))


def read_root(path: str | os.PathLike[str]) -> Root:
    """Return the root at `path` as it says it is; its signatures are not looked at."""
    return decode_root(_read_envelope(path).payload)


def encode_root(root: Root) -> bytes:
    """Return the payload bytes of `root`: deterministic JSON that `decode_root` accepts, or raise as that does."""
    payload = strict_json.encode(
        {
            "_type": ROOT_TYPE,
            "version": root.version,
            "issued": to_rfc3339(root.issued_unix_s),
            "expires": _time(root.expires_unix_s),
            "keys": {keyid: _key_document(one) for keyid, one in root.keys.items()},
            "roles": {name: _role_document(root.roles[name]) for name in ROLE_NAMES},
            "revokedKeys": sorted(root.revoked_keys),
            "revokedBundles": sorted(root.revoked_bundles),
            "minimumReleases": dict(root.minimum_releases),
            "resetFloors": list(root.reset_floors),
        }
    )
    decode_root(payload)
    return payload


def _key_document(one: RootKey) -> dict[str, object]:
    return {
        "algorithm": one.key.algorithm.value,
        "spki": base64.b64encode(one.key.spki).decode("ascii"),
        "validFrom": _time(one.valid_from_unix_s),
        "validUntil": _time(one.valid_until_unix_s),
    }


def _role_document(role: Role) -> dict[str, object]:
    return {
        "keys": list(role.keyids),
        "threshold": role.threshold,
        "algorithms": [kind.value for kind in role.algorithms],
    }


def _time(unix_s: int | None) -> str | None:
    return None if unix_s is None else to_rfc3339(unix_s)


def _keys_of(plans: Mapping[str, RolePlan]) -> dict[str, RootKey]:
    return {one.key.keyid: one for plan in plans.values() for one in plan.keys}


def _roles_of(plans: Mapping[str, RolePlan]) -> dict[str, Role]:
    return {
        name: Role(tuple(one.key.keyid for one in plan.keys), plan.threshold, plan.algorithms)
        for name, plan in plans.items()
    }


def _require_holders(signers: Sequence[Signer], root: Root, before: Root | None) -> None:
    """Refuse signatures that could not count: a root is signed by its own root keys and by those of the one before."""
    held = [(f"version {one.version}", one.roles["root"].keyids) for one in (before, root) if one is not None]
    for signer in signers:
        if not any(signer.key.keyid in keyids for _, keyids in held):
            expected = f"a key of the role root in {' or '.join(name for name, _ in held)}"
            todo = (
                "Sign with a root key; a holder whose key leaves with this version names the one before with --after."
            )
            raise Refused(RefusalCode.THRESHOLD_NOT_MET, "key for the role root", expected, signer.key.keyid, todo)


def _write_root(
    path: str | os.PathLike[str], root: Root, signers: Sequence[Signer], before: Root | None = None
) -> Root:
    payload = encode_root(root)
    _require_holders(signers, root, before)
    signed = Envelope(ROOT_PAYLOAD_TYPE, payload, ())
    for signer in signers:
        signed = add_signature(signed, signer)
    _write_envelope(path, signed)
    return root


def _read_envelope(path: str | os.PathLike[str]) -> Envelope:
    return envelope.parse(Path(path).read_bytes(), payload_type=ROOT_PAYLOAD_TYPE)


def _write_envelope(path: str | os.PathLike[str], signed: Envelope) -> None:
    raw = signed.encode()
    write_whole(path, lambda file: file.write(raw))
