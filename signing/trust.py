"""The decision: may this bundle be activated on this vehicle, now? Pure: bytes, values and the time come in.

Order, each step before the next is looked at: the envelope is parsed; the root's thresholds for `build` and `release`
hold over its exact bytes; only then is the statement read, its own required algorithms added, the layout and every
digest compared, and last revocation, expiry, target and rollback. The result is a VerifiedBundle or a Refused.
Expiry and key windows bind what is new to the vehicle: a statement whose digest is a rollback floor is not.

`TrustStore` is a value: accepting a root or confirming a model returns a new one, whose `state` the caller makes
durable (`store.write_state`) before acting on it; a refusal changes nothing. Bad data is Refused, a wrong
call RuntimeError.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, replace

from signing import container, envelope
from signing.bundle import SealedBundle, VerifiedBundle
from signing.refusal import RefusalCode, Refused
from signing.root import Root, decode_root
from signing.state import Floor, VehicleState
from signing.statement import Statement, decode
from signing.threshold import signers
from signing.utc import to_rfc3339


@dataclass(frozen=True)
class Machine:
    """What this vehicle is, to be compared with a statement's target. Sizes in bytes, versions of the interfaces."""

    driver: str
    arch: str
    cpu_features: frozenset[str]
    memory_bytes: int
    abi_version: int
    hal_version: int
    device_id: str | None = None


@dataclass(frozen=True)
class TrustStore:
    """A verified root and the vehicle's state. Made by `bootstrap` or `resume`, never by hand."""

    root: Root
    state: VehicleState

    @classmethod
    def bootstrap(cls, root_envelope: bytes) -> TrustStore:
        """Trust a first root because the vehicle was provisioned with it; it must meet its own threshold."""
        return cls(_self_signed_root(root_envelope), VehicleState(root_envelope, trust_epoch=1))

    @classmethod
    def resume(cls, state: VehicleState) -> TrustStore:
        """Go on from a stored state; its root is checked again. Raises Refused as `bootstrap` does."""
        return cls(_self_signed_root(state.root_envelope), state)

    def accept_root(self, root_envelope: bytes) -> TrustStore:
        """Return the store under the next root: version N+1, signed by the thresholds of N and of N+1.

        No clock is asked; the trust epoch rises by one; floors that the new root resets are dropped.
        Raises Refused: ROOT_CHAIN_BROKEN and all of `bootstrap`.
        """
        parsed = envelope.parse(root_envelope, payload_type=envelope.ROOT_PAYLOAD_TYPE)
        what = f"root after version {self.root.version}"
        try:
            signers(parsed, self.root, None).require("root", self.root.roles["root"].algorithms)
        except Refused as refused:
            if refused.code is RefusalCode.BAD_SIGNATURE:
                raise
            expected = f"signatures by the threshold of version {self.root.version}"
            raise Refused(RefusalCode.ROOT_CHAIN_BROKEN, what, expected, refused.found) from refused
        new = _self_signed_root(root_envelope)
        if new.version != self.root.version + 1:
            raise Refused(RefusalCode.ROOT_CHAIN_BROKEN, what, f"version {self.root.version + 1}", f"{new.version}")
        floors = {name: floor for name, floor in self.state.floors.items() if name not in new.reset_floors}
        return TrustStore(new, VehicleState(root_envelope, self.state.trust_epoch + 1, floors))

    def follow(self, root_envelopes: Iterable[bytes]) -> TrustStore:
        """Return the store after those of `root_envelopes`, in order, that are newer than its root.

        Older ones are passed over: a vehicle may be ahead of the files it was provisioned with. Raises Refused as
        `accept_root` does, and ROOT_CHAIN_BROKEN for another document with the trusted root's version.
        """
        trusted = self
        for root_envelope in root_envelopes:
            found = _self_signed_root(root_envelope)
            if found.version > trusted.root.version:
                trusted = trusted.accept_root(root_envelope)
            elif found.version == trusted.root.version and found != trusted.root:
                what, todo = (
                    f"root version {found.version}",
                    "Name the root file of that version that was trusted first.",
                )
                raise Refused(RefusalCode.ROOT_CHAIN_BROKEN, what, "the document that is trusted", "another one", todo)
        return trusted

    def confirm(self, bundle: VerifiedBundle) -> TrustStore:
        """Return the store with the model's floor raised to `bundle`, which has passed its probation.

        RuntimeError if that would lower the floor: only a bundle that could be activated can be confirmed.
        """
        model = bundle.statement.model
        floor = self.state.floors.get(model.name)
        new = Floor(model.release, bundle.digest)
        if floor is not None and floor != new and new.release <= floor.release:
            raise RuntimeError(f"{model.name}: release {new.release} cannot be confirmed over {floor.release}")
        return replace(self, state=replace(self.state, floors={**self.state.floors, model.name: new}))

    def require_fresh(self, bundle: VerifiedBundle) -> None:
        """Raise Refused if trust moved past `bundle` since it was verified. Needs no clock.

        STALE_TRUST: a root was accepted; ROLLBACK: a newer release of the model was confirmed.
        """
        if bundle.trust_epoch != self.state.trust_epoch:
            expected = f"verification under trust epoch {self.state.trust_epoch}"
            raise Refused(RefusalCode.STALE_TRUST, "bundle", expected, f"epoch {bundle.trust_epoch}")
        _require_release(bundle.statement, bundle.digest, self)


