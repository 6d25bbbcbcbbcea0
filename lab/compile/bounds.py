"""Every read and write of a compiled kernel lies within its buffer, whatever values it works on: proved, or refused.

tinygrad 0.14 can lose the test that bounds a gather by computed indices when it fuses the gather with padding or a
concatenation; the kernel then reads in front of an index table or behind it, and no comparison of results need notice.
What is proved is the kernel's final form, of which its source is a print: for each access, that no values of loop
counters, cores and loaded elements that satisfy its gates put the index outside. Intervals decide most accesses, z3
the others; what neither can model counts as any value of its type. Integers are taken as unbounded: an index that
overflows its 32 bits would not be seen here, but buffers of that size are beyond admission's limits.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import z3
from tinygrad.dtype import AddrSpace, dtypes
from tinygrad.helpers import ansistrip
from tinygrad.uop.ops import Ops, UOp
from tinygrad.uop.validate import z3_renderer

from lab.compile.refusal import CompileRefusal, CompileRefused

_TIMEOUT_MS = 30_000
_SHOWN = 160
_OPAQUE = (Ops.AFTER, Ops.SHRINK)
_NO_FORM = (KeyError, RuntimeError, z3.Z3Exception, AttributeError, TypeError)
"""What z3's translation raises for operands or forms that it has none for."""
_WHOLE = (*dtypes.ints, dtypes.bool, dtypes.weakint)


@dataclass(frozen=True)
class Access:
    """A load or store: which argument or scratch of the kernel, how many elements it has, where, and under what.

    width: how many elements it takes from `index` on.
    """

    verb: str
    buffer: str
    elements: int
    index: Any
    width: int
    gates: tuple[Any, ...]

    @property
    def last(self) -> int:
        """The largest index that is inside."""
        return self.elements - self.width


def require_in_bounds(program: Any) -> None:
    """Proves every access of a compiled program. Raises CompileRefused OUT_OF_BOUNDS, naming the kernel.

    A program without its linear form (`program_cache.essential`) was proved before it lost it.
    """
    prover: _Prover | None = None
    proved: set[Access] = set()
    for access in accesses(program.src[1].src):
        if access in proved or (access.index.vmin >= 0 and access.index.vmax <= access.last):
            continue
        prover = prover or _Prover()
        outside = prover.outside(access)
        if outside is not None:
            raise CompileRefused(
                CompileRefusal.OUT_OF_BOUNDS, f"kernel {ansistrip(program.arg.name)}",
                expected=f"every {access.verb} of {access.buffer} within its {access.elements} elements",
                found=f"index {access.index.render(simplify=False)[:_SHOWN]}, {outside}",
                todo="write .contiguous() behind the gather by computed indices that is padded or concatenated next: "
                "tinygrad 0.14 can lose its bound when it fuses the two; of an ONNX model, export it without that pair",
            )  # fmt: skip
        proved.add(access)


def accesses(uops: Sequence[Any]) -> Iterator[Access]:
    """The loads and stores among a kernel's operations in order, under the gates that hold there."""
    conditions: list[Any] = []
    for one in uops:
        if one.op is Ops.IF:
            conditions.append(one.src[0])
        elif one.op is Ops.ENDIF:
            conditions.pop()
        elif one.op in (Ops.LOAD, Ops.STORE):
            place = one.src[0]
            while place.op is Ops.CAST:
                place = place.src[0]
            buffer, index = place.src[:2]
            width = int(place.src[2].vmax) if place.op is Ops.SHRINK else 1  # a vector
            verb = "read" if one.op is Ops.LOAD else "write"
            gates = (*conditions, *one.src[2:3])
            yield Access(verb, _name(buffer), int(buffer.max_numel()), index, width, gates)


def _name(buffer: Any) -> str:
    if buffer.op is Ops.PARAM and buffer.addrspace is AddrSpace.GLOBAL:
        return f"argument {buffer.arg.slot}"
    return "its own scratch"


class _Prover:
    """z3 with the operations of one kernel, each translated once."""

    def __init__(self) -> None:
        self._solver = z3.Solver(ctx=z3.Context())
        self._solver.set("timeout", _TIMEOUT_MS)
        self._known: dict[Any, Any] = {}

    def outside(self, access: Access) -> str | None:
        """Values that put the index outside, for a person; None where there are none."""
        index, *gates = self._expressions([access.index, *access.gates])
        self._solver.push()
        self._solver.add(*gates, z3.Or(index < 0, index > access.last))
        found, said = self._solver.check(), None
        if found == z3.unknown:
            said = f"which could not be decided: {self._solver.reason_unknown()}"
        elif found == z3.sat:
            model = self._solver.model()
            values = sorted(f"{name} = {model[name]}" for name in model.decls())
            said = "outside for " + ", ".join(values)[:_SHOWN]
        self._solver.pop()
        return said

    def _expressions(self, wanted: Sequence[Any]) -> list[Any]:
        """The operations as z3's; what is known of the variables in them is told to the solver."""
        known, solver = self._known, self._solver
        inside = UOp.sink(*wanted).toposort(
            gate=lambda one: one.op is Ops.SINK or (one not in known and one.dtype in _WHOLE)
        )
        for one in inside:
            if one in known or one.op is Ops.SINK or one.dtype not in _WHOLE:
                continue
            try:
                rewritten = None if one.op in _OPAQUE else z3_renderer.rewrite(one, ctx=(solver.ctx, known))
            except _NO_FORM:
                rewritten = None
            expression, constraint = rewritten or _anything(one, len(known), solver.ctx)
            if constraint is not None:
                solver.add(constraint)
            known[one] = expression
        return [known[one] for one in wanted]


def _anything(one: Any, number: int, context: Any) -> tuple[Any, Any]:
    """Some value of the operation's type and interval."""
    if one.dtype == dtypes.bool:
        return z3.Bool(f"any{number}", ctx=context), None
    value = z3.Int(f"any{number}", ctx=context)
    return value, z3.And(value >= one.vmin, value <= one.vmax)
