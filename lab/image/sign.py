"""Signing an image: the role `release` signs the envelope of its list of files, after every file was compared with it.

Each holder of a key signs the tree in turn, where the threshold is more than one; the vehicle counts.
"""

from __future__ import annotations

from pathlib import Path

from daemon.image import require_files
from lab.sign.keyfile import Signer
from lab.sign.pack import write_whole
from lab.sign.sign import add_signature
from signing import envelope
from signing.envelope import BUNDLE_PAYLOAD_TYPE
from signing.image import ENVELOPE_NAME, LIST_NAME, ImageStatement, decode, require_list
from signing.keys import PublicKey
from signing.refusal import RefusalCode, Refused
from signing.root import Root


def sign_image(tree: Path, signer: Signer, *, root: Root | None = None) -> PublicKey:
    """Add `signer`'s signature to the image at `tree`; return its key. With `root`, it must be one of its release role.

    Raises Refused where a file is not what the list says, and where the signature could not count.
    """
    if root is not None and signer.key.keyid not in root.roles["release"].keyids:
        expected = f"a key of the role release in root version {root.version}"
        raise Refused(RefusalCode.THRESHOLD_NOT_MET, "key for the role release", expected, signer.key.keyid)
    read_image(tree)
    path = tree / ENVELOPE_NAME
    unsigned = envelope.parse(path.read_bytes(), payload_type=BUNDLE_PAYLOAD_TYPE)
    signed = add_signature(unsigned, signer).encode()
    write_whole(path, lambda file: file.write(signed))
    return signer.key


def read_image(tree: Path) -> ImageStatement:
    """What the image at `tree` states of itself, after every file was compared; no signature is looked at."""
    listed = (tree / LIST_NAME).read_bytes()
    parsed = envelope.parse((tree / ENVELOPE_NAME).read_bytes(), payload_type=BUNDLE_PAYLOAD_TYPE)
    statement = decode(parsed.payload)
    require_list(listed, statement)
    require_files(str(tree), listed)
    return statement
