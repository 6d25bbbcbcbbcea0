"""The vehicle's trust while the daemon runs: opened from roots and stored state, raised by confirmed models.

Root files are followed in the order of their versions, beginning at the first or where the stored state stands
(`signing.store.open_trust`); what changes is durable before it is used. A model that has passed its probation raises
the rollback floor: in this process at once, on the disk as soon as `persist` has run. Beside the state stands where the
confirmed bundle of each model lies, so that a restart finds one that the raised floor still allows; that list is a
hint and no more: what it names is verified like any other bundle.
"""

import json
import os
import stat
import threading
from collections.abc import Sequence

from daemon.audit import AuditLog
from signing import store
from signing.bundle import VerifiedBundle
from signing.refusal import RefusalCode, Refused, shown
from signing.state import Floor

STATE_NAME = "trust.json"
CONFIRMED_NAME = "confirmed.json"
_CONFIRMED_LIMIT_BYTES = 1 << 20


class VehicleTrust:
    """`current` is what bundles are judged by; it is replaced on the loop's thread only."""

    def __init__(self, root_paths: Sequence[str], state_directory: str, audit: AuditLog) -> None:
        """Opens it. Raises signing's Refused, after the audit log has it; OSError when it cannot be made durable."""
        self._state_path = os.path.join(state_directory, STATE_NAME)
        self._confirmed_path = os.path.join(state_directory, CONFIRMED_NAME)
        self._audit = audit
        self._writing = threading.Lock()
        try:
            _require_own_folder(state_directory)
            before = store.read_state(self._state_path)
            self.current = store.open_trust(root_paths, self._state_path)
        except Refused as refused:
            audit.append("trust.refused", refused.as_dict())
            raise
        self._confirmed = self._read_confirmed()
        if before is None or before != self.current.state:
            version, epoch = self.current.root.version, self.current.state.trust_epoch
            audit.append(
                "root.trusted" if before is None else "root.accepted", {"version": version, "trust_epoch": epoch}
            )

    def confirm(self, bundle: VerifiedBundle, path: str) -> bool:
        """Raises the model's floor to `bundle`; False if it stands there already. Call `persist` next.

        RuntimeError for a bundle that the floor forbids: it must not have been serving.
        """
        confirmed = self.current.confirm(bundle)
        name = bundle.statement.model.name
        if confirmed == self.current and self._confirmed.get(name) == path:
            return False
        self.current = confirmed
        self._confirmed = {**self._confirmed, name: path}
        return True

    def persist(self) -> None:
        """Makes what is confirmed durable; from any thread. OSError when the disk refuses.

        The path goes first: a floor without it could leave a restart with nothing that may serve.
        """
        with self._writing:
            text = json.dumps(self._confirmed, sort_keys=True, separators=(",", ":"))
            store.write_atomically(self._confirmed_path, text.encode(), mode=0o600)
            store.write_state(self._state_path, self.current.state)

    def prepare(self, roots: Sequence[bytes]) -> None:
        """Makes those of `roots` (root files, in order) durable that are newer than the trusted one; from any thread.

        Call `adopt` next, on the loop's thread. Raises Refused, noted, as `TrustStore.follow`; OSError.
        """
        with self._writing:
            try:
                followed = self.current.follow(roots)
            except Refused as refused:
                self._audit.note("trust.refused", refused.as_dict())
                raise
            if followed.root != self.current.root:
                store.write_state(self._state_path, followed.state)

    def adopt(self, roots: Sequence[bytes]) -> bool:
        """Trusts the newest of `roots`, which `prepare` has made durable; False where it is trusted already.

        What serves is not judged again. The floors that were raised since are kept; raises Refused as `prepare`.
        """
        followed = self.current.follow(roots)
        if followed.root == self.current.root:
            return False
        self.current = followed
        version, epoch = followed.root.version, followed.state.trust_epoch
        self._audit.note("root.accepted", {"version": version, "trust_epoch": epoch})
        return True

    def is_confirmed(self, bundle: VerifiedBundle) -> bool:
        """Whether the floor of its model is this very bundle."""
        model = bundle.statement.model
        return self.current.state.floors.get(model.name) == Floor(model.release, bundle.digest)

    def confirmed_path(self, model: str) -> str | None:
        """Where the bundle lay that was confirmed last; None if none was."""
        return self._confirmed.get(model)

    def _read_confirmed(self) -> dict[str, str]:
        if not os.path.lexists(self._confirmed_path):
            return {}
        try:
            found = json.loads(store.read_file(self._confirmed_path, limit_bytes=_CONFIRMED_LIMIT_BYTES))
        except (Refused, ValueError, RecursionError) as error:
            self._audit.append("confirmed.ignored", {"reason": f"{type(error).__name__}: {error}"[:512]})
            return {}
        named = found.items() if isinstance(found, dict) else ()
        return {name: path for name, path in named if isinstance(path, str)}


def _require_own_folder(path: str) -> None:
    """Raises Refused for a state folder in which others could take the state away, and with it the floors."""
    status = os.stat(path)
    mode = stat.S_IMODE(status.st_mode)
    if mode & 0o022 or status.st_uid not in (0, os.geteuid()):
        expected, found = "a folder that only root or this user may write", f"mode {mode:04o}, owner {status.st_uid}"
        todo = "Give the folder to the daemon's user, with mode 0700."
        raise Refused(RefusalCode.UNSAFE_FILE, f"state folder {shown(path)}", expected, found, todo)
