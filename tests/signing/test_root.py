"""The root: both ways without loss, and refused where it contradicts itself."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from lab.sign.root import encode_root
from signing.keys import Algorithm
from signing.refusal import RefusalCode, Refused
from signing.root import Role, Root, RootKey, decode_root
from tests.simulators import HYBRID, NOW_UNIX_S, RoleKeys, base64_text, make_root, make_signer, refusal

KEYS = RoleKeys.make(HYBRID)
PLAIN = make_root(KEYS)
BUILD = tuple(one.key.keyid for one in KEYS.build)
BAD = RefusalCode.BAD_ROOT
HEX = "64 lowercase hexadecimal digits"


def full_root() -> Root:
    keys = {**PLAIN.keys, BUILD[0]: RootKey(KEYS.build[0].key, NOW_UNIX_S, NOW_UNIX_S + 9)}
    return replace(
        PLAIN,
        version=2**63 - 1,
        expires_unix_s=NOW_UNIX_S + 1,
        keys=keys,
        revoked_keys=frozenset({"a" * 64, "b" * 64}),
        revoked_bundles=frozenset({"c" * 64}),
        minimum_releases={"lane": 2**63 - 1, "sign": 0},
        reset_floors=("lane",),
    )


def changed(edit: Callable[[dict[str, Any]], object], root: Root = PLAIN) -> bytes:
    document = json.loads(encode_root(root))
    edit(document)
    return json.dumps(document).encode()


def put(*path: str, value: object) -> Callable[[dict[str, Any]], object]:
    def edit(document: dict[str, Any]) -> None:
        node: Any = document
        for part in path[:-1]:
            node = node[part]
        node[path[-1]] = value

    return edit


def test_root_comes_back_as_it_was_written() -> None:
    assert decode_root(encode_root(PLAIN)) == PLAIN
    root = full_root()
    assert decode_root(encode_root(root)) == root


def test_public_keys_stand_by_their_ids() -> None:
    assert PLAIN.public_keys()[BUILD[1]] == KEYS.build[1].key
    assert len(PLAIN.public_keys()) == 6


@pytest.mark.parametrize("name", list(json.loads(encode_root(PLAIN))))
def test_missing_field_is_refused(name: str) -> None:
    with pytest.raises(Refused) as refused:
        decode_root(changed(lambda document: document.pop(name)))
    assert (refused.value.code, refused.value.what, refused.value.found) == (BAD, f"root.{name}", "nothing")


@pytest.mark.parametrize("name", ["root", "build", "release"])
def test_missing_role_is_refused(name: str) -> None:
    with refusal(BAD, f"root.roles.{name}", "an object", "nothing"):
        decode_root(changed(lambda document: document["roles"].pop(name)))


@pytest.mark.parametrize("path", [(), ("roles",), ("roles", "build"), ("keys", BUILD[0])])
def test_unknown_field_is_refused(path: tuple[str, ...]) -> None:
    where = ".".join(("root", *(repr(part) if len(part) == 64 else part for part in path)))
    with refusal(BAD, where, f"no field beyond those of {where}", "unknown field 'x'"):
        decode_root(changed(put(*path, "x", value=1)))


@pytest.mark.parametrize(
    ("path", "value", "code", "expected", "found"),
    [
        (("_type",), "urn:fenced:root:v2", BAD, "urn:fenced:root:v1", "'urn:fenced:root:v2'"),
        (("version",), 0, BAD, "an integer from 1 to 9223372036854775807", "0"),
        (("version",), 2**63, BAD, "an integer from 1 to 9223372036854775807", str(2**63)),
        (("issued",), None, BAD, "a time", "null"),
        (("keys",), {str(i): {} for i in range(33)}, BAD, "an object of at most 32 members", "33 members"),
        (("roles", "build", "keys"), ["0" * 64] * 33, BAD, "an array of at most 32 items", "33 items"),
        (("roles", "build", "keys"), [BUILD[0]] * 2, BAD, "each key once", "a key listed twice"),
        (("roles", "build", "threshold"), 0, BAD, "an integer from 1 to 32", "0"),
        (("roles", "build", "threshold"), 33, BAD, "an integer from 1 to 32", "33"),
        (("roles", "build", "threshold"), 2, BAD, "at most the 1 ed25519 keys", "2"),
        (("roles", "build", "algorithms"), [], RefusalCode.UNKNOWN_ALGORITHM, "at least one algorithm", "none"),
        (("roles", "build", "keys"), ["0" * 64], BAD, "ids of root.keys", repr("0" * 64)),
        (("revokedKeys",), ["0" * 64] * 2049, BAD, "an array of at most 2048 items", "2049 items"),
        (("revokedBundles",), ["0" * 64] * 2049, BAD, "an array of at most 2048 items", "2049 items"),
        (
            ("minimumReleases",),
            {f"m{i}": 1 for i in range(513)},
            BAD,
            "an object of at most 512 members",
            "513 members",
        ),
        (("resetFloors",), ["m"] * 513, BAD, "an array of at most 512 items", "513 items"),
    ],
    ids=itertools.count(),
)
def test_value_out_of_range_is_refused(
    path: tuple[str, ...], value: object, code: RefusalCode, expected: str, found: str
) -> None:  # case 2
    with refusal(code, ".".join(("root", *path)), expected, found):
        decode_root(changed(put(*path, value=value)))


@pytest.mark.parametrize(
    ("path", "item", "code", "expected"),
    [
        (("roles", "build", "keys"), "F" * 64, RefusalCode.BAD_ENCODING, HEX),
        (("revokedKeys",), "0" * 63, RefusalCode.BAD_ENCODING, HEX),
        (("revokedBundles",), 5, RefusalCode.BAD_ENCODING, HEX),
    ],
)
def test_odd_digest_is_refused(path: tuple[str, ...], item: object, code: RefusalCode, expected: str) -> None:
    with refusal(code, ".".join(("root", *path)) + "[0]", expected, repr(item)):
        decode_root(changed(put(*path, value=[item])))


def test_odd_model_name_is_refused() -> None:
    form = "a name of 1 to 64 letters, digits, '.', '_', '-', beginning with a letter or digit"
    with refusal(RefusalCode.BAD_NAME, "root.minimumReleases.'../x'", form, "another form"):
        decode_root(changed(put("minimumReleases", value={"../x": 1})))
    with refusal(RefusalCode.BAD_NAME, "root.resetFloors[0]", form, "'../x'"):
        decode_root(changed(put("resetFloors", value=["../x"])))
    with refusal(BAD, "root.minimumReleases.lane", f"an integer from 0 to {2**63 - 1}", "-1"):
        decode_root(changed(put("minimumReleases", value={"lane": -1})))
    with refusal(BAD, "root.minimumReleases.lane", f"an integer from 0 to {2**63 - 1}", str(2**63)):
        decode_root(changed(put("minimumReleases", value={"lane": 2**63})))


def test_key_must_be_what_its_id_says() -> None:
    other = make_signer("other").key
    wrong = {"algorithm": "ed25519", "spki": base64_text(other.spki), "validFrom": None, "validUntil": None}
    where = f"root.keys.'{BUILD[0]}'"
    with refusal(RefusalCode.BAD_KEY, where, f"the SPKI's own id {other.keyid}", repr(BUILD[0])):
        decode_root(changed(put("keys", BUILD[0], value=wrong)))


def test_key_of_an_unknown_algorithm_is_refused() -> None:  # case 5
    where = f"root.keys.'{BUILD[0]}'"
    with refusal(RefusalCode.UNKNOWN_ALGORITHM, f"{where}.algorithm", "one of ed25519, ml-dsa-65", "'none'"):
        decode_root(changed(put("keys", BUILD[0], "algorithm", value="none")))
    with refusal(BAD, f"{where}.algorithm", "a string of at most 64 characters", repr("e" * 65)):
        decode_root(changed(put("keys", BUILD[0], "algorithm", value="e" * 65)))
    with pytest.raises(Refused, match="at most 2732 characters"):
        decode_root(changed(put("keys", BUILD[0], "spki", value=base64_text(bytes(2050)))))


def test_weak_key_is_refused() -> None:
    low_order = bytes.fromhex("302a300506032b6570032100") + b"\1" + bytes(31)
    with refusal(RefusalCode.BAD_KEY, "ed25519 public key", "a canonical point of prime order", "a point of low order"):
        decode_root(changed(put("keys", BUILD[0], "spki", value=base64_text(low_order))))


def with_role(name: str, role: Role, **changes: Any) -> Root:
    return replace(PLAIN, roles={**PLAIN.roles, name: role}, **changes)


def test_threshold_counts_the_keys_of_each_algorithm() -> None:  # case 2
    both = [make_signer(f"build-{i}", kind).key for i in (1, 2) for kind in HYBRID]
    keys = {**PLAIN.keys, **{key.keyid: RootKey(key) for key in both}}
    keyids = tuple(key.keyid for key in both)
    root = with_role("build", Role(keyids, 2, HYBRID), keys=keys)
    assert decode_root(encode_root(root)) == root
    three = keyids[:-1]
    with refusal(BAD, "root.roles.build.threshold", "at most the 1 ml-dsa-65 keys", "2"):
        encode_root(with_role("build", Role(three, 2, HYBRID), keys=keys))


def test_key_in_two_roles_is_refused() -> None:
    shared = with_role("release", replace(PLAIN.roles["release"], keyids=BUILD))
    with pytest.raises(Refused) as refused:
        encode_root(shared)
    assert refused.value.code is BAD
    assert (refused.value.what, refused.value.expected) == ("root.roles.release.keys", "each key in one role")
    assert refused.value.found == f"{BUILD[0]} also in build"


def test_revoked_key_in_a_role_is_refused() -> None:
    with refusal(BAD, "root.roles.build.keys", "keys that are not revoked", BUILD[0]):
        encode_root(replace(PLAIN, revoked_keys=frozenset({BUILD[0]})))


@pytest.mark.parametrize("window", [(NOW_UNIX_S, None), (None, NOW_UNIX_S), (0, 0)])
def test_root_key_has_no_window(window: tuple[int | None, int | None]) -> None:
    one = KEYS.root[0].key
    keys = {**PLAIN.keys, one.keyid: RootKey(one, *window)}
    with refusal(BAD, f"root.keys.{one.keyid}", "no validity window on a key of the role root", "one"):
        encode_root(replace(PLAIN, keys=keys))


def test_floor_is_reset_only_to_a_minimum() -> None:
    with refusal(BAD, "root.resetFloors", "models that have a minimum release", "sign"):
        encode_root(replace(PLAIN, minimum_releases={"lane": 1}, reset_floors=("lane", "sign")))


def test_payload_is_bounded() -> None:
    with refusal(RefusalCode.BAD_JSON, "root", "at most 262144 bytes", "262145 bytes"):
        decode_root(b" " * 262145)
    with refusal(BAD, "root", "an object", "[]"):
        decode_root(b"[]")


def test_algorithms_are_kept_in_order() -> None:
    assert decode_root(encode_root(PLAIN)).roles["build"].algorithms == (Algorithm.ED25519, Algorithm.ML_DSA_65)
