"""The vehicle's trust, from the provisioned root file and the stored state; and the audit trail of what it decided.

The first root is trusted because it was provisioned. A later root file that is the next version is accepted if the
chain holds; an older one is ignored, for the state remembers. Changed trust is durable before it is used.
"""

import os

from daemon.audit import AuditLog
from signing import store
from signing.container import ENVELOPE_LIMIT_BYTES
from signing.trust import TrustStore

STATE_NAME = "trust.json"


def open_trust(root_path: str, state_directory: str, audit: AuditLog) -> TrustStore:
    """The trust to judge bundles by. Raises signing's Refused; OSError when the state cannot be written."""
    state_path = os.path.join(state_directory, STATE_NAME)
    provisioned = store.read_file(root_path, limit_bytes=ENVELOPE_LIMIT_BYTES)
    state = store.read_state(state_path)
    if state is None:
        trust = TrustStore.bootstrap(provisioned)
        store.write_state(state_path, trust.state)
        audit.append("root.trusted", {"version": trust.root.version, "trust_epoch": trust.state.trust_epoch})
        return trust
    trust = TrustStore.resume(state)
    if provisioned == state.root_envelope:
        return trust
    offered = TrustStore.bootstrap(provisioned).root.version
    if offered <= trust.root.version:
        audit.append("root.ignored", {"version": offered, "trusted_version": trust.root.version})
        return trust
    trust = trust.accept_root(provisioned)
    store.write_state(state_path, trust.state)
    audit.append("root.accepted", {"version": trust.root.version, "trust_epoch": trust.state.trust_epoch})
    return trust
