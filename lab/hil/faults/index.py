"""The index of the cases: for every row of cases/frames.md and cases/runtime.md its injector or its compile check."""

from __future__ import annotations

from typing import Final

from lab.hil.faults import (
    aux_values,
    bundles,
    device,
    formats,
    in_fences,
    leases,
    memory,
    outputs,
    peers,
    pictures,
    processes,
    start,
    times,
)
from lab.hil.faults.compile_time import COMPILE_CHECKS
from lab.hil.faults.fault import CompileCheck, Fault

__all__ = ["FAULTS", "ROWS"]

_MODULES = (
    pictures, formats, times, in_fences, leases, memory, peers, processes, aux_values, outputs, bundles, device, start,
)  # fmt: skip


def _number(row: str) -> tuple[str, int]:
    table, _, number = row.partition("/")
    return table, int(number)


FAULTS: Final[tuple[Fault, ...]] = tuple(
    sorted((fault for module in _MODULES for fault in module.FAULTS), key=lambda fault: _number(fault.row))
)
"""Every injector, in the order of the cases."""

_ANSWERS: tuple[Fault | CompileCheck, ...] = (*FAULTS, *COMPILE_CHECKS)
ROWS: Final[dict[str, Fault | CompileCheck]] = {
    one.row: one for one in sorted(_ANSWERS, key=lambda one: _number(one.row))
}
"""What answers each row, by `frames/N` and `runtime/N`."""
