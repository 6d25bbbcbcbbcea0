"""The root: which keys may sign in which role, what is revoked, and what is too old.

A root is a DSSE envelope of its own payload type around one JSON object. `decode_root` reads the payload strictly and
refuses a root that contradicts itself; whether it is *signed* is `signing.threshold`'s matter, whether it *follows* the
trusted one is `signing.trust`'s. Keys of the role `root` have no validity window: a root is accepted without a clock.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from signing import strict_json
from signing.container import ENVELOPE_LIMIT_BYTES
from signing.keys import SPKI_LIMIT_BYTES, Algorithm, PublicKey, algorithm, load_public_key
from signing.refusal import RefusalCode, Refused, shown
from signing.statement import NAME, NAME_FORM, RELEASE_LIMIT, algorithms
from signing.strict_json import SHA256_FORM, SHA256_HEX, Fields
from signing.utc import from_rfc3339

ROOT_TYPE: Final = "urn:fenced:root:v1"
ROLE_NAMES: Final = ("root", "build", "release")
KEY_LIMIT: Final = 32
REVOKED_LIMIT: Final = 2048
MODEL_LIMIT: Final = 512
VERSION_LIMIT: Final = 2**63 - 1
_REVOKED: Final = (REVOKED_LIMIT, SHA256_HEX, SHA256_FORM, RefusalCode.BAD_ENCODING)


@dataclass(frozen=True)
class RootKey:
    """A key and the window in which its signatures count; None leaves that end open."""

    key: PublicKey
    valid_from_unix_s: int | None = None
    valid_until_unix_s: int | None = None


@dataclass(frozen=True)
class Role:
    """A role: its keys by id, how many distinct ones must sign with each of its algorithms (all of them: AND)."""

    keyids: tuple[str, ...]
    threshold: int
    algorithms: tuple[Algorithm, ...]


@dataclass(frozen=True)
class Root:
    """One version of the root. `issued_unix_s` is a floor for the clock: no true time lies before it.

    `minimum_releases` holds per model the lowest release that may be activated; `reset_floors` names models whose
    vehicle floor is dropped when this very version is accepted, so that their minimum alone stands (the way out
    of a release number that was raised too far).
    """

    version: int
    issued_unix_s: int
    expires_unix_s: int | None
    keys: Mapping[str, RootKey]
    roles: Mapping[str, Role]
    revoked_keys: frozenset[str] = frozenset()
    revoked_bundles: frozenset[str] = frozenset()
    minimum_releases: Mapping[str, int] = field(default_factory=dict)
    reset_floors: tuple[str, ...] = ()

    def public_keys(self) -> dict[str, PublicKey]:
        """Return the keys by key id, for checking signatures."""
        return {keyid: one.key for keyid, one in self.keys.items()}


def decode_root(payload: bytes) -> Root:
    """Return the root in `payload`, or raise Refused.

    Codes: BAD_JSON, BAD_ROOT, BAD_KEY, BAD_NAME, BAD_ENCODING, UNKNOWN_ALGORITHM.
    """
    document = strict_json.parse(payload, limit_bytes=ENVELOPE_LIMIT_BYTES, what="root")
    fields = Fields(document, "root", RefusalCode.BAD_ROOT)
    fields.constant("_type", ROOT_TYPE)
    version = fields.integer("version", 1, VERSION_LIMIT)
    issued_unix_s = from_rfc3339(fields, "issued")
    if issued_unix_s is None:
        fields.refuse("issued", "a time", "null")
    roles = fields.fields("roles")
    root = Root(
        version=version,
        issued_unix_s=issued_unix_s,
        expires_unix_s=from_rfc3339(fields, "expires"),
        keys=dict(_key(keyid, value) for keyid, value in fields.mapping("keys", KEY_LIMIT).items()),
        roles={name: _role(roles.fields(name)) for name in ROLE_NAMES},
        revoked_keys=frozenset(fields.texts("revokedKeys", *_REVOKED)),
        revoked_bundles=frozenset(fields.texts("revokedBundles", *_REVOKED)),
        minimum_releases=_minimum_releases(fields),
        reset_floors=fields.texts("resetFloors", MODEL_LIMIT, NAME, NAME_FORM, RefusalCode.BAD_NAME),
    )
    roles.close()
    fields.close()
    _require_consistent(root)
    return root


def _key(keyid: str, value: object) -> tuple[str, RootKey]:
    fields = Fields(value, f"root.keys.{shown(keyid)}", RefusalCode.BAD_ROOT)
    kind = algorithm(fields.string("algorithm", 64), f"{fields.where}.algorithm")
    key = load_public_key(kind, fields.base64("spki", SPKI_LIMIT_BYTES))
    if key.keyid != keyid:
        raise Refused(RefusalCode.BAD_KEY, fields.where, f"the SPKI's own id {key.keyid}", shown(keyid))
    window = RootKey(key, from_rfc3339(fields, "validFrom"), from_rfc3339(fields, "validUntil"))
    fields.close()
    return keyid, window


def _role(fields: Fields) -> Role:
    keyids = fields.texts("keys", KEY_LIMIT, SHA256_HEX, SHA256_FORM, RefusalCode.BAD_ENCODING)
    if len(set(keyids)) != len(keyids):
        fields.refuse("keys", "each key once", "a key listed twice")
    role = Role(keyids, fields.integer("threshold", 1, KEY_LIMIT), algorithms(fields, "algorithms"))
    fields.close()
    return role


def _minimum_releases(fields: Fields) -> dict[str, int]:
    members = fields.mapping("minimumReleases", MODEL_LIMIT)
    minimum = Fields(members, "root.minimumReleases", RefusalCode.BAD_ROOT)
    for name in members:
        if not NAME.fullmatch(name):
            minimum.refuse(shown(name), NAME_FORM, "another form", RefusalCode.BAD_NAME)
    return {name: minimum.integer(name, 0, RELEASE_LIMIT) for name in members}


def _require_consistent(root: Root) -> None:
    """Refuse roles that cannot be filled, keys in two roles, revoked keys in use, resets without a minimum."""

    def refuse(what: str, expected: str, found: str) -> None:
        raise Refused(RefusalCode.BAD_ROOT, what, expected, found)

    seen: dict[str, str] = {}
    for name, role in root.roles.items():
        for keyid in role.keyids:
            what = f"root.roles.{name}.keys"
            if keyid not in root.keys:
                refuse(what, "ids of root.keys", shown(keyid))
            if keyid in root.revoked_keys:
                refuse(what, "keys that are not revoked", keyid)
            if keyid in seen:
                refuse(what, "each key in one role", f"{keyid} also in {seen[keyid]}")
            seen[keyid] = name
        for kind in role.algorithms:
            count = sum(root.keys[keyid].key.algorithm is kind for keyid in role.keyids)
            if role.threshold > count:
                refuse(f"root.roles.{name}.threshold", f"at most the {count} {kind.value} keys", str(role.threshold))
    for keyid in root.roles["root"].keyids:
        if (root.keys[keyid].valid_from_unix_s, root.keys[keyid].valid_until_unix_s) != (None, None):
            refuse(f"root.keys.{keyid}", "no validity window on a key of the role root", "one")
    for model in root.reset_floors:
        if model not in root.minimum_releases:
            refuse("root.resetFloors", "models that have a minimum release", model)
