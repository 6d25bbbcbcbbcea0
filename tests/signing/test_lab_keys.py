"""Private keys: made with mode 0600, and not used when others may read them or when they lie in a vehicle's tree."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, generate_private_key
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

import signing
from lab.sign import keyfile
from lab.sign.keyfile import load_public, load_signer, public_path
from lab.sign.keygen import keygen
from signing.keys import Algorithm
from signing.refusal import RefusalCode, Refused
from tests.simulators import HYBRID, refusal

UNSAFE = RefusalCode.UNSAFE_KEY_FILE


@pytest.fixture
def key(tmp_path: Path) -> Path:
    keygen(tmp_path / "k.pem", Algorithm.ED25519, None)
    return tmp_path / "k.pem"


@pytest.mark.parametrize("passphrase", [None, "correct horse"])
@pytest.mark.parametrize("algorithm", HYBRID)
def test_made_keys_sign_and_verify(tmp_path: Path, algorithm: Algorithm, passphrase: str | None) -> None:
    path = tmp_path / "k.pem"
    made = keygen(path, algorithm, passphrase)
    signer = load_signer(path, passphrase)
    assert signer.key == made == load_public(public_path(path))
    assert made.algorithm is algorithm
    made.verify(signer.sign(b"message"), b"message")
    assert path.read_bytes().startswith(b"-----BEGIN ENCRYPTED" if passphrase else b"-----BEGIN PRIVATE KEY-----")


def test_modes_do_not_depend_on_the_umask(tmp_path: Path) -> None:
    for umask in (0, 0o777):
        path = tmp_path / f"{umask}.pem"
        old = os.umask(umask)
        try:
            keygen(path, Algorithm.ED25519, None)
        finally:
            os.umask(old)
        assert path.stat().st_mode & 0o7777 == 0o600
        assert public_path(path).stat().st_mode & 0o7777 == 0o644


def test_key_is_never_replaced(key: Path) -> None:
    before = key.read_bytes()
    with pytest.raises(FileExistsError):
        keygen(key, Algorithm.ED25519, None)
    assert key.read_bytes() == before


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o602, 0o644, 0o700, 0o610])
def test_key_open_to_others_is_not_used(key: Path, mode: int) -> None:  # case 32
    key.chmod(mode)
    with refusal(UNSAFE, ascii(str(key))[:93] + "..." * (len(str(key)) > 94), "mode 0600 or 0400", f"mode {mode:04o}"):
        load_signer(key)


@pytest.mark.parametrize("mode", [0o600, 0o400])
def test_key_of_its_owner_alone_is_used(key: Path, mode: int) -> None:
    key.chmod(mode)
    assert load_signer(key)


def test_key_of_another_user_is_not_used(key: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keyfile.os, "geteuid", lambda: 4321)
    with pytest.raises(Refused, match=f"this user as owner, found owner {os.getuid()}") as refused:
        load_signer(key)
    assert refused.value.code is UNSAFE


def test_folder_in_place_of_a_key_is_refused_by_its_path(tmp_path: Path) -> None:
    with pytest.raises(Refused, match="found a directory") as refused:
        load_signer(tmp_path)
    assert refused.value.code is UNSAFE


def test_link_to_a_key_is_not_used(key: Path, tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(key)
    with pytest.raises(Refused, match="a regular file, no link") as refused:
        load_signer(link)
    assert refused.value.code is UNSAFE


def test_fifo_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo", 0o600)
    with pytest.raises(Refused, match="a regular file, found another kind of file"):
        load_signer(tmp_path / "fifo")


def test_missing_key_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Refused, match="a private key file, found nothing") as refused:
        load_signer(tmp_path / "absent")
    assert refused.value.code is RefusalCode.UNREADABLE_FILE


def test_wrong_passphrase_is_refused(tmp_path: Path, key: Path) -> None:
    keygen(tmp_path / "locked", Algorithm.ED25519, "right")
    for path, passphrase in ((tmp_path / "locked", "wrong"), (tmp_path / "locked", None), (key, "needless")):
        with pytest.raises(Refused, match="PKCS#8 PEM and its passphrase") as refused:
            load_signer(path, passphrase)
        assert refused.value.code is RefusalCode.BAD_PRIVATE_KEY


def test_key_of_another_kind_is_refused(tmp_path: Path) -> None:
    private = generate_private_key(SECP256R1())
    path = tmp_path / "ec.pem"
    path.write_bytes(private.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    path.chmod(0o600)
    with pytest.raises(Refused, match="an Ed25519 or ML-DSA-65 key, found ECPrivateKey"):
        load_signer(path)
    public_path(path).write_bytes(private.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))
    with pytest.raises(Refused) as refused:
        load_public(public_path(path))
    assert refused.value.code is RefusalCode.BAD_KEY


def test_public_key_that_is_none_is_refused(tmp_path: Path) -> None:
    (tmp_path / "k.pub").write_bytes(b"not a key")
    with pytest.raises(Refused, match="a public key in PEM") as refused:
        load_public(tmp_path / "k.pub")
    assert refused.value.code is RefusalCode.BAD_KEY


def vehicle_trees(tmp_path: Path) -> list[Path]:
    """Return folders inside an installed wheel, an image, /opt/fenced, and the packages of this very tree."""
    wheel, image = tmp_path / "site-packages", tmp_path / "image"
    (wheel / "fenced-0.1.0.dist-info").mkdir(parents=True)
    (image / "opt" / "fenced" / "lib").mkdir(parents=True)
    (image / "etc").mkdir()
    packages = Path(signing.__file__).parents[1]
    return [wheel, image / "etc", image / "opt" / "fenced" / "lib", Path("/opt/fenced"), packages / "signing"]


@pytest.mark.parametrize("number", range(5))
def test_key_inside_a_vehicle_tree_is_neither_made_nor_used(tmp_path: Path, number: int) -> None:  # case 32
    path = vehicle_trees(tmp_path)[number] / "k.pem"
    for act in (lambda: keygen(path, Algorithm.ED25519, None), lambda: load_signer(path)):
        with pytest.raises(Refused, match="a path outside the vehicle tree") as refused:
            act()
        assert refused.value.code is UNSAFE
    assert not path.exists()


def test_link_into_a_vehicle_tree_does_not_help(tmp_path: Path) -> None:
    (tmp_path / "innocent").symlink_to(vehicle_trees(tmp_path)[0])
    with pytest.raises(Refused, match="a path outside the vehicle tree"):
        keygen(tmp_path / "innocent" / "k.pem", Algorithm.ED25519, None)


def test_folders_that_only_sound_alike_are_no_vehicle_tree(tmp_path: Path) -> None:
    folder = tmp_path / "signing" / "fenced"
    folder.mkdir(parents=True)
    assert keygen(folder / "k.pem", Algorithm.ED25519, None)
