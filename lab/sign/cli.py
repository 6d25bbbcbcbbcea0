"""The signing commands of `fenced-lab`: keygen, root (init, rotate, revoke, sign, show), require, expire, sign,
envelope, attach, inspect.

Passphrases come from `--passphrase-file` (first line), never from the command line or the environment. A key in a
PKCS#11 token is named by its URI in place of a path (`lab.sign.token`); its passphrase is the PIN.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any, TypedDict

from lab import numbers
from lab.json_text import json_text
from lab.refusal import LabRefusal, LabRefused
from lab.sign import inspect
from lab.sign.keyfile import load_public
from lab.sign.keygen import keygen
from lab.sign.root import RolePlan, read_root, role_plan, root_init, root_revoke, root_rotate, sign_root
from lab.sign.root_show import describe_root
from lab.sign.sign import (
    attach_signature,
    bundle_digest,
    export_envelope,
    require_algorithms,
    sign_bundle,
    sign_detached,
    state_expiry,
)
from lab.sign.signer import open_signer
from lab.sign.token import is_token_uri, token_keygen
from signing.keys import Algorithm
from signing.refusal import RefusalCode, Refused
from signing.root import ROLE_NAMES, Root
from signing.utc import to_rfc3339

DAY_S = 86_400


def add_commands(commands: Any) -> None:
    """Add this room's commands to the command line's subparsers."""
    make = commands.add_parser("keygen", help="make a key pair: PATH (private, 0600) and PATH.pub")
    make.add_argument("path", type=Path)
    make.add_argument("--public", type=Path, help="with a token's URI as PATH: where the public half goes")
    make.add_argument("--algorithm", choices=[one.value for one in Algorithm], default=Algorithm.ED25519.value)
    _passphrase_option(make)
    make.set_defaults(command=_keygen)

    sign = commands.add_parser("sign", help="add a role's signature to a bundle")
    sign.add_argument("bundle", type=Path, help="with --detached, an envelope that `envelope` wrote will do")
    sign.add_argument("--key", type=Path, required=True)
    sign.add_argument("--role", choices=[name for name in ROLE_NAMES if name != "root"], required=True)
    sign.add_argument("--root", type=Path, help="refuse a key that this root does not know in the role")
    sign.add_argument("--detached", type=Path, help="write the signature to this file instead")
    _passphrase_option(sign)
    sign.set_defaults(command=_sign)

    need = commands.add_parser("require", help="state in an unsigned bundle which algorithms a role must sign with")
    need.add_argument("bundle", type=Path)
    need.add_argument("--role", choices=[name for name in ROLE_NAMES if name != "root"], required=True)
    need.add_argument("--algorithm", choices=[one.value for one in Algorithm], action="append", required=True)
    need.set_defaults(command=_require)

    expire = commands.add_parser("expire", help="state in an unsigned bundle when it expires")
    expire.add_argument("bundle", type=Path)
    expire.add_argument("--days", type=numbers.count, required=True, help="from now; it blocks new activations only")
    expire.set_defaults(command=_expire)

    carry = commands.add_parser("envelope", help="write a bundle's envelope alone, to be signed on another machine")
    carry.add_argument("bundle", type=Path)
    carry.add_argument("-o", "--output", type=Path, required=True)
    carry.set_defaults(command=_envelope)

    attach = commands.add_parser("attach", help="add a detached signature to its bundle")
    attach.add_argument("bundle", type=Path)
    attach.add_argument("signature", type=Path)
    attach.add_argument("--root", type=Path, help="refuse a key that this root does not know in the role")
    attach.set_defaults(command=_attach)

    look = commands.add_parser("inspect", help="show what a bundle states and holds, or how two bundles differ")
    look.add_argument("bundle", type=Path)
    look.add_argument("--diff", type=Path, metavar="OTHER", help="show the fields and blobs that differ instead")
    look.add_argument("--attachment", metavar="NAME", help="print this attachment instead")
    look.add_argument("--root", type=Path, help="judge each signature by this root")
    look.set_defaults(command=_inspect)

    _add_root_commands(commands.add_parser("root", help="make and sign root documents").add_subparsers(required=True))


def _add_root_commands(root: Any) -> None:
    init = root.add_parser("init", help="version 1")
    _root_options(init, required=True)
    init.set_defaults(command=_root_init)
    rotate = root.add_parser("rotate", help="the next version, with other keys in the roles that are named")
    rotate.add_argument("old", type=Path)
    _root_options(rotate, required=False)
    rotate.set_defaults(command=_root_rotate)
    revoke = root.add_parser("revoke", help="the next version, with keys or bundles revoked or releases raised")
    revoke.add_argument("old", type=Path)
    revoke.add_argument("--key-id", action="append", default=[], help="SHA-256 of a key's SPKI, or its .pub file")
    revoke.add_argument("--bundle", action="append", default=[], help="digest of a bundle's statement, or the bundle")
    revoke.add_argument("--minimum-release", action="append", default=[], metavar="MODEL=N")
    revoke.add_argument("--reset-floor", action="append", default=[], metavar="MODEL")
    _root_options(revoke, required=False)
    revoke.set_defaults(command=_root_revoke)
    more = root.add_parser("sign", help="add a holder's signature to a root")
    more.add_argument("root", type=Path)
    more.add_argument("--key", type=Path, required=True)
    more.add_argument("--after", type=Path, metavar="OLD", help="the root that it follows, whose holders sign too")
    _passphrase_option(more)
    more.set_defaults(command=_root_sign)
    show = root.add_parser("show", help="what a root says, who has signed it, and what it changes")
    show.add_argument("root", type=Path)
    show.add_argument("--after", type=Path, metavar="OLD", help="the root that it shall follow")
    show.set_defaults(command=_root_show)


def _passphrase_option(command: argparse.ArgumentParser) -> None:
    command.add_argument("--passphrase-file", type=Path, help="its first line unlocks the private key")


def _root_options(command: argparse.ArgumentParser, *, required: bool) -> None:
    command.add_argument("-o", "--output", type=Path, required=True)
    command.add_argument("--sign-with", type=Path, action="append", default=[], metavar="KEY", help="a root key")
    command.add_argument("--expires-days", type=numbers.count, help="default: never")
    for role in ROLE_NAMES:
        command.add_argument(f"--{role}", type=Path, action="append", default=[], required=required, metavar="PUB")
        command.add_argument(f"--{role}-threshold", type=int, default=1)
        if role != "root":  # a root is accepted without a clock
            days = f"how long new bundles by the keys of --{role} are taken; default: always"
            command.add_argument(f"--{role}-valid-days", type=numbers.count, metavar="N", help=days)
    _passphrase_option(command)


def _passphrase(arguments: argparse.Namespace) -> str | None:
    return read_passphrase(arguments.passphrase_file)


def read_passphrase(path: Path | None) -> str | None:
    """Return the first line of the file that `--passphrase-file` names; None where it was not given."""
    if path is None:
        return None
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except UnicodeDecodeError as error:
        raise _no_passphrase(path, f"not UTF-8 text: {error}") from None
    if not lines or not lines[0]:
        raise _no_passphrase(path, "its first line is empty")
    return lines[0]


def _no_passphrase(path: Path, found: str) -> LabRefused:
    return LabRefused(
        LabRefusal.PASSPHRASE, f"--passphrase-file {path}", expected="the passphrase as its first line, UTF-8",
        found=found, todo="write the passphrase there",
    )  # fmt: skip


def _plans(arguments: argparse.Namespace) -> dict[str, RolePlan]:
    plans = {}
    for role in ROLE_NAMES:
        paths, days = getattr(arguments, role), getattr(arguments, f"{role}_valid_days", None)
        if days is not None and not paths:
            raise LabRefused.options(
                f"--{role}-valid-days", expected=f"the keys of --{role}, named again", found="none"
            )
        if paths:
            keys = [load_public(path) for path in paths]
            plans[role] = role_plan(keys, getattr(arguments, f"{role}_threshold"), _in_days(days))
    return plans


class _Times(TypedDict):
    issued_unix_s: int
    expires_unix_s: int | None


def _times(arguments: argparse.Namespace) -> _Times:
    return {"issued_unix_s": int(time.time()), "expires_unix_s": _in_days(arguments.expires_days)}


def _in_days(days: int | None) -> int | None:
    return None if days is None else int(time.time()) + days * DAY_S


def _signers(arguments: argparse.Namespace) -> list[Any]:
    return [open_signer(path, _passphrase(arguments)) for path in arguments.sign_with]


def _numbers(pairs: Iterable[str]) -> dict[str, int]:
    numbers: dict[str, int] = {}
    for pair in pairs:
        model, _, number = pair.partition("=")
        if not number.isdecimal():
            raise LabRefused.options("--minimum-release", expected="MODEL=N, such as lane=5", found=repr(pair))
        numbers[model] = int(number)
    return numbers


def _keygen(arguments: argparse.Namespace) -> int:
    kind, passphrase = Algorithm(arguments.algorithm), _passphrase(arguments)
    if not is_token_uri(arguments.path):
        key = keygen(arguments.path, kind, passphrase)
    elif arguments.public is None or kind is not Algorithm.ED25519:
        raise LabRefused.options(
            "a key in a token", expected="ed25519, and --public PATH for its public half", found="another or none"
        )
    else:
        key = token_keygen(arguments.path, passphrase, arguments.public)
    print(f"{arguments.path}: {key.algorithm.value} key {key.keyid}")
    return 0


def _sign(arguments: argparse.Namespace) -> int:
    root = read_root(arguments.root) if arguments.root else None
    bundle, key_path, role, passphrase = arguments.bundle, arguments.key, arguments.role, _passphrase(arguments)
    if arguments.detached:
        key = sign_detached(bundle, key_path, role, arguments.detached, passphrase=passphrase, root=root)
    else:
        key = sign_bundle(bundle, key_path, role, passphrase=passphrase, root=root)
    print(f"{arguments.detached or arguments.bundle}: signed as {arguments.role} by {key.keyid}")
    return 0


def _require(arguments: argparse.Namespace) -> int:
    require_algorithms(arguments.bundle, arguments.role, [Algorithm(one) for one in arguments.algorithm])
    print(f"{arguments.bundle}: {arguments.role} must sign with {' and '.join(arguments.algorithm)}")
    return 0


def _expire(arguments: argparse.Namespace) -> int:
    expires_unix_s = int(time.time()) + arguments.days * DAY_S
    state_expiry(arguments.bundle, expires_unix_s)
    print(f"{arguments.bundle}: not to be activated from {to_rfc3339(expires_unix_s)} on")
    return 0


def _envelope(arguments: argparse.Namespace) -> int:
    export_envelope(arguments.bundle, arguments.output)
    print(f"{arguments.output}: envelope of {arguments.bundle}")
    return 0


def _attach(arguments: argparse.Namespace) -> int:
    root = read_root(arguments.root) if arguments.root else None
    key = attach_signature(arguments.bundle, arguments.signature, root=root)
    print(f"{arguments.bundle}: signature of {key.keyid} added")
    return 0


def _inspect(arguments: argparse.Namespace) -> int:
    if arguments.attachment:
        sys.stdout.buffer.write(inspect.attachment(arguments.bundle, arguments.attachment))
    elif arguments.diff:
        found = inspect.difference(arguments.bundle, arguments.diff)
        tree = {"equal": not found, "differences": [dataclasses.asdict(one) for one in found]}
        sys.stdout.write(f"{json_text(tree, indent=2)}\n" if arguments.json else inspect.difference_text(found))
    else:
        described = inspect.describe(arguments.bundle, read_root(arguments.root) if arguments.root else None)
        sys.stdout.write(f"{json_text(described, indent=2)}\n" if arguments.json else inspect.to_text(described))
    return 0


def _root_init(arguments: argparse.Namespace) -> int:
    plans, signers = _plans(arguments), _signers(arguments)
    holders = {one.key.keyid for one in plans["root"].keys}
    for keyid in [signer.key.keyid for signer in signers if signer.key.keyid not in holders]:
        raise Refused(RefusalCode.THRESHOLD_NOT_MET, "key for the role root", "a key that --root names", keyid)
    root_init(arguments.output, plans, signers, **_times(arguments))
    print(f"{arguments.output}: root version 1")
    return 0


def _root_rotate(arguments: argparse.Namespace) -> int:
    root = root_rotate(arguments.old, arguments.output, _plans(arguments), _signers(arguments), **_times(arguments))
    print(f"{arguments.output}: root version {root.version}")
    return 0


def _root_revoke(arguments: argparse.Namespace) -> int:
    root = root_revoke(
        arguments.old,
        arguments.output,
        _signers(arguments),
        keyids=[load_public(one).keyid if os.path.lexists(one) else one for one in arguments.key_id],
        bundle_digests=[bundle_digest(one) if os.path.lexists(one) else one for one in arguments.bundle],
        minimum_releases=_numbers(arguments.minimum_release),
        reset_floors=arguments.reset_floor,
        plans=_plans(arguments),
        **_times(arguments),
    )
    print(f"{arguments.output}: root version {root.version}")
    _tell_revoked(read_root(arguments.old), root)
    return 0


def _tell_revoked(old: Root, new: Root) -> None:
    """Print what is revoked: a mistyped id is taken as readily as the one that was meant."""
    for keyid in sorted(new.revoked_keys - old.revoked_keys):
        roles = [name for name, role in old.roles.items() if keyid in role.keyids]
        held = f"of the role {roles[0]}" if roles else f"in no role of version {old.version}"
        print(f"  revoked key {keyid}, {held}")
    for digest in sorted(new.revoked_bundles - old.revoked_bundles):
        print(f"  revoked bundle {digest}")


def _root_show(arguments: argparse.Namespace) -> int:
    described = describe_root(arguments.root, arguments.after)
    sys.stdout.write(f"{json_text(described, indent=2)}\n" if arguments.json else inspect.to_text(described))
    return 0


def _root_sign(arguments: argparse.Namespace) -> int:
    signer = open_signer(arguments.key, _passphrase(arguments))
    sign_root(arguments.root, signer, read_root(arguments.after) if arguments.after else None)
    print(f"{arguments.root}: signed by {signer.key.keyid}")
    return 0
