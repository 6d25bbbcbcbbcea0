"""The way of a model on the vehicle: read, verified, admitted, loaded, self-tested; then it may serve.

`ModelLoader.load` does all of it on whatever thread calls it, and either returns a LoadedModel or raises ModelRefused
with nothing left behind. What serves now is `daemon.service`'s matter; nothing here touches it.
"""

import contextlib
import hashlib
import platform
import time
from collections.abc import Callable
from dataclasses import dataclass

from abi.graph import HAL_VERSION, Graph, GraphError, decode
from abi.messages import is_name
from abi.packet import ABI_VERSION
from daemon import guard
from daemon.audit import AuditLog
from daemon.config import Limits
from daemon.memory_room import MemoryRoom, need_of
from daemon.refusal import ModelCode, ModelRefused, Step, refused
from daemon.selftest import TestReport, self_test
from daemon.trials import TrialRefused, Trials
from daemon.trust_store import VehicleTrust
from hal.accelerator import Accelerator, Executable, Module, SealedSpan
from hal.error import HalError
from hal.refusal import AdmissionRefused
from signing import envelope, statement, store
from signing.bundle import SealedBundle, VerifiedBundle
from signing.refusal import RefusalCode, Refused
from signing.trust import Machine, verify_bundle


@dataclass(frozen=True)
class LoadedModel:
    """A model that passed everything and is ready to serve. `load_ns`: how long that took."""

    path: str
    bundle: VerifiedBundle
    graph: Graph
    executable: Executable
    report: TestReport
    load_ns: int

    @property
    def name(self) -> str:
        """The model's name."""
        return self.bundle.statement.model.name

    @property
    def release(self) -> int:
        """Its release number."""
        return self.bundle.statement.model.release

    @property
    def label(self) -> str:
        """Name, version and release, for people."""
        model = self.bundle.statement.model
        return f"{model.name} {model.version} (release {model.release})"

    def identity(self) -> dict[str, str | int]:
        """What the audit log and answers say of it: model, version, release and digest."""
        model = self.bundle.statement.model
        return {
            "model": model.name, "version": model.version, "release": model.release, "digest": self.bundle.digest,
        }  # fmt: skip

    @property
    def digest(self) -> bytes:
        """SHA-256 of the signed statement, 32 bytes."""
        return bytes.fromhex(self.bundle.digest)

    def unload(self, accelerator: Accelerator) -> None:
        """Frees device and memory; what is in flight is cancelled. Raises HalError when the device does not let go."""
        accelerator.unload(self.executable)
        self.bundle.close()


def describe_machine(accelerator: Accelerator, memory_bytes: int) -> Machine:
    """This machine, as a bundle's target is compared with it. `memory_bytes`: what one model may use."""
    properties = accelerator.properties()
    return Machine(
        driver=properties.driver,
        arch=properties.arch or platform.machine(),
        cpu_features=frozenset(properties.features),
        memory_bytes=memory_bytes,
        abi_version=ABI_VERSION,
        hal_version=HAL_VERSION,
        device_id=properties.device,
    )


