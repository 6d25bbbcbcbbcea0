"""Why a log was not recorded or not replayed: one enum, one exception."""

from __future__ import annotations

from enum import Enum


class LogRefusal(Enum):
    """The code of a refusal, stable across versions."""

    UNREADABLE = "log-unreadable"
    NOT_A_FENCED_LOG = "not-a-fenced-log"
    UNFINISHED = "log-unfinished"
    DIGEST = "log-digest"
    INDEX = "log-index"
    FORMAT = "log-format"
    BAD_FRAMES = "bad-frames"
    MODEL = "log-model"
    START = "log-start"
    TOLERANCES = "bad-tolerances"
    STATE = "log-state"
    MISMATCH = "replay-mismatch"
    WRITE = "log-write"
    EXPORT = "log-export"
    RAY = "ray"
    SOURCE = "import-source"
    PICTURES = "import-pictures"
    UNSTATED = "import-unstated"
    CONTRADICTION = "import-contradiction"


class LogRefused(Exception):
    """A log, or what a replay of it gave, is not what it claims to be."""

    def __init__(self, code: LogRefusal, what: str, *, expected: str, found: str, todo: str) -> None:
        self.code, self.what, self.expected, self.found, self.todo = code, what, expected, found, todo
        super().__init__(f"{code.value}: {what}: expected {expected}, found {found}; {todo}")
