"""Making key pairs: PATH, private, for the machine of its role alone; PATH.pub, public, for whoever makes the root."""

from __future__ import annotations

import os
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.mldsa import MLDSA65PrivateKey
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_der_public_key,
)

from lab.sign.keyfile import PrivateKey, public_of, public_path, require_outside_vehicle
from signing.keys import Algorithm, PublicKey


def keygen(path: str | os.PathLike[str], algorithm: Algorithm, passphrase: str | None) -> PublicKey:
    """Make a key pair: the private key at `path` (mode 0600, encrypted if there is a passphrase), PATH.pub beside it.

    Raises FileExistsError rather than replace a key, Refused(UNSAFE_KEY_FILE) inside a vehicle tree.
    """
    target = Path(path)
    require_outside_vehicle(target)
    private: PrivateKey
    private = Ed25519PrivateKey.generate() if algorithm is Algorithm.ED25519 else MLDSA65PrivateKey.generate()
    encryption = BestAvailableEncryption(passphrase.encode()) if passphrase else NoEncryption()
    key = public_of(private)
    write_public(public_path(target), key)
    try:
        _write_new(target, private.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, encryption), 0o600)
    except OSError:
        public_path(target).unlink()
        raise
    return key


def write_public(path: str | os.PathLike[str], key: PublicKey) -> None:
    """Write `key` as SubjectPublicKeyInfo PEM, mode 0644. Raises FileExistsError rather than replace a file."""
    pem = load_der_public_key(key.spki).public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    _write_new(Path(path), pem, 0o644)


def _write_new(path: Path, data: bytes, mode: int) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, mode)
    with open(fd, "wb") as file:
        os.fchmod(fd, mode)
        file.write(data)
        file.flush()
        os.fsync(fd)