def verify_bundle(sealed: SealedBundle, trust: TrustStore, *, machine: Machine, now_unix_s: int) -> VerifiedBundle:
    """Return `sealed` as a verified bundle that may be activated on `machine` now, or raise Refused.

    `now_unix_s` is seconds since 1970; a clock behind the root's time of issue is read as that time. On success the
    result owns `sealed`; on a refusal the caller closes it. A running model is never judged again by this, and time
    says nothing of a statement that this vehicle has confirmed: its restart is no new activation.
    """
    parsed = envelope.parse(sealed.envelope, payload_type=envelope.BUNDLE_PAYLOAD_TYPE)
    digest = hashlib.sha256(parsed.payload).hexdigest()
    is_confirmed = any(floor.digest == digest for floor in trust.state.floors.values())
    now = None if is_confirmed else max(now_unix_s, trust.root.issued_unix_s)
    _require_unexpired("root", trust.root.expires_unix_s, now)
    signed = signers(parsed, trust.root, now)
    for name in ("build", "release"):
        signed.require(name, trust.root.roles[name].algorithms)
    statement = decode(parsed.payload)
    signed.require("build", statement.required_algorithms.build)
    signed.require("release", statement.required_algorithms.release)
    require_contents(sealed, statement)
    if digest in trust.root.revoked_bundles:
        raise Refused(RefusalCode.REVOKED, "bundle", "a bundle that is not revoked", digest)
    _require_unexpired("statement", statement.expires_unix_s, now)
    _require_target(statement, machine)
    _require_release(statement, digest, trust)
    return VerifiedBundle(statement, digest, trust.state.trust_epoch, sealed)


def require_contents(sealed: SealedBundle, statement: Statement) -> None:
    """Refuse a file whose layout or digests are not those of `statement`: BAD_CONTAINER, DIGEST_MISMATCH."""
    where = container.layout(len(sealed.envelope), [blob.size_bytes for blob in statement.blobs])
    container.require_file_size(where, sealed.size_bytes)
    if where != sealed.layout:
        raise Refused(RefusalCode.BAD_CONTAINER, "blobs", "sizes as signed", "other sizes")
    for blob, found in zip(statement.blobs, sealed.blob_sha256, strict=True):
        if found != blob.sha256:
            raise Refused(RefusalCode.DIGEST_MISMATCH, f"blob {blob.name}", f"sha256 {blob.sha256}", found)


def _self_signed_root(root_envelope: bytes) -> Root:
    parsed = envelope.parse(root_envelope, payload_type=envelope.ROOT_PAYLOAD_TYPE)
    root = decode_root(parsed.payload)
    signers(parsed, root, None).require("root", root.roles["root"].algorithms)
    return root


def _require_unexpired(what: str, expires_unix_s: int | None, now_unix_s: int | None) -> None:
    if expires_unix_s is not None and now_unix_s is not None and now_unix_s >= expires_unix_s:
        expected = f"a time before {to_rfc3339(expires_unix_s)}"
        raise Refused(RefusalCode.EXPIRED, what, expected, to_rfc3339(now_unix_s))


def _require_target(statement: Statement, machine: Machine) -> None:
    """Compare the statement's target with the machine, field by field; the interfaces come first."""
    target = statement.target
    missing = sorted(set(target.cpu_features) - machine.cpu_features)
    checks: tuple[tuple[str, bool, object, object], ...] = (
        ("ABI version", statement.abi_version == machine.abi_version, statement.abi_version, machine.abi_version),
        ("HAL version", statement.hal_version == machine.hal_version, statement.hal_version, machine.hal_version),
        ("driver", target.driver == machine.driver, target.driver, machine.driver),
        ("architecture", target.arch == machine.arch, target.arch, machine.arch),
        ("CPU features", not missing, ", ".join(missing), "a CPU without them"),
        ("device id", target.device_id in (None, machine.device_id), target.device_id, machine.device_id),
        (
            "memory",
            target.min_memory_bytes <= machine.memory_bytes,
            f"{target.min_memory_bytes} bytes",
            f"{machine.memory_bytes} bytes",
        ),
    )
    for what, met, expected, found in checks:
        if not met:
            raise Refused(RefusalCode.TARGET_MISMATCH, what, f"{expected} (by the bundle)", f"{found} (this machine)")


def _require_release(statement: Statement, digest: str, trust: TrustStore) -> None:
    model = statement.model
    what = f"release of {model.name}"
    minimum = trust.root.minimum_releases.get(model.name, 0)
    if model.release < minimum:
        raise Refused(RefusalCode.ROLLBACK, what, f"at least the root's minimum {minimum}", str(model.release))
    floor = trust.state.floors.get(model.name)
    if floor is None:
        return
    if model.release < floor.release:
        raise Refused(RefusalCode.ROLLBACK, what, f"at least the confirmed {floor.release}", str(model.release))
    if model.release == floor.release and digest != floor.digest:
        expected = f"the confirmed content {floor.digest} of release {floor.release}"
        raise Refused(RefusalCode.ROLLBACK, what, expected, f"other content {digest}")
