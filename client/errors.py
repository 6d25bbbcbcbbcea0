"""How the public client says no: the daemon refused, or is gone. Waiting too long is Python's own TimeoutError."""

from __future__ import annotations

from abi.messages import Refusal
from abi.packet import RefusalCode

__all__ = ["ConnectionLost", "Refused"]


class Refused(Exception):
    """The daemon, or the client before it asked, refused a request; nothing of it has taken effect.

    `code` says why; `what`, `expected`, `found` and `action` are the refusing side's own words.
    """

    def __init__(self, code: RefusalCode, what: str, expected: str, found: str, action: str) -> None:
        super().__init__(f"{code.name}: {what}: expected {expected}, found {found}; {action}")
        self.code, self.what, self.expected, self.found, self.action = code, what, expected, found, action

    @property
    def named(self) -> tuple[str, str]:
        """Code and subject as docs/refusals.md has them: of a model that was refused, the code of the refusing step."""
        code = self.code.name.lower().replace("_", "-")
        step_code, colon, what = self.what.partition(": ")
        return (step_code, what) if self.code is RefusalCode.MODEL_REFUSED and colon else (code, self.what)

    @classmethod
    def by(cls, refusal: Refusal) -> Refused:
        """The error for a Refusal packet."""
        return cls(refusal.code, refusal.what, refusal.expected, refusal.found, refusal.action)


class ConnectionLost(ConnectionError):
    """The session ended: the daemon said Bye, died, or broke the protocol. Connect anew."""
