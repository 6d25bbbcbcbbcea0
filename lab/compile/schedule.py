"""The blocking rule for CPU kernels: which loops become vectors, register blocks, unrolled code and threads.

No timing: the choice is a function of the kernel, so it is the same on every machine. tinygrad's own choices blow up
register pressure or leave the vector axis strided on CPUs; measured, layout and register blocking carry the speed and
compiler flags do not. The rule, for a kernel with reductions:

* vector axis: the output loop with stride 1 in the store, v of its values at once, v in {8, 4, 16};
* block axis: an output loop that some input does not depend on, so that each load of that input serves b outputs;
* v and b are chosen so that v * b accumulators are nearest 34 (at most 48): they fill the registers and hide the
  latency of a multiply-add without spilling;
* short reductions (at most 27 taps, as in a depthwise 3x3 or 5x5 convolution) are unrolled whole;
* last, the first output loop that divides by the threads is split over them, if there is enough work.

A kernel without reductions only gets its vector axis and its threads.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from tinygrad.codegen.opt import KernelOptError, Opt, OptOps
from tinygrad.codegen.opt.postrange import Scheduler
from tinygrad.uop.ops import AxisType, Ops, UOp

RULE_VERSION = 1
"""Rises with any change of choices: it is part of what a bundle says about its making."""
VECTORS = (4, 8, 16)
ODD_VECTORS = (11, 10, 5, 7, 6, 3, 2)
"""Where no power of two divides the vector axis."""
BLOCKS = (1, 2, 3, 4, 5, 6, 8, 10, 11, 12)
BEST_ACCUMULATORS = 34
MAX_ACCUMULATORS = 48
MIN_ACCUMULATORS = 16
MAX_UNROLLED_TAPS = 27
SHORT_AXIS = 7
MIN_THREADED_WORK = 16384
MIN_DOT = 32
MAX_SHARED_AXIS = 4
_MANY_OUTPUTS = MIN_ACCUMULATORS * 64


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
        stride_one = _stride_one(stores[0])
        self.vector = next((one for one in self.outputs if one in stride_one), None)
        self.work = math.prod(map(size, self.loops))

    def reuse(self, loop: UOp) -> int:
        """How many loads give the same value for every iteration of `loop`."""
        return sum(loop not in one.src[1].backward_slice for one in self.loads)


def _stride_one(access: UOp) -> list[UOp]:
    return list(access.src[1].get_idx().split_uop(Ops.ADD))


def candidates(shape: Shape) -> Iterator[Blocking]:
    """Choices for a kernel, best first. A choice may turn out not to apply; the next is then tried."""
    if shape.vector is None:
        return
    if not shape.reductions:
        yield from _without_reduction(shape, shape.vector)
        return
    unrolls = _whole_unroll(shape.reductions)
    blocked = sorted(_register_blocks(shape, shape.vector), key=lambda one: one[0])
    for _, upcasts in blocked[:4]:
        yield Blocking(upcasts, unrolls)
    yield from _dot_products(shape, shape.vector)


def _dividing(loop: UOp, factors: tuple[int, ...]) -> list[int]:
    return [one for one in factors if one <= size(loop) and size(loop) % one == 0]


def _without_reduction(shape: Shape, vector: UOp) -> Iterator[Blocking]:
    shared = [one for one in shape.outputs if one is not vector and shape.reuse(one) and size(one) <= MAX_SHARED_AXIS]
    for factor in (_dividing(vector, (8, 4, 16)) or _dividing(vector, (11, 5, 10, 7, 3, 2)))[:3]:
        yield Blocking(((vector, factor), *((one, size(one)) for one in shared[:1])))


def _register_blocks(shape: Shape, vector: UOp) -> Iterator[tuple[int, tuple[tuple[UOp, int], ...]]]:
    """(penalty, upcasts) for each admissible v and b."""
    blocks = [one for one in shape.outputs if one is not vector and shape.reuse(one) and size(one) > 1]
    blocks.sort(key=lambda one: (-shape.reuse(one), -one.arg[0]))
    many = math.prod(map(size, shape.outputs)) > _MANY_OUTPUTS
    for v in _dividing(vector, VECTORS) or _dividing(vector, ODD_VECTORS) or [1]:
        if not blocks:
            yield abs(v - 16), ((vector, v),)
        for place, block in enumerate(blocks[:2]):
            for b in _dividing(block, BLOCKS):
                accumulators = v * b
                if accumulators > MAX_ACCUMULATORS or (many and accumulators < MIN_ACCUMULATORS):
                    continue
                penalty = abs(accumulators - BEST_ACCUMULATORS) + 8 * place + (4 if v == 16 else 0)
                yield penalty, ((vector, v), (block, b))


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
    for factor in _dividing(reduction, (8, 16, 4)):
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
    for choice in candidates(Shape(kernel)):
        try:
            return apply_blocking(kernel, choice, threads)
        except (KernelOptError, ValueError):
            continue
    return None
