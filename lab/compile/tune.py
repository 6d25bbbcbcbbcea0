"""Timed search for better loop transformations: `fenced-lab compile --tune SECONDS`.

The rule's choice and its next best are all linked into one object, and run by the HAL as one graph: the whole model
once with the rule's choices, then once with each kernel's second, third … choice, round and round until the time is up.
So each choice is timed behind the launches that precede it in the model, with its threads and its caches. A kernel's
time is the lower quartile over the rounds, summed over its launches; another choice must beat the rule's by
MIN_GAIN. The heaviest kernels come first, by arithmetic and bytes.

What is found goes into a cache, and the compile then begins anew with it: the results pass every check of an ordinary
compile. A kernel in the cache is never timed again, so a compile with the same cache gives the same bytes.
"""

from __future__ import annotations

import tempfile
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from tinygrad.codegen import do_to_program, full_rewrite_to_sink
from tinygrad.codegen.opt import KernelOptError, heuristic
from tinygrad.codegen.opt.postrange import Scheduler
from tinygrad.device import Device

from abi.graph import BufferKind, EntryRole, encode
from hal.fence import FenceStatus
from lab.compile import checks, pack
from lab.compile.capture import ARENA_ALIGN_BYTES, Capture, CapturedBuffer, CapturedLaunch, Kernel, variant
from lab.compile.choices import Choices, Transformations, as_transformations, with_transformations
from lab.compile.entry import CapturedEntry
from lab.compile.packed import PackedModel, open_packed
from lab.compile.schedule import Shape, apply_blocking, candidates, registers
from lab.compile.stages import Stages
from lab.compile.target import Target
from lab.compile.tune_cache import Timed

MIN_GAIN = 0.03
MIN_ROUNDS = 8
MAX_OTHERS = 5
"""Other choices of a kernel that are timed."""
HEAVY_SHARE = 0.97
"""Of a model's estimated time; the kernels of the rest are not timed."""
_FLOPS_PER_NS, _BYTES_PER_NS = 50.0, 20.0
"""For the estimate's order only: what a core and its caches come to."""
_BUDGET_MS = 60_000.0


@dataclass(frozen=True)
class _Other:
    """Another choice for a kernel of a capture."""

    kernel: Kernel
    chosen: Transformations


class _Reached(Exception):
    """Leaves tinygrad where it would choose, with the kernel as it is there."""

    def __init__(self, kernel: Scheduler) -> None:
        super().__init__()
        self.kernel = kernel


def tune(
    entry: CapturedEntry,
    known: Mapping[str, Timed],
    seconds: float,
    *,
    target: Target,
    choices: Choices,
    stages: Stages,
) -> dict[str, Timed]:
    """Verdicts on the entry's heavy kernels that are not in `known`, by kernel key. Takes about `seconds`."""
    end_s = time.monotonic() + seconds
    capture = entry.capture
    keys = [choices.key(one.program) for one in capture.kernels]
    heavy = [one for one in _heavy(capture) if keys[one] and keys[one] not in known]
    others: dict[int, list[_Other]] = {}
    for number in heavy:
        if time.monotonic() > end_s - seconds / 2:
            break
        kernel = capture.kernels[number]
        stages.tell(f"tune: other choices for {kernel.name}, {len(others) + 1} of {len(heavy)} kernels")
        others[number] = _others(choices.kernels[kernel.program], kernel, entry.whole.target.threads)
    if not others:
        return {}
    times_us = _times_us(entry, target, others, end_s, stages)
    return {keys[one]: _verdict(capture.kernels[one], found, times_us[one]) for one, found in others.items()}


def _verdict(kernel: Kernel, others: Sequence[_Other], times_us: Sequence[float]) -> Timed:
    rule_us, *rest = times_us
    best = min(range(len(rest)), key=rest.__getitem__, default=None)
    if best is None or rest[best] > rule_us * (1 - MIN_GAIN):
        return Timed(kernel.name, None, rule_us, rule_us, len(others))
    return Timed(kernel.name, others[best].chosen, rule_us, rest[best], len(others))


def _heavy(capture: Capture) -> list[int]:
    """Kernels by their share of the estimated time, largest first, down to HEAVY_SHARE of it."""
    costs: dict[int, float] = defaultdict(float)
    for launch in capture.launches:
        spanned = sum(one.size_bytes for one in launch.arguments)
        costs[launch.kernel] += capture.kernels[launch.kernel].flops / _FLOPS_PER_NS + spanned / _BYTES_PER_NS
    left, found = HEAVY_SHARE * sum(costs.values()), []
    for number in sorted(costs, key=lambda one: (-costs[one], one)):
        if left <= 0:
            break
        left -= costs[number]
        found.append(number)
    return found


def _others(ast: Any, kernel: Kernel, threads: int) -> list[_Other]:
    """What the rule would choose next, compiled to C."""
    found: list[_Other] = []
    seen: set[Transformations] = set()
    scheduler = _scheduler(ast)
    shape = Shape(scheduler)
    for choice in candidates(shape, registers(scheduler.ren.target.arch), threads, MAX_OTHERS + 1):
        try:
            chosen = as_transformations(apply_blocking(scheduler, choice, threads).applied_opts)
        except (KernelOptError, ValueError):
            continue
        is_rule = not seen
        if chosen in seen or len(found) == MAX_OTHERS:
            continue
        seen.add(chosen)
        if is_rule:
            continue
        made = variant(kernel, _source_only(with_transformations(ast, chosen)))
        if made is not None:
            found.append(_Other(made, chosen))
    return found


