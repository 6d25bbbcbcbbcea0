"""Files that odd things happen to, for the tests of the store."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from signing import store

__all__ = ["change_while_reading", "shown_path"]


def shown_path(path: Path) -> str:
    """How a refusal shows the path."""
    text = repr(str(path))
    return text if len(text) <= 96 else text[:93] + "..."


def change_while_reading(monkeypatch: pytest.MonkeyPatch, change: Callable[[], object], at_call: int) -> None:
    """Run `change` before the read number `at_call`, and read in small steps so that there are several."""
    real, calls = os.preadv, 0

    def preadv(fd: int, buffers: list[memoryview], offset: int) -> int:
        nonlocal calls
        calls += 1
        if calls == at_call:
            change()
        return real(fd, [buffers[0][:4096]], offset)

    monkeypatch.setattr(store.os, "preadv", preadv)
