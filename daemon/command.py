"""What becomes of an operator's command: an answer, an answer with memory beside it, or a refusal.

A command that takes time calls its `Done` later, on the loop's thread, exactly once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from abi import messages as m
from abi.packet import Kind, RefusalCode

Body = Mapping[str, object]  # every value is JSON


class CommandRefused(Exception):
    """A command was not carried out; nothing changed."""

    def __init__(self, code: RefusalCode, what: str, expected: str, found: str, action: str) -> None:
        super().__init__(f"{what}: expected {expected}, found {found}; {action}")
        self.refusal = m.Refusal(code, Kind.COMMAND, what, expected, found, action)


@dataclass(frozen=True, slots=True)
class Attached:
    """An answer that one descriptor goes with. Whoever is given it closes the descriptor."""

    body: Body
    descriptor: int


Outcome = Body | Attached | CommandRefused
Done = Callable[[Outcome], None]
