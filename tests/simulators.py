"""Stand-ins for what surrounds the code under test: a clock moved by hand, and a lab that signs whatever it is told to.

`BundleSimulator` holds keys, a root, a statement and blobs as plain attributes. A test changes one, lets it build the
bytes, and sees what the vehicle says; it signs bad documents as willingly as good ones.
"""

from __future__ import annotations

import base64
import contextlib
import functools
import hashlib
import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.mldsa import MLDSA65PrivateKey

from lab.sign.keyfile import FileSigner, Signer, public_of
from lab.sign.root import encode_root
from signing import container, statement, store, trust
from signing.bundle import VerifiedBundle
from signing.envelope import BUNDLE_PAYLOAD_TYPE, ROOT_PAYLOAD_TYPE, Envelope, Signature, pae
from signing.keys import Algorithm
from signing.refusal import RefusalCode, Refused
from signing.root import Role, Root, RootKey
from signing.statement import Attachment, Blob, Compiler, Model, RequiredAlgorithms, Statement, Target

NOW_UNIX_S = 1_800_000_000  # 2027-01-15T08:00:00Z
HYBRID = (Algorithm.ED25519, Algorithm.ML_DSA_65)


@contextlib.contextmanager
def refusal(code: RefusalCode, what: str, expected: str, found: str) -> Iterator[None]:
    """Expect exactly this refusal, sentence by sentence."""
    try:
        yield
    except Refused as refused:
        seen = (refused.code, refused.what, refused.expected, refused.found)
        assert seen == (code, what, expected, found)
    else:
        raise AssertionError(f"nothing was refused; expected {code.value}: {what}")


class ManualClock:
    """A clock that moves only when told to. Calling it gives nanoseconds."""

    def __init__(self, now_ns: int = NOW_UNIX_S * 1_000_000_000) -> None:
        """Begin at `now_ns`."""
        self.now_ns = now_ns

    def __call__(self) -> int:
        """Return the time in nanoseconds."""
        return self.now_ns

    @property
    def now_unix_s(self) -> int:
        """The time in whole seconds."""
        return self.now_ns // 1_000_000_000

    def advance_ns(self, by_ns: int) -> None:
        """Move the clock; negative moves it back."""
        self.now_ns += by_ns


@functools.cache
def make_signer(label: str, algorithm: Algorithm = Algorithm.ED25519) -> FileSigner:
    """Return the one signer of that label and algorithm: the same in every test and every run."""
    seed = hashlib.sha256(f"fenced test key {label} {algorithm.value}".encode()).digest()
    if algorithm is Algorithm.ED25519:
        private: Ed25519PrivateKey | MLDSA65PrivateKey = Ed25519PrivateKey.from_private_bytes(seed)
    else:
        private = MLDSA65PrivateKey.from_seed_bytes(seed)
    return FileSigner(public_of(private), private)


def sign_payload(payload_type: str, payload: bytes, signers: Iterable[Signer]) -> Envelope:
    """Return an envelope around any bytes at all, signed by `signers`."""
    message = pae(payload_type, payload)
    signatures = tuple(Signature(one.key.keyid, one.sign(message)) for one in signers)
    return Envelope(payload_type, payload, signatures)


@dataclass(frozen=True)
class RoleKeys:
    """The signers of each role, for one root."""

    root: tuple[Signer, ...]
    build: tuple[Signer, ...]
    release: tuple[Signer, ...]

    @classmethod
    def make(cls, algorithms: tuple[Algorithm, ...] = (Algorithm.ED25519,), generation: int = 1) -> RoleKeys:
        """Return one signer per role and algorithm; another `generation` gives other keys."""
        return cls(
            *(
                tuple(make_signer(f"{name}-{generation}", kind) for kind in algorithms)
                for name in ("root", "build", "release")
            )
        )


def make_root(keys: RoleKeys, *, version: int = 1, threshold: int = 1, **changes: Any) -> Root:
    """Return a consistent root held by `keys`; `changes` replace fields of it."""
    holders = {"root": keys.root, "build": keys.build, "release": keys.release}
    roles = {
        name: Role(
            tuple(one.key.keyid for one in signers),
            threshold,
            tuple(kind for kind in Algorithm if any(one.key.algorithm is kind for one in signers)),
        )
        for name, signers in holders.items()
    }
    root = Root(
        version=version,
        issued_unix_s=NOW_UNIX_S - 86_400,
        expires_unix_s=None,
        keys={one.key.keyid: RootKey(one.key) for signers in holders.values() for one in signers},
        roles=roles,
    )
    return replace(root, **changes)


