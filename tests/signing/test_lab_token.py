"""Keys in PKCS#11 tokens, with SoftHSM as the token. Skips where the package or the library is not installed.

Debian: `apt install softhsm2`; Python: `pip install python-pkcs11`. SOFTHSM2_MODULE may name the library's path.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lab.refusal import LabRefused
from lab.sign import token
from lab.sign.keyfile import load_public
from lab.sign.signer import open_signer
from lab.sign.token import TokenUri, open_token, parse_uri, token_keygen
from signing.keys import SPKI_PREFIX, Algorithm
from signing.refusal import RefusalCode, Refused
from tests.simulators import make_signer

PIN, OFFICER_PIN = "5678", "1234"
PLACES = ("/usr/lib/softhsm/libsofthsm2.so", "/usr/lib/x86_64-linux-gnu/softhsm/libsofthsm2.so")
MODULE = next((path for path in (os.environ.get("SOFTHSM2_MODULE", ""), *PLACES) if os.path.isfile(path)), "")


@pytest.fixture(scope="module")
def uri(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A fresh SoftHSM token in a temporary folder; the URI of its keys, without the key's label."""
    pytest.importorskip("pkcs11", reason="python-pkcs11 is not installed")
    tool = shutil.which("softhsm2-util")
    if not MODULE or tool is None:
        pytest.skip("SoftHSM is not installed")
    folder = tmp_path_factory.mktemp("token")
    (folder / "tokens").mkdir()
    (folder / "softhsm2.conf").write_text(f"directories.tokendir = {folder}/tokens\nobjectstore.backend = file\n")
    patch = pytest.MonkeyPatch()
    patch.setenv("SOFTHSM2_CONF", str(folder / "softhsm2.conf"))
    pins = ["--so-pin", OFFICER_PIN, "--pin", PIN]
    words = [tool, "--module", MODULE, "--init-token", "--free", "--label", "fenced test", *pins]
    subprocess.run(words, check=True, stdout=subprocess.DEVNULL)
    yield f"pkcs11:token=fenced%20test;object=KEY?module-path={MODULE}"
    patch.undo()


def test_key_made_in_a_token_signs_there(uri: str, tmp_path: Path) -> None:
    where = uri.replace("KEY", "build")
    made = token_keygen(where, PIN, tmp_path / "build.pub")
    signer = open_signer(where, PIN)
    assert signer.key == made == load_public(tmp_path / "build.pub")
    made.verify(signer.sign(b"message"), b"message")
    with pytest.raises(Refused, match="a label that is free") as refused:
        token_keygen(where, PIN, tmp_path / "again.pub")
    assert refused.value.code is RefusalCode.BAD_PRIVATE_KEY
    with pytest.raises(FileExistsError):
        token_keygen(uri.replace("KEY", "other"), PIN, tmp_path / "build.pub")


@pytest.mark.parametrize(
    ("change", "pin", "todo"),
    [
        (("KEY", "absent"), PIN, "after object="),
        (("KEY", "build"), "0000", "--passphrase-file"),
        (("KEY", "build"), None, "--passphrase-file|after object="),
        (("fenced%20test", "no such token"), PIN, "after token="),
        ((".so", ".absent"), PIN, "after module-path="),
    ],
)
def test_token_that_does_not_open_or_sign_is_refused(
    uri: str, change: tuple[str, str], pin: str | None, todo: str
) -> None:
    with pytest.raises(Refused, match="a token that opens and signs") as refused:
        open_token(uri.replace(*change), pin).sign(b"message")  # without a PIN the public half alone can be read
    assert refused.value.code is RefusalCode.BAD_PRIVATE_KEY
    assert re.search(todo, refused.value.todo)


def test_uri_is_taken_apart() -> None:
    parsed = parse_uri("pkcs11:token=my%20token;object=build?module-path=/usr/lib/x.so")
    assert parsed == TokenUri("my token", "build", "/usr/lib/x.so")
    assert str(parsed) == "key 'build' of token 'my token'"


@pytest.mark.parametrize(
    "bad", ["pkcs11:", "pkcs11:token=a", "pkcs11:object=a;token=b?module-path=/x", "pkcs11:token=a;object=b"]
)
def test_uri_of_another_form_is_an_error(bad: str) -> None:
    with pytest.raises(LabRefused, match="a token's key: expected pkcs11:token=LABEL"):
        open_signer(bad)


def test_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pkcs11", None)
    with pytest.raises(LabRefused, match="pip install python-pkcs11"):
        open_signer("pkcs11:token=a;object=b?module-path=/x")


@pytest.mark.parametrize("wrapping", [b"", b"\x04\x20"])
def test_point_is_read_bare_or_wrapped(wrapping: bytes) -> None:
    key = make_signer("one").key
    assert token._public_key(wrapping + key.raw) == key


@pytest.mark.parametrize("point", [b"", b"\x04\x20", b"\x04\x20" + bytes(31), b"\x04\x41" + bytes(65)])
def test_point_of_another_curve_is_refused(point: Any) -> None:
    with pytest.raises(Refused) as refused:
        token._public_key(point)
    assert refused.value.code is RefusalCode.BAD_KEY


def test_prefix_is_that_of_ed25519() -> None:
    assert SPKI_PREFIX[Algorithm.ED25519].hex() == "302a300506032b6570032100"
