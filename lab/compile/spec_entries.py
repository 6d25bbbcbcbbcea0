"""Reads the [[entrypoint]] tables of a spec.toml: ways to run one model, over the same weights, state and arena.

Without any there is one, `main`, which is the primary. The rules are admission's (`hal.admit_roles`), told here by key.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from abi.graph import EntryRole, MissPolicy
from hal.limits import Limits
from lab.compile.refusal import CompileRefusal
from lab.compile.spec import EntrySpec, ModelSpec, TimingSpec

if TYPE_CHECKING:
    from lab.compile.spec_toml import Table

_PYTHON, _ONNX = r"[^\0]+\.py:[A-Za-z_]\w*", r"[^\0]+\.onnx"
SOURCE = f"({_PYTHON}|{_ONNX})"
_NAME = r"[a-z0-9_.-]{1,64}"
_ROLES = {"primary": EntryRole.PRIMARY, "lighter": EntryRole.LIGHTER, "stateOnly": EntryRole.STATE_ONLY}
_POLICIES = {
    "none": MissPolicy.NONE, "skip": MissPolicy.SKIP, "stop": MissPolicy.STOP, "lighter": MissPolicy.LIGHTER,
}  # fmt: skip
_LIMITS = Limits()


def split_source(source: str, folder: Path) -> tuple[Path, str]:
    """The file, absolute, and the function of a `source` key; no function for an ONNX file."""
    name, _, function = source.partition(".py:")
    return (folder / (f"{name}.py" if function else name)).resolve(), function


def read_entries(root: Table, model: ModelSpec, timing: TimingSpec) -> tuple[EntrySpec, ...]:
    """The [[entrypoint]] tables, the primary first."""
    tables = root.tables("entrypoint", [])
    if not tables:
        return (EntrySpec("main", EntryRole.PRIMARY, model.source, model.function, timing),)
    entries: list[EntrySpec] = []
    for table in tables:
        entries.append(_entry(table, model, timing, entries))
    primary = entries[0]
    has_lighter = any(one.role is EntryRole.LIGHTER for one in entries)
    if primary.on_misses is MissPolicy.LIGHTER and not has_lighter:
        expected = 'another policy, or an [[entrypoint]] with role = "lighter"'
        raise tables[0].refuse(CompileRefusal.SPEC_VALUE, "on_misses", expected, "lighter")
    return tuple(entries)


def _entry(table: Table, model: ModelSpec, timing: TimingSpec, before: list[EntrySpec]) -> EntrySpec:
    name = table.text("name", _NAME, "a name of 1..64 characters a-z 0-9 _ . -")
    if any(one.name == name for one in before):
        raise table.refuse(CompileRefusal.SPEC_VALUE, "name", "a different name for each", name)
    free = [word for word, role in _ROLES.items() if all(one.role is not role for one in before)]
    role = _ROLES[table.choice("role", tuple(free) if before else ("primary",))]
    source, function = _source(table, model)
    budget_ms = table.number("budget_ms", 0.001, 1e6, timing.budget_ms)
    deadline_ms, limit, window, policy = 0.0, 0, 0, MissPolicy.NONE
    if role is not EntryRole.STATE_ONLY:
        deadline_ms = table.number("deadline_ms", 0.0, 1e6, timing.deadline_ms)
        limit, window, policy = _misses(table, role, deadline_ms)
    table.finish()
    limits = TimingSpec(deadline_ms, budget_ms, timing.max_skew_ms)
    return EntrySpec(name, role, source, function, limits, limit, window, policy)


def _source(table: Table, model: ModelSpec) -> tuple[Path, str]:
    """The model's own source, or another of its kind: Python may take states and aux inputs, ONNX neither."""
    if model.function:
        text = table.text("source", _PYTHON, "a Python file and a function in it like pipeline.py:build", "")
    else:
        text = table.text("source", _ONNX, "the path of an .onnx file", "")
    return split_source(text, table.path.parent) if text else (model.source, model.function)


def _misses(table: Table, role: EntryRole, deadline_ms: float) -> tuple[int, int, MissPolicy]:
    """missLimit, missWindow and onMisses; zeros and none where no window is given."""
    window = table.integer("miss_window", 1, _LIMITS.miss_window, 0)
    if not window:
        return 0, 0, MissPolicy.NONE
    if not deadline_ms:
        raise table.refuse(CompileRefusal.SPEC_VALUE, "deadline_ms", "a deadline, which runs can miss", deadline_ms)
    limit = table.integer("miss_limit", 0, window - 1)
    words = tuple(_POLICIES) if role is EntryRole.PRIMARY else tuple(_POLICIES)[:-1]
    return limit, window, _POLICIES[table.choice("on_misses", words)]
