"""Why the compiler said no.

One enum and one exception for the whole of `lab.compile`. A refusal names what was wrong, what was expected, what
was found and what to do about it; it is the user's fault or the model's, never ours (ours is an ordinary exception).
"""

from __future__ import annotations

from enum import Enum


class CompileRefusal(Enum):
    """The code of a refusal, stable across versions: it is what scripts match on."""

    SPEC_UNREADABLE = "spec-unreadable"
    SPEC_KEY_MISSING = "spec-key-missing"
    SPEC_KEY_UNKNOWN = "spec-key-unknown"
    SPEC_VALUE = "spec-value"
    MODEL_UNREADABLE = "model-unreadable"
    PIPELINE = "pipeline"
    FOREIGN_DOMAIN = "foreign-domain"
    UNKNOWN_OPERATOR = "unknown-operator"
    DYNAMIC_SIZE = "dynamic-size"
    EMPTY_INITIALISER = "empty-initialiser"
    INPUT_MISMATCH = "input-mismatch"
    OUTPUT_MISMATCH = "output-mismatch"
    UNSUPPORTED_DTYPE = "unsupported-dtype"
    FOREIGN_DEVICE = "foreign-device"
    OUT_OF_BOUNDS = "out-of-bounds"
    INPUT_WITHOUT_EFFECT = "input-without-effect"
    NOT_FINITE = "not-finite"
    SEED_WITHOUT_EFFECT = "seed-without-effect"
    CAPTURE_DIFFERS = "capture-differs"
    REFERENCE_DIFFERS = "reference-differs"
    TARGET = "target"


class CompileRefused(Exception):
    """The spec or its model cannot be compiled as it stands; nothing was written."""

    def __init__(self, code: CompileRefusal, what: str, *, expected: str, found: str, todo: str) -> None:
        self.code, self.what, self.expected, self.found, self.todo = code, what, expected, found, todo
        super().__init__(f"{code.value}: {what}: expected {expected}, found {found}; {todo}")
