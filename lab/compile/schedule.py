"""The blocking rule for CPU kernels: which loops become vectors, register blocks, unrolled code and threads.

No timing: the choice is a function of the kernel and of the target's register file, so it is the same on every machine.
tinygrad's own choices leave the vector axis strided or the multiply-add chains too short; measured, layout and register
blocking carry the speed and compiler flags do not. The rule, for a kernel with reductions:

* vector axis: the output loop with stride 1 in the store, a multiple of the vector's lanes at once;
* block axis: an output loop that some input does not depend on, so that each load of that input serves several outputs;
* of all pairs that fit the registers, the one with the fewest cycles a multiply-add: two of them start in a cycle if
  enough accumulators (latency times two) hide their latency and if their loads keep up (two a cycle);
* short reductions (at most 27 taps, as in a depthwise 3x3 or 5x5 convolution) are unrolled whole, with fewer outputs;
* last, the output loop that divides by the most threads is split over them, if there is enough work; pairs that leave
  the outermost loop to be split so are preferred.

A kernel without reductions gets its vector axis and its threads; one that changes the order of axes works on tiles.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from tinygrad.codegen.opt import KernelOptError, Opt, OptOps
from tinygrad.codegen.opt.postrange import Scheduler
from tinygrad.uop.ops import AxisType, Ops, UOp

RULE_VERSION = 6
"""Rises with any change of choices: it is part of what a bundle says about its making."""
UPCASTS = (16, 12, 11, 10, 8, 7, 6, 5, 4, 3, 2)
"""tinygrad holds at most 16 iterations of a loop in registers."""
MAX_UNROLLED_TAPS = 27
MAX_UNROLLED_WORK = 64
"""Multiply-adds of straight code in one iteration: beyond this the code outgrows the caches that feed the decoder."""
SHORT_AXIS = 7
MIN_THREADED_WORK = 4096
"""Below this a launch on one core is no slower. It is this low because what two cores wrote lies in their own caches:
one core that copies it has to fetch the other's half (measured: 14400 floats in 5.1 instead of 1.4 microseconds)."""
MIN_DOT = 32
MAX_PAIRS = 4
MAX_SHARED_AXIS = 4
_STARTS_PER_CYCLE = 2
_LATENCY_CYCLES = 4
_INNER_SPLIT = 1.25
"""Threads that share an inner loop write memory in turns: the next launch's each fetch half from the other's cache."""
_BROADCAST_LOAD = 0.5
"""A load of one value for all lanes brings an eighth of a vector's bytes, so it mostly hits the nearest cache."""


@dataclass(frozen=True)
class Registers:
    """A target's vector registers: float32 lanes of each, and how many there are."""

    lanes: int
    count: int


def registers(arch: str) -> Registers:
    """The register file behind tinygrad's architecture string: AVX2, AVX-512VL at 256 bits, SSE or NEON."""
    name, _, cpu = arch.partition(",")
    if name != "x86_64":
        return Registers(lanes=4, count=32)
    if cpu in ("x86-64", "x86-64-v2"):
        return Registers(lanes=4, count=16)
    return Registers(lanes=8, count=32 if cpu == "x86-64-v4" else 16)


def size(loop: UOp) -> int:
    """Iterations of a loop."""
    return int(loop.vmax + 1)


@dataclass(frozen=True)
class Blocking:
    """One choice: (loop, factor) pairs to hold in registers and to unroll, in this order."""

    upcasts: tuple[tuple[UOp, int], ...]
    unrolls: tuple[tuple[UOp, int], ...] = ()


class Shape:
    """What the rule looks at: the kernel's loops and how its loads and its store depend on them."""

    def __init__(self, kernel: Scheduler) -> None:
        stores = [one.src[0] for one in kernel.ast.toposort() if one.op is Ops.STORE]
        splittable = kernel._globalizable_rngs()
        self.loops = kernel.rngs
        self.outputs = [one for one in self.loops if one.arg[-1] is AxisType.WEAK and one in splittable]
        self.reductions = [one for one in self.loops if one.arg[-1] is AxisType.REDUCE]
        self.loads = [one for one in kernel.bufs if one is not stores[0]]
        self.reduced_loads = [one for one in self.loads if any(r in one.src[1].backward_slice for r in self.reductions)]
        stride_one = _stride_one(stores[0])
        self.vector = next((one for one in self.outputs if one in stride_one), None)
        self.beside = None if self.vector is None else _with_stride(stores[0], self.outputs, size(self.vector))
        """The output loop whose next iteration follows the whole vector loop in memory."""
        self.work = math.prod(map(size, self.loops))

    def reuse(self, loop: UOp) -> int:
        """How many loads give the same value for every iteration of `loop`."""
        return sum(loop not in one.src[1].backward_slice for one in self.loads)


