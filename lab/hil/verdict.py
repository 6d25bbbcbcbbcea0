"""What a check on the bench comes to: an answer that was right, one that was not, or none that could be had here.

A wrong answer is an AssertionError, so that pytest and JUnit count it as a failure and not as an error of the harness.
"""

from __future__ import annotations

from collections.abc import Iterable

__all__ = ["Unavailable", "WrongAnswer", "expect", "expect_in"]


class WrongAnswer(AssertionError):
    """The daemon did something else than the right thing: `what` was looked at, what was `expected`, what `found`."""

    def __init__(self, what: str, expected: str, found: str) -> None:
        super().__init__(f"{what}: expected {expected}, found {found}")
        self.what, self.expected, self.found = what, expected, found


class Unavailable(Exception):
    """The check cannot be made on this bench; the text says what it would need."""


def expect(what: str, found: object, expected: object) -> None:
    """Raises WrongAnswer unless both are equal."""
    if found != expected:
        raise WrongAnswer(what, repr(expected), repr(found))


def expect_in(what: str, found: str, parts: Iterable[str]) -> None:
    """Raises WrongAnswer unless every one of `parts` stands in `found`."""
    for part in parts:
        if part not in found:
            raise WrongAnswer(what, f"{part!r} in it", repr(found))