def sign_root(root: Root, signers: Iterable[Signer]) -> bytes:
    """Return the root's envelope as bytes, signed by `signers`."""
    return sign_payload(ROOT_PAYLOAD_TYPE, encode_root(root), signers).encode()


class BundleSimulator:
    """A lab and a vehicle in one place. Change an attribute, then `write` or `verify`.

    `edit_statement` changes the payload's JSON before it is signed, so that a statement
    which no honest tool writes gets signed.
    """

    def __init__(self, folder: Path, algorithms: tuple[Algorithm, ...] = (Algorithm.ED25519,)) -> None:
        """Make keys, a root, a statement of a small model and its blobs; files go to `folder`."""
        self.path = folder / "lane.fenced"
        self.keys = RoleKeys.make(algorithms)
        self.root = make_root(self.keys)
        self.blobs: dict[str, bytes] = {
            "graph": b"graph" * 100,
            "code": b"\x7fELF" + bytes(range(256)) * 40,
            "weights": b"w" * container.PAGE_BYTES,
            "goldens": b"",
            "sbom.json": b"{}",
        }
        self.statement = Statement(
            model=Model("lane", "1.0.0", 5),
            abi_version=1,
            hal_version=1,
            target=Target("cpu", "x86_64", ("avx2", "fma"), 1024 * 1024),
            compiler=Compiler("0.14.0", (("beam", 0), ("noopt", False), ("target", "x86_64-linux-gnu.2.31"))),
            blobs=(),
            required_algorithms=RequiredAlgorithms(algorithms, algorithms),
            attachments=(Attachment("sbom.json", "application/vnd.cyclonedx+json"),),
        )
        self.machine = trust.Machine("cpu", "x86_64", frozenset({"avx2", "fma", "sse2"}), 1024**3, 1, 1)
        self.edit_statement: Callable[[dict[str, Any]], None] = lambda document: None
        self.signers: tuple[Signer, ...] = (*self.keys.build, *self.keys.release)

    def payload(self) -> bytes:
        """Return the statement about the present blobs, after `edit_statement`."""
        blobs = tuple(Blob(name, len(data), hashlib.sha256(data).hexdigest()) for name, data in self.blobs.items())
        document = json.loads(statement.encode(replace(self.statement, blobs=blobs)))
        self.edit_statement(document)
        return json.dumps(document, sort_keys=True, separators=(",", ":")).encode()

    def envelope(self) -> Envelope:
        """Return the payload signed by `signers`."""
        return sign_payload(BUNDLE_PAYLOAD_TYPE, self.payload(), self.signers)

    def file_bytes(self, raw_envelope: bytes | None = None) -> bytes:
        """Return the whole file, with the present blobs behind `raw_envelope` (by default the signed one)."""
        raw = self.envelope().encode() if raw_envelope is None else raw_envelope
        where = container.layout(len(raw), [len(data) for data in self.blobs.values()])
        parts = [container.header(len(raw)), raw, container.padding(where.envelope)]
        for data, span in zip(self.blobs.values(), where.blobs, strict=True):
            parts += [data, container.padding(span)]
        return b"".join(parts)

    def write(self, data: bytes | None = None) -> Path:
        """Write the file (or other bytes in its place), mode 0644, and return its path."""
        self.path.write_bytes(self.file_bytes() if data is None else data)
        self.path.chmod(0o644)
        return self.path

    def fresh_trust(self) -> trust.TrustStore:
        """Return a vehicle's trust, fresh from the factory with the present root."""
        return trust.TrustStore.bootstrap(sign_root(self.root, self.keys.root))

    def read(self) -> VerifiedBundle:
        """Read the file at `path` as it is and verify it, as a vehicle fresh from the factory would."""
        return self.verify_file(self.fresh_trust())

    def verify_file(self, trusted: trust.TrustStore, now_unix_s: int = NOW_UNIX_S) -> VerifiedBundle:
        """Read and verify the file at `path` under `trusted`."""
        sealed = store.read_bundle(self.path, limit_bytes=64 * 1024 * 1024)
        return trust.verify_bundle(sealed, trusted, machine=self.machine, now_unix_s=now_unix_s)

    def verify(self, trusted: trust.TrustStore | None = None, now_unix_s: int = NOW_UNIX_S) -> VerifiedBundle:
        """Write the bundle as it now stands and verify it."""
        self.write()
        return self.verify_file(trusted or self.fresh_trust(), now_unix_s)


def flip_byte(data: bytes, offset: int) -> bytes:
    """Return `data` with one bit of one byte turned; negative offsets count from the end."""
    changed = bytearray(data)
    changed[offset] ^= 1
    return bytes(changed)


def base64_text(data: bytes) -> str:
    """Return standard base64 as text."""
    return base64.b64encode(data).decode("ascii")