def _stride_one(access: UOp) -> list[UOp]:
    return list(access.src[1].get_idx().split_uop(Ops.ADD))


def _with_stride(access: UOp, loops: list[UOp], stride: int) -> UOp | None:
    for term in _stride_one(access):
        if term.op is Ops.MUL and term.src[1].op is Ops.CONST and term.src[1].arg == stride and term.src[0] in loops:
            return term.src[0]
    return None


def candidates(shape: Shape, file: Registers, threads: int, count: int = MAX_PAIRS) -> Iterator[Blocking]:
    """Choices for a kernel, best first, at most `count` pairs. Where one does not apply, the next is tried."""
    if shape.vector is None:
        return
    if not shape.reductions:
        yield from _without_reduction(shape, shape.vector)
        return
    unrolls = _whole_unroll(shape.reductions)
    taps = math.prod(size(loop) for loop, _ in unrolls)
    yield from _dot_products(shape, shape.vector)
    for pair in _register_blocks(shape, shape.vector, file, taps, threads)[:count]:
        yield Blocking(pair.upcasts, unrolls)


def _dividing(loop: UOp, factors: tuple[int, ...]) -> list[int]:
    return [one for one in factors if one <= size(loop) and size(loop) % one == 0]


def _without_reduction(shape: Shape, vector: UOp) -> Iterator[Blocking]:
    shared = [one for one in shape.outputs if one is not vector and shape.reuse(one) and size(one) <= MAX_SHARED_AXIS]
    # neighbouring bytes become one load only where they fill a vector: 16 of them (measured: half the time)
    is_bytes = any(one.dtype.itemsize == 1 and vector in _stride_one(one) for one in shape.loads)
    powers = (16, 8, 4) if is_bytes else (8, 4, 16)
    if size(vector) < SHORT_AXIS and shape.beside is not None:
        factor = 8 // math.gcd(size(vector), 8)
        if size(shape.beside) % factor == 0:  # three channels of eight pixels: three whole vectors
            yield Blocking(((vector, size(vector)), (shape.beside, factor)))
    yield from _tiles(shape, vector)
    for factor in (_dividing(vector, powers) or _dividing(vector, (11, 5, 10, 7, 3, 2)))[:3]:
        yield Blocking(((vector, factor), *((one, size(one)) for one in shared[:1])))


def _tiles(shape: Shape, vector: UOp) -> Iterator[Blocking]:
    """Where a load runs along another loop than the store, some of both at once: fetched cache lines are used whole."""
    for load in shape.loads:
        terms = _stride_one(load)
        across = next((one for one in shape.outputs if one is not vector and one in terms), None)
        is_strided = vector not in terms and vector in load.src[1].backward_slice
        if is_strided and across is not None:
            for v in _dividing(vector, (8, 4)):
                for b in _dividing(across, (8, 4)):
                    yield Blocking(((vector, v), (across, b)))
            return


@dataclass(frozen=True)
class _Pair:
    """v values of the vector axis and b iterations of the block axis at once; `block` is None where b is 1."""

    vector: UOp
    v: int
    block: UOp | None
    b: int

    @property
    def upcasts(self) -> tuple[tuple[UOp, int], ...]:
        return ((self.vector, self.v), *([(self.block, self.b)] if self.block is not None else []))


