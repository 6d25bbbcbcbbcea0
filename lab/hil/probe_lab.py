"""A signing lab for one bench: keys and a root of its own, and probe bundles signed by them, well or badly.

Whoever holds the keys can sign anything, so this lab signs statements and graphs that no honest tool writes as
willingly as good ones. The keys are made once in `folder`/keys and are trusted by no vehicle but the bench's.
"""

from __future__ import annotations

import hashlib
import json
import platform
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from abi.graph import HAL_VERSION, Graph, encode
from abi.packet import ABI_VERSION
from lab.compile.link import features
from lab.hil.probe import CPU, TinyModel, code
from lab.json_text import json_text
from lab.sign.keyfile import load_public, load_signer, public_path
from lab.sign.keygen import keygen
from lab.sign.pack import write_whole
from lab.sign.root import role_plan, root_init
from lab.sign.sign import BUNDLE_ROLES, add_signature, sign_bundle
from signing import container, statement
from signing.envelope import BUNDLE_PAYLOAD_TYPE, Envelope
from signing.keys import Algorithm
from signing.root import ROLE_NAMES
from signing.statement import Blob, Compiler, Model, Statement, Target

__all__ = ["Blobs", "ProbeLab"]

Blobs = dict[str, bytes]
"""A bundle's parts by name: graph, code, weights, goldens."""

MIN_MEMORY_BYTES = 1 << 20


class ProbeLab:
    """Writes signed bundles into `folder`; `root_path` is the root that vouches for them."""

    def __init__(self, folder: Path) -> None:
        """Make keys and root in `folder`, or take up those that an earlier lab made there."""
        self.folder = folder
        self.root_path = folder / "root.json"
        self._keys = {role: folder / "keys" / role for role in ROLE_NAMES}
        if not self.root_path.exists():
            self._make_keys()

    def _make_keys(self) -> None:
        (self.folder / "keys").mkdir(parents=True, mode=0o700)
        for path in self._keys.values():
            keygen(path, Algorithm.ED25519, None)
        plans = {role: role_plan([load_public(public_path(path))]) for role, path in self._keys.items()}
        root_init(self.root_path, plans, [load_signer(self._keys["root"])], issued_unix_s=int(time.time()))

    def write(
        self,
        model: TinyModel,
        file_name: str = "",
        *,
        edit_graph: Callable[[Graph], Graph] = lambda graph: graph,
        edit_blobs: Callable[[Blobs], object] = lambda blobs: None,
        edit_statement: Callable[[dict[str, Any]], object] = lambda document: None,
    ) -> Path:
        """Write and sign a probe bundle; the edits may spoil its graph, its blobs or its statement before it is signed.

        Returns its path, NAME-VERSION.fenced unless `file_name` says otherwise.
        """
        blobs = {
            "graph": encode(edit_graph(model.graph())), "code": code(), "weights": b"", "goldens": model.goldens(),
        }  # fmt: skip
        edit_blobs(blobs)
        document = json.loads(statement.encode(_stated(model, blobs)))
        edit_statement(document)
        payload = json_text(document, sort_keys=True, separators=(",", ":")).encode()
        signed = Envelope(BUNDLE_PAYLOAD_TYPE, payload, ())
        for role in BUNDLE_ROLES:
            signed = add_signature(signed, load_signer(self._keys[role]))
        path = self.folder / (file_name or f"{model.name}-{model.version}.fenced")
        write_whole(path, lambda file: file.write(_packed(signed.encode(), blobs)))
        return path

    def sign(self, bundle: Path) -> None:
        """Sign a bundle that a compiler wrote, in every role that a bundle needs."""
        for role in BUNDLE_ROLES:
            sign_bundle(bundle, self._keys[role], role)


def _stated(model: TinyModel, blobs: Blobs) -> Statement:
    return Statement(
        model=Model(model.name, model.version, model.release),
        abi_version=ABI_VERSION,
        hal_version=HAL_VERSION,
        target=Target("cpu", platform.machine(), tuple(features(platform.machine(), CPU)), MIN_MEMORY_BYTES),
        compiler=Compiler("probe"),
        blobs=tuple(Blob(name, len(data), hashlib.sha256(data).hexdigest()) for name, data in blobs.items()),
    )


def _packed(raw_envelope: bytes, blobs: Blobs) -> bytes:
    where = container.layout(len(raw_envelope), [len(data) for data in blobs.values()])
    parts = [container.header(len(raw_envelope)), raw_envelope, container.padding(where.envelope)]
    for data, span in zip(blobs.values(), where.blobs, strict=True):
        parts += [data, container.padding(span)]
    return b"".join(parts)
