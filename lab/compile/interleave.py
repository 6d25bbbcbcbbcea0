"""Entrypoints that share state and arena, run in turn: what one leaves the next one finds.

On the packed bundle, against ordinary calls of the functions, bit for bit, outputs and every state.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from lab.compile import checks
from lab.compile.checks import CheckResult
from lab.compile.entry import CapturedEntry
from lab.compile.pack import view_bytes
from lab.compile.packed import PackedModel
from lab.compile.spec import Spec

_ORDER_SEED = 0xF3


def order(entries: int, steps: int) -> list[int]:
    """Which entrypoint runs at each step: each once, then as it comes."""
    mixed = np.random.default_rng(_ORDER_SEED).integers(entries, size=max(0, steps - entries))
    return [*range(entries), *map(int, mixed)]


def check_interleaved(spec: Spec, entries: Sequence[CapturedEntry], packed: PackedModel) -> CheckResult:
    """Runs the entrypoints of `packed` in mixed order from the initial state. Raises CompileRefused CAPTURE_DIFFERS."""
    states = dict(zip((one.name for one in spec.states), checks.initial_states(spec), strict=True))
    outputs = [one.name for one in spec.outputs]
    packed.reset_state()
    turns = order(len(entries), spec.check.steps)
    for step, turn in enumerate(turns):
        entry = entries[turn]
        bound = dict(zip(spec.names, checks.step_inputs(spec, step), strict=False))  # states come after
        inputs = [bound[name] for name in entry.spec.names if name in bound]
        own = [one.name for one in entry.spec.states]
        result = entry.function.eager([*inputs, *(states[name] for name in own)])
        states |= zip(own, result[len(entry.tensors) :], strict=True)
        expected = view_bytes(entry.views, entry.spec, entry.tensors, result)
        names = [*outputs[: len(expected)], *states]
        where = f"step {step} of all entrypoints in turn: {entry.entry.name} in the packed bundle"
        checks.require_equal(where, names, [*expected, *states.values()], [*packed.run(inputs, turn), *packed.states()])
    counts = ", ".join(f"{one.entry.name} {turns.count(number)} times" for number, one in enumerate(entries))
    return CheckResult("entrypoints in turn = eager", f"bit for bit over {len(turns)} steps: {counts}")