def _register_blocks(shape: Shape, vector: UOp, file: Registers, taps: int, threads: int) -> list[_Pair]:
    """The pairs that fit the registers, cheapest first; `taps` multiply-adds of each accumulator are unrolled."""
    blocks = [one for one in shape.outputs if one is not vector and shape.reuse(one) and size(one) > 1]
    pairs = []
    for v in _dividing(vector, UPCASTS) or [1]:
        accumulators = -(-v // file.lanes)
        pairs.append(_Pair(vector, v, None, 1))
        for block in blocks:
            for b in _dividing(block, UPCASTS):
                if accumulators * (b + 1) + 1 <= file.count and accumulators * b * taps <= MAX_UNROLLED_WORK:
                    pairs.append(_Pair(vector, v, block, b))
    is_unrolled = taps > 1

    def cost(one: _Pair) -> float:
        cycles = _cycles(shape, one, file.lanes, is_unrolled) / (one.v * one.b)
        return cycles * _splitting_cost(shape, one, threads)

    return sorted(pairs, key=lambda one: (cost(one), one.v * one.b))


def _splitting_cost(shape: Shape, pair: _Pair, threads: int) -> float:
    """What the loops that the pair leaves do to the threads: 1 where they share the outermost one evenly."""
    if shape.work < MIN_THREADED_WORK:
        return 1.0
    factors = {pair.vector: pair.v, pair.block: pair.b}
    left = [one for one in (size(loop) // factors.get(loop, 1) for loop in shape.outputs) if one > 1]
    amount = next((one for one in range(threads, 1, -1) if any(count % one == 0 for count in left)), 1)
    return threads / amount * (1.0 if not left or left[0] % amount == 0 else _INNER_SPLIT)


def _cycles(shape: Shape, pair: _Pair, lanes: int, is_unrolled: bool) -> float:
    """Cycles of one step of the reduction for v * b outputs: the busiest of multiply-adds, loads and latency.

    Unrolled reductions are short, so the next outputs' chains overlap and latency does not count.
    """
    vectors = -(-pair.v // lanes)
    loads = 0.0
    for load in shape.reduced_loads:
        depends = load.src[1].backward_slice
        across = 1
        if pair.vector in depends:
            across = vectors if pair.vector in _stride_one(load) else pair.v
        weight = 1.0 if pair.vector in depends else _BROADCAST_LOAD
        loads += weight * across * (pair.b if pair.block in depends else 1)
    busiest = max(vectors * pair.b, loads) / _STARTS_PER_CYCLE
    return busiest if is_unrolled else max(busiest, float(_LATENCY_CYCLES))


def _whole_unroll(reductions: list[UOp]) -> tuple[tuple[UOp, int], ...]:
    """All reductions, innermost first, where they are short enough to become straight code."""
    taps = math.prod(map(size, reductions))
    if taps > MAX_UNROLLED_TAPS or any(size(one) > SHORT_AXIS for one in reductions):
        return ()
    return tuple((one, size(one)) for one in reversed(reductions))


def _dot_products(shape: Shape, vector: UOp) -> Iterator[Blocking]:
    """A row times a vector with both rows contiguous: unrolled along the reduction instead of across outputs."""
    if len(shape.reductions) != 1 or size(shape.reductions[0]) < MIN_DOT or len(shape.loads) > 5:
        return
    reduction = shape.reductions[0]
    reading = [one for one in shape.loads if reduction in one.src[1].backward_slice]
    is_contiguous = any(reduction in _stride_one(one) for one in reading)
    if not is_contiguous or any(vector in _stride_one(one) for one in reading):
        return
    for factor in _dividing(reduction, (16, 8, 4)):
        yield Blocking((), ((reduction, factor),))


def apply_blocking(kernel: Scheduler, choice: Blocking, threads: int) -> Scheduler:
    """A copy of `kernel` with the choice applied and threads split off. Raises KernelOptError where it does not fit."""
    result = kernel.copy()
    is_worth_threads = math.prod(map(size, kernel.rngs)) >= MIN_THREADED_WORK
    rest: dict[UOp, UOp | None] = {}
    for loop, factor in choice.upcasts:
        if factor > 1:
            whole = factor == size(loop)
            replaced = result.apply_opt(Opt(OptOps.UPCAST, result.rngs.index(loop), 0 if whole else factor))
            rest[loop] = None if whole else _first(replaced)
    for loop, factor in choice.unrolls:
        left = rest.get(loop, loop)
        unrollable = [result.rngs[index] for index in result.unrollable_dims]
        if left in unrollable:
            amount = 0 if factor == size(loop) else factor
            result.apply_opt(Opt(OptOps.UNROLL, unrollable.index(left), amount))
    if is_worth_threads:
        _split_threads(result, threads)
    return result


def _first(replaced: Any) -> UOp:
    loop, _ = replaced
    return loop


def _split_threads(kernel: Scheduler, threads: int) -> None:
    """Splits the first output loop that divides by the most threads."""
    splittable = kernel._globalizable_rngs()
    for amount in range(threads, 1, -1):
        for axis, loop in enumerate(kernel.rngs):
            if loop.arg[-1] is AxisType.WEAK and loop in splittable and size(loop) % amount == 0:
                kernel.apply_opt(Opt(OptOps.THREAD, axis, amount))
                return


def schedule(kernel: Scheduler, threads: int) -> Scheduler | None:
    """The kernel with the first choice that applies; None where the rule has nothing to say."""
    for choice in candidates(Shape(kernel), registers(kernel.ren.target.arch), threads):
        try:
            return apply_blocking(kernel, choice, threads)
        except (KernelOptError, ValueError):
            continue
    return None
