"""Whether outputs are numbers: the vehicle discards a result with NaN or infinity where the contract says so.

An output that is never a number could never be published, and is refused; one that is not in some steps is told of, for
pixels at random are harder than a road.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from abi.graph import NanPolicy, OutputView
from lab.compile.checks import CheckResult
from lab.compile.refusal import CompileRefusal, CompileRefused


def check_finite(views: Sequence[OutputView], steps: Sequence[Sequence[bytes]]) -> CheckResult:
    """`steps`: for each step the bytes of each view. Raises CompileRefused."""
    seen = []
    for index, view in enumerate(views):
        bad = sum(not _is_finite(view, one[index]) for one in steps)
        if bad == len(steps) and view.nan is NanPolicy.REFUSE:
            raise CompileRefused(
                CompileRefusal.NOT_FINITE, f"output {view.name!r}", expected="numbers, as nan = \"refuse\" asks for",
                found=f"NaN or infinity in each of {bad} steps", todo="mend the model, or set nan = \"flag\"",
            )  # fmt: skip
        if bad:
            fate = "discarded" if view.nan is NanPolicy.REFUSE else "flagged"
            seen.append(f"{view.name} not in {bad} of {len(steps)} steps, whose results would be {fate}")
    return CheckResult("outputs are numbers", "; ".join(seen) or f"all, over {len(steps)} steps")


def _is_finite(view: OutputView, data: bytes) -> bool:
    name = view.dtype.name.lower()
    return not name.startswith("float") or bool(np.isfinite(np.frombuffer(data, name)).all())
