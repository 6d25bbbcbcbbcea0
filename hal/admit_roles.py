"""Admission of what the daemon does with entrypoints: their roles, and what follows on missed deadlines.

One primary, at most one lighter that consumers cannot tell from it, at most one that only keeps state in step. What a
role promises is proved here, so that the daemon may switch between entrypoints without looking.
Needs `hal.admit_tables` and the entrypoints' indices to have passed.
"""

from __future__ import annotations

from abi.graph import Entrypoint, EntryRole, Graph, MissPolicy
from hal.bindings import written_states
from hal.limits import Limits
from hal.refusal import AdmissionCode, AdmissionRefused

_SINGLE = (EntryRole.LIGHTER, EntryRole.STATE_ONLY)


def check_roles(graph: Graph, limits: Limits) -> None:
    """Every entrypoint keeps its role's promises. Raises AdmissionRefused ENTRY_ROLE or MISS_POLICY."""
    for index, entry in enumerate(graph.entrypoints):
        where = f"entrypoint {index} ({entry.name})"
        _check_place(graph, index, entry, where)
        if entry.role is EntryRole.STATE_ONLY:
            _check_state_only(graph, entry, where)
        elif not entry.outputs:
            raise AdmissionRefused(AdmissionCode.LIMIT, where, "outputs", expected="at least 1", found="0")
        if entry.role in _SINGLE:
            _check_stand_in(graph.entrypoints[0], entry, where)
        _check_misses(graph, entry, where, limits)


def _check_place(graph: Graph, index: int, entry: Entrypoint, where: str) -> None:
    role = entry.role
    if role is EntryRole.UNSPECIFIED:
        raise AdmissionRefused(AdmissionCode.ENTRY_ROLE, where, "its role is not stated")
    if (role is EntryRole.PRIMARY) != (index == 0):
        expected = "another role" if index else "primary"
        raise AdmissionRefused(AdmissionCode.ENTRY_ROLE, where, "the primary is entrypoint 0, and no other",
                               expected=expected, found=_word(role))  # fmt: skip
    if role in _SINGLE and any(other.role is role for other in graph.entrypoints[:index]):
        raise AdmissionRefused(AdmissionCode.ENTRY_ROLE, where, f"a second {_word(role)} entrypoint",
                               expected="at most 1", found="2")  # fmt: skip


def _check_state_only(graph: Graph, entry: Entrypoint, where: str) -> None:
    if entry.outputs:
        raise AdmissionRefused(AdmissionCode.ENTRY_ROLE, where, "outputs of an entrypoint that publishes nothing",
                               expected="none", found=str(entry.outputs))  # fmt: skip
    if entry.deadline_ns:
        raise AdmissionRefused(AdmissionCode.ENTRY_ROLE, where, "deadline of an entrypoint that publishes nothing",
                               expected="0", found=str(entry.deadline_ns))  # fmt: skip
    if not written_states(graph, entry):
        raise AdmissionRefused(AdmissionCode.ENTRY_ROLE, where, "no launch of it writes a state",
                               expected="at least 1 written state", found="0")  # fmt: skip


def _check_stand_in(primary: Entrypoint, entry: Entrypoint, where: str) -> None:
    """It runs on what was gathered for the primary; a lighter one must also answer alike."""
    role = _word(entry.role)
    if entry.role is EntryRole.LIGHTER:
        for what, wanted, found in (
            ("frames", primary.frames, entry.frames), ("outputs", primary.outputs, entry.outputs),
        ):  # fmt: skip
            if found != wanted:
                raise AdmissionRefused(AdmissionCode.ENTRY_ROLE, where, f"{what} of a {role} entrypoint",
                                       expected=f"the primary's, {wanted}", found=str(found))  # fmt: skip
    for what, wanted, found in (("frames", primary.frames, entry.frames), ("aux", primary.aux, entry.aux)):
        if not set(found) <= set(wanted):
            raise AdmissionRefused(AdmissionCode.ENTRY_ROLE, where, f"{what} of a {role} entrypoint",
                                   expected=f"some of the primary's, {wanted}", found=str(found))  # fmt: skip
    if entry.max_skew_ns != primary.max_skew_ns:
        raise AdmissionRefused(AdmissionCode.ENTRY_ROLE, where, f"skew of a {role} entrypoint",
                               expected=f"the primary's, {primary.max_skew_ns} ns",
                               found=str(entry.max_skew_ns))  # fmt: skip


def _check_misses(graph: Graph, entry: Entrypoint, where: str, limits: Limits) -> None:
    policy = entry.on_misses
    if policy is MissPolicy.UNSPECIFIED:
        raise AdmissionRefused(AdmissionCode.MISS_POLICY, where, "what it does on misses is not stated")
    if entry.miss_window == 0:
        if entry.miss_limit or policy is not MissPolicy.NONE:
            raise AdmissionRefused(AdmissionCode.MISS_POLICY, where, "limit and policy without a window of runs",
                                   expected="0, none", found=f"{entry.miss_limit}, {_word(policy)}")  # fmt: skip
        return
    if not entry.miss_limit < entry.miss_window <= limits.miss_window:
        raise AdmissionRefused(AdmissionCode.MISS_POLICY, where, "window of runs",
                               expected=f"above the limit of {entry.miss_limit}, at most {limits.miss_window}",
                               found=str(entry.miss_window))  # fmt: skip
    if entry.role not in (EntryRole.PRIMARY, EntryRole.LIGHTER) or not entry.deadline_ns:
        raise AdmissionRefused(AdmissionCode.MISS_POLICY, where, "a limit of misses where nothing can miss",
                               expected="a primary or lighter entrypoint with a deadline",
                               found=f"{_word(entry.role)}, deadline {entry.deadline_ns} ns")  # fmt: skip
    if policy is MissPolicy.LIGHTER:
        there = any(other.role is EntryRole.LIGHTER for other in graph.entrypoints)
        if entry.role is EntryRole.LIGHTER or not there:
            raise AdmissionRefused(AdmissionCode.MISS_POLICY, where, "no lighter entrypoint to fall back to",
                                   expected="none, skip or stop", found="lighter")  # fmt: skip


def _word(value: EntryRole | MissPolicy) -> str:
    return value.name.lower().replace("_", " ")
