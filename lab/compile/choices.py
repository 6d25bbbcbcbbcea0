"""Loop transformations that timing found better than the blocking rule, by kernel.

Within `Choices.in_force` each kernel of the lab's renderer that has an entry is compiled with the entry's
transformations, every other one by the rule. They become part of the kernel before tinygrad looks for a compiled
program, so that neither its cache nor its parallel workers can mix the two. What was compiled meanwhile is remembered,
so that a captured kernel can be told by its tinygrad form.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from tinygrad.codegen import to_program_cache, to_program_key
from tinygrad.codegen.opt import Opt, OptOps
from tinygrad.device import Device
from tinygrad.engine import realize
from tinygrad.uop.ops import Ops

from lab.compile.renderer import FencedRenderer
from lab.json_text import json_text

Transformations = tuple[tuple[str, int, int], ...]
"""tinygrad's names, axes and amounts, in order: `(("UPCAST", 2, 0), ("THREAD", 0, 2))`."""


def as_transformations(options: Any) -> Transformations:
    """Of tinygrad's `Opt`s."""
    return tuple((one.op.name, int(one.axis), int(one.arg)) for one in options)


def with_transformations(ast: Any, chosen: Transformations) -> Any:
    """The kernel with these transformations in place of a choice."""
    options = tuple(Opt(OptOps[name], axis, amount) for name, axis, amount in chosen)
    return ast.replace(arg=replace(ast.arg, opts_to_apply=options))


@dataclass
class Choices:
    """`better`: by a kernel's key in hex. `kernels`: by the key of a compiled program, the kernel before any choice."""

    better: dict[str, Transformations] = field(default_factory=dict)
    kernels: dict[bytes, Any] = field(default_factory=dict)

    def key(self, program: bytes) -> str:
        """The key in hex of the kernel that became this program; "" where it was not compiled in force."""
        return self.kernels[program].key.hex() if program in self.kernels else ""

    def digest(self, programs: Iterable[bytes]) -> str:
        """SHA-256 of the entries that these programs were compiled with, in hex."""
        used = sorted({(key, self.better[key]) for key in map(self.key, programs) if key in self.better})
        return hashlib.sha256(json_text(used).encode()).hexdigest()

    @contextmanager
    def in_force(self) -> Iterator[None]:
        """Within it kernels are compiled by these choices. Not for two threads at once."""
        own = realize.lower_and_compile

        def lower_and_compile(linear: Any) -> Any:
            chosen = {one: self._chosen(one) for one in linear.toposort() if _is_ours(one)}
            lowered = own(linear.substitute({one: new for one, new in chosen.items() if new is not one}))
            for call, new in chosen.items():
                program = to_program_cache[to_program_key(new.src[0], _renderer())]
                self.kernels[program.key] = call.src[0]
            return lowered

        realize.lower_and_compile = lower_and_compile
        try:
            yield
        finally:
            realize.lower_and_compile = own

    def _chosen(self, call: Any) -> Any:
        found = self.better.get(call.src[0].key.hex())
        if found is None:
            return call
        return call.replace(src=(with_transformations(call.src[0], found), *call.src[1:]))


def _renderer() -> Any:
    return Device["CPU"].renderer


def _is_ours(call: Any) -> bool:
    return (
        call.op is Ops.CALL
        and call.src[0].op is Ops.SINK
        and call.device == "CPU"
        and isinstance(_renderer(), FencedRenderer)
    )
