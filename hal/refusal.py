"""Why a captured graph is not admitted: one enum, and one exception that names the launch or table entry at fault."""

from __future__ import annotations

from enum import Enum


class AdmissionCode(Enum):
    """Each rule of admission that a graph can break."""

    ABI_VERSION = "abi-version"
    HAL_VERSION = "hal-version"
    DRIVER = "driver"
    THREADS = "threads"
    LIMIT = "limit"
    NAME = "name"
    DUPLICATE = "duplicate"
    BUFFER_KIND = "buffer-kind"
    BUFFER_ALIGNMENT = "buffer-alignment"
    BUFFER_RANGE = "buffer-range"
    BUFFER_UNUSED_FIELD = "buffer-unused-field"
    BUFFER_ROLE = "buffer-role"
    CODE = "code"
    SYMBOL = "symbol"
    CODE_RANGE = "code-range"
    ACCESS = "access"
    INDEX = "index"
    ARGUMENT_COUNT = "argument-count"
    ARGUMENT_RANGE = "argument-range"
    READ_ONLY = "read-only"
    GRID = "grid"
    ORPHAN_LAUNCH = "orphan-launch"
    NOT_BOUND = "not-bound"
    ALIAS = "alias"
    UNINITIALISED = "uninitialised"
    CLOBBERED = "clobbered"
    OVERWRITES_OUTPUT = "overwrites-output"
    OUTPUT_NOT_COVERED = "output-not-covered"
    INPUT_NOT_READ = "input-not-read"
    SIZE_MISMATCH = "size-mismatch"
    DTYPE = "dtype"
    FORMAT = "format"
    TOLERANCE = "tolerance"
    BUDGET = "budget"
    ENTRY_ROLE = "entry-role"
    MISS_POLICY = "miss-policy"
    GOLDEN = "golden"


class AdmissionRefused(Exception):
    """A graph that will not run here. Nothing of it was mapped.

    where: the entry at fault, such as "launch 12 (w3)". launch: its index, where the fault lies in a launch, else None.
    """

    def __init__(
        self,
        code: AdmissionCode,
        where: str,
        what: str,
        *,
        expected: str = "",
        found: str = "",
        launch: int | None = None,
    ) -> None:
        text = f"{code.value}: {where}: {what}"
        if expected:
            text += f"; expected {expected}"
        if found:
            text += f"; found {found}"
        super().__init__(text)
        self.code = code
        self.where = where
        self.what = what
        self.expected = expected
        self.found = found
        self.launch = launch
        self.todo = "compile the model again with this version's lab; do not edit a graph"
