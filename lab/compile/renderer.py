"""tinygrad's C renderer with the lab's blocking rule in place of tinygrad's own choices.

tinygrad calls one function to choose a kernel's loop transformations. Importing this file puts a dispatcher there:
kernels of `FencedRenderer` get the rule, every other renderer keeps what it had. The renderer is a class of its own, so
tinygrad's cache of compiled programs never mixes the two, and workers that compile in parallel import this file when
they receive it.
"""

from __future__ import annotations

from tinygrad.codegen.opt import heuristic
from tinygrad.codegen.opt.postrange import Scheduler
from tinygrad.helpers import NUM_CPU_THREADS
from tinygrad.renderer.cstyle import ClangRenderer

from lab.compile.schedule import schedule

NAME = "FENCED"
"""How `DEV` selects it: tinygrad drops "Renderer" from the class's name."""


class FencedRenderer(ClangRenderer):  # type: ignore[misc]
    """C for the CPU target, blocked by `lab.compile.schedule`.

    Loads and stores stay scalars in the source: clang's SLP vectoriser then joins them to the target's full vectors,
    where tinygrad's own groups of four would hold it to 128 bits (54 against 105 GFLOP/s on one AVX2 core).
    """

    supports_float4 = False


_own_choices = heuristic.hand_coded_optimizations


def _choose(kernel: Scheduler) -> Scheduler:
    if isinstance(kernel.ren, FencedRenderer):
        chosen = schedule(kernel, int(NUM_CPU_THREADS.value))
        if chosen is not None:
            return chosen
    return _own_choices(kernel)


heuristic.hand_coded_optimizations = _choose
