"""Tests by name, `tests/room/test_file.py::test_name`: whether what a page or a table names is there."""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).parents[2]


@functools.cache
def _functions(path: str) -> frozenset[str]:
    file = ROOT / path
    tree = ast.parse(file.read_text()) if file.is_file() else ast.Module([], [])
    return frozenset(node.name for node in tree.body if isinstance(node, ast.FunctionDef))


def missing(names: Iterable[str]) -> list[str]:
    """Those of `names` that no test file defines at its top."""
    return [name for name in names if name.partition("::")[2] not in _functions(name.partition("::")[0])]
