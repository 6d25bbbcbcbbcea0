"""Admission: proves a captured graph safe to run before anything of it is mapped executable (DESIGN §7).

Pure: it reads the graph, the code's ELF headers and three sizes, and answers with an `Admission` or an
`AdmissionRefused` that names the launch or entry at fault. Proved are: indices, ranges, access (frames, aux inputs and
weights are never written), residency (every program has code for this device, so there is no fallback and no copy),
disjoint lifetimes in the arena, no read of what was not written, every output byte written, and limits. Not provable
from data, and therefore signed and checked at run time: that a kernel touches only its argument ranges (golden runs,
canaries).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from abi.graph import HAL_VERSION, BufferKind, Entrypoint, Graph
from abi.packet import ABI_VERSION
from hal.admit_flow import Flow
from hal.admit_roles import check_roles
from hal.admit_tables import (
    check_buffers,
    check_counts,
    check_index,
    check_inputs_and_outputs,
    check_launches,
    check_name,
    check_programs,
)
from hal.bindings import bound_buffers, golden_bytes
from hal.cpu_layout import RUNTIME_SYMBOLS
from hal.elf import CodeError, check_code
from hal.limits import MAX_FRAMES_PER_RUN, Limits
from hal.refusal import AdmissionCode, AdmissionRefused

__all__ = ["Admission", "AdmissionCode", "AdmissionRefused", "ArenaRange", "EntryReport", "Limits", "Target", "admit"]


@dataclass(frozen=True, slots=True)
class Target:
    """What the graph is to run on. memory_bytes: what the device has; 0 where only Limits bounds it."""

    driver: str
    arch: str
    memory_bytes: int = 0


@dataclass(frozen=True, slots=True)
class ArenaRange:
    """A buffer's place in the arena, and the first and last launch that use it."""

    buffer: int
    offset: int
    size_bytes: int
    first_launch: int
    last_launch: int


@dataclass(frozen=True, slots=True)
class EntryReport:
    """One entrypoint: launches, bytes its kernels may read and write, and arithmetic operations of a run.

    arena: the arena's buffers that its launches use, by offset; the lifetimes are those within this entrypoint.
    """

    name: str
    launches: int
    bytes_read: int
    bytes_written: int
    flops: int
    arena: tuple[ArenaRange, ...]


@dataclass(frozen=True, slots=True)
class Admission:
    """An admitted graph, and what it will take. All its launches run on `driver`."""

    graph: Graph
    driver: str
    entrypoints: tuple[EntryReport, ...]
    arena: tuple[ArenaRange, ...]
    arena_bytes: int
    weights_bytes: int
    state_bytes: int
    code_bytes: int
    bound_bytes: int

    @property
    def memory_bytes(self) -> int:
        """Device memory while loaded, with one copy of every bound buffer."""
        return self.arena_bytes + self.weights_bytes + self.state_bytes + self.code_bytes + self.bound_bytes


def admit(
    graph: Graph,
    code: memoryview,
    weights_bytes: int,
    target: Target,
    *,
    goldens_bytes: int | None = None,
    limits: Limits | None = None,
) -> Admission:
    """Prove `graph` for `target`. Raises AdmissionRefused.

    goldens_bytes: the size of the goldens blob, or None where the caller has none and will run no golden vector.
    """
    limits = limits or Limits()
    _check_header(graph, target, limits)
    check_counts(graph, limits)
    check_buffers(graph, weights_bytes, limits)
    check_programs(graph, code.nbytes, limits)
    check_launches(graph, limits)
    check_inputs_and_outputs(graph, limits)
    for index, entry in enumerate(graph.entrypoints):
        _check_entrypoint(graph, index, entry, limits)
    check_roles(graph, limits)
    _check_orphans(graph)
    if goldens_bytes is not None:
        _check_goldens(graph, goldens_bytes)
    if graph.driver == "cpu":
        _check_cpu_code(graph, code, target)
    admission = _report(graph, code.nbytes, weights_bytes)
    most = min(target.memory_bytes or limits.memory_bytes, limits.memory_bytes)
    if admission.memory_bytes > most:
        raise AdmissionRefused(AdmissionCode.LIMIT, "memory", "the graph does not fit", expected=f"at most {most}",
                               found=str(admission.memory_bytes))  # fmt: skip
    return admission


def _check_header(graph: Graph, target: Target, limits: Limits) -> None:
    if graph.abi_version != ABI_VERSION:
        raise AdmissionRefused(AdmissionCode.ABI_VERSION, "graph", "ABI version", expected=str(ABI_VERSION),
                               found=str(graph.abi_version))  # fmt: skip
    if graph.hal_version != HAL_VERSION:
        raise AdmissionRefused(AdmissionCode.HAL_VERSION, "graph", "HAL version", expected=str(HAL_VERSION),
                               found=str(graph.hal_version))  # fmt: skip
    if graph.driver != target.driver:
        raise AdmissionRefused(AdmissionCode.DRIVER, "graph", "compiled for another device", expected=target.driver,
                               found=ascii(graph.driver[:64]))  # fmt: skip
    if graph.driver == "cpu" and not 1 <= graph.threads <= limits.threads:
        raise AdmissionRefused(AdmissionCode.THREADS, "graph", "threads", expected=f"1..{limits.threads}",
                               found=str(graph.threads))  # fmt: skip


