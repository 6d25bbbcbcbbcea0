"""Whether enough of the right keys have signed: the one place where signatures are counted.

A role is met when, for each required algorithm, at least `threshold` distinct keys of that algorithm in that role have
signed. Distinct means by raw key bytes. Revoked keys and keys outside their window count for nothing; if the role then
falls short, the refusal says so by name.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from signing.envelope import Envelope, verified_keys
from signing.keys import Algorithm, PublicKey
from signing.refusal import RefusalCode, Refused
from signing.root import Role, Root, RootKey
from signing.utc import to_rfc3339


@dataclass(frozen=True)
class Signers:
    """The keys of one root that validly signed one envelope, at one time (None: windows do not matter)."""

    root: Root
    claimed_keyids: frozenset[str]
    keys: tuple[PublicKey, ...]
    now_unix_s: int | None

    def require(self, name: str, algorithms: Iterable[Algorithm]) -> None:
        """Return if the role `name` is met for each of `algorithms`.

        Raises Refused: REVOKED, EXPIRED, NOT_YET_VALID, NO_VALID_SIGNATURE, ALGORITHM_MISSING or THRESHOLD_NOT_MET.
        """
        role = self.root.roles[name]
        signed = [key for key in self.keys if key.keyid in role.keyids]
        counted = [key for key in signed if self._window_fault(self.root.keys[key.keyid]) is None]
        for kind in algorithms:
            count = len({key.raw for key in counted if key.algorithm is kind})
            if count < role.threshold:
                self._refuse(name, role, kind, signed, count)

    def _refuse(self, name: str, role: Role, kind: Algorithm, signed: list[PublicKey], count: int) -> None:
        """Raise the most telling refusal for a role that is short of `kind` signatures."""
        what = f"{kind.value} signatures of the role {name}"
        expected = f"{role.threshold} by distinct keys"
        revoked = sorted(self.claimed_keyids & self.root.revoked_keys)
        if revoked:
            raise Refused(RefusalCode.REVOKED, what, expected, f"one by the revoked key {revoked[0]}")
        for key in signed:
            fault = self._window_fault(self.root.keys[key.keyid])
            if fault is not None and key.algorithm is kind:
                raise Refused(fault[0], what, expected, f"key {key.keyid} {fault[1]}")
        if not self.keys:
            found = f"{len(self.claimed_keyids)} signatures, none by a key of root version {self.root.version}"
            raise Refused(RefusalCode.NO_VALID_SIGNATURE, what, expected, found)
        if count == 0 and any(key.algorithm is not kind for key in signed):
            others = ", ".join(sorted({key.algorithm.value for key in signed}))
            raise Refused(RefusalCode.ALGORITHM_MISSING, what, expected, f"only {others}")
        raise Refused(RefusalCode.THRESHOLD_NOT_MET, what, expected, str(count))

    def _window_fault(self, one: RootKey) -> tuple[RefusalCode, str] | None:
        """Return why a signature by `one` does not count now, or None."""
        now, begin, end = self.now_unix_s, one.valid_from_unix_s, one.valid_until_unix_s
        if now is None:
            return None
        if begin is not None and now < begin:
            return RefusalCode.NOT_YET_VALID, f"valid from {to_rfc3339(begin)}"
        if end is not None and now >= end:
            return RefusalCode.EXPIRED, f"valid until {to_rfc3339(end)}"
        return None


def signers(envelope: Envelope, root: Root, now_unix_s: int | None) -> Signers:
    """Check every signature of `envelope` by a key of `root`; Refused(BAD_SIGNATURE) if one is wrong."""
    claimed = frozenset(one.keyid for one in envelope.signatures)
    return Signers(root, claimed, verified_keys(envelope, root.public_keys()), now_unix_s)
