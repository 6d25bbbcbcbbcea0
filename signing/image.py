"""What a vehicle image binds: an in-toto Statement over the list of its files, signed by the role `release`.

An image is a tree with two files at its top: `files.sha256`, which lists every other file as sha256sum(1)
does, and `image.json`, a DSSE envelope whose one subject is that list. So one signature covers the tree, and
`sha256sum -c files.sha256` checks it by hand. Pure: bytes and the time come in; `daemon.image` reads the tree.
Source: github.com/in-toto/attestation, spec/v1/statement.md; the predicate is urn:fenced:image:v1.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from typing import Final

from signing import envelope, strict_json
from signing.container import ENVELOPE_LIMIT_BYTES
from signing.envelope import BUNDLE_PAYLOAD_TYPE
from signing.refusal import RefusalCode, Refused, shown
from signing.root import Root
from signing.statement import NAME, NAME_FORM, STATEMENT_TYPE
from signing.strict_json import Fields
from signing.threshold import signers

IMAGE_TYPE: Final = "urn:fenced:image:v1"
LIST_NAME: Final = "files.sha256"
ENVELOPE_NAME: Final = "image.json"
LIST_LIMIT_BYTES: Final = 4 << 20
_LINE: Final = re.compile(
    r"([0-9a-f]{64})  ((?:[A-Za-z0-9_+@%,=-][A-Za-z0-9._+@%,=-]*/)*[A-Za-z0-9_+@%,=-][A-Za-z0-9._+@%,=-]*)"
)
_LINE_FORM: Final = "64 hexadecimal digits, two spaces and a plain relative path"
_TODO: Final = "Install the image again; its content is not what was signed."


@dataclass(frozen=True)
class ImageStatement:
    """What the signatures of an image are over: its version, its machine, and the digest of its list of files.

    `arch` is as `uname -m` says it, `python` the minor version that its byte code is of ("3.11").
    """

    version: str
    arch: str
    python: str
    list_sha256: str


def encode(statement: ImageStatement) -> bytes:
    """Return the payload of `statement`: deterministic JSON that `decode` accepts, or raise as it does."""
    payload = strict_json.encode(
        {
            "_type": STATEMENT_TYPE,
            "predicateType": IMAGE_TYPE,
            "subject": [{"name": LIST_NAME, "digest": {"sha256": statement.list_sha256}}],
            "predicate": {"version": statement.version, "arch": statement.arch, "python": statement.python},
        }
    )
    decode(payload)
    return payload


def decode(payload: bytes) -> ImageStatement:
    """Return the statement in `payload`, or raise Refused: BAD_JSON, BAD_STATEMENT, BAD_NAME, BAD_ENCODING."""
    document = strict_json.parse(payload, limit_bytes=ENVELOPE_LIMIT_BYTES, what="image")
    fields = Fields(document, "image", RefusalCode.BAD_STATEMENT)
    fields.constant("_type", STATEMENT_TYPE)
    fields.constant("predicateType", IMAGE_TYPE)
    subjects = fields.items("subject", 1)
    if not subjects:
        fields.refuse("subject", "one item", "none")
    subject = Fields(subjects[0], "image.subject[0]", RefusalCode.BAD_STATEMENT)
    subject.constant("name", LIST_NAME)
    digest = subject.fields("digest")
    predicate = fields.fields("predicate")
    statement = ImageStatement(
        version=predicate.text("version", NAME, NAME_FORM, RefusalCode.BAD_NAME),
        arch=predicate.text("arch", NAME, NAME_FORM, RefusalCode.BAD_NAME),
        python=predicate.text("python", NAME, NAME_FORM, RefusalCode.BAD_NAME),
        list_sha256=digest.sha256("sha256"),
    )
    for one in (digest, subject, predicate, fields):
        one.close()
    return statement


def verify_image(data: bytes, listed: bytes, root: Root, now_unix_s: int | None) -> ImageStatement:
    """Return what the envelope `data` states of the list `listed`, once the role `release` of `root` has signed it.

    `now_unix_s` is seconds since 1970; a clock behind the root's time of issue is read as that time. None: windows of
    keys do not matter, as for an image that is installed.
    Raises Refused: what `envelope.parse` and `Signers.require` raise, those of `decode`, DIGEST_MISMATCH.
    """
    parsed = envelope.parse(data, payload_type=BUNDLE_PAYLOAD_TYPE)
    signed = signers(parsed, root, None if now_unix_s is None else max(now_unix_s, root.issued_unix_s))
    signed.require("release", root.roles["release"].algorithms)
    statement = decode(parsed.payload)
    require_list(listed, statement)
    return statement


def require_list(listed: bytes, statement: ImageStatement) -> None:
    """Raise Refused(DIGEST_MISMATCH) unless `listed` is the list that `statement` is about."""
    found = hashlib.sha256(listed).hexdigest()
    if found != statement.list_sha256:
        expected = f"sha256 {statement.list_sha256}"
        raise Refused(RefusalCode.DIGEST_MISMATCH, f"image file {LIST_NAME}", expected, found, _TODO)


def encode_list(digests: dict[str, str]) -> bytes:
    """Return the list of files: lines as of sha256sum(1), in the order of the paths. `digests` is by relative path."""
    listed = "".join(f"{digest}  {path}\n" for path, digest in sorted(digests.items())).encode()
    decode_list(listed)
    return listed


def decode_list(data: bytes) -> dict[str, str]:
    """Return the lowercase hexadecimal digests in a list of files, by relative path; they are in that order.

    Raises Refused(BAD_STATEMENT) for a line of another form, a path that could leave the tree, and one out of order.
    """
    if len(data) > LIST_LIMIT_BYTES or not data.endswith(b"\n"):
        expected = f"lines, at most {LIST_LIMIT_BYTES} bytes"
        raise Refused(RefusalCode.BAD_STATEMENT, f"image file {LIST_NAME}", expected, f"{len(data)} bytes", _TODO)
    digests: dict[str, str] = {}
    before = ""
    for number, line in enumerate(data.decode("utf-8", "replace").split("\n")[:-1], start=1):
        what = f"{LIST_NAME} line {number}"
        found = _LINE.fullmatch(line)
        if found is None:
            raise Refused(RefusalCode.BAD_STATEMENT, what, _LINE_FORM, shown(line), _TODO)
        if found[2] <= before:
            raise Refused(RefusalCode.BAD_STATEMENT, what, f"a path after {shown(before)}", shown(found[2]), _TODO)
        before = found[2]
        digests[before] = found[1]
    return digests