class ModelLoader:
    """Loads bundles under one trust onto one accelerator; every decision goes to the audit log."""

    def __init__(
        self,
        accelerator: Accelerator,
        trust: VehicleTrust,
        machine: Machine,
        audit: AuditLog,
        *,
        limits: Limits,
        trials: Trials,
        room: MemoryRoom,
    ) -> None:
        self.serving_beside: Callable[[str, str], str] = lambda model, digest: ""
        # Where the bundle lies that serves under a model's name; empty: none does, or the one with this digest.
        self._trials = trials
        self._room = room
        self._accelerator = accelerator
        self._trust = trust
        self._machine = machine
        self._audit = audit
        self._limits = limits

    def load_at_start(self, path: str) -> LoadedModel:
        """As `load`; where the rollback floor has passed the bundle, the confirmed one of its model in its place.

        A release that was activated and confirmed outlives a restart, whatever the configuration still names. One that
        was taken back gives way likewise, to what served before it; where nothing else may serve it is tried again.
        """
        try:
            return self.load(path)
        except ModelRefused as refusal:
            was_lost, others = isinstance(refusal, TrialRefused), self._others(path, refusal)
            if not was_lost and not others:
                raise
        for other in others:
            self._audit.append("bundle.superseded", {"path": path[:1024], "confirmed": other[:1024]})
            try:
                return self.load(other)
            except ModelRefused:
                if not was_lost:
                    raise
        self._audit.append("bundle.tried-again", {"path": path[:1024], "why": "nothing else may serve"})
        return self.load(path, named=True)

    def _others(self, path: str, refusal: ModelRefused) -> list[str]:
        """Where bundles lie that may serve in place of the one that was refused, the best first."""
        found = [
            self._trust.confirmed_path(refusal.model),
            refusal.instead if isinstance(refusal, TrialRefused) else "",
        ]
        return list(dict.fromkeys(one for one in found if one and one != path))

    def load(self, path: str, *, named: bool = False) -> LoadedModel:
        """The model in the bundle at `path`, ready to serve. Raises ModelRefused, after the audit log has it.

        named: it was asked for by name, so what its trials came to before is forgotten.
        """
        began_ns = time.monotonic_ns()
        try:
            self._room.require_file(path, self._limits.bundle_bytes)
            bundle = self._verify(path)
            try:
                graph, executable, report = self._try(bundle, named)
            except BaseException:
                bundle.close()
                raise
        except (Refused, GraphError, AdmissionRefused, HalError) as error:
            raise self._note(path, refused(error)) from error
        except ModelRefused as error:
            raise self._note(path, error) from error
        model = LoadedModel(path, bundle, graph, executable, report, time.monotonic_ns() - began_ns)
        self._audit.append(
            "bundle.accepted", {"path": path[:1024], **model.identity(), "trust_epoch": bundle.trust_epoch}
        )
        return model

    def _try(self, bundle: VerifiedBundle, named: bool) -> tuple[Graph, Executable, TestReport]:
        """Prepares it, with its trial written down first: its code may end the process. OSError when it cannot be."""
        if self._trust.is_confirmed(bundle):
            return self._prepare(bundle)
        name, trials = bundle.statement.model.name, self._trials
        if named:
            trials.pardon(bundle.digest)
        trials.require_none_lost(name, bundle.digest)
        trials.begin(bundle.digest, self.serving_beside(name, bundle.digest))
        try:
            trials.persist()
            return self._prepare(bundle)
        except BaseException:
            trials.end(bundle.digest)
            with contextlib.suppress(OSError):  # then the next start counts one death too many
                trials.persist()
            raise

    def _verify(self, path: str) -> VerifiedBundle:
        sealed: SealedBundle = store.read_bundle(path, limit_bytes=self._limits.bundle_bytes)
        try:
            return verify_bundle(sealed, self._trust.current, machine=self._machine, now_unix_s=int(time.time()))
        except Refused as error:
            refusal = refused(error)
            if error.code is RefusalCode.ROLLBACK:  # the last check: signatures and digests held
                parsed = envelope.parse(sealed.envelope, payload_type=envelope.BUNDLE_PAYLOAD_TYPE)
                refusal.model = statement.decode(parsed.payload).model.name
            sealed.close()
            raise refusal from error
        except BaseException:
            sealed.close()
            raise

    def _prepare(self, bundle: VerifiedBundle) -> tuple[Graph, Executable, TestReport]:
        name = bundle.statement.model.name
        if not is_name(name):
            raise ModelRefused(
                Step.CONTRACT, ModelCode.MODEL_NAME, f"model name {name!r}",
                expected="1 to 64 of a-z 0-9 _ . -", found=name,
                todo="give the model such a name in its spec and compile it again",
            )  # fmt: skip
        graph = decode(bundle.blob("graph"))
        code = bundle.blob("code")
        need = need_of(
            graph, len(code), bundle.blob_span("weights")[1], ring_slots=self._limits.ring_slots,
            maps_weights=graph.driver == "cpu",
        )  # fmt: skip
        self._room.require(name, need, len(bundle.blob("weights")))
        module = Module(graph, code, bundle.blob("weights"), SealedSpan(bundle.memfd, *bundle.blob_span("weights")))
        with guard.loading(hashlib.sha256(code).hexdigest()):
            executable = self._accelerator.load(module)
        try:
            report = self_test(self._accelerator, executable, bundle.blob("goldens"))
        except BaseException:
            self._accelerator.unload(executable)
            raise
        return graph, executable, report

    def _note(self, path: str, error: ModelRefused) -> ModelRefused:
        words = {key: text[:512] for key, text in error.as_dict().items()}
        self._audit.note("bundle.refused", {"path": path[:1024], **words})
        return error