def _check_entrypoint(graph: Graph, index: int, entry: Entrypoint, limits: Limits) -> None:
    where = f"entrypoint {index} ({entry.name[:64]!a})"
    check_name(where, entry.name, limits)
    if any(other.name == entry.name for other in graph.entrypoints[:index]):
        raise AdmissionRefused(AdmissionCode.DUPLICATE, where, "name", found=ascii(entry.name))
    if entry.launch_count < 1 or entry.first_launch + entry.launch_count > len(graph.launches):
        raise AdmissionRefused(AdmissionCode.INDEX, where, "launches",
                               expected=f"1.. that end by {len(graph.launches)}",
                               found=f"{entry.first_launch} + {entry.launch_count}")  # fmt: skip
    for what, indices, table in (
        ("frame", entry.frames, graph.frames),
        ("aux", entry.aux, graph.aux),
        ("output", entry.outputs, graph.outputs),
    ):
        for item in indices:
            check_index(item, table, where, what)
        if len(set(indices)) != len(indices):
            raise AdmissionRefused(AdmissionCode.DUPLICATE, where, what, found=str(indices))
    if not 1 <= len(entry.frames) <= MAX_FRAMES_PER_RUN:
        raise AdmissionRefused(AdmissionCode.LIMIT, where, "frames", expected=f"1..{MAX_FRAMES_PER_RUN}",
                               found=str(len(entry.frames)))  # fmt: skip
    if not 1 <= entry.budget_ns <= limits.budget_ns:
        raise AdmissionRefused(AdmissionCode.BUDGET, where, "budget", expected=f"1..{limits.budget_ns} ns",
                               found=str(entry.budget_ns))  # fmt: skip


def _check_orphans(graph: Graph) -> None:
    """A launch, output or input that no entrypoint uses was meant for something; refuse rather than guess."""
    run: set[int] = set()
    for entry in graph.entrypoints:
        run.update(range(entry.first_launch, entry.first_launch + entry.launch_count))
    for index in range(len(graph.launches)):
        if index not in run:
            raise AdmissionRefused(
                AdmissionCode.ORPHAN_LAUNCH, f"launch {index}", "no entrypoint runs it", launch=index
            )


def _check_goldens(graph: Graph, goldens_bytes: int) -> None:
    seen: set[tuple[int, int]] = set()
    for index, golden in enumerate(graph.goldens):
        where = f"golden {index}"
        check_index(golden.entrypoint, graph.entrypoints, where, "entrypoint")
        entry = graph.entrypoints[golden.entrypoint]
        size = golden_bytes(graph, entry)
        if golden.output_bytes != size:
            what = "outputs" if entry.outputs else "written state"
            raise AdmissionRefused(AdmissionCode.GOLDEN, where, "size", expected=f"{size} bytes of {what}",
                                   found=str(golden.output_bytes))  # fmt: skip
        if golden.output_offset + golden.output_bytes > goldens_bytes:
            raise AdmissionRefused(AdmissionCode.GOLDEN, where, "reaches past the goldens",
                                   expected=f"ends by {goldens_bytes}",
                                   found=f"{golden.output_offset} + {golden.output_bytes}")  # fmt: skip
        if (golden.entrypoint, golden.seed) in seen:
            raise AdmissionRefused(AdmissionCode.GOLDEN, where, "two goldens share a seed", found=str(golden.seed))
        seen.add((golden.entrypoint, golden.seed))


def _check_cpu_code(graph: Graph, code: memoryview, target: Target) -> None:
    try:
        check_code(code, target.arch, [*RUNTIME_SYMBOLS, *(program.symbol for program in graph.programs)])
    except CodeError as error:
        raise AdmissionRefused(AdmissionCode.CODE, "code", str(error)) from error


def _report(graph: Graph, code_bytes: int, weights_bytes: int) -> Admission:
    reports = []
    for index, entry in enumerate(graph.entrypoints):
        traffic = Flow(graph, index, bound_buffers(graph, entry)).follow()
        arena = _arena_map(graph, range(entry.first_launch, entry.first_launch + entry.launch_count))
        reports.append(
            EntryReport(entry.name, entry.launch_count, traffic.bytes_read, traffic.bytes_written, traffic.flops, arena)
        )
    sizes = {kind: sum(b.size_bytes for b in graph.buffers if b.kind is kind) for kind in BufferKind}
    return Admission(
        graph=graph,
        driver=graph.driver,
        entrypoints=tuple(reports),
        arena=_whole_arena(reports),
        arena_bytes=graph.arena_bytes,
        weights_bytes=weights_bytes,
        state_bytes=sizes[BufferKind.STATE],
        code_bytes=code_bytes,
        bound_bytes=sizes[BufferKind.FRAME] + sizes[BufferKind.AUX] + sizes[BufferKind.OUTPUT],
    )


def _arena_map(graph: Graph, launches: range) -> tuple[ArenaRange, ...]:
    """Every arena buffer that one of these launches uses, by offset."""
    used: dict[int, tuple[int, int]] = {}
    for index in launches:
        for argument in graph.launches[index].arguments:
            if graph.buffers[argument.buffer].kind is BufferKind.ARENA:
                first, _ = used.get(argument.buffer, (index, index))
                used[argument.buffer] = (first, index)
    ranges = [
        ArenaRange(buffer, graph.buffers[buffer].offset, graph.buffers[buffer].size_bytes, first, last)
        for buffer, (first, last) in used.items()
    ]
    return _by_offset(ranges)


def _whole_arena(entries: Iterable[EntryReport]) -> tuple[ArenaRange, ...]:
    """Every arena buffer with its life over all entrypoints; no launch belongs to none."""
    whole: dict[int, ArenaRange] = {}
    for one in (one for entry in entries for one in entry.arena):
        seen = whole.get(one.buffer, one)
        first, last = min(seen.first_launch, one.first_launch), max(seen.last_launch, one.last_launch)
        whole[one.buffer] = replace(one, first_launch=first, last_launch=last)
    return _by_offset(whole.values())


def _by_offset(ranges: Iterable[ArenaRange]) -> tuple[ArenaRange, ...]:
    return tuple(sorted(ranges, key=lambda item: (item.offset, item.buffer)))
