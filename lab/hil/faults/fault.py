"""One fault as it was seen in the field: what is injected, what the right answer is, and what a bench needs for it.

A row of the cases has either a Fault, which is injected into a serving daemon, or a CompileCheck, where the daemon can
never see it because the compiler refuses it first.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from client.errors import ConnectionLost, Refused
from lab.compile.refusal import CompileRefusal
from lab.hil.bench import Bench, Need
from lab.hil.verdict import Unavailable, WrongAnswer

__all__ = ["CompileCheck", "Fault", "Finding", "Outcome", "try_fault"]

Inject = Callable[[Bench], str]
"""Injects the fault; returns what was seen, in words. Raises WrongAnswer or Unavailable."""


@dataclass(frozen=True)
class Fault:
    """`row`: `frames/N` or `runtime/N`, as the cases number it; `answer`: the right one."""

    row: str
    title: str
    answer: str
    need: Need
    inject: Inject


@dataclass(frozen=True)
class CompileCheck:
    """A row that the compiler answers: the refusals that may come, and the tests by name that show them."""

    row: str
    title: str
    answer: str
    refusals: tuple[CompileRefusal, ...]
    tests: tuple[str, ...]


class Outcome(Enum):
    """How an injection came out."""

    RIGHT = "right"
    WRONG = "wrong"
    UNAVAILABLE = "unavailable"


@dataclass(frozen=True)
class Finding:
    """One injection. `words`: what was seen, or what was wrong, or what the bench would need."""

    fault: Fault
    outcome: Outcome
    words: str
    seconds: float


def try_fault(fault: Fault, bench: Bench) -> Finding:
    """Inject a fault and judge the answer. What the harness itself cannot do is raised."""
    began_s = time.monotonic()

    def found(outcome: Outcome, words: str) -> Finding:
        return Finding(fault, outcome, words, time.monotonic() - began_s)

    try:
        bench.require(fault.need)
        return found(Outcome.RIGHT, fault.inject(bench))
    except Unavailable as missing:
        return found(Outcome.UNAVAILABLE, str(missing))
    except WrongAnswer as wrong:
        return found(Outcome.WRONG, str(wrong))
    except (Refused, ConnectionLost, TimeoutError) as answer:  # where the right answer was none of these
        return found(Outcome.WRONG, f"{type(answer).__name__}: {answer}")
