"""A root and keys for one bench or demo: made anew, used once, trusted by nobody else."""

from __future__ import annotations

import time
from pathlib import Path

from lab.sign.keyfile import load_public, load_signer, public_path
from lab.sign.keygen import keygen
from lab.sign.root import role_plan, root_init
from lab.sign.sign import sign_bundle
from signing.keys import Algorithm
from signing.root import ROLE_NAMES


def sign_throwaway(bundle: Path, folder: Path) -> Path:
    """Sign `bundle` in every role with new Ed25519 keys under `folder`/keys; returns the path of their root."""
    (folder / "keys").mkdir(mode=0o700)
    keys = {role: folder / "keys" / role for role in ROLE_NAMES}
    for path in keys.values():
        keygen(path, Algorithm.ED25519, None)
    root = folder / "root.json"
    plans = {role: role_plan([load_public(public_path(path))]) for role, path in keys.items()}
    root_init(root, plans, [load_signer(keys["root"])], issued_unix_s=int(time.time()))
    for role in ROLE_NAMES:
        if role != "root":
            sign_bundle(bundle, keys[role], role)
    return root
