"""Every way in which the HAL says no: one exception, one enum.

An error says what was wrong, what was expected, what was found and what to do, and carries a code that tests,
logs and exit codes use. Static refusals of a graph have their own enum in `hal.refusal`.
"""

from __future__ import annotations

from enum import Enum


class HalCode(Enum):
    """Why the HAL refused or failed."""

    UNKNOWN_DRIVER = "unknown-driver"
    DRIVER_UNAVAILABLE = "driver-unavailable"
    DESCRIPTOR = "descriptor-refused"
    SIZE = "size-refused"
    SEAL_MISSING = "seal-missing"
    NOT_SHRINK_SEALED = "not-shrink-sealed"
    ALIGNMENT = "alignment-refused"
    OUT_OF_MEMORY = "out-of-memory"
    NOT_PERMITTED = "not-permitted"
    CODE = "code-refused"
    QUEUE_VERSION = "queue-version"
    UNKNOWN_ENTRYPOINT = "unknown-entrypoint"
    BINDING = "binding-refused"
    BINDING_ALIAS = "binding-alias"
    BINDING_MISSING = "binding-missing"
    QUEUE_FULL = "queue-full"
    DEVICE_LATCHED = "device-latched"
    DEVICE_HANG = "device-hang"
    RUN_CANCELLED = "run-cancelled"
    DEVICE_LOST = "device-lost"
    RESET_IMPOSSIBLE = "reset-impossible"
    CLOSED = "closed"


class HalError(Exception):
    """A refusal or failure of the HAL. `code` names it; the text reads as one sentence for a person."""

    def __init__(self, code: HalCode, what: str, *, expected: str = "", found: str = "", todo: str = "") -> None:
        parts = [f"{code.value}: {what}"]
        if expected:
            parts.append(f"expected {expected}")
        if found:
            parts.append(f"found {found}")
        if todo:
            parts.append(todo)
        super().__init__("; ".join(parts))
        self.code = code
        self.what = what
        self.expected = expected
        self.found = found
        self.todo = todo