def _scheduler(ast: Any) -> Scheduler:
    """The kernel as the rule sees it."""

    def reached(kernel: Scheduler) -> Scheduler:
        raise _Reached(kernel)

    own = heuristic.hand_coded_optimizations
    heuristic.hand_coded_optimizations = reached
    try:
        full_rewrite_to_sink(ast, Device["CPU"].renderer)
    except _Reached as found:
        return found.kernel
    finally:
        heuristic.hand_coded_optimizations = own
    raise ValueError("a kernel that nothing is chosen for")


class _NoCompiler:
    """In the C compiler's place: the sources are linked together later."""

    def compile_cached(self, source: str) -> bytes:
        return b""


def _source_only(ast: Any) -> Any:
    renderer = Device["CPU"].renderer
    own = renderer.compiler
    renderer.compiler = _NoCompiler()
    try:
        return do_to_program(ast, renderer)
    finally:
        renderer.compiler = own


def _times_us(
    entry: CapturedEntry, target: Target, others: Mapping[int, Sequence[_Other]], end_s: float, stages: Stages
) -> dict[int, list[float]]:
    """For each kernel its time by the rule and by each other choice, summed over its launches."""
    capture, columns = entry.capture, 1 + max(map(len, others.values()))
    everything = _in_columns(capture, others, columns)
    stages.tell(f"tune: linking {len(everything.kernels)} kernels")
    with tempfile.TemporaryDirectory(prefix="fenced-tune-") as folder:
        path = Path(folder) / "tune"
        _write(path, entry, everything, target)
        with open_packed(path) as packed:
            rounds = _rounds(packed, checks.step_inputs(entry.spec, 0), len(everything.launches), end_s, stages)
    durations = np.quantile(rounds, 0.25, axis=0).reshape(columns + 1, len(capture.launches))[1:]
    times_us = {number: [0.0] * (1 + len(found)) for number, found in others.items()}
    for position, launch in enumerate(capture.launches):
        if launch.kernel in times_us:
            times = times_us[launch.kernel]
            for column in range(len(times)):
                times[column] += float(durations[column, position]) / 1000
    return times_us


def _in_columns(capture: Capture, others: Mapping[int, Sequence[_Other]], columns: int) -> Capture:
    """The capture by the rule, to warm up, and then once for each column: by the rule, by the first other choice, …

    An output may be written once in a run: all but the last column write to arena in its stead.
    """
    kernels, buffers, instead = list(capture.kernels), list(capture.buffers), dict[int, int]()
    end = capture.arena_bytes
    for number, one in enumerate(capture.buffers):
        if one.kind is BufferKind.OUTPUT:
            offset = -(-end // ARENA_ALIGN_BYTES) * ARENA_ALIGN_BYTES
            instead[number] = len(buffers)
            buffers.append(CapturedBuffer(BufferKind.ARENA, one.size_bytes, offset=offset))
            end = offset + one.size_bytes
    launches: list[CapturedLaunch] = []
    for column in (0, *range(columns)):
        number_of = {}
        for number, found in others.items():
            if 0 < column <= len(found):
                number_of[number] = len(kernels)
                kernels.append(found[column - 1].kernel)
        moved = instead if column < columns - 1 else {}
        for launch in capture.launches:
            spans = tuple(replace(one, buffer=moved.get(one.buffer, one.buffer)) for one in launch.arguments)
            launches.append(CapturedLaunch(number_of.get(launch.kernel, launch.kernel), spans))
    return replace(capture, kernels=tuple(kernels), launches=tuple(launches), buffers=tuple(buffers), arena_bytes=end)


def _write(path: Path, entry: CapturedEntry, capture: Capture, target: Target) -> None:
    """A bundle of the capture as one entrypoint. It is only for timing: no goldens, nothing attached."""
    timing = replace(entry.entry.timing, budget_ms=_BUDGET_MS, deadline_ms=0)
    alone = replace(entry.entry, timing=timing, role=EntryRole.PRIMARY)
    point = pack.entrypoint(
        alone, range(len(capture.launches)), range(len(entry.spec.inputs)), range(len(entry.spec.aux)),
        len(entry.spec.outputs),
    )  # fmt: skip
    code = target.code(capture)
    graph = pack.build_graph(entry.spec, capture, target, entry.views, entry.tensors, entrypoints=[point])
    graph = pack.with_code(graph, target, len(code))
    parts = {"graph": encode(graph), "code": code, "weights": capture.weights, "goldens": b""}
    pack.write(path, entry.spec, parts, target, pack.memory_bytes(graph, parts))


def _rounds(packed: PackedModel, inputs: Sequence[bytes], launches: int, end_s: float, stages: Stages) -> Any:
    """Nanoseconds of every launch in each round, until `end_s`: int64 [rounds, launches]."""
    packed.run(inputs)
    ends = packed.executable.trace()  # type: ignore[attr-defined]  # the CPU driver's
    rounds: list[list[int]] = []
    while len(rounds) < MIN_ROUNDS or time.monotonic() < end_s:
        fence = packed.again()
        if fence.status is not FenceStatus.SIGNALED:
            raise RuntimeError(f"a timed run ended as {fence.status.name}")
        rounds.append([after - before for before, after in pairwise([fence.started_ns, *ends[:launches]])])
        if len(rounds) % 16 == 0:
            stages.tell(f"tune: round {len(rounds)}, {max(0.0, end_s - time.monotonic()):.0f} s left")
    return np.array(rounds, np.int64)
