"""Opening a key for signing, wherever it is: a file, or a token named by its PKCS#11 URI."""

from __future__ import annotations

import os

from lab.sign.keyfile import Signer, load_signer
from lab.sign.token import is_token_uri, open_token


def open_signer(key: str | os.PathLike[str], passphrase: str | None = None) -> Signer:
    """Return the key at the path or URI `key`, ready to sign. `passphrase` is the file's, or the token's PIN.

    Raises Refused as `load_signer` and `open_token` do.
    """
    return open_token(key, passphrase) if is_token_uri(key) else load_signer(key, passphrase)
