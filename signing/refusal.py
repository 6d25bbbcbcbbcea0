"""The one enum of refusals and the exception that carries a member of it.

A refusal is a decision about data, never a fault of the program: it names what was wrong, what was expected, what
was found and what to do, and the same text goes to the command line, the audit log and the control socket.
A member's value is the stable code that scripts may match; its meaning and advice make up docs/refusals.md.
"""

from __future__ import annotations

import enum

_SHOWN_CHARACTERS = 96


class RefusalCode(enum.Enum):
    """Why something was refused. `value` is the stable code, `meaning` a sentence, `todo` the usual advice."""

    meaning: str
    todo: str

    def __new__(cls, code: str, meaning: str, todo: str) -> RefusalCode:
        """Store the code as the member's value, the two sentences beside it."""
        member = object.__new__(cls)
        member._value_ = code
        member.meaning = meaning
        member.todo = todo
        return member

    UNREADABLE_FILE = (
        "unreadable-file",
        "The file is not there or cannot be read.",
        "Check the path and that this user may read it.",
    )
    UNSAFE_FILE = (
        "unsafe-file",
        "The file is a link, not a regular file, or somebody else may change it.",
        "Install a regular file, owned by root or this user, not writable by group or others.",
    )
    FILE_TOO_LARGE = (
        "file-too-large",
        "The file is larger than the configured limit.",
        "Build a smaller bundle, or raise the limit in the configuration.",
    )
    FILE_CHANGED = (
        "file-changed",
        "The file changed while it was being read.",
        "Install files by writing a new one and renaming it over the old; then try again.",
    )
    BAD_CONTAINER = (
        "bad-container",
        "The file is not a well-formed bundle: magic, lengths, padding or total size are wrong.",
        "Copy the bundle again from its source; if it stays wrong, build it again.",
    )
    BAD_JSON = (
        "bad-json",
        "The document is not strict JSON: duplicate keys, floats, too deep, too long, or not UTF-8.",
        "Write the document with the lab tools; they emit strict JSON.",
    )
    BAD_ENCODING = (
        "bad-encoding",
        "A base64 or hexadecimal value is not in its one canonical form.",
        "Encode base64 with the standard alphabet and padding, and digests in lowercase hexadecimal.",
    )
    BAD_ENVELOPE = (
        "bad-envelope",
        "The DSSE envelope lacks a field, has an unknown one, or one of the wrong type.",
        "Sign with the lab tools, or with a tool that writes plain DSSE v1 envelopes.",
    )
    WRONG_PAYLOAD_TYPE = (
        "wrong-payload-type",
        "The envelope's payload type is not the one due here.",
        "Use the file for what it was signed for: a root is not a bundle, a bundle is not a root.",
    )
    BAD_STATEMENT = (
        "bad-statement",
        "The in-toto statement lacks a field, has an unknown one, or one out of its range.",
        "Compile the bundle again with a matching version of the lab tools.",
    )
    BAD_NAME = (
        "bad-name",
        "A name is empty, too long, repeated, or holds characters that names may not have.",
        "Use letters, digits, '.', '_' and '-', beginning with a letter or digit, at most 64 long.",
    )
    UNKNOWN_BLOB = (
        "unknown-blob",
        "The bundle carries a blob that is neither a known part of a model nor a listed attachment, or lacks one.",
        "Compile the bundle again; list extra files as attachments.",
    )
    DIGEST_MISMATCH = (
        "digest-mismatch",
        "A blob's SHA-256 is not the one that was signed.",
        "Copy the bundle again from its source; its content is not what was signed.",
    )
    UNKNOWN_ALGORITHM = (
        "unknown-algorithm",
        "A signature algorithm is not one of ed25519 and ml-dsa-65, or this machine cannot check it.",
        "Use ed25519, ml-dsa-65, or both.",
    )
    BAD_KEY = (
        "bad-key",
        "A public key is malformed, of low order, not canonical, or does not match its key id.",
        "Make a new key with the lab tools and issue a new root.",
    )
    BAD_SIGNATURE = (
        "bad-signature",
        "A signature by a known key does not verify.",
        "Copy the file again from its source; if it stays wrong, sign it again.",
    )
    NO_VALID_SIGNATURE = (
        "no-valid-signature",
        "There is no signature, or none by a key that the root knows.",
        "Sign with the keys of the root that this vehicle trusts.",
    )
    THRESHOLD_NOT_MET = (
        "threshold-not-met",
        "Too few distinct keys of the role have signed.",
        "Add the missing signatures; a key counts once, and only for its own role.",
    )
    ALGORITHM_MISSING = (
        "algorithm-missing",
        "An algorithm that the role or the signed statement requires has no signature.",
        "Add the signature with the missing algorithm.",
    )
    BAD_ROOT = (
        "bad-root",
        "The root document contradicts itself or has fields that are missing, unknown or out of range.",
        "Make the root with the lab tools; check thresholds, keys and roles.",
    )
    ROOT_CHAIN_BROKEN = (
        "root-chain-broken",
        "The new root does not follow the trusted one: wrong version, or not signed by the old root's threshold.",
        "Supply every root version in order, each signed by the thresholds of the one before and its own.",
    )
    EXPIRED = (
        "expired",
        "The statement, the root or a needed key is past its time.",
        "Issue a new one; check the vehicle's clock. What runs, or was confirmed, is not affected.",
    )
    NOT_YET_VALID = (
        "not-yet-valid",
        "A needed key is not valid yet.",
        "Wait for its time or check the vehicle's clock. A running model is not affected.",
    )
    REVOKED = (
        "revoked",
        "The bundle, or a key that signed it, is revoked by the trusted root.",
        "Use a bundle that is not revoked, signed by keys that are not.",
    )
    ROLLBACK = (
        "rollback",
        "The release is older than the vehicle's floor or the root's minimum, or its equal with other content.",
        "Build the model with a higher release number; to go back on purpose, issue a root that resets the floor.",
    )
    STALE_TRUST = (
        "stale-trust",
        "The bundle was verified before the last root was accepted.",
        "Verify the bundle again under the present root.",
    )
    TARGET_MISMATCH = (
        "target-mismatch",
        "The bundle was built for another driver, machine, memory size or interface version.",
        "Compile the model for this machine.",
    )
    BAD_STATE = (
        "bad-state",
        "The vehicle's trust state file is damaged or does not belong to this version.",
        "Restore the file from a backup; moving it away provisions the vehicle anew, without its rollback floors.",
    )
    UNSAFE_KEY_FILE = (
        "unsafe-key-file",
        "A private key file may be read by others, is a link, or lies inside the vehicle tree.",
        "Keep private keys outside the vehicle tree, owned by you, with mode 0600.",
    )
    BAD_PRIVATE_KEY = (
        "bad-private-key",
        "A private key file cannot be decoded, its passphrase is wrong, or it is not the key that is due.",
        "Check the passphrase and that the file is PKCS#8 PEM made by `fenced-lab keygen`.",
    )


class Refused(Exception):
    """Data was refused. `code` says why; the four sentences say what, expected, found and what to do.

    `found` may quote hostile bytes: pass it through `shown` first. `todo` defaults to the code's own advice.
    """

    def __init__(self, code: RefusalCode, what: str, expected: str, found: str, todo: str = "") -> None:
        """Carry the code and its sentences; the exception's text is all of them on one line."""
        self.code = code
        self.what = what
        self.expected = expected
        self.found = found
        self.todo = todo or code.todo
        super().__init__(f"{code.value}: {what}: expected {expected}, found {found}. {self.todo}")

    def as_dict(self) -> dict[str, str]:
        """Return the refusal as plain strings, for `--json`, the audit log and the control socket."""
        return {
            "code": self.code.value,
            "what": self.what,
            "expected": self.expected,
            "found": self.found,
            "todo": self.todo,
        }


def shown(value: object) -> str:
    """Return `value` as printable ASCII of bounded length, so that hostile data cannot forge a log line."""
    text = ascii(value if not isinstance(value, (str, bytes)) else value[: _SHOWN_CHARACTERS + 1])
    return text if len(text) <= _SHOWN_CHARACTERS else text[: _SHOWN_CHARACTERS - 3] + "..."
